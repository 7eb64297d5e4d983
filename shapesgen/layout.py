"""Where everything of a set lies on disk, and the small JSON files that say what it is.

    DIR/config.json      recipe and format; written first, so that another recipe is never mixed in
    DIR/data/            train-00000-of-00090.parquet and so on: the shards
    DIR/records/         a small file for each shard, written after it: its size and hashes. A shard without a
                         record, or whose bytes do not match it, is unfinished or damaged
    DIR/manifest.json    all the records in one, written by whoever finishes last: present means complete
    DIR/README.md        the dataset card
    DIR/.partial/        shards in flight

Nothing in them depends on time, host or process: parts written by several machines are the bytes one machine
would have written, and two machines that finish together write the same manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shapesgen.choices import FORMATS, SPLITS, Format, Split
from shapesgen.recipe import Recipe
from shapesgen.shards import SUFFIX
from sqrtvocab.errors import UserError

SHARD_IMAGES = 16_384  # about 45 MB: little is lost with one, and any number of workers share them evenly
ROW_GROUP = 1_024  # images held in memory at a time
VERSION = 1


@dataclass(frozen=True)
class Shard:
    """One file of a split: rows `start` .. `end` - 1 of its shuffled listing."""

    split: Split
    index: int
    count: int
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.index:05d}-of-{self.count:05d}"

    def path(self, out: Path, form: Format) -> Path:
        return out / "data" / (self.name + SUFFIX[form])

    def record_path(self, out: Path) -> Path:
        return out / "records" / f"{self.name}.json"

    def record(self, out: Path) -> Record | None:
        """The shard's record, or None if there is none or it is damaged."""
        try:
            return Record(**json.loads(self.record_path(out).read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Record:
    """What is known of a finished shard."""

    file: str
    split: Split
    images: int
    bytes: int
    """On disk."""
    sha256: str
    """Of the bytes on disk: tells damage without decoding."""
    pixels_sha256: str
    """Of the pixels in row order: the same on every machine, while PNG bytes depend on the zlib build."""


def shards_of(recipe: Recipe) -> list[Shard]:
    """All shards of a set, in order."""
    shards = []
    for split in SPLITS:
        size = recipe.size(split)
        count = -(-size // SHARD_IMAGES)
        shards += [Shard(split, i, count, size * i // count, size * (i + 1) // count) for i in range(count)]
    return shards


def set_config(recipe: Recipe, form: Format) -> dict[str, Any]:
    """What config.json holds."""
    sizes = {"shard_images": SHARD_IMAGES, "row_group": ROW_GROUP}
    return {"version": VERSION, "format": form, **sizes, **recipe.to_config()}


def read_config(out: Path) -> tuple[Recipe, Format]:
    """The recipe and format of the set in a folder. Raises UserError if there is none."""
    config = load_json(out / "config.json")
    if config is None:
        raise UserError(f"{out} holds no image set (no config.json); `shapesgen render --out` writes one")
    try:
        recipe, form = Recipe.from_config(config), config["format"]
        readable = form in FORMATS and set_config(recipe, form) == config
    except (KeyError, TypeError, ValueError):
        readable = False
    if not readable:
        raise UserError(f"{out / 'config.json'} is damaged, or from another version of shapesgen")
    return recipe, form


def write_manifest(recipe: Recipe, out: Path, form: Format) -> None:
    """Gather the records of a complete set."""
    records = [shard.record(out) for shard in shards_of(recipe)]
    content = {
        "config": set_config(recipe, form),
        "images": {split: recipe.size(split) for split in SPLITS},
        "shards": [asdict(record) for record in records if record is not None],
    }
    write_atomically(out / "manifest.json", json.dumps(content, indent=1) + "\n")


def read_manifest(out: Path) -> tuple[Recipe, Format, dict[str, Record]]:
    """Recipe, format and, by shard name, the records of a complete set.

    Raises UserError if the folder holds none or the set is not finished.
    """
    recipe, form = read_config(out)
    manifest = load_json(out / "manifest.json")
    shards = shards_of(recipe)
    if manifest is None:
        done = sum(shard.record(out) is not None for shard in shards)
        raise UserError(
            f"{out} is not finished: {done} of {len(shards)} shards are there; run `shapesgen render` again"
        )
    try:
        records = {Path(record["file"]).stem: Record(**record) for record in manifest["shards"]}
    except (KeyError, TypeError):
        records = {}
    if list(records) != [shard.name for shard in shards]:
        raise UserError(f"{out / 'manifest.json'} is damaged; run `shapesgen render` again to repair it")
    return recipe, form, records


def load_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no file or it holds something else."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_atomically(path: Path, text: str, replace: bool = True) -> None:
    """Write a small file so that it is there whole or not at all. `replace=False`: the first writer wins."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            partial.replace(path)
        else:
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(partial)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """See renames in a folder safely on the disk."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
