"""Pictures in folders named after their classes, as torchvision's ImageFolder has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from classifier.images.listing import Found, split_named
from classifier.images.stores import Files
from shapesgen.choices import Split
from sqrtvocab.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")


def read_folder(root: Path) -> Found:
    """The pictures below `root`: CLASS/... or SPLIT/CLASS/...

    What lies below a class folder belongs to that class, however deep. Classes are in the order of their
    names. A folder `train` that holds folders means that its siblings are splits, too.

    Raises UserError if there are no folders with pictures.
    """
    source = f"--data {root}"
    tops = _folders(root)
    has_splits = any(split_named(name) == "train" and _folders(root / name) for name in tops)
    names: list[str] = []
    classes: list[str] = []
    splits: list[Split | None] = []
    others, loose, empty, left_out = 0, _pictures_in(root), [], []
    for top in tops:
        split = split_named(top) if has_splits else None
        if has_splits and split is None:
            left_out.append(top)
            continue
        base = root / top if has_splits else root
        loose += _pictures_in(base) if has_splits else 0
        for label in _folders(base) if has_splits else [top]:
            before = len(names)
            for path in _files_below(base / label):
                if path.lower().endswith(SUFFIXES):
                    names.append(os.path.relpath(path, root))
                    classes.append(label)
                    splits.append(split)
                else:
                    others += 1
            if len(names) == before:
                empty.append(os.path.relpath(base / label, root))
    if not names:
        raise UserError(
            f"{source}: no pictures in it; expected a folder for each class with {', '.join(SUFFIXES)} files "
            + (f"(its {loose:,} pictures are in no class folder)" if loose else "in it")
        )
    notes = []
    if loose:
        notes.append(f"pictures in no class folder, left out: {loose:,}")
    if others:
        notes.append(f"files left out, for their names are not those of pictures: {others:,}")
    if empty:
        notes.append(f"folders left out, for they hold no pictures: {len(empty):,}, such as {empty[0]}")
    if left_out:
        notes.append(f"beside the folders of the splits, left out: {', '.join(left_out)}")
    return Found(source, Files(root, names), names, classes, splits, notes=tuple(notes))


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _pictures_in(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(entry.is_file() and entry.name.lower().endswith(SUFFIXES) for entry in entries)


def _files_below(folder: Path) -> Iterator[str]:
    """All files that are not hidden, in the order of their paths; links are followed, but not in circles."""
    seen = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        place = os.path.realpath(path)
        if place in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and name != "Thumbs.db":
                yield os.path.join(path, name)
