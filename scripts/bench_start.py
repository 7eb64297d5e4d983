"""Where the start of a training spends its time, in CPU seconds, and what evaluations and checkpoints cost.

    python scripts/bench_start.py                          # about seven minutes and 1 GB of scratch space
    python scripts/bench_start.py --quick --tokens 4000000     # a minute and a half

Each row of the table is a run of three short steps with an evaluation after each, in a process of its own.
The first evaluation imports what it draws with, and the last one writes what the projector shows: the second
is what a longer run pays again and again. CPU seconds are counted, which do not depend on what else the
machine does. Last comes `train_lm` on a text of TinyStories' size (a few built-in stories, repeated in the
cache), begun and resumed, with the share of reading and checking seals, checksums and checkpoints.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lm.text.corpus import BLOCK
from scripts.common.command import read_flags, run_script
from sqrtvocab.atomic import sealed, write_json
from sqrtvocab.errors import RunError, UserError
from sqrtvocab.flags import at_least

# The process that is measured: clocks around its parts, by the functions that they are made of.
MEASURED = """
import functools, json, sys, time
from importlib import import_module

package, out = sys.argv.pop(1), sys.argv.pop(1)
train, cli, report = (import_module(f"{package}.{name}") for name in ("train", "cli", "report"))
import sqrtvocab.settings, sqrtvocab.training.checkpoint, sqrtvocab.training.run, sqrtvocab.training.window
spent = {"imports": [(0, time.process_time())]}  # when each call began, and how long it took
running = set()

def clock(part, home, name):
    function = getattr(home, name)
    @functools.wraps(function)
    def timed(*arguments, **options):
        if part in running:  # called by another function of the same part
            return function(*arguments, **options)
        began = time.process_time()
        running.add(part)
        try:
            return function(*arguments, **options)
        finally:
            running.remove(part)
            spent.setdefault(part, []).append((began, time.process_time() - began))
    setattr(home, name, timed)

for name in ("score", "metrics", "show"):
    clock(name, report.Validation, name)
for name in ("save_best", "save_last"):
    clock(name, sqrtvocab.training.run.Run, name)
clock("report", sqrtvocab.training.window.Window, "report")
clock("verification", sqrtvocab.settings, "read_sealed")
clock("verification", sqrtvocab.training.checkpoint, "_verified")
if package == "lm":
    clock("verification", import_module("lm.text.corpus"), "read_sealed")
    clock("verification", import_module("lm.text.corpus").Tokens, "_verify")
