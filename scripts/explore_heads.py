"""What else could make a grouped head better: ideas, each trained alike, with what it was worth.

    python scripts/explore_heads.py --data FOLDER                      # every idea, about two minutes each
    python scripts/explore_heads.py --data FOLDER --ideas groups-112 low-rank-4
    python scripts/explore_heads.py --quick                            # built-in stories, a tiny model

A small GPT-2 (the size of the paper's ablation) with each idea's head, the same text in the same order,
equally many steps. Writes ideas.csv, the record, and ideas.md. Ideas that pay off move into
`sqrtvocab.heads`; the others stay here, so that their figures can be had again; docs/LOG.md says what follows
from them. Losses are true negative log-likelihoods, comparable between all of them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from records import Data, Mean, paired
from results import QUICK, RESULTS, command_with, folder, read_csv, table, write_csv, write_page

from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, flag, one_line_errors, positive

# torch is imported where it is used: --help must not wait for it.


@dataclass(frozen=True)
class Config:
    """Train a small GPT-2 with each idea's head, equally long, and note the validation loss."""

    data: str = "auto"
    """As `train_lm --data`."""
    ideas: tuple[str, ...] = ()
    """Which of them; all by default."""
    steps: int = 400
    """Optimiser steps of each."""
    batch_size: int = 8
    """Sequences of a step."""
    seq_len: int = 512
    """Tokens of a sequence."""
    hidden_size: int = 64
    """Width of the hidden state."""
    num_layers: int = 4
    """Transformer blocks."""
    num_attention_heads: int = 2
    """Attention heads of a block."""
    eval_tokens: int = 131_072
    """Validation tokens."""
    lr: float = 1e-3
    """Peak learning rate. A head that learns faster at one rate may only want another."""
    seed: int = 0
    """Decides the order of the text and the initial weights."""
    threads: int = 1
    """Torch threads."""
    quick: bool = False
    """Built-in stories and a tiny model: to see that everything works."""
    out: Path = RESULTS / "ideas.csv"
    """The record: one line for each idea and seed; those that are there are not trained again. The page is
    written beside it. With --quick it is runs/quick/ideas.csv."""

    def __post_init__(self) -> None:
        sizes = ("steps", "batch_size", "seq_len", "hidden_size", "num_layers", "num_attention_heads")
        problems = at_least(self, 1, *sizes, "eval_tokens", "threads") + at_least(self, 0, "seed")
        problems += positive(self, "lr")
        if not problems and self.hidden_size % self.num_attention_heads:
            problems.append(
                f"--hidden-size {self.hidden_size} must be a multiple of --num-attention-heads "
                f"{self.num_attention_heads}"
            )
        if problems:
            raise UserError("; ".join(problems))


# What makes two rows the same measurement, beside idea and text.
SETTINGS = (
    "steps", "batch_size", "seq_len", "hidden_size", "num_layers", "num_attention_heads", "eval_tokens",
    "lr", "seed",
)  # fmt: skip


def main(config: Config) -> None:
    import torch
    from idea_heads import IDEAS, Setting, train_and_score

    from lm.build import parameter_table
    from lm.text.corpus import open_corpus
    from lm.text.sources import open_source
    from lm.text.tokenizer import make_tokenizer
    from sqrtvocab.cache import default_cache
    from sqrtvocab.measure.machine import describe_machine
    from sqrtvocab.training import UserError

    if unknown := [name for name in config.ideas if name not in IDEAS]:
        raise UserError(f"--ideas {unknown[0]}: expected some of {', '.join(IDEAS)}")

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    torch.set_num_threads(config.threads)
    source = open_source(config.data, 0.01, "text", say)
    tokenizer = make_tokenizer("gpt2")
    corpus = open_corpus(source, tokenizer, default_cache(), say)
    counts = torch.from_numpy(corpus.train.counts)
    folder(config.out.parent)  # now, not after the first training
    rows = read_csv(config.out, ("idea", "data", "training_tokens", *SETTINGS))
    given = Data.of(config.data)
    name_of_text = given.name if given.size else Path(source.name).name
    text = {"data": name_of_text, "training_tokens": str(len(corpus.train.ids))}
    for row in rows:  # older rows have a folder without its "/"
        if (f"{row['data']}/", row["training_tokens"]) == (text["data"], text["training_tokens"]):
            row["data"] = text["data"]
    for name in config.ideas or IDEAS:
        what, make = IDEAS[name]
        key = {"idea": name, **text, **{field: str(getattr(config, field)) for field in SETTINGS}}
        if any(all(row[column] == value for column, value in key.items()) for row in rows):
            say(f"{name}: is in {config.out}")
            continue
        before: list[float] = []  # seconds of a first training, if the idea needs one

        def first(model: object, before: list[float] = before) -> float:
            before.append(train_and_score(model, corpus, config, "first")[1])
            return before[-1]

        model = make(Setting(config, tokenizer.vocab_size, counts, corpus, first))
        longer = replace(config, steps=2 * config.steps) if name == "trained-twice" else config
        loss, seconds = train_and_score(model, corpus, longer, name)
        parameters = parameter_table(model)["head"]  # a tied head adds few
        total = f"{seconds + sum(before):.0f}"
        figures = {"loss": f"{loss:.4f}", "seconds": total, "head_parameters": str(parameters)}
        machine = {"machine": describe_machine(threads=config.threads)}
        rows.append({**key, "what": what, **figures, **machine})
        write_csv(config.out, rows)
        print(f"{name:<18}{loss:8.4f}{total:>8} s  {what}", flush=True)
    write_page(config.out.with_suffix(".md"), document(rows))


