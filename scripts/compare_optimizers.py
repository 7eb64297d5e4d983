"""Heads under plain SGD and under Adam: a word-level LSTM, one epoch, at the rates that suit a flat head.

    python scripts/compare_optimizers.py --data FOLDER                            # SGD 20, three seeds
    python scripts/compare_optimizers.py --data FOLDER --contenders flat --lr 10 40 --seeds 0
    python scripts/compare_optimizers.py --data FOLDER --optimizer adam --lr 0.003

An LSTM of 2 x 200, 20 columns of text, 35 words back, the gradient clipped to 0.25, V = 10,000 words: as
PyTorch's word_language_model. A run takes minutes on a core; its row is the record (optimizers.csv) and is
not computed again, so the work can be done in parts. Writes the page optimizers.md, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scripts.common.command import make_folder, read_flags, run_script, say
from scripts.common.jobs import Data
from scripts.common.pages import write_page
from scripts.common.records import Record, Row
from scripts.reports.optimizers import pages
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least

# torch is imported where it is used: --help must not wait for it.

KEY = ("contender", "optimizer", "lr", "seed", "text", "data_bytes")
VALUES = ("loss", "training_loss", "slower", "curvature", "cpu_seconds", "machine")


@dataclass(frozen=True)
class Contender:
    """A head and its groups."""

    title: str
    head: str
    grouping: str | None = None  # of `words.GROUPINGS`
    slower: float | None = None
    """The rate of its group layer, in parts of the rate; None is what the head asks for."""


CONTENDERS = {
    "flat": Contender("`flat`", "flat"),
    "grouped-linear": Contender("`grouped-linear`, by frequency", "grouped-linear", "frequency"),
    "one-rate": Contender("the same, one rate for all its layers", "grouped-linear", "frequency", 1.0),
    "tenth": Contender("the same, a tenth for its group layer", "grouped-linear", "frequency", 0.1),
    "third": Contender("the same, 0.34: inverse to the curvature", "grouped-linear", "frequency", 0.34),
    "random": Contender("groups at random, one rate", "grouped-linear", "random", 1.0),
    "dealt": Contender("frequent words dealt round-robin, one rate", "grouped-linear", "dealt", 1.0),
    "equal-mass": Contender("groups of equal mass, one rate", "grouped-linear", "equal mass", 1.0),
    "grouped": Contender("`grouped` (the paper's), by frequency", "grouped", "frequency"),
    "low-rank": Contender("`grouped-low-rank`, by frequency", "grouped-low-rank", "frequency"),
}


@dataclass(frozen=True)
class Config:
    """Validation loss after one epoch, by head and optimiser."""

    data: str
    """As `train_lm --data`, but not auto: a folder, a file, stories."""
    words: int = 500_000
    """Words of the training text to take, from its beginning."""
    valid_words: int = 50_000
    """The same of the validation text."""
    vocab: int = 10_000
    """V."""
    contenders: tuple[str, ...] = ("flat", "grouped-linear")
    """Any of flat, grouped-linear, one-rate, tenth, third, random, dealt, equal-mass, grouped, low-rank."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Plain SGD, or Adam, whose rate is the same for all parameters."""
    lr: tuple[float, ...] = (20.0,)
    """Learning rates."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each decides the initial weights."""
    out: Path | None = None
    """Folder for optimizers.csv and optimizers.md; docs/results by default."""

    def __post_init__(self) -> None:
        problems = at_least(self, 2, "words", "valid_words", "vocab")
        problems += [f"--lr must be positive, got {rate:g}" for rate in self.lr if not rate > 0]
        problems += [
            f"--contenders: no {name!r}; choose of {', '.join(CONTENDERS)}"
            for name in self.contenders
            if name not in CONTENDERS
        ]
        if self.data == "auto":
            problems.append("--data: name the text to train on (not auto)")
        if problems:
            raise UserError("; ".join(problems))


def measure(config: Config, record: Record) -> None:
    """Train what the record does not have yet."""
    import torch

    from lm.text.sources import open_source
    from scripts.common.words import GROUPINGS, Recipe, read_words, train_words
    from sqrtvocab import make_head
    from sqrtvocab.measure.machine import describe_machine

    data = Data.of(config.data)
    text = f"{data.name}, {config.words:,} words, V = {config.vocab:,}, {config.valid_words:,} to validate"
    wanted = [
        (name, config.optimizer, f"{rate:g}", str(seed), text, str(data.size))
        for seed in config.seeds
        for rate in config.lr
        for name in config.contenders
    ]
    known = record.known()
    if all(key in known for key in wanted):
        return
    words = read_words(
        open_source(config.data, 0.01, "text", say), config.vocab, config.words, config.valid_words
    )
    shares = words.counts / words.counts.sum()
    for key in wanted:
        if key in known:
            continue
        name, optimizer, rate, seed, *_ = key
        contender, lr = CONTENDERS[name], float(rate)
        torch.manual_seed(int(seed))
        options: dict[str, Any] = {}
        if contender.grouping is not None:
            options["partition"] = GROUPINGS[contender.grouping](words.counts)
        recipe = Recipe(optimizer, lr, contender.slower)
        head = make_head(contender.head, recipe.width, config.vocab, options)
        head.init_prior(words.counts)
        asked = min(group["lr"] for group in head.parameter_groups(lr, words.counts)) / lr
        slowest = asked if contender.slower is None else contender.slower
        entries = shares  # of the softmax that is met first
        if head.partition is not None:
            group = head.partition.split(torch.arange(config.vocab))[0]
            entries = torch.zeros(head.partition.num_groups).index_add(0, group, shares)
        result = train_words(words, head, recipe, int(seed))
        row: Row = dict(zip(KEY, key, strict=True)) | {
            "loss": f"{result.loss:.4f}",
            "training_loss": f"{result.training_loss:.4f}",
            "slower": f"{slowest if optimizer == 'sgd' else 1.0:.4f}",
            "curvature": f"{float((entries * (1 - entries)).max()):.4f}",
            "cpu_seconds": f"{result.cpu_seconds:.1f}",
            "machine": describe_machine(),
        }
        record.keep(row)
        say(f"{name}, {optimizer} {rate}, seed {seed}: {result.loss:.4f} ({result.cpu_seconds:.0f} CPU s)")


def main(config: Config) -> None:
    out = make_folder(config.out)
    record = Record(out / "optimizers.csv", KEY, VALUES)
    measure(config, record)
    titles = {name: contender.title for name, contender in CONTENDERS.items()}
    write_page(out / "optimizers.md", *pages(record.rows(), titles))


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
