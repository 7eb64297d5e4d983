"""The user's own pictures as image sets: one door for folders, Parquet files and tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from classifier.images.cache import Cached, OnTheFly, Say, Shape, open_pixels
from classifier.images.folders import read_folder
from classifier.images.listing import Found, Listing, make_listing
from classifier.images.protocol import IntArray, Pixels
from classifier.images.stores import digest
from classifier.images.tables import SUFFIXES, find_tables, read_tables
from shapesgen.choices import SPLITS, Split
from sqrtvocab.errors import UserError

_LISTED = 5  # damaged pictures named


class Pictures:
    """The pictures of one split (an `ImageSet`)."""

    space = None

    def __init__(self, listing: Listing, split: Split, pixels: Cached | OnTheFly) -> None:
        self.split = split
        self.classes: Sequence[str] = listing.classes
        self._rows = listing.rows(split)  # [len]
        self.labels: IntArray = listing.labels[self._rows]  # [len]
        self._pixels = pixels
        lines = (f"{listing.keys[row]}\0{listing.classes[listing.labels[row]]}" for row in self._rows)
        self._digest = digest([listing.store.contents(), *lines])

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._pixels.shape.image

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: Any) -> tuple[Pixels, IntArray]:
        """Images [N, size, size, channels] and labels [N] of `indices` [N]."""
        return self._pixels.take(self._rows[indices]), self.labels[indices]

    def identity(self) -> dict[str, Any]:
        return {"pictures": len(self), "digest": self._digest[:16], "image": list(self.shape)}

    def ceiling(self) -> None:
        return None


@dataclass(frozen=True)
class Opened:
    """What `open_pictures` found (an `ImageSource`)."""

    where: str
    sets: Mapping[Split, Pictures]  # all three; one may be empty
    notes: tuple[str, ...]  # what the user should know

    def __getitem__(self, split: Split) -> Pictures:
        return self.sets[split]


def open_pictures(
    path: Path,
    *,
    size: int,
    grey: bool,
    cache: Path,
    cache_limit: float,
    image_column: str | None = None,
    label_column: str | None = None,
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    skip_damaged: bool = False,
    workers: int | None = None,
    classes: Sequence[str] | None = None,
    fewest: int = 2,
    say: Say = print,
) -> Opened:
    """The pictures in a folder or table, decoded to `size` x `size`.

    Args:
        path: an ImageFolder, a folder with Parquet files or tables, or one such file.
        cache: folder of decoded pictures.
        cache_limit: in GB; larger sets are decoded on the fly.
        image_column, label_column: of tables; None finds them by their usual names.
        valid_fraction, test_fraction: shares of each class held out where the data has no such split.
        skip_damaged: continue without damaged pictures.
        workers: processes that decode; None takes all cores.
        classes: those of a trained model, which the labels must be among.
        fewest: how many classes there must be: a classifier needs two.
        say: called with what the user should know at once.

    Raises:
        UserError: nothing there, or nothing that can be used; damaged pictures, unless `skip_damaged`.
    """
    found = _find(path, image_column, label_column)
    listing = make_listing(found, valid_fraction, test_fraction, classes, fewest)
    shape = Shape(size, 1 if grey else 3)
    limit, processes = int(cache_limit * 1e9), workers or os.cpu_count() or 1
    pixels, damaged = open_pixels(listing.source, listing.store, shape, cache, limit, processes, say)
    notes = listing.notes
    if damaged:
        some = ", ".join(f"{listing.keys[i]} ({damaged[i]})" for i in sorted(damaged)[:_LISTED])
        more = "" if len(damaged) <= _LISTED else f" and {len(damaged) - _LISTED:,} more"
        what = f"{len(damaged):,} of {len(listing.keys):,} pictures are damaged: {some}{more}"
        if not skip_damaged:
            raise UserError(f"{listing.source}: {what}; --skip-damaged continues without them")
        listing = listing.without(np.array(list(damaged)))
        notes += (f"left out: {what}",)
    if isinstance(pixels, OnTheFly):
        needed = len(listing.keys) * shape.bytes / 1e9
        notes += (f"decoded on the fly: {needed:.1f} GB are more than --cache-limit {cache_limit:g}",)
    return Opened(f"in {path}", {split: Pictures(listing, split, pixels) for split in SPLITS}, notes)


def _find(path: Path, image_column: str | None, label_column: str | None) -> Found:
    """Recognise what is at `path`."""
    if path.is_dir():
        if tables := find_tables(path, image_column, label_column):
            return read_tables(path, tables, image_column, label_column)
        return read_folder(path)
    if not path.is_file():
        raise UserError(f"--data {path}: no such file or folder")
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"--data {path}: expected a folder or a table ({', '.join(SUFFIXES)})")
    return read_tables(path, [path], image_column, label_column)
