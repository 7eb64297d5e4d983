"""Trainings as rows of a record: what is trained, in which folder, and what a finished run says of itself."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.common.command import values_of
from scripts.common.records import Key, Record, Row

KEY = ("contender", "seed", "settings", "flags", "data_bytes")
RESULTS = (
    "loss", "bits_per_byte", "accuracy", "group_accuracy", "seconds", "seconds_per_step", "peak_gib",
    "parameters", "head_parameters", "steps", "items", "training_items", "threads", "torch", "machine",
)  # fmt: skip
ENDING = 0.1  # share of the steps whose training loss a row tells
_TENTHS = re.compile(r"[1-9]/10")
SHARED = ", shared"  # at the end of a row's machine: its seconds are those of other work, too


def record_of_runs(path: Path) -> Record:
    """A record with a row for each finished run."""
    return Record(path, KEY, RESULTS)


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
    def key(self) -> Key:
        """The values of `KEY` in its row."""
        data = () if self.data is None else ("--data", self.data.name)
        size = "" if self.data is None else str(self.data.size)
        settings = shlex.join([*data, *self.settings])
        flags = definition(self.contender, self.source.contender if self.source else None)
        return (self.name, str(self.seed), settings, flags, size)

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return self.runs / run_name(self.key)

    def flags(self) -> list[str]:
        """The flags of the trainer."""
        flags = [*self.settings, *self.contender.flags.split(), "--seed", str(self.seed)]
        if self.data is not None:
            flags = ["--data", self.data.flag, *flags]
        if self.source is not None:
            flags += ["--embeddings", str(self.source.folder)]
        return [*in_steps(flags, self.steps), "--out", str(self.folder), "--resume", "auto"]

    def is_finished(self) -> bool:
        """Whether the run folder holds the scores of the last step and the weights."""
        if not (self.folder / "best" / "state.json").exists():
            return False
        return any(line["step"] >= self.steps for line in metrics(self.folder, "loss/validation"))

    def tidy(self) -> None:
        """Drop the optimiser of a finished run, which is three quarters of its bytes; keep the weights."""
        for name in ("last", "last.previous"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def row(self, threads: int, shared: bool = False) -> Row:
        """What the finished run says about itself."""
        from sqrtvocab.measure.machine import describe_processor  # imports torch

        config = json.loads((self.folder / "config.json").read_text("utf-8"))
        scored = metrics(self.folder, "loss/validation")[-1]
        seconds = 60 * scored["minutes"]  # of the training loop: see `reports.heads_page`
        where = config["computed_on"].partition(",")[0]  # cpu, or the name of the GPU
        counted = re.search(r", (\d+) threads", config["computed_on"])  # the run may be older than this call
        memory = [line["memory/peak"] for line in metrics(self.folder, "memory/peak")]
        values: dict[str, Any] = {
            "loss": scored["loss/validation"],
            "bits_per_byte": scored.get("bits_per_byte", ""),
            "accuracy": scored.get("accuracy/token", scored.get("accuracy/overall")),
            "group_accuracy": scored["accuracy/group"],
            "seconds": round(seconds, 2),
            "seconds_per_step": round(seconds_per_step(self.folder), 4),
            "peak_gib": round(max(memory), 3),
            "parameters": config["parameters"],
            "head_parameters": config["head_parameters"],
            "steps": scored["step"],
            "items": scored.get("tokens", scored.get("images")),
            "training_items": config.get("training_tokens", config.get("training_images")),
            "threads": counted[1] if counted else threads,
            "torch": config["torch"],
            "machine": (describe_processor() if where == "cpu" else where) + (SHARED if shared else ""),
            "training_loss": ending_loss(self.folder),  # older rows have none
        }
        return dict(zip(KEY, self.key, strict=True)) | {name: str(value) for name, value in values.items()}


def run_name(key: Key) -> str:
    """The name of the run folder of the row with this key: another for other settings."""
    digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:8]
    return f"{key[0]}-seed{key[1]}-{digest}"


def in_steps(words: Sequence[str], steps: int) -> list[str]:
    """The words of a contender's flags with "3/10" as the step by which three tenths of a run are over: a row
    keeps its meaning, however long the run is."""
    found: list[str] = []
    for word in words:
        if _TENTHS.fullmatch(word):
            word = str(max(1, steps * int(word[:-3]) // 10))
            if word == found[-1]:  # in a run of a few steps
                continue
        found.append(word)
    return found


def with_steps(settings: tuple[str, ...], steps: int) -> tuple[str, ...]:
    """The same settings for another number of steps, scored once at the end."""
    words = list(settings)
    for flag in ("--max-steps", "--eval-every"):
        words[words.index(flag) + 1] = str(steps)
    return tuple(words)


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


def about_older(rows: Sequence[Row]) -> list[str]:
    """The lines of a page that name the rows which it leaves out; none if there are none."""
    if not rows:
        return []
    names = ", ".join(sorted({f"`{row['contender']}` (`{row['flags']}`)" for row in rows}))
    return ["", f"Left out, because the record has them by an older definition: {names}."]


def length_of(row: Row, item: str) -> str:
    """How long was trained: "300 steps of 2,048 tokens"."""
    per_step = -(-int(row["items"]) // int(row["steps"]))  # the last step of an epoch may be smaller
    return f"{int(row['steps']):,} steps of {per_step:,} {item}s"


def rate_of(row: Row) -> str:
    """The learning rate that a row's settings name; "" if they name none."""
    return values_of(row["settings"]).get("--lr", [""])[-1]


def seconds_per_step(run: Path) -> float:
    """The median over the steps, so that a pause of the machine or the first steps do not count."""
    points = [(0, 0.0)] + [(line["step"], 60 * line["minutes"]) for line in metrics(run, "loss/train")]
    # A run that was resumed may tell of some steps twice: only what follows on counts.
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points) if b[0] > a[0])


def ending_loss(run: Path) -> float:
    """The mean training loss of the last steps. In a first epoch they read what nobody has seen before, so
    that it chooses a learning rate as validation text does, and leaves that text to the score."""
    points = [(0, 0.0)] + [(line["step"], line["loss/train"]) for line in metrics(run, "loss/train")]
    least = points[-1][0] * (1 - ENDING)
    windows = [(b[0] - max(a[0], least), b[1]) for a, b in pairwise(points) if b[0] > max(a[0], least)]
    return sum(steps * loss for steps, loss in windows) / sum(steps for steps, _ in windows)


def metrics(run: Path, tag: str) -> list[dict[str, Any]]:
    """The lines of a run's metrics that have this tag; none if it has not begun."""
    from sqrtvocab.training import read_metrics  # imports torch

    path = run / "metrics.jsonl"
    return [line for line in read_metrics(path) if tag in line] if path.exists() else []
