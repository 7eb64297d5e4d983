"""What the comparisons of trainings share: one CSV row for each finished run, and how runs come to be.

The CSV is the record: a row that is there is not trained again, so a comparison of many hours can be made in
parts, on several days, and its table and figure drawn anew at any time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from results import read_csv, write_csv
from tqdm import tqdm

Row = dict[str, str]

KEY = ("contender", "seed", "settings", "flags", "data_bytes")  # what makes two rows the same measurement
RESULTS = (
    "loss", "bits_per_byte", "accuracy", "group_accuracy", "seconds", "seconds_per_step", "peak_gib",
    "parameters", "head_parameters", "steps", "items", "training_items", "threads", "torch", "machine",
)  # fmt: skip


class ScriptError(Exception):
    """Bad input, or a run that failed: one line, and the exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Contender:
    """One model to be trained."""

    title: str
    """What the table says."""
    flags: str
    """What makes it: flags of the trainer, defaults spelled out so that the meaning of a row stays."""
    cost: float = 1.0
    """About how long it trains, in any unit; only the progress bar asks."""
    embeddings_of: str | None = None
    """The contender whose trained token embedding it needs."""


@dataclass(frozen=True)
class Data:
    """The text of a comparison.

    A row must not depend on where the text lies but on which text it is: the name and the size tell that.
    """

    name: str  # in a row
    flag: str  # for the trainer
    size: int  # in bytes; 0 if it is no file

    @classmethod
    def of(cls, flag: str) -> Data:
        """What a `--data` flag stands for."""
        path = Path(flag)
        if flag.partition(":")[0] in ("tinystories", "stories") or not path.exists():
            return cls(flag, flag, 0)
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        name = path.resolve().name + ("" if path.is_file() else "/")
        return cls(name, flag, sum(file.stat().st_size for file in files))


@dataclass(frozen=True)
class Job:
    """One run: a contender with a seed and the settings that it shares with all others."""

    trainer: str  # "lm.train" or "classifier.train"
    name: str
    contender: Contender
    seed: int
    settings: tuple[str, ...]  # flags
    steps: int
    runs: Path
    data: Data | None = None
    source: Job | None = None  # whose trained token embedding it needs

    @property
    def key(self) -> tuple[str, ...]:
        """The values of `KEY` in its row."""
        data = () if self.data is None else ("--data", self.data.name)
        size = "" if self.data is None else str(self.data.size)
        settings = shlex.join([*data, *self.settings])
        flags = definition(self.contender, self.source and self.source.contender)
        return (self.name, str(self.seed), settings, flags, size)

    @property
    def folder(self) -> Path:
        """Its run folder: another for other settings."""
        digest = hashlib.sha256("\n".join(self.key).encode()).hexdigest()[:8]
        return self.runs / f"{self.name}-seed{self.seed}-{digest}"

    def flags(self) -> list[str]:
        """The flags of the trainer."""
        flags = [*self.settings, *self.contender.flags.split(), "--seed", str(self.seed)]
        if self.data is not None:
            flags = ["--data", self.data.flag, *flags]
        if self.source is not None:
            flags += ["--embeddings", str(self.source.folder)]
        return [*flags, "--out", str(self.folder), "--resume", "auto"]

    def is_finished(self) -> bool:
        """Whether the run folder holds the scores of the last step and the weights."""
        if not (self.folder / "best" / "state.json").exists():
            return False
        return any(record["step"] >= self.steps for record in scores(self.folder))

    def tidy(self) -> None:
        """Drop the optimiser of a finished run, which is three quarters of its bytes; keep the weights."""
        for name in ("last", "last.previous"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


# ---- the record ----


def definition(contender: Contender, source: Contender | None) -> str:
    """What a row says under `flags`: those of the contender, and of the one whose embedding it takes."""
    if source is None:
        return contender.flags
    return f"{contender.flags} --embeddings {shlex.quote(f'run of {source.flags}')}"


def by_definition(rows: Sequence[Row], contenders: Mapping[str, Contender]) -> tuple[list[Row], list[Row]]:
    """The rows of the contenders as they are now, and those of others, or of what had such a name before."""
    flags = {
        name: definition(each, contenders[each.embeddings_of] if each.embeddings_of else None)
        for name, each in contenders.items()
    }
    now = [row for row in rows if flags.get(row["contender"]) == row["flags"]]
    return now, [row for row in rows if flags.get(row["contender"]) != row["flags"]]


def read_rows(path: Path) -> list[Row]:
    """All rows of a record; none if there is no such file.

    Raises:
        ScriptError: a column is missing, or a line is cut short.
    """
    try:
        rows = read_csv(path)
    except OSError as error:
        raise ScriptError(f"{path}: not a record of this script: {error}") from error
    for number, row in enumerate(rows, start=1):
        if missing := [name for name in (*KEY, *RESULTS) if row.get(name) is None]:
            what = f"it has no column {missing[0]}" if missing[0] not in row else f"row {number} is cut short"
            raise ScriptError(f"{path}: not a record of this script: {what}")
    return rows


def keep_row(path: Path, row: Row) -> None:
    """Add a row to the record, or put it in the place of the row with the same key."""
    with lock_of(path):
        rows = read_rows(path)
        same = [i for i, old in enumerate(rows) if key_of(old) == key_of(row)]
        if same:
            rows[same[0]] = {**rows[same[0]], **row}
        else:
            rows.append(row)
        write_csv(path, rows)


def key_of(row: Row) -> tuple[str, ...]:
    """What makes a row this measurement and no other."""
    return tuple(row[name] for name in KEY)


def lock_of(path: Path) -> FileLock:
    """A lock for a file or folder: two parts of a comparison may run at the same time."""
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"sqrtvocab-{name}.lock")


