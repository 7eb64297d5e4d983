"""Which pictures a source holds, of which class and in which split, before any of them is opened."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from classifier.images.protocol import IntArray
from classifier.images.splits import held_out
from classifier.images.stores import Store
from shapesgen.choices import SPLITS, Split
from sqrtvocab.errors import UserError

_SPLIT_NAMES: dict[str, Split] = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip


def split_named(name: str) -> Split | None:
    """The split that a folder or a value calls so."""
    return _SPLIT_NAMES.get(name.strip().lower())


def split_of_file(name: str) -> Split | None:
    """The split that a file's name speaks of, as in `data/train-00000-of-00002.parquet`."""
    words = reversed(re.split(r"[^a-z]+", name.lower()))  # the last one is the nearest to the file
    return next((split for word in words if (split := split_named(word))), None)


@dataclass(frozen=True)
class Found:
    """What a reader found: pictures with the labels as they stand there."""

    source: str  # for messages: `--data PATH`
    store: Store
    keys: Sequence[str]  # [N] what tells a picture from all others, wherever the data lies
    values: Sequence[str | int | None]  # [N] labels; None where there is none
    splits: Sequence[Split | None]  # [N] None where the source does not say
    names: Sequence[str] | None = None  # names of the labels 0, 1, 2, ..., if the source has them
    notes: tuple[str, ...] = ()  # what the user should know


@dataclass(frozen=True)
class Listing:
    """The pictures of a source, with classes numbered from 0 and every one in a split."""

    source: str
    store: Store
    keys: Sequence[str]
    labels: IntArray  # [N]
    splits: IntArray  # [N] index in SPLITS
    classes: Sequence[str]  # [V]
    notes: tuple[str, ...] = ()

    def without(self, pictures: IntArray) -> Listing:
        """The same with some pictures (numbers in `store`) in no split.

        Raises UserError if a class is left without a training picture.
        """
        splits = self.splits.copy()
        splits[pictures] = -1
        lost = np.setdiff1d(self.labels[self.splits == 0], self.labels[splits == 0])
        if len(lost):
            raise UserError(
                f"{self.source}: without its damaged pictures the class {self.classes[lost[0]]!r} has none "
                f"left for training{_and_more(len(lost))}"
            )
        return replace(self, splits=splits)

    def rows(self, split: Split) -> IntArray:
        """The pictures of a split, as numbers in `store`."""
        return np.flatnonzero(self.splits == SPLITS.index(split))


def make_listing(
    found: Found,
    valid_fraction: float,
    test_fraction: float,
    classes: Sequence[str] | None = None,
    fewest: int = 2,
) -> Listing:
    """Number the classes, and hold out pictures for each split that the source lacks.

    Args:
        valid_fraction, test_fraction: shares of the training pictures, by class.
        classes: those of a trained model, which the labels must be among; None takes what is there.
        fewest: how many classes there must be.

    Raises:
        UserError: no pictures, a label missing or unknown, or too few classes.
    """
    found, notes = _with_labels_only(found)
    if not found.keys:
        raise UserError(f"{found.source}: there are no pictures in it")
    splits = np.array([SPLITS.index(split) if split else 0 for split in found.splits], np.int64)  # [N]
    if not (splits == 0).any() and classes is None:
        raise UserError(f"{found.source}: it has no pictures for training")
    own = None if found.names is None else _told_apart(found.names)
    named = [_class_name(value, own) for value in found.values]  # [N]
    if classes is not None:
        names = classes
    elif own is not None:
        names = own
    else:
        names = _in_order({value for value, split in zip(found.values, splits, strict=True) if split == 0})
    numbers = {name: number for number, name in enumerate(names)}
    labels = np.array([numbers.get(name, -1) for name in named], np.int64)  # [N]
    if (labels < 0).any():
        if classes is not None:
            problem = f"is not one of the model's {len(names):,} classes, such as {names[0]!r}"
        elif own is not None:
            problem = f"is none of the {len(names):,} that the file names"
        else:
            problem = "has no picture for training"
        first = int(np.argmax(labels < 0))
        more = _and_more(len({name for name in named if name not in numbers}))
        raise UserError(f"{found.source}: the class {named[first]!r} of {found.keys[first]} {problem}{more}")
    if len(names) < fewest:
        raise UserError(f"{found.source}: only one class ({names[0]!r}); a classifier needs at least two")
    present = {split for split in found.splits if split}
    fractions = [
        0.0 if split in present else fraction
        for split, fraction in (("validation", valid_fraction), ("test", test_fraction))
    ]
    train = np.flatnonzero(splits == 0)
    splits[train] = held_out([found.keys[i] for i in train.tolist()], labels[train], names, *fractions)
    for split, fraction in zip(SPLITS[1:], fractions, strict=True):
        if fraction:
            notes += (f"{fraction:.0%} of the training pictures, by class, are kept for {split}",)
    empty = len(names) - len(np.unique(labels[splits == 0]))
    if empty and classes is None:
        notes += (f"classes without a training picture: {empty:,} of {len(names):,}",)
    return Listing(found.source, found.store, found.keys, labels, splits, names, notes)


def _with_labels_only(found: Found) -> tuple[Found, tuple[str, ...]]:
    """Leave out splits that have no labels at all, as the test pictures of many contests."""
    is_missing = [_is_missing(found, value) for value in found.values]
    if not any(is_missing):
        return found, found.notes
    with_labels = {split for split, missing in zip(found.splits, is_missing, strict=True) if not missing}
    without = {split for split in found.splits if split is not None} - with_labels
    for index, (missing, split) in enumerate(zip(is_missing, found.splits, strict=True)):
        if missing and split not in without:
            raise UserError(f"{found.source}: {found.keys[index]} has no label")
    kept = [i for i, split in enumerate(found.splits) if split not in without]
    notes = found.notes + tuple(f"{split} is left out: it has no labels" for split in sorted(without))
    left = replace(
        found,
        store=found.store.take(np.array(kept, np.int64)),
        keys=[found.keys[i] for i in kept],
        values=[found.values[i] for i in kept],
        splits=[found.splits[i] for i in kept],
    )
    return left, notes


def _is_missing(found: Found, value: str | int | None) -> bool:
    return value is None or value == "" or (found.names is not None and value == -1)


def _in_order(values: Iterable[Any]) -> list[str]:
    values = set(values)
    by_number = all(isinstance(value, int) for value in values)
    return [str(value) for value in (sorted(values) if by_number else sorted(values, key=str))]


def _told_apart(names: Sequence[str]) -> list[str]:
    """Names that occur twice get their number behind them."""
    count = Counter(names)
    return [name if count[name] == 1 else f"{name} ({number})" for number, name in enumerate(names)]


def _class_name(value: str | int | None, names: Sequence[str] | None) -> str:
    if names is None:
        return str(value)
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else f"number {value}"


def _and_more(count: int) -> str:
    return f" (and {count - 1:,} more classes)" if count > 1 else ""
