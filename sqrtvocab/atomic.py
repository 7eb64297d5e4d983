"""Files and folders that are either whole or absent, whatever moment the power goes."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sqrtvocab.errors import UserError

PROBE = ".probe-"  # how the name of a folder begins that `require_space` makes, and a kill may leave


def fsync(path: Path) -> None:
    """Wait until `path` (a file, or a folder's list of names) is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, document: object) -> None:
    """Write `document` to `path` as indented JSON, by `write_text`. A number that is not finite becomes null:
    JSON has none, and strict readers refuse the whole file."""
    plain = finite(document)
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # the path of a file whose name is not UTF-8, say
        text = json.dumps(plain, indent=2)
    write_text(path, text + "\n")


def finite(document: object) -> object:
    """The document with null for each number that is not finite."""
    if isinstance(document, Mapping):
        return {key: finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [finite(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`; a reader sees the old file or the new one, never half of it."""
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    fsync(path.parent)


def require_space(folder: Path, needed: int) -> None:
    """Raise `UserError` unless `folder` (which need not exist) can be written and checkpoints of `needed`
    bytes fit on its disk, those that it holds already included."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=PROBE):
            pass
    except OSError as error:
        raise UserError(f"--out {folder}: cannot write in {existing}: {error.strerror}") from error
    free = shutil.disk_usage(existing).free
    held = sum(file.stat().st_size for file in folder.glob("*/*"))
    if free + held < needed:
        raise UserError(
            f"--out {folder}: not enough disk: {free / 1e9:.1f} GB free, "
            f"the checkpoints of this model need {needed / 1e9:.1f} GB"
        )
