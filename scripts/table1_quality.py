"""The paper's Table 1: how good the models are, by validation loss, with its judge's scores beside.

    python scripts/table1_quality.py --data tinystories --steps 400
    python scripts/table1_quality.py --data FOLDER --hidden-sizes 128 --max-minutes 60   # a part
    python scripts/table1_quality.py --quick                                             # under two minutes
    python scripts/table1_quality.py --redraw                                            # only the table

The paper graded stories and gave no loss. Validation loss compares models without a judge; if
OPENAI_API_KEY (and OPENAI_BASE_URL) name a server, `judge_lm` grades our models, too. The record is
--out/quality.csv: what is there is not trained again. A run that was stopped is resumed.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from contenders import LM, lm_recipe
from records import (
    Contender,
    Data,
    Job,
    Mean,
    Row,
    ScriptError,
    by_definition,
    exit_code,
    keep_row,
    key_of,
    launch,
    paired,
    read_rows,
    run_all,
    say,
)
from results import QUICK, RESULTS, command_with, table, values_of, write_page
from results import folder as make_folder

from sqrtvocab.flags import one_line_errors

# The first three are contenders of `compare_heads.py lm`: what one of the two scripts has trained, with the
# same settings and --runs, the other takes as it is.
MODELS = {
    "grouped": replace(LM["grouped"], title="ours: GPT-2 with the paper's head"),
    "grouped-linear": replace(LM["grouped-linear"], title="ours: GPT-2 with the default head"),
    "flat-tied": replace(LM["flat-tied"], title="GPT-2"),
    "gpt-neo": Contender("GPT-Neo", "--backbone gpt-neo --head flat --tie-embeddings --no-prior", cost=5),
}
SCORES = ("grammar", "creativity", "consistency", "plot", "age")
PAPER = {
    ("flat-tied", 128): (3.8, 4.22, 3.7, 2.95, 4.55),
    ("flat-tied", 256): (4.65, 3.6, 6.05, 4.82, 4.75),
    ("flat-tied", 512): (5.82, 3.9, 7.15, 5.75, 4.9),
    ("gpt-neo", 128): (3.7, 3.72, 4.05, 2.97, 4.5),
    ("gpt-neo", 256): (4.77, 4.1, 5.85, 4.57, 4.65),
    ("gpt-neo", 512): (5.15, 4.17, 6.65, 5.22, 5.0),
    ("grouped", 128): (3.53, 3.62, 4.5, 3.25, 4.55),
    ("grouped", 256): (4.85, 4.3, 5.87, 4.47, 4.7),
    ("grouped", 512): (5.15, 4.025, 6.7, 5.475, 4.96),
}
ORDER = (
    "flat-tied",
    "gpt-neo",
    "grouped",
    "grouped-linear",
)  # of the table; training begins with the cheap ones


@dataclass(frozen=True)
class Config:
    """The paper's Table 1: validation loss of all its models and of ours, and the judge's scores."""

    data: str | None = None
    """As `train_lm --data`, but not auto."""
    models: tuple[str, ...] = tuple(MODELS)
    """Which of them."""
    hidden_sizes: tuple[int, ...] = (128, 256, 512)
    """Widths of the hidden state; the paper has these three."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; each model is trained with each of them."""
    steps: int = 400
    """Optimiser steps of each run; the learning rate falls to zero over them."""
    batch_size: int = 8
    """Sequences of 512 tokens in a step; the paper has 32."""
    lr: float = 1e-3
    """Peak learning rate."""
    eval_tokens: int = 131_072
    """Validation tokens, scored once at the end."""
    judge_model: str = "gpt-4o-mini"
    """The judge's name on its server."""
    threads: int = 2
    """Torch threads of a run."""
    max_minutes: float | None = None
    """Begin no further run after so many minutes; call again for the rest."""
    out: Path | None = None
    """Folder for quality.csv and quality.md; docs/results by default, runs/quick with --quick."""
    runs: Path = Path("runs/compare")
    """Folder for the runs, that of compare_heads.py by default: tensorboard --logdir RUNS."""
    quick: bool = False
    """Tiny models on built-in stories, to see everything work; the figures mean nothing."""
    redraw: bool = False
    """Train and judge nothing: make the table from the record."""

    def check(self) -> list[str]:
        """What is wrong with the flags."""
        unknown = [name for name in self.models if name not in MODELS]
        found = [f"--models {name}: expected some of {', '.join(MODELS)}" for name in unknown]
        if not self.models:
            found.append(f"--models: name at least one of {', '.join(MODELS)}")
        if not self.hidden_sizes:
            found.append("--hidden-sizes: name at least one")
        for name in ("steps", "batch_size", "eval_tokens", "threads"):
            if getattr(self, name) < 1:
                found.append(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if bad := [size for size in self.hidden_sizes if size < 8 or size % 8]:
            found.append(f"--hidden-sizes {bad[0]}: expected multiples of 8, the number of attention heads")
        if not self.seeds or min(self.seeds) < 0:
            found.append("--seeds must be at least one number, none negative")
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            found.append(f"--max-minutes must be a positive number, got {self.max_minutes}")
        if not 0 < self.lr < math.inf:
            found.append(f"--lr must be a positive number, got {self.lr}")
        if not (self.quick or self.redraw) and self.data in (None, "auto"):
            found.append("--data must name the text: tinystories, stories:N, a file or a folder")
        return found


def plan(config: Config, rows: Sequence[Row]) -> list[Job]:
    """The runs that the record lacks: seed by seed, small before large."""
    shape, steps, tokens = (
        "--num-layers 8 --num-attention-heads 8 --seq-len 512",
        config.steps,
        config.eval_tokens,
    )
    data, sizes, batch = Data.of(str(config.data)), config.hidden_sizes, config.batch_size
    if config.quick:
        shape, steps, tokens = "--num-layers 2 --num-attention-heads 2 --seq-len 64", 6, 2_048
        data, sizes, batch = Data.of("stories:200"), (16, 32), 4
    length = f"--max-steps {steps} --epochs 1000 --warmup-steps {min(100, steps // 4)} --eval-every {steps}"
    scoring = f"--eval-tokens {tokens} --sample-every 0"
    rest = f"{shape} --batch-size {batch} {length} {scoring} {lm_recipe(config.lr)}"
    known = {key_of(row) for row in rows}

    def job_of(name: str, size: int, seed: int) -> Job:
        settings = tuple(f"--hidden-size {size} {rest}".split())
        return Job("lm.train", name, MODELS[name], seed, settings, steps, config.runs, data)

    jobs = [
        job_of(name, size, seed)
        for seed in dict.fromkeys(config.seeds)
        for size in dict.fromkeys(sizes)
        for name in MODELS
        if name in config.models
    ]
    return [job for job in jobs if job.key not in known]


# ---- the judge ----


def has_judge() -> bool:
    """Whether the environment names a server that can grade."""
    return bool(os.environ.get("OPENAI_API_KEY", "").strip())


def grade(folder: Path, row: Row, record: Path, config: Config) -> bool:
    """Let the judge read a run's stories and add the scores to its row -> whether there are scores now."""
    command = ["-c", "from lm.cli import judge_main; raise SystemExit(judge_main())", str(folder)]
    # A file for each judge: `judge_lm` does not mix the answers of two.
    answers = folder / f"judge-{re.sub(r'[^A-Za-z0-9.]+', '-', config.judge_model)}.jsonl"
    if launch([*command, "--model", config.judge_model, "--out", str(answers)], config.threads):
        return False
    document = json.loads(answers.with_suffix(".json").read_text("utf-8"))
    if not document["valid"]:  # no grade could be read: the means are no numbers
        return False
    scores = {name: str(round(document["scores"][name]["mean"], 3)) for name in SCORES}
    keep_row(record, {**row, **scores, "judge": config.judge_model, "graded": str(document["valid"])})
    return True


def grade_all(record: Path, config: Config) -> None:
    """Grade the runs whose rows have no scores of this judge yet.

    Raises:
        ScriptError: the judge failed on some, or their runs are gone.
    """
    if not has_judge():
        return
    jobs = {job.key: job for job in plan(config, [])}
    missing = [
        row for row in read_rows(record)
        if key_of(row) in jobs and not (row.get("grammar") and row.get("judge") == config.judge_model)
    ]  # fmt: skip
    ungraded = [row for row in missing if not jobs[key_of(row)].is_finished()]
    for row in missing:
        job = jobs[key_of(row)]
        if row not in ungraded:
            say(f"judging {job.folder} with {config.judge_model}")
            if not grade(job.folder, row, record, config):
                ungraded.append(row)
    if ungraded:
        names = ", ".join(f"{row['contender']} (seed {row['seed']})" for row in ungraded)
        raise ScriptError(
            f"no scores for {names}: the judge failed, or the run is not in {config.runs}", code=1
        )


# ---- table ----


def size_of(row: Row) -> int:
    """The hidden size that a row's settings name."""
    words = row["settings"].split()
    return int(words[words.index("--hidden-size") + 1])


def shared_settings(row: Row) -> str:
    """A row's settings without the hidden size: what all rows of a table have in common."""
    words = row["settings"].split()
    place = words.index("--hidden-size")
    return " ".join(words[:place] + words[place + 2 :])


def flags_of(rows: Sequence[Row]) -> dict[str, Sequence[object]]:
    """The flags of this script that train what rows with the same settings hold."""
    values = values_of(shared_settings(rows[0]))
    if values.get("--num-layers") != ["8"]:
        return {"--quick": ()}
    return {
        "--data": values["--data"],
        "--hidden-sizes": sorted({size_of(row) for row in rows}),
        "--seeds": sorted({int(row["seed"]) for row in rows}),
        "--steps": values["--max-steps"],
        **{flag: values[flag] for flag in ("--batch-size", "--lr", "--eval-tokens") if flag in values},
    }


def judge_of(rows: Sequence[Row]) -> str | None:
    """Who graded most of these rows: the scores of two judges do not mix. None if nobody did."""
    judges = [row.get("judge", "") for row in rows if row.get("grammar")]
    return max(dict.fromkeys(judges), key=judges.count, default=None)


def document(rows: Sequence[Row], older: Sequence[Row] = ()) -> str:
    """The whole Markdown page: a table for each of the settings in the record; older rows are only named."""
    lines = [
        "# Table 1: quality",
        "",
        "Made by the command below each table from [its record](quality.csv); then the command of each "
        "model. The paper grades stories (grammar, creativity, consistency, plot, from 1 to 10, and the "
        "writer's age) after one epoch of TinyStories and gives no loss. Here the models have seen less "
        "text, as the heading says; compare them with each other. Validation loss in nats; ± is half of a "
        "95 % interval over seeds (Student t), n the number of seeds.",
    ]
    for setting, size in dict.fromkeys((shared_settings(row), row["data_bytes"]) for row in rows):
        mine = [row for row in rows if (shared_settings(row), row["data_bytes"]) == (setting, size)]
        first = mine[0]
        per_step = -(-int(first["items"]) // int(first["steps"]))
        places = ", ".join(dict.fromkeys(f"{row['machine']}, torch {row['torch']}" for row in mine))
        lines += [
            "",
            f"## {int(first['steps']):,} steps of {per_step:,} tokens"
            + "".join(f", learning rate {rate}" for rate in values_of(setting).get("--lr", [])),
            "",
            f"`{setting}`, {int(first['training_items']):,} tokens to train on. {places}."
            + (f" Our scores are those of {judge}." if (judge := judge_of(mine)) else ""),
            "",
            quality_table(mine),
            "",
            command_with("scripts/table1_quality.py", flags_of(mine)),
            "",
            "```bash",
            f'settings="{setting}"',
            *(
                f"train_lm $settings --hidden-size {size} {MODELS[name].flags}  # {name}"
                for name in ORDER
                for size in sorted({size_of(row) for row in mine if row["contender"] == name})
            ),
            "```",
        ]
    if older:
        names = ", ".join(sorted({f"`{row['contender']}` (`{row['flags']}`)" for row in older}))
        lines += ["", f"Left out, because the record has them by an older definition: {names}."]
    lines += [
        "",
        "- GPT-2 and GPT-Neo have the flat head tied to the embedding, as in `transformers`; GPT-Neo attends "
        "to 256 tokens in every other layer.",
        "- *the paper's head*: `grouped`, consecutive token ids, no prior. *the default head*: "
        "`grouped-linear`, groups by frequency, prior.",
    ]
    return "\n".join(lines)


def quality_table(rows: Sequence[Row]) -> str:
    """A line for each model and size, as in the paper, with what it says about them."""
    judge = judge_of(rows)
    losses: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        losses.setdefault((row["contender"], size_of(row)), {})[row["seed"]] = float(row["loss"])
    lines = []
    for name in ORDER:
        for size in sorted(size for model, size in losses if model == name):
            mine = [row for row in rows if (row["contender"], size_of(row)) == (name, size)]
            loss = Mean.of(list(losses[name, size].values()))
            gap = (
                None
                if name == "flat-tied"
                else paired(losses[name, size], losses.get(("flat-tied", size), {}))
            )
            bits = Mean.of([float(row["bits_per_byte"]) for row in mine])
            graded = [row for row in mine if row.get("grammar") and row.get("judge", "") == judge]
            ours = [Mean.of([float(row[score]) for row in graded]) for score in SCORES] if graded else []
            lines.append([
                MODELS[name].title, str(size), f"{int(mine[0]['parameters']):,}", str(loss.n), loss.show(3),
                "" if gap is None else gap.show(3, "+"), bits.show(3),
                ", ".join(f"{score:g}" for score in PAPER.get((name, size), ())) or "not in the paper",
                ", ".join(f"{score.value:.2f}" for score in ours) or "no judge",
            ])  # fmt: skip
    head = ["model", "hidden", "parameters", "n", "validation loss", "less GPT-2's", "bits per byte"]
    return table([*head, "the paper's scores", "ours"], lines)


def main(config: Config) -> None:
    """Train, grade, tabulate."""
    if problems := config.check():
        raise ScriptError("; ".join(problems))
    out = config.out or (QUICK if config.quick else RESULTS)
    if not config.redraw:
        make_folder(out)  # now, not after hours of training
    record, page = out / "quality.csv", out / "quality.md"

    def report(_: Job | None = None) -> None:
        now, older = by_definition(read_rows(record), MODELS)
        if now:
            write_page(page, document(now, older))

    rows = read_rows(record)
    if config.redraw:
        if not rows:
            raise ScriptError(f"--redraw: no row in {record}; --out names the folder of another record")
        if not by_definition(rows, MODELS)[0]:
            raise ScriptError(f"--redraw: all rows in {record} are of older models; train anew")
    else:
        jobs = plan(config, rows)
        say(f"{len(jobs)} runs to do; watch them with: tensorboard --logdir {config.runs}")
        if not has_judge():
            say("no judge: OPENAI_API_KEY (and OPENAI_BASE_URL, for a server of your own) would name one")
        run_all(jobs, record, config.threads, config.max_minutes, report)
        try:
            grade_all(record, config)
        finally:
            report()
    report()
    print(f"{page}, {record}")


if __name__ == "__main__":
    with one_line_errors("table1_quality"):
        arguments = tyro.cli(Config, description=__doc__)
    raise SystemExit(exit_code("table1_quality", lambda: main(arguments)))