code = cli.train_main()
spent["all"] = [(0, time.process_time())]
json.dump(spent, open(out, "w"))
raise SystemExit(code)
"""

STEPS = "--max-steps 3 --eval-every 1 --schedule constant --device cpu"
SMALL = (
    "--hidden-size 64 --num-layers 2 --num-attention-heads 2 --seq-len 256 --batch-size 4 --sample-every 0"
)
QUICK = ("train_lm, hidden 64, 2 layers", "train_classifier --preset quickstart")
RUNS = {
    QUICK[0]: ("lm", f"--data stories:200 {SMALL} --eval-tokens 4096 {STEPS}"),
    "train_lm": ("lm", f"--data stories:10000 --batch-size 4 --sample-every 0 {STEPS}"),
    QUICK[1]: (
        "classifier", f"--preset quickstart --workers 0 {STEPS}"
    ),
    "train_classifier": (
        "classifier", f"--batch-size 16 --accumulate 1 --eval-images 64 --workers 0 {STEPS}"
    ),
}  # fmt: skip
"""Row -> package and flags. The settings decide the start; the batches and evaluations are small ones."""


@dataclass(frozen=True)
class Config:
    """CPU seconds of a start, of evaluations and checkpoints, and of the verification in them."""

    quick: bool = False
    """Leave out the models of the default size."""
    tokens: int = 470_000_000
    """Of the text that is verified. TinyStories has about as many."""
    repeats: int = 3
    """Runs of each kind to take the median of."""
    scratch: Path | None = None
    """Folder for what is written; a temporary one by default. Deleted at the end."""

    def __post_init__(self) -> None:
        if problems := at_least(self, 1, "tokens", "repeats"):
            raise UserError("; ".join(problems))


Calls = list[tuple[float, float]]  # of a part: when each began, and how long it took


def start(folder: Path, package: str, flags: str, run: str) -> dict[str, Calls]:
    """The CPU seconds of a run in `folder`/`run`, by part."""
    out = folder / "seconds.json"
    command = [sys.executable, "-c", MEASURED, package, out, *flags.split(), "--out", folder / run]
    environment = {**os.environ, "SQRTVOCAB_CACHE": str(folder / "cache")}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RunError(f"{package}.train failed: {done.stderr[-500:]}")
    spent: dict[str, Calls] = json.loads(out.read_text())
    return spent


def row_of(spent: dict[str, Calls], checkpoint: Path) -> dict[str, float]:
    """The figures of a run for the table."""
    took = {part: [seconds for _, seconds in calls] for part, calls in spent.items()}
    evaluations = [sum(parts) for parts in zip(took["score"], took["metrics"], took["show"], strict=True)]
    return {
        "imports": took["imports"][0],
        "to step 1": spent["report"][0][0],
        "evaluation 1": evaluations[0],
        "2": evaluations[1],
        "best": took["save_best"][0],
        "last": took["save_last"][1],
        "MB": sum(file.stat().st_size for file in checkpoint.iterdir()) / 1e6,
    }


def enlarge(cache: Path, tokens: int) -> None:
    """Repeat the training text in the cache up to so many tokens."""
    (path,) = cache.glob("stories-200-train-*.bin")
    facts = json.loads(path.with_suffix(".json").read_text())
    ids = np.fromfile(path, facts["dtype"])
    times = -(-tokens // len(ids))
    with path.open("wb") as file:
        for _ in range(times):
            file.write(ids.tobytes())
    data = np.memmap(path, np.uint8, mode="r")
    facts |= {
        "tokens": len(ids) * times,
        "counts": [count * times for count in facts["counts"]],
        "crc32": [zlib.crc32(data[at : at + BLOCK].tobytes()) for at in range(0, len(data), BLOCK)],
    }
    write_json(path.with_suffix(".json"), sealed(facts))


def measure_parts(folder: Path, config: Config) -> None:
    """Print the table."""
    print(f"CPU seconds, medians of {config.repeats}; best and last are checkpoints, MB the size of last")
    widths: dict[str, int] = {}
    for number, (name, (package, flags)) in enumerate(RUNS.items()):
        if config.quick and name not in QUICK:
            continue
        start(folder, package, f"{flags} --max-steps 1", f"{number}-first")  # makes what is kept from then on
        rows = []
        for repeat in range(config.repeats):
            run = f"{number}-{repeat}"
            rows.append(row_of(start(folder, package, flags, run), folder / run / "last"))
        row = {column: statistics.median(one[column] for one in rows) for column in rows[0]}
        if not widths:
            widths = {column: max(7, len(column) + 2) for column in row}
            print(f"{'':<37}" + "".join(f"{column:>{width}}" for column, width in widths.items()))
        print(f"{name:<37}" + "".join(f"{row[column]:>{width}.2f}" for column, width in widths.items()))


def measure_verification(folder: Path, config: Config) -> None:
    """Print the share of verification in a start and a resumed one."""
    package, flags = RUNS[QUICK[0]]
    enlarge(folder / "cache", config.tokens)
    measured: dict[str, list[tuple[float, float]]] = {"begun": [], "resumed": []}
    for repeat in range(config.repeats):
        for what, steps in (("begun", "--max-steps 1"), ("resumed", "--max-steps 2 --resume auto")):
            spent = start(folder, package, f"{flags} {steps}", f"large-{repeat}")
            checking = sum(seconds for _, seconds in spent["verification"])
            measured[what].append((checking, spent["all"][0][1]))
    print(f"\na run of one step on {config.tokens:,} tokens")
    for what, rows in measured.items():
        verification, everything = (statistics.median(column) for column in zip(*rows, strict=True))
        share = 100 * verification / everything
        print(f"{what:<8} {everything:6.2f} in all, {verification:.3f} for verification ({share:.2f} %)")


def main(config: Config) -> None:
    with tempfile.TemporaryDirectory(dir=config.scratch) as name:
        measure_parts(Path(name), config)
        measure_verification(Path(name), config)


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
