"""Time and memory of every head, against bare matrix products and the peers found on this machine.

    python scripts/bench_heads.py --quick                 # about a minute
    python scripts/bench_heads.py                         # the paper's shapes, about half an hour on one core
    python scripts/bench_heads.py --tables train --shape 4096 128 50257  # tokens, hidden width, classes
    python scripts/bench_heads.py --tables train --contenders flat grouped --shape 2048 1024 262144
    python scripts/bench_heads.py --tables uneven         # 1,000 groups of uneven sizes against equal ones
    python scripts/bench_heads.py --tables soft --shape 4096 128 50257   # 8 weighted targets against one
    python scripts/bench_heads.py --json heads.json

Each contender lives in a process of its own. Its first run warms it up and counts the memory; then they take
turns, so that a busy machine slows all of them alike. What counts are the ratios within one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from scripts.common.command import json_problems, read_flags, require_device, run_script
from scripts.common.head_steps import (
    Contender,
    Step,
    Work,
    bench_head,
    chunked_step,
    contenders,
    decode_step,
    head_step,
    soft_step,
    uneven_step,
)
from scripts.common.registered import heads_with_variants
from sqrtvocab.atomic import write_json
from sqrtvocab.errors import RunError, UserError
from sqrtvocab.flags import at_least
from sqrtvocab.heads.registry import HEADS

# torch is imported where it is used: --help must not wait for it.

SHAPES = [
    (4096, 128, 50257),
    (16384, 128, 50257),
    (16384, 512, 50257),
    (256, 512, 184320),
    (2048, 1024, 262144),
]
QUICK_SHAPES = [(1024, 128, 50257)]
DECODE_SHAPE = (256, 512, 184320)
QUICK_DECODE_SHAPE = (32, 512, 184320)
UNEVEN_SHAPE = (4096, 128, 100_000)
QUICK_UNEVEN_SHAPE = (1024, 128, 100_000)
BASELINE, DECODE_BASELINE, BASELINE_SOFT, BASELINE_UNEVEN = "flat", "dense", "one target", "equal groups"
LARGEST = 256  # classes of a group, where large ones are cut
SOFT = 8  # classes of a soft target, which may cost (8 + 1) / 2 times as much as one


@dataclass(frozen=True)
class Config:
    """Time and memory of every head, against bare matrix products and the peers found on this machine."""

    quick: bool = False
    """One small shape and a small decode, about a minute."""
    shape: tuple[int, int, int] | None = None
    """This shape instead of the paper's: tokens N, hidden width d, classes V."""
    tables: Literal["all", "train", "decode", "soft", "uneven"] = "all"
    """Forward and backward, decoding, or both; soft: forward and backward with 8 weighted classes as the
    target of each row, against one; uneven: the same with groups of uneven sizes, against equal ones."""
    contenders: tuple[str, ...] = ()
    """Rows of --tables train to race, where memory does not hold all: each keeps its weights and what it
    freed. All of them by default."""
    targets: Literal["zipf", "uniform"] = "zipf"
    """How the targets are distributed: as words are (rank 1 is class 0), or all classes alike."""
    repeats: int = 5
    """Turns of each contender; those slower than five seconds take two."""
    threads: int = 1
    """Torch threads of each contender."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to run."""
    json: Path | None = None
    """Write the figures to this file."""

    def __post_init__(self) -> None:
        problems = at_least(self, 1, "repeats", "threads")
        if self.shape is not None and min(self.shape) < 1:
            problems.append(f"--shape must be positive, got {self.shape}")
        if self.contenders and self.tables != "train":
            problems.append("--contenders: only for --tables train")
        known = contenders(Work(1, 1, 4)) if self.contenders else {}  # imports torch
        problems += [
            f"--contenders {name!r}: expected some of {', '.join(known)}"
            for name in self.contenders
            if name not in known
        ]
        if problems := [*problems, *json_problems(self.json)]:
            raise UserError("; ".join(problems))


class Table(NamedTuple):
    """What is raced against each other."""

    title: str
    contenders: dict[str, Contender]
    baseline: str
    work: Work


