"""Growth: time and memory of every head from 4,096 to 16.7 million classes.

    python scripts/figure_scaling.py --quick                     # small vocabularies, some seconds
    python scripts/figure_scaling.py                             # about half an hour on one core
    python scripts/figure_scaling.py --widths 64 --heads grouped # a part of it; the rest stays in the record

Each measurement is a race of a head's training step, with and without Adam, and its `topk(10)` with the two
matrix products that a head with groups cannot do without and with Adam's pass over the head's parameters.
What the record has is not measured again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from scripts.common.command import make_folder, read_flags, run_script, say
from scripts.common.head_steps import (
    Contender,
    Work,
    adam_step,
    bench_head,
    decode_step,
    gemm_step,
    head_step,
)
from scripts.common.pages import write_figure, write_page
from scripts.common.records import Record, Row
from scripts.common.registered import plain_heads
from scripts.reports.scaling import draw, pages
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least
from sqrtvocab.heads.registry import HEADS

# torch is imported where it is used: --help must not wait for it.

KEY = ("head", "tokens", "width", "classes")
TIMES = ("step_ms", "whole_ms", "topk_ms", "products_ms", "adam_ms")
VALUES = (*TIMES, "step_mb", "parameters", "machine")
PROCESSES = 11  # copies of the parameters in all processes of a race, with gradients and moments
DENSE_LIMIT = (
    2**28
)  # N·V that a head whose topk is the dense one is still asked for: beyond, it takes minutes


@dataclass(frozen=True)
class Config:
    """Time and memory of every head from 4,096 to 16.7 million classes."""

    quick: bool = False
    """Two small vocabularies and few rows, to see that everything works."""
    heads: tuple[str, ...] = ()
    """Measure only these heads; all by default."""
    widths: tuple[int, ...] = (64, 128)
    """Hidden widths d."""
    powers: tuple[int, ...] = (12, 14, 16, 18, 20, 22, 24)
    """Vocabularies, as powers of two."""
    tokens: int = 1024
    """Rows N of a step."""
    gigabytes: float = 6.0
    """Memory for a race; a head that needs more is left out there."""
    repeats: int = 3
    """Turns of each contender."""
    out: Path | None = None
    """Folder of scaling.csv, scaling.md and scaling.png: docs/results by default, runs/quick with --quick."""

    def __post_init__(self) -> None:
        problems = at_least(self, 1, "tokens", "repeats")
        if min(*self.widths, *self.powers, 99) < 4 or max(self.powers, default=0) > 24:
            problems.append("--widths must be at least 4, --powers from 4 to 24")
        if unknown := [name for name in self.heads if name not in plain_heads()]:
            problems.append(f"--heads {unknown[0]}: must be of {', '.join(plain_heads())}")
        if problems:
            raise UserError("; ".join(problems))


def bytes_of_race(name: str, work: Work) -> float:
    """About how much memory the processes of a race take together."""
    head = bench_head(name, {}, work._replace(device="meta"))
    cost = head.cost()
    floats: float = PROCESSES * sum(parameter.numel() for parameter in head.parameters())
    floats += 6 * work.tokens * cost.logits  # logits, their softmax and its gradient, with and without Adam
    if cost.fixed:  # class vectors that are made in every step
        floats += 6 * work.classes * work.width
    return 4 * floats


def measure(name: str, work: Work, repeats: int) -> Row:
    """A row of the record."""
    from sqrtvocab.measure.machine import describe_machine
    from sqrtvocab.measure.race import race

    contenders: dict[str, Contender] = {
        "step": (head_step, (name, {}, work)),
        "whole": (adam_step, (name, True, work)),
        "products": (gemm_step, (True, work)),
        "adam": (adam_step, (name, False, work)),
    }
    if HEADS[name].sparse_topk or work.tokens * work.classes <= DENSE_LIMIT:
        contenders["topk"] = (decode_step, ("topk(10)", name, {}, 30.0, work))
    results = race(
        contenders,
        repeats=repeats,
        threads=1,
        device="cpu",
        title=f"{name}, {work}",
        preload=("torch", "sqrtvocab.heads", "scripts.common.head_steps"),
    )
    head = bench_head(name, {}, work._replace(device="meta"))
    row = dict(zip(KEY, (name, *map(str, work[:3])), strict=True))
    for column in TIMES:
        result = results.get(column.removesuffix("_ms"))
        row[column] = "" if result is None else f"{1e3 * result.seconds:.3f}"
    row["step_mb"] = f"{results['step'].peak / 1e6:.3f}" if "step" in results else ""
    row["parameters"] = str(sum(parameter.numel() for parameter in head.parameters()))
    return row | {"machine": describe_machine("cpu", 1)}


def main(config: Config) -> None:
    """Measure what the record lacks, tabulate, draw."""
    out = make_folder(config.out, config.quick)
    record = Record(out / "scaling.csv", KEY, VALUES)
    powers, tokens = ((8, 10), 32) if config.quick else (config.powers, config.tokens)
    known = record.known()
    for width, name, power in product(config.widths, config.heads or plain_heads(), powers):
        work = Work(tokens, width, 2**power)
        if (name, *map(str, work[:3])) in known:
            continue
        if bytes_of_race(name, work) > 1e9 * config.gigabytes:
            say(f"{name}, {work}: needs more than {config.gigabytes:g} GB")
            continue
        record.keep(measure(name, work, config.repeats))
    rows = record.rows()
    write_figure(out / "scaling.png", draw(rows))
    write_page(out / "scaling.md", *pages(rows))
    print(out / "scaling.md")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