SHARED = ", shared"  # at the end of a row's machine: its seconds are those of other work, too


def row_of(job: Job, threads: int, shared: bool = False) -> Row:
    """What a finished run says about itself."""
    from sqrtvocab.measure.machine import describe_processor  # imports torch

    config = json.loads((job.folder / "config.json").read_text("utf-8"))
    scored = scores(job.folder)[-1]
    seconds = 60 * scored["minutes"]  # of the training loop: see `compare_heads.document`
    where = config["computed_on"].partition(",")[0]  # cpu, or the name of the GPU
    counted = re.search(r", (\d+) threads", config["computed_on"])  # the run may be older than this call
    values: dict[str, Any] = {
        "loss": scored["loss/validation"],
        "bits_per_byte": scored.get("bits_per_byte", ""),
        "accuracy": scored.get("accuracy/token", scored.get("accuracy/overall")),
        "group_accuracy": scored["accuracy/group"],
        "seconds": round(seconds, 2),
        "seconds_per_step": round(seconds_per_step(job.folder), 4),
        "peak_gib": round(max(record["memory/peak"] for record in metrics(job.folder, "memory/peak")), 3),
        "parameters": config["parameters"],
        "head_parameters": config["head_parameters"],
        "steps": scored["step"],
        "items": scored.get("tokens", scored.get("images")),
        "training_items": config.get("training_tokens", config.get("training_images")),
        "threads": counted[1] if counted else threads,
        "torch": config["torch"],
        "machine": (describe_processor() if where == "cpu" else where) + (SHARED if shared else ""),
    }
    return dict(zip(KEY, job.key, strict=True)) | {name: str(values[name]) for name in RESULTS}


def seconds_per_step(run: Path) -> float:
    """The median over the steps, so that a pause of the machine or the first steps do not count."""
    points = [(0, 0.0)] + [(each["step"], 60 * each["minutes"]) for each in metrics(run, "loss/train")]
    # A run that was resumed may tell of some steps twice: only what follows on counts.
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points) if b[0] > a[0])


def scores(run: Path) -> list[dict[str, Any]]:
    """What a run's evaluations found."""
    return metrics(run, "loss/validation")


def metrics(run: Path, tag: str) -> list[dict[str, Any]]:
    """The records of a run that have this tag; none if it has not begun."""
    from sqrtvocab.training import read_metrics  # imports torch

    path = run / "metrics.jsonl"
    return [record for record in read_metrics(path) if tag in record] if path.exists() else []


# ---- the runs ----