def tables(config: Config) -> Iterator[Table]:
    """Every table that is asked for."""
    shapes = [config.shape] if config.shape else QUICK_SHAPES if config.quick else SHAPES
    if config.tables == "uneven":
        shape = config.shape or (QUICK_UNEVEN_SHAPE if config.quick else UNEVEN_SHAPE)
        yield from uneven_tables(Work(*shape, config.targets, config.device))
    for shape in shapes if config.tables == "soft" else ():
        work = Work(*shape, config.targets, config.device)
        for title, (name, options) in heads_with_variants().items():
            steps: dict[str, Contender] = {
                BASELINE_SOFT: (head_step, (name, options, work)),
                f"{SOFT} targets": (soft_step, (name, options, SOFT, work)),
            }
            yield Table(f"soft {title}, {work}", steps, BASELINE_SOFT, work)
    for shape in shapes if config.tables in ("all", "train") else ():
        work = Work(*shape, config.targets, config.device)
        racing = contenders(work)
        chosen = {name: racing[name] for name in config.contenders} or racing
        yield Table(f"train {work}", chosen, BASELINE, work)
    if config.tables not in ("all", "decode"):
        return
    shape = config.shape or (QUICK_DECODE_SHAPE if config.quick else DECODE_SHAPE)
    work = Work(*shape, config.targets, config.device)
    # Scores of standard deviation 17 and 0.6: a head that knows, and one that knows nothing yet.
    kinds = {"peaked": 30.0} if config.quick else {"peaked": 30.0, "nearly uniform": 1.0}
    for title, (name, options) in heads_with_variants().items():
        if not HEADS[name].sparse_topk:  # its decoding is the dense one
            continue
        for kind, sharpness in kinds.items():
            steps = {
                what: (decode_step, (what, name, options, sharpness, work))
                for what in (DECODE_BASELINE, "predict", "topk(10)", "sample")
            }
            yield Table(f"decode {title}, {kind}, {work}", steps, DECODE_BASELINE, work)


def uneven_tables(work: Work) -> Iterator[Table]:
    """Groups whose sizes fall off as 1/rank, 100 classes on average, against as many equal ones.

    A row costs what the group of its target costs, so it matters how the rows are spread: evenly over the
    groups, or evenly over the classes, most of which are in the largest groups; and whether these are cut.
    """
    for title, (name, options) in heads_with_variants().items():
        if HEADS[name].has_groups:
            steps: dict[str, Contender] = {BASELINE_UNEVEN: (uneven_step, (name, options, None, None, work))}
            for spread, largest in (("groups", None), ("classes", None), ("classes", LARGEST)):
                row = f"{'uneven' if largest is None else f'cut at {largest}'}, rows over {spread}"
                steps[row] = (uneven_step, (name, options, spread, largest, work))
            yield Table(f"uneven {title}, {work}", steps, BASELINE_UNEVEN, work)


@dataclass(frozen=True)
class Row:
    """One contender's figures."""

    name: str
    milliseconds: float
    megabytes: float
    parameters: int | None
    turns: int


def head_parameters(maker: Callable[..., Step], arguments: tuple[Any, ...]) -> int | None:
    """How many parameters a head has; bounds and peers have none to speak of."""
    if maker not in (head_step, chunked_step):
        return None
    name, *rest = arguments
    options, work = rest if maker is head_step else ({}, *rest)
    head = bench_head(name, options, work._replace(device="meta"))
    return sum(parameter.numel() for parameter in head.parameters())


def show(title: str, rows: list[Row], baseline: str) -> None:
    """Print a table."""
    reference = next((row for row in rows if row.name == baseline), None)
    print(f"\n{title}")
    print(f"{'':28}{'ms':>10}{'x faster':>10}{'peak MB':>10}{'x less':>10}{'parameters':>13}")
    for row in rows:
        faster = less = ""
        if reference is not None:
            faster = f"{reference.milliseconds / row.milliseconds:.1f}"
            less = f"{reference.megabytes / max(row.megabytes, 1e-9):.1f}"
        parameters = "" if row.parameters is None else f"{row.parameters:,}"
        print(
            f"{row.name:28}{row.milliseconds:10.1f}{faster:>10}{row.megabytes:10.1f}{less:>10}{parameters:>13}"
        )


def main(config: Config) -> None:
    """Race, tabulate."""
    from sqrtvocab.measure.machine import describe_machine
    from sqrtvocab.measure.race import race

    require_device(config.device)
    machine = describe_machine(config.device, config.threads)
    print(f"{machine}; {config.targets} targets; medians of forward and backward")
    figures = []
    for title, entries, baseline, work in tables(config):
        results = race(
            entries,
            repeats=config.repeats,
            threads=config.threads,
            device=config.device,
            title=title,
            preload=("torch", "sqrtvocab.heads", "scripts.common.head_steps"),
        )
        rows = [
            Row(name, 1e3 * r.seconds, r.peak / 1e6, head_parameters(*entries[name]), r.turns)
            for name, r in results.items()
        ]
        if not rows:
            raise RunError(f"{title}: every contender failed")
        show(title, rows, baseline)
        shown = [asdict(row) for row in rows]
        figures.append({"title": title, "shape": work[:3], "baseline": baseline, "rows": shown})
    if config.json is not None:
        settings = {"targets": config.targets, "repeats": config.repeats}
        write_json(config.json, {"machine": machine, **settings, "tables": figures})
        print(f"\nwritten to {config.json}")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
