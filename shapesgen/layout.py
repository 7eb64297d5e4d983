"""Where everything of a set lies on disk, and the small JSON files that say what it is.

    DIR/config.json      recipe and format; written first, so that another recipe is never mixed in
    DIR/data/            train-00000-of-00090.parquet and so on: the shards
    DIR/records/         a small file for each shard, written after it: its size and hashes. A shard without a
                         record, or whose bytes do not match it, is unfinished or damaged
    DIR/manifest.json    all the records in one, written by whoever finishes last: present means complete
    DIR/README.md        the dataset card

Nothing in them depends on time, host or process: parts written by several machines are the bytes one machine
would have written, and two machines that finish together write the same manifest. Hidden files are in flight:
drafts (.NAME.tmp) and, beside a record, the claim of the process that writes its shard (.NAME.lock).

Each JSON object carries a seal, a hash of the rest; that of a record covers the settings of the set, too.
Sets of older versions have none: they are read as they are; `render` draws them again, with seals.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shapesgen.choices import FORMATS, SPLITS, Format, Split
from shapesgen.recipe import Recipe
from shapesgen.shards import SUFFIX
from sqrtvocab.atomic import SEAL, read_json, read_sealed, sealed, write_text
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

    def file(self, form: Format) -> str:
        """Its path within the set."""
        return f"data/{self.name}{SUFFIX[form]}"

    def path(self, out: Path, form: Format) -> Path:
        return out / self.file(form)

    def record_path(self, out: Path) -> Path:
        return out / "records" / f"{self.name}.json"

    def lock_path(self, out: Path) -> Path:
        return out / "records" / f".{self.name}.lock"


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

    def to_json(self, config: dict[str, Any]) -> dict[str, Any]:
        """With its seal, in a set with this config."""
        fields = asdict(self)
        return fields | {SEAL: sealed(fields | {"config": config})[SEAL]}

    @classmethod
    def from_json(cls, document: Any, shard: Shard, form: Format, config: dict[str, Any]) -> Record:
        """Raises ValueError unless this is the record of that shard, unchanged since it was written."""
        try:
            fields = dict(document)
            seal = fields.pop(SEAL, None)
            record = cls(**fields)
        except TypeError:
            raise ValueError("not the fields of a record") from None
        names = (record.file, record.split, record.images)
        if (
            names != (shard.file(form), shard.split, shard.end - shard.start)
            or not isinstance(record.bytes, int)
            or not all(isinstance(text, str) for text in (record.sha256, record.pixels_sha256))
            or (seal is not None and document != record.to_json(config))
        ):
            raise ValueError(f"not the record of {shard.name}")
        return record


def shards_of(recipe: Recipe) -> list[Shard]:
    """All shards of a set, in order."""
    shards = []
    for split in SPLITS:
        size = recipe.size(split)
        count = -(-size // SHARD_IMAGES)
        shards += [Shard(split, i, count, size * i // count, size * (i + 1) // count) for i in range(count)]
    return shards


def set_config(recipe: Recipe, form: Format) -> dict[str, Any]:
    """What config.json holds, but for its seal."""
    sizes = {"shard_images": SHARD_IMAGES, "row_group": ROW_GROUP}
    return {"version": VERSION, "format": form, **sizes, **recipe.to_config()}


def write_config(config: dict[str, Any], out: Path, replace: bool) -> None:
    write_text(out / "config.json", json.dumps(sealed(config), indent=1) + "\n", replace)


def load_config(out: Path) -> dict[str, Any] | None:
    """What config.json holds, whether or not it makes sense, without its seal; None if there is none.

    Raises UserError if it is damaged.
    """
    path = out / "config.json"
    if not path.exists():
        return None
    config = read_sealed(path)
    config.pop(SEAL, None)
    return config


def read_config(out: Path) -> tuple[Recipe, Format]:
    """The recipe and format of the set in a folder. Raises UserError if there is none."""
    config = load_config(out)
    if config is None:
        raise UserError(f"{out} holds no image set (no config.json); `shapesgen render --out` writes one")
    try:
        recipe, form = Recipe.from_config(config), config["format"]
        # As text, in which 1 is neither 1.0 nor true.
        readable = form in FORMATS and json.dumps(set_config(recipe, form)) == json.dumps(config)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        readable = False
    if not readable:
        raise UserError(f"{out / 'config.json'} is damaged, or from another version of shapesgen")
    return recipe, form


def read_record(shard: Shard, out: Path, form: Format, config: dict[str, Any]) -> Record | None:
    """The shard's record, or None if there is none that can be trusted: `render` then writes the shard."""
    try:
        document = read_json(shard.record_path(out))
        record = Record.from_json(document, shard, form, config)
    except (UserError, ValueError):
        return None
    return record if SEAL in document else None


def write_manifest(recipe: Recipe, out: Path, form: Format, records: list[Record]) -> None:
    """Gather the records of a complete set."""
    config = set_config(recipe, form)
    content = {
        "config": config,
        "images": {split: recipe.size(split) for split in SPLITS},
        "shards": [record.to_json(config) for record in records],
    }
    write_text(out / "manifest.json", json.dumps(sealed(content), indent=1) + "\n")


def read_manifest(out: Path) -> tuple[Recipe, Format, dict[str, Record]]:
    """Recipe, format and, by shard name, the records of a complete set.

    Raises UserError if the folder holds none, or the set is not finished, or a document is damaged.
    """
    recipe, form = read_config(out)
    config = set_config(recipe, form)
    shards = shards_of(recipe)
    path = out / "manifest.json"
    if not path.exists():
        done = sum(read_record(shard, out, form, config) is not None for shard in shards)
        raise UserError(
            f"{out} is not finished: {done} of {len(shards)} shards are there; run `shapesgen render` again"
        )
    repair = "run `shapesgen render` again to repair it"
    try:
        manifest = read_sealed(path)
    except UserError as error:
        raise UserError(f"{error}; {repair}") from error
    manifest.pop(SEAL, None)
    entries = manifest.pop("shards", None)
    rest = {"config": config, "images": {split: recipe.size(split) for split in SPLITS}}
    try:
        if manifest != rest:
            raise ValueError
        pairs = zip(shards, entries, strict=True)
        return (
            recipe,
            form,
            {shard.name: Record.from_json(entry, shard, form, config) for shard, entry in pairs},
        )
    except (TypeError, ValueError):
        raise UserError(f"{path} is damaged, or of another set; {repair}") from None