def run_all(
    jobs: Sequence[Job],
    record: Path,
    threads: int,
    max_minutes: float | None,
    after: Callable[[Job], None],
    shared: bool = False,
) -> None:
    """Train what the record lacks, one after the other, and call `after` when a row was added.

    Raises:
        ScriptError: a run ended badly or was stopped; what was finished before is in the record.
    """
    if not jobs:
        say(f"nothing to train: all rows are in {record}")
        return
    began, failed, done = time.monotonic(), [], 0
    layout = "{desc} |{bar:20}| {percentage:3.0f} %, {elapsed} < {remaining}"
    work = sum(job.contender.cost for job in jobs)
    with tqdm(total=work, desc=f"{len(jobs)} runs", bar_format=layout, leave=False) as bar:
        for number, job in enumerate(jobs, start=1):
            if max_minutes is not None and time.monotonic() - began > 60 * max_minutes:
                left = len(jobs) - number + 1
                say(f"--max-minutes {max_minutes:g} are over: {left} runs are left for the next call")
                break
            bar.set_description_str(f"run {number} of {len(jobs)}: {job.name}, seed {job.seed}")
            print(file=sys.stderr)  # the bar stays above the run's own line
            with alone_in(job.folder):
                if not job.is_finished():
                    code = launch(["-m", job.trainer, *job.flags()], threads)
                    if code == 2:  # bad input: the others would fail alike
                        raise ScriptError(f"{job.name} was refused by the trainer: see above")
                    if code or not job.is_finished():
                        failed.append(f"{job.name} (seed {job.seed}) ended with exit code {code}")
                        say(failed[-1])
                        continue
                if job.key not in map(key_of, read_rows(record)):  # it may be there for its embedding
                    keep_row(record, row_of(job, threads, shared))
                job.tidy()
            after(job)
            done += 1
            bar.update(job.contender.cost)
    say(f"{done} runs added to {record}")
    if failed:
        raise ScriptError(f"{'; '.join(failed)}; call again to try them once more", code=1)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other call trains in this run folder; it may have finished the run by then."""
    lock = lock_of(folder)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{folder}: another call is training here; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def launch(arguments: Sequence[str], threads: int) -> int:
    """Run Python with these arguments, on our terminal -> its exit code.

    A signal goes on to the process, which saves before it ends; then we end, too.

    Raises:
        ScriptError: after a signal.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []
    waiting: list[int] = []  # came before there was a process to pass them to

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        if process is None:
            waiting.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # This interpreter, not the installed command: it must be of this environment. In a group of its own,
        # so that Ctrl-C reaches it once, through us: a second one would end it without saving.
        process = subprocess.Popen([sys.executable, *arguments], env=environment, process_group=0)
        while waiting:
            process.send_signal(waiting.pop())
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise ScriptError("stopped; call again to go on", code=128 + received[0])
    return code


def say(line: str) -> None:
    """A line for the reader of the terminal."""
    print(line, file=sys.stderr, flush=True)


def exit_code(program: str, command: Callable[[], None]) -> int:
    """Run a script's command; what went wrong is one line. Without torch, unlike that of the trainers."""
    try:
        command()
    except ScriptError as problem:
        print(f"{program}: {problem}", file=sys.stderr)
        return problem.code
    except OSError as error:  # a full disk, a folder taken away
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # between the runs; `launch` sees to the others
        print(f"{program}: interrupted; call again to go on", file=sys.stderr)
        return 130
    return 0


# ---- numbers ----


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with half the width of its 95 % interval (Student t); None for a single value."""

    value: float
    half: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        n, value = len(values), math.fsum(values) / len(values)
        if n == 1:
            return cls(value, None, 1)
        from scipy.special import stdtrit  # a dependency of scikit-learn

        deviation = math.sqrt(math.fsum((x - value) ** 2 for x in values) / (n - 1))
        return cls(value, float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n), n)

    def show(self, digits: int, sign: str = "") -> str:
        """As in `3.801 ± 0.012`."""
        text = f"{self.value:{sign}.{digits}f}".replace("-", "−")
        return text if self.half is None else f"{text} ± {self.half:.{digits}f}"


def paired(ours: dict[str, float], theirs: dict[str, float]) -> Mean | None:
    """The mean difference of two contenders over the seeds that both have; None if there are none."""
    both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    return Mean.of(both) if both else None
