"""What the comparisons of trainings share: one CSV row for each finished run, and how runs come to be.

The CSV is the record: a row that is there is not trained again, so a comparison of many hours can be made in
parts, on several days, and its table and figure drawn anew at any time.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
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
    """All rows of a record; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and (missing := [name for name in KEY if name not in rows[0]]):
        raise ScriptError(f"{path}: not a record of this script: it has no column {missing[0]}")
    return rows


def keep_row(path: Path, row: Row) -> None:
    """Add a row to the record, or put it in the place of the row with the same key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    # Two parts of a comparison may run at the same time.
    with FileLock(Path(tempfile.gettempdir()) / f"sqrtvocab-{name}.lock"):
        rows = read_rows(path)
        same = [i for i, old in enumerate(rows) if key_of(old) == key_of(row)]
        if same:
            rows[same[0]] = {**rows[same[0]], **row}
        else:
            rows.append(row)
        names = list(dict.fromkeys(name for each in rows for name in each))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_file(path, lambda draft: draft.write_text(text.getvalue(), "utf-8"))


def key_of(row: Row) -> tuple[str, ...]:
    """What makes a row this measurement and no other."""
    return tuple(row[name] for name in KEY)


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a draft with the same suffix, then put it in place: whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".draft-{os.getpid()}-{path.name}")
    write(draft)
    draft.replace(path)


def row_of(job: Job, threads: int) -> Row:
    """What a finished run says about itself."""
    config = json.loads((job.folder / "config.json").read_text("utf-8"))
    scored = scores(job.folder)[-1]
    seconds = 60 * scored["minutes"]  # of training: the trainers leave out data, evaluation and saving
    where = config["computed_on"].partition(",")[0]  # cpu, or the name of the GPU
    counted = re.search(r", (\d+) threads", config["computed_on"])  # the run may be older than this call
    values: dict[str, Any] = {
        "loss": scored["loss/validation"],
        "bits_per_byte": scored.get("bits_per_byte", ""),
        "accuracy": scored.get("accuracy/token", scored.get("accuracy/overall")),
        "group_accuracy": scored["accuracy/group"],
        "seconds": round(seconds, 2),
        "seconds_per_step": round(seconds / scored["step"], 4),
        "peak_gib": round(max(record["memory/peak"] for record in metrics(job.folder, "memory/peak")), 3),
        "parameters": config["parameters"],
        "head_parameters": config["head_parameters"],
        "steps": scored["step"],
        "items": scored.get("tokens", scored.get("images")),
        "training_items": config.get("training_tokens", config.get("training_images")),
        "threads": counted[1] if counted else threads,
        "torch": config["torch"],
        "machine": machine() if where == "cpu" else where,
    }
    return dict(zip(KEY, job.key, strict=True)) | {name: str(values[name]) for name in RESULTS}


def scores(run: Path) -> list[dict[str, Any]]:
    """What a run's evaluations found."""
    return metrics(run, "loss/validation")


def metrics(run: Path, tag: str) -> list[dict[str, Any]]:
    """The records of a run that have this tag; none if it has not begun."""
    path = run / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("}")]  # a kill may have torn the last one
    return [record for record in whole if tag in record]


# ---- the runs ----


def run_all(
    jobs: Sequence[Job], record: Path, threads: int, max_minutes: float | None, after: Callable[[Job], None]
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
            if not job.is_finished():
                code = launch(["-m", job.trainer, *job.flags()], threads)
                if code == 2:  # bad input: the others would fail alike
                    raise ScriptError(f"{job.name} was refused by the trainer: see above")
                if code or not job.is_finished():
                    failed.append(f"{job.name} (seed {job.seed}) ended with exit code {code}")
                    say(failed[-1])
                    continue
            if job.key not in map(key_of, read_rows(record)):  # it may have been trained for its embedding
                keep_row(record, row_of(job, threads))
            job.tidy()
            after(job)
            done += 1
            bar.update(job.contender.cost)
    say(f"{done} runs added to {record}")
    if failed:
        raise ScriptError(f"{'; '.join(failed)}; call again to try them once more", code=1)


def launch(arguments: Sequence[str], threads: int) -> int:
    """Run Python with these arguments, on our terminal -> its exit code.

    A signal goes on to the process, which saves before it ends; then we end, too.

    Raises:
        ScriptError: after a signal.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    # This interpreter, not the installed command: it must be this environment's. In a group of its own, so
    # that Ctrl-C reaches it once, through us: a second one would end it without saving.
    process = subprocess.Popen([sys.executable, *arguments], env=environment, process_group=0)
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
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


def machine() -> str:
    """The processor of this machine and its cores."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # no Linux, or a processor that does not say
    return f"{name}, {os.cpu_count()} cores"


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


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """Lines of a Markdown table; all columns but the first `words` are numbers, aligned to the right."""
    marks = ["---"] * words + ["---:"] * (len(head) - words)
    return ["| " + " | ".join(cells) + " |" for cells in (head, marks, *rows)]
