"""The paper's five scores, given by another language model: grammar, creativity, consistency, plot and age.

The judge reads an opening and how our model went on. It assesses the story in its own words first and grades
it afterwards, in strict JSON. Every raw answer is kept, so a run that broke off is resumed, and answers can
be read again by a better parser. What cannot be read counts as missing, never as zero.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lm.judge.chat import ChatError, Message
from sqrtvocab.appended import AppendedFile
from sqrtvocab.atomic import parse_json, read_sealed_line, sealed_line
from sqrtvocab.training import UserError

# The range of each score. Age is the writer's, in years, as the judge guesses it from the story.
RANGES = {"grammar": (1, 10), "creativity": (1, 10), "consistency": (1, 10), "plot": (1, 10), "age": (2, 18)}
_TRIES = 2  # an answer that cannot be read is asked for once more
_RESAMPLES = 2000
_BEGINNING = b'{"settings": '  # of a journal

_INTRODUCTION = (
    "A student was given the beginning of a children's story and had to go on with it. The symbol *** marks "
    "the place where the student begins; whatever stands before it was given.\n\n{opening}***{continuation}"
    "\n\nPlease give a short assessment of the student's part: Is the language correct? Is it creative? Does "
    "it agree with the beginning? Does the plot make sense? How old may the student be? Do not grade yet."
)
_GRADING = (
    "Now grade the student's part. Answer with one JSON object and nothing else, with exactly these keys: "
    + ", ".join(f'"{name}" (a number from {low} to {high})' for name, (low, high) in RANGES.items())
    + ". The age is the student's likely age in years."
)


class Judge(Protocol):
    """Who is asked: a server, or a model at hand."""

    def ask(self, messages: Sequence[Message]) -> str:
        """The answer to a conversation."""


@dataclass
class Item:
    """One story to be judged, and what the judge has said about it so far."""

    number: int
    opening: str
    continuation: str
    assessment: str | None = None
    grades: list[str] = field(default_factory=list)  # raw answers

    @property
    def scores(self) -> dict[str, float] | None:
        """The first answer that can be read, or None."""
        return next((scores for raw in self.grades if (scores := parse(raw)) is not None), None)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.scores is not None or len(self.grades) >= _TRIES


def parse(raw: str) -> dict[str, float] | None:
    """The scores in a judge's answer; None unless it is one JSON object with all of them in their ranges."""
    text = raw.strip()
    if text.startswith("```") and text.endswith("```"):  # many models cannot help it
        text = text.strip("`").removeprefix("json")
    try:
        answer = parse_json(text)
    except ValueError:
        return None
    if not isinstance(answer, dict) or set(answer) != set(RANGES):
        return None
    for name, (low, high) in RANGES.items():
        value = answer[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            return None
    return {name: float(answer[name]) for name in RANGES}


class Journal:
    """The file of a judgement: settings, stories and raw answers, one JSON record a line.

    Args:
        path: made if it does not exist.
        settings: what the stories depend on; a file with other settings is refused, unless the judge has said
            nothing in it yet: then it is what a call that failed has left, and begun anew.

    Raises:
        UserError: the file is of another judgement, none at all, in use, or cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.items: dict[int, Item] = {}
        self._lock = threading.Lock()
        try:
            is_other = path.exists() and not path.is_file()  # /dev/zero has no end
            self._file = AppendedFile(path)
            if is_other:
                raise UserError(f"--out {path}: not a file of judge_lm; name another one")
            records = self._open(path, settings)
        except OSError as error:
            raise UserError(f"--out {path}: cannot be written ({error.strerror or error})") from error
        for record in records[1:]:
            self._apply(record)
        if not records:
            self.add({"settings": dict(settings)})

    def _open(self, path: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        if not self._file.lock():
            raise UserError(f"--out {path}: another judge_lm is writing to it; wait for it")
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]  # what comes after the last line was torn by a kill
        records, damaged = _records(whole)
        beginning = content.partition(b"\n")[0][: len(_BEGINNING)]
        if not (_BEGINNING.startswith(beginning) or any("number" in record for record in records)):
            raise UserError(f"--out {path}: not a file of judge_lm; name another one")
        self._file.cut(len(whole))
        if records and records[0].get("settings") != dict(settings):
            has_spoken = any({"assessment", "grade"} & set(record) for record in records)
            if has_spoken and "settings" not in records[0]:
                raise UserError(f"--out {path}: line 1, the settings, is damaged; name another file")
            if has_spoken:
                raise UserError(f"--out {path}: it holds a judgement with other settings; name another file")
            self._file.cut(0)
            return []
        if damaged:
            lines = ", ".join(map(str, damaged[:10]))
            print(f"WARNING: {path}: damaged and asked for again: line {lines}", file=sys.stderr)
        return records

    def add(self, record: dict[str, Any]) -> None:
        """Append a record, and take note of it.

        Raises:
            RunError: it cannot be written.
        """
        with self._lock:
            self._file.write(sealed_line(record))
            self._apply(record)

    def close(self) -> None:
        self._file.close()

    def _apply(self, record: dict[str, Any]) -> None:
        if "continuation" in record:
            self.items[record["number"]] = Item(record["number"], record["opening"], record["continuation"])
        elif (item := self.items.get(record.get("number", -1))) is None:
            return  # the line of its story is damaged; the story is written again
        elif "assessment" in record:
            item.assessment = record["assessment"]
        elif "grade" in record:
            item.grades.append(record["grade"])


def judge_item(judge: Judge, item: Item, journal: Journal) -> None:
    """Ask for what is missing of one story's assessment and grades.

    Raises:
        ChatError: the judge does not answer; what it has said before is kept.
        UserError: the judge refuses.
    """
    opening: list[Message] = [
        {
            "role": "user",
            "content": _INTRODUCTION.format(opening=item.opening, continuation=item.continuation),
        }
    ]
    if item.assessment is None:
        journal.add({"number": item.number, "assessment": judge.ask(opening)})
    conversation = [
        *opening,
        {"role": "assistant", "content": item.assessment or ""},
        {"role": "user", "content": _GRADING},
    ]
    while not item.done:
        journal.add({"number": item.number, "grade": judge.ask(conversation)})


def judge_all(
    judge: Judge, journal: Journal, concurrency: int, progress: Callable[[], None] = lambda: None
) -> list[str]:
    """Judge all stories of the journal that are not done, `concurrency` at a time.

    Returns:
        What went wrong with the stories that the judge gave no answer about; asking again may help.

    Raises:
        UserError: the judge refuses.
    """
    waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
    finished: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    pending = [item for item in journal.items.values() if not item.done]
    for item in pending:
        waiting.put(item)

    def work() -> None:
        while True:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                judge_item(judge, item, journal)
                finished.put(None)
            except Exception as error:  # given to the main thread
                finished.put(error)

    # Daemons, so that Ctrl-C need not wait for a slow server: all that has been answered is in the journal.
    for _ in range(min(concurrency, len(pending))):
        threading.Thread(target=work, daemon=True).start()
    problems = []
    for _ in pending:
        error = finished.get()
        if isinstance(error, ChatError):
            problems.append(str(error))
        elif error is not None:
            raise error
        progress()
    return problems


@dataclass(frozen=True)
class Score:
    """A mean over the stories with readable grades, with a 95 % bootstrap interval; NaN if there are none."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """All scores of a judgement."""

    scores: dict[str, Score]
    stories: int
    valid: int  # stories with readable grades

    @property
    def valid_rate(self) -> float:
        return self.valid / self.stories if self.stories else math.nan


def summarise(items: Sequence[Item], seed: int = 0) -> Summary:
    """Means and intervals. Stories are resampled whole, as their scores belong together."""
    rows = [item.scores for item in items if item.scores is not None]
    if not rows:
        return Summary(dict.fromkeys(RANGES, Score(math.nan, math.nan, math.nan)), len(items), 0)
    table = np.array([[row[name] for name in RANGES] for row in rows])  # [n, 5]
    draws = np.random.default_rng(seed).integers(len(rows), size=(_RESAMPLES, len(rows)))
    means = table[draws].mean(1)  # [resamples, 5]
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    scores = {
        name: Score(float(table[:, i].mean()), float(low[i]), float(high[i])) for i, name in enumerate(RANGES)
    }
    return Summary(scores, len(items), len(rows))


def _records(content: bytes) -> tuple[list[dict[str, Any]], list[int]]:
    """The records, and the numbers of the lines that hold none."""
    records, damaged = [], []
    # As bytes: str.splitlines() would also split at characters that JSON leaves as they are, such as U+2028.
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            records.append(read_sealed_line(line))
        except ValueError:
            damaged.append(number)
    return records, damaged
