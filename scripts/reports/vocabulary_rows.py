"""The rows of `figure_vocabulary` put in order: which of them compare, and where the two heads cross."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from scripts.common.command import values_of
from scripts.common.means import Mean
from scripts.common.records import Row

OURS, THEIRS = "grouped-linear", "flat"
OCCURRING = "gpt2-occurring"  # GPT-2's tokenizer with the tokens that occur in the text
_LENGTH = ("--max-steps", "--eval-every", "--warmup-steps", "--eval-tokens")
_VOCABULARY = ("--tokenizer", "--vocab")

Curve = dict[int, Mean]  # size of the vocabulary -> bits per byte


@dataclass(frozen=True)
class Entry:
    """A head with a vocabulary: its rows, one for each seed."""

    head: str
    vocabulary: str  # as --vocabularies names it
    size: int
    rows: list[Row] = field(default_factory=list)

    def mean(self, column: str) -> Mean:
        """Over the seeds."""
        return Mean.of([float(row[column]) for row in self.rows])


@dataclass(frozen=True)
class Section:
    """What compares: the same text, model, machine and minutes."""

    minutes: float
    entries: list[Entry]

    @property
    def rows(self) -> list[Row]:
        """All of them."""
        return [row for entry in self.entries for row in entry.rows]

    def curve(self, head: str) -> Curve:
        """Bits per byte by V. The tokens of GPT-2's that occur are no point of it: at the same V they are
        fewer than those that are learnt from the text."""
        mine = [entry for entry in self.entries if entry.head == head and entry.vocabulary != OCCURRING]
        return {entry.size: entry.mean("bits_per_byte") for entry in mine}


def is_whole(row: Row) -> bool:
    """Whether the row is of a whole run, not of a trial of a few steps."""
    return values_of(row["settings"])["--eval-tokens"] == ["0"]


def vocabulary_of(row: Row) -> str:
    """The vocabulary that a row's settings name, as --vocabularies does."""
    values = values_of(row["settings"])
    return values["--tokenizer"][-1] + ("-occurring" if values.get("--vocab") == ["occurring"] else "")


def size_of(row: Row) -> int | None:
    """V, as its run has found it out; None if nobody has looked. The name does not tell: a text may have too
    few pairs for as many tokens as were asked for."""
    return int(row["vocab_size"]) if row.get("vocab_size") else None


def sections(rows: Sequence[Row]) -> list[Section]:
    """The whole runs of a record in parts that compare, as the record has them; a part's entries by V."""
    trials = {_without(row, _LENGTH): row for row in rows if not is_whole(row)}
    parts: dict[tuple[tuple[str, ...], float], dict[tuple[int, str, str], Entry]] = {}
    for row in rows:
        trial, size = trials.get(_without(row, _LENGTH)), size_of(row)
        if not is_whole(row) or trial is None or size is None:
            continue
        minutes = minutes_of(int(row["steps"]), float(trial["seconds_per_step"]))
        shared = (_settings(row, (*_LENGTH, *_VOCABULARY)), row["data_bytes"], row["machine"], row["threads"])
        entries = parts.setdefault((shared, minutes), {})
        named = (size, row["contender"], vocabulary_of(row))
        entries.setdefault(named, Entry(named[1], named[2], size)).rows.append(row)
    return [Section(minutes, [part[name] for name in sorted(part)]) for (_, minutes), part in parts.items()]


def minutes_of(steps: int, seconds_per_step: float) -> float:
    """The minutes that were asked for: of all that come to so many steps, the number that is shortest."""
    exact, half = steps * seconds_per_step / 60, seconds_per_step / 120
    shortest = (float(f"{exact:.{digits}g}") for digits in range(1, 17))
    return next((minutes for minutes in shortest if abs(minutes - exact) <= half), exact)


def _without(row: Row, flags: Sequence[str]) -> tuple[str, ...]:
    return row["contender"], row["seed"], row["flags"], row["data_bytes"], _settings(row, flags)


def _settings(row: Row, left_out: Sequence[str]) -> str:
    values = values_of(row["settings"])
    return shlex.join([word for flag in values if flag not in left_out for word in (flag, *values[flag])])


def crossings(ours: Mapping[int, Mean], theirs: Mapping[int, Mean]) -> list[float]:
    """Where ours begins or ends to lie below theirs, on straight lines in log V between the sizes of both."""
    gaps = {v: ours[v].value - theirs[v].value for v in sorted(ours.keys() & theirs.keys())}
    found = []
    for low, high in pairwise(gaps):
        if (gaps[low] < 0) != (gaps[high] < 0):
            share = gaps[low] / (gaps[low] - gaps[high])
            found.append(math.exp(math.log(low) + share * (math.log(high) - math.log(low))))
    return found


def crossover(ours: Mapping[int, Mean], theirs: Mapping[int, Mean]) -> float | None:
    """The V from which ours stays below theirs: the smallest of both if it does everywhere, None if it is
    not below at the largest."""
    sizes = sorted(ours.keys() & theirs.keys())
    if not sizes or ours[sizes[-1]].value >= theirs[sizes[-1]].value:
        return None
    return (crossings(ours, theirs) or [float(sizes[0])])[-1]


def about(v: float) -> str:
    """A crossover as it is shown: in two digits, for it lies between two sizes."""
    return f"{float(f'{v:.2g}'):,.0f}"
