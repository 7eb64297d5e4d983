"""Files and folders that are either whole or absent, whatever moment the power goes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from sqrtvocab.training.errors import UserError


def fsync(path: Path) -> None:
    """Wait until `path` (a file, or a folder's list of names) is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, document: object) -> None:
    """Write `document` to `path` as indented JSON; a reader sees the old file or the new one, never half of
    it."""
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    fsync(path.parent)


def require_space(folder: Path, needed: int) -> None:
    """Raise `UserError` unless the disk that will hold `folder` (which need not exist) has `needed` bytes
    free."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(
            f"--out {folder}: not enough disk: {free / 1e9:.1f} GB free, "
            f"the checkpoints of this model need {needed / 1e9:.1f} GB"
        )