def document(rows: Sequence[dict[str, str]]) -> str:
    """The whole Markdown page: a table for each of the settings, the seeds of an idea taken together."""
    lines = [
        "# Ideas for a better head",
        "",
        "Made by the commands below each table from [their record](ideas.csv). Validation loss in nats a "
        "token; ± is half of a 95 % interval over seeds (Student t), n the number of seeds. The difference "
        "from the recipe to beat, `grouped-linear`, is paired by seed. Seconds include a first training, "
        "where an idea needs one.",
    ]
    shared = ("data", "training_tokens", *(name for name in SETTINGS if name != "seed"), "machine")
    for setting in dict.fromkeys(tuple(row[name] for name in shared) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in shared) == setting]
        losses: dict[str, dict[str, float]] = {}
        for row in mine:
            losses.setdefault(row["idea"], {})[row["seed"]] = float(row["loss"])
        values = dict(zip(shared, setting, strict=True))
        tokens = int(values["batch_size"]) * int(values["seq_len"])
        cells = []
        for name in losses:
            own = [row for row in mine if row["idea"] == name]
            gap = paired(losses[name], losses.get("grouped-linear", {})) if name != "grouped-linear" else None
            seconds = sum(float(row["seconds"]) for row in own) / len(own)
            loss = Mean.of(list(losses[name].values()))
            cells.append([
                f"`{name}`", own[0]["what"], str(loss.n), loss.show(3), gap.show(3, "+") if gap else "",
                f"{seconds:,.0f}", f"{int(own[0]['head_parameters']):,}",
            ])  # fmt: skip
        lines += [
            "",
            f"## {int(values['steps']):,} steps of {tokens:,} tokens, learning rate {values['lr']}",
            "",
            f"{values['data']}, {int(values['training_tokens']):,} tokens to train on; hidden "
            f"{values['hidden_size']}, {values['num_layers']} layers, {values['num_attention_heads']} "
            f"attention heads. {values['machine']}.",
            "",
            table(
                ["", "idea", "n", "validation loss", "less the recipe", "s", "head's parameters"], cells, 2
            ),
        ]
        for seed in dict.fromkeys(row["seed"] for row in mine):
            flags = {flag(name): [values.get(name, seed)] for name in ("data", *SETTINGS)}
            lines += ["", command_with("scripts/explore_heads.py", flags)]
    return "\n".join(lines)


if __name__ == "__main__":
    with one_line_errors("explore_heads"):
        arguments = tyro.cli(Config, description=__doc__)
    if arguments.quick:
        tiny = {
            "steps": 4,
            "seq_len": 64,
            "batch_size": 2,
            "hidden_size": 16,
            "num_layers": 1,
            "eval_tokens": 512,
        }
        usual = {field.name: field.default for field in dataclasses.fields(Config)}
        out = QUICK / "ideas.csv" if arguments.out == usual["out"] else arguments.out
        arguments = replace(arguments, data="stories:200", out=out, **tiny)
    from sqrtvocab.training import exit_code

    sys.exit(exit_code("explore_heads", lambda: main(arguments)))
