"""What the verification of files costs at the start of `train_lm`, on a text of TinyStories' size.

    python scripts/bench_start.py                          # about a minute and 1 GB of scratch space
    python scripts/bench_start.py --tokens 4000000 --repeats 3

The cache of a few built-in stories is repeated up to the size asked for; then a run of one step is started,
stopped and resumed, in processes of their own. CPU seconds are compared, which do not depend on what else the
machine does: those of the whole process, and those of reading and checking seals, checksums and checkpoints.
"""

from __future__ import annotations

import json
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

# The process that is measured: a clock around everything that is there to find damage.
STARTED = """
import functools, json, sys, time
import lm.cli, lm.text.corpus, sqrtvocab.settings, sqrtvocab.training.checkpoint as checkpoint
spent, depth = 0.0, 0
def clocked(function):
    @functools.wraps(function)
    def timed(*arguments, **options):
        global spent, depth
        began, depth = time.process_time(), depth + 1
        try:
            return function(*arguments, **options)
        finally:
            depth -= 1
            if not depth:
                spent += time.process_time() - began
    return timed
for module, name in ((lm.text.corpus, "read_sealed"), (sqrtvocab.settings, "read_sealed"),
                     (checkpoint, "_verified"), (lm.text.corpus.Tokens, "_verify")):
    setattr(module, name, clocked(getattr(module, name)))
out = sys.argv.pop(1)
code = lm.cli.train_main()
json.dump([spent, time.process_time()], open(out, "w"))
raise SystemExit(code)
"""


@dataclass(frozen=True)
class Config:
    """CPU seconds of a start of train_lm, and of the verification in it."""

    tokens: int = 470_000_000
    """Of the training text. TinyStories has about as many."""
    repeats: int = 5
    """Starts to take the median of."""
    scratch: Path | None = None
    """Folder for what is written; a temporary one by default. Deleted at the end."""

    def __post_init__(self) -> None:
        if problems := at_least(self, 1, "tokens", "repeats"):
            raise UserError("; ".join(problems))


def start(folder: Path, *flags: object) -> tuple[float, float]:
    """CPU seconds of (verification, everything)."""
    out = folder / "seconds.json"
    words = [
        sys.executable, "-c", STARTED, out, "--data", "stories:200", "--cache", folder / "cache",
        "--hidden-size", 64, "--num-layers", 2, "--num-attention-heads", 2, "--seq-len", 256,
        "--batch-size", 4, "--eval-tokens", 4096, "--sample-every", 0, "--schedule", "constant",
        "--device", "cpu", "--out", folder / "run", *flags,
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"train_lm failed: {done.stderr[-500:]}")
    verification, everything = json.loads(out.read_text())
    return verification, everything


def enlarge(cache: Path, tokens: int) -> None:
    """Repeat the training text in the cache up to so many tokens."""
    (path,) = cache.glob("*-train-*.bin")
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


def main(config: Config) -> None:
    with tempfile.TemporaryDirectory(dir=config.scratch) as name:
        folder = Path(name)
        start(folder, "--max-steps", 1)
        enlarge(folder / "cache", config.tokens)
        (folder / "run").rename(folder / "first")
        measured: dict[str, list[tuple[float, float]]] = {"begun": [], "resumed": []}
        for repeat in range(config.repeats):
            measured["begun"].append(start(folder, "--max-steps", 1))
            measured["resumed"].append(start(folder, "--max-steps", 2, "--resume", "auto"))
            (folder / "run").rename(folder / f"run-{repeat}")
    print(f"CPU seconds of a run of one step on {config.tokens:,} tokens, medians of {config.repeats}:")
    for what, rows in measured.items():
        verification, everything = (statistics.median(column) for column in zip(*rows, strict=True))
        share = 100 * verification / everything
        print(f"{what:<8} {everything:6.2f} in all, {verification:.3f} for verification ({share:.2f} %)")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
