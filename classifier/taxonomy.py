"""Super-classes of classes: read from the user's file, kept beside the weights, compared with the groups."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from classifier.images.protocol import IntArray
from classifier.images.stores import digest
from sqrtvocab import Partition
from sqrtvocab.atomic import parse_json
from sqrtvocab.errors import UserError

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_SUPER_CLASS = ("super_class", "super-class", "superclass", "parent")
_LISTED = 3  # classes named that are missing


@dataclass(frozen=True)
class Taxonomy:
    """Which super-class each class is of."""

    names: Sequence[str]
    """Of the super-classes, in their order."""
    super_class: IntArray
    """[V] the number of each class's super-class in `names`."""

    def right(self, target: IntArray, predicted: IntArray) -> float:
        """The share of images whose predicted class is of the true super-class; [N] each."""
        return float(np.mean(self.super_class[predicted] == self.super_class[target]))

    def describe(self, partition: Partition) -> str:
        """How many there are, and how well the groups keep them together, in a phrase."""
        share, whole = purity(partition, self.super_class)
        return (
            f"{len(self.names):,} super-classes; the groups are {share:.1%} pure: {whole:,} of "
            f"{partition.num_groups:,} hold one super-class only"
        )

    @property
    def digest(self) -> str:
        """What tells it from others."""
        return digest(self.names[number] for number in self.super_class.tolist())[:16]

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        return {"names": list(self.names), "super_class": self.super_class.tolist()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Taxonomy:
        """As `to_json` wrote it."""
        return cls(document["names"], np.array(document["super_class"], np.int64))


def purity(partition: Partition, super_class: IntArray) -> tuple[float, int]:
    """The share of classes that belong to the commonest super-class of their group, and how many groups hold
    one super-class only."""
    classes = torch.arange(partition.num_classes, device=_device_of(partition))
    groups = partition.split(classes)[0].cpu().numpy()  # [V]
    pairs, counts = np.unique(np.stack([groups, super_class]), axis=1, return_counts=True)  # [2, P], [P]
    most = np.zeros(partition.num_groups, np.int64)
    np.maximum.at(most, pairs[0], counts)
    return float(most.sum()) / partition.num_classes, int(np.sum(np.bincount(pairs[0]) == 1))


def _device_of(partition: Partition) -> torch.device | None:
    return None if partition.order is None else partition.order.device


def read_taxonomy(path: Path, classes: Sequence[str]) -> Taxonomy:
    """The super-classes that a file gives to `classes`: a table of two columns, class and super-class (.csv,
    .tsv; a first line that names no class is taken for their titles), or .jsonl with fields of these names.

    It may know further classes.

    Raises:
        UserError: if it cannot be read, misses a class, or gives one two super-classes.
    """
    known = set(classes)
    found: dict[str, str] = {}
    try:
        for row, (name, parent) in enumerate(_rows(path)):
            if row == 0 and path.suffix.lower() in _DELIMITERS and name not in known:
                continue
            if not parent:
                raise UserError(f"--taxonomy {path}: the class {name!r} has no super-class")
            if found.setdefault(name, parent) != parent:
                raise UserError(
                    f"--taxonomy {path}: the class {name!r} has two super-classes, {found[name]!r} and "
                    f"{parent!r}"
                )
    except OSError as error:
        raise UserError(f"--taxonomy {path}: cannot be read ({error.strerror or error})") from error
    except (csv.Error, ValueError) as error:  # of UTF-8 and of JSON, too
        raise UserError(f"--taxonomy {path}: not a readable table in UTF-8 ({error})") from error
    if missing := [name for name in classes if name not in found]:
        some = ", ".join(map(repr, missing[:_LISTED]))
        more = f" and {len(missing) - _LISTED:,} more" if len(missing) > _LISTED else ""
        raise UserError(f"--taxonomy {path}: no super-class for {some}{more} of {len(classes):,} classes")
    names = sorted({found[name] for name in classes})
    if len(names) < 2:
        raise UserError(f"--taxonomy {path}: all classes are of one super-class, {names[0]!r}")
    numbers = {name: number for number, name in enumerate(names)}
    return Taxonomy(names, np.array([numbers[found[name]] for name in classes], np.int64))


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    """Class and super-class of each row."""
    if path.exists() and not path.is_file():  # a device might never end
        raise UserError(f"--taxonomy {path}: not a regular file")
    suffix = path.suffix.lower()
    if suffix not in (*_DELIMITERS, ".jsonl"):
        raise UserError(f"--taxonomy {path}: expected a .csv, .tsv or .jsonl file")
    with path.open(encoding="utf-8-sig", newline="") as file:
        if suffix == ".jsonl":
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _of_record(path, number, parse_json(line))
            return
        for number, cells in enumerate(csv.reader(file, delimiter=_DELIMITERS[suffix], strict=True), start=1):
            if cells and len(cells) != 2:
                raise UserError(
                    f"--taxonomy {path}: line {number} has {len(cells)} columns; expected class, super-class"
                )
            if cells:
                yield cells[0].strip(), cells[1].strip()


def _of_record(path: Path, number: int, record: Any) -> tuple[str, str]:
    if not isinstance(record, dict):
        raise UserError(f"--taxonomy {path}: line {number} is no object with fields")
    parent = next((record[name] for name in _SUPER_CLASS if name in record), None)
    if "class" not in record or parent is None:
        raise UserError(
            f"--taxonomy {path}: line {number} lacks the field class or super_class; it has "
            f"{', '.join(record) or 'none'}"
        )
    return str(record["class"]).strip(), str(parent).strip()
