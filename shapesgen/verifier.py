"""`shapesgen verify`: does every shard hold what the manifest says, to the pixel?"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import numpy as np

from shapesgen import png
from shapesgen.choices import Format
from shapesgen.errors import DamagedShardError
from shapesgen.layout import Record, Shard, read_manifest, shards_of
from shapesgen.recipe import Recipe
from shapesgen.shards import read_shard, stored
from shapesgen.workers import Report, run


def verify_set(folder: Path, workers: int = 1, progress: bool = False) -> list[str]:
    """What is wrong with a set, one line for each damaged shard; empty if nothing is.

    Raises UserError if the folder holds no finished set.
    """
    recipe, form, records = read_manifest(folder)
    shards = shards_of(recipe)
    task = partial(_problem, records=records, recipe=recipe, folder=folder, form=form)
    problems = run(task, shards, workers, recipe.num_images, progress)
    return [problem for problem in problems if problem is not None]


def _problem(
    shard: Shard, report: Report, records: dict[str, Record], recipe: Recipe, folder: Path, form: Format
) -> str | None:
    path = shard.path(folder, form)
    record = records[shard.name]
    if not path.exists():
        return f"{record.file}: missing"
    size, digest = stored(path, form)
    if size != record.bytes:
        return f"{record.file}: {size:,} bytes instead of {record.bytes:,}"
    try:
        pixels = _pixel_hash(shard, report, recipe, path, form)
    except DamagedShardError as error:
        return str(error)
    if pixels != record.pixels_sha256:
        return f"{record.file}: the pixels are not those of the manifest"
    if digest != record.sha256:
        return f"{record.file}: the pixels are right, but other bytes of the file have changed"
    return None


def _pixel_hash(shard: Shard, report: Report, recipe: Recipe, path: Path, form: Format) -> str:
    pixels = hashlib.sha256()
    row = shard.start
    for files, labels in read_shard(path, form, recipe.space):
        rows = np.arange(row, row + len(files))
        row += len(files)
        if row > shard.end:
            break
        expected, _ = recipe.locate(shard.split, recipe.shuffle(shard.split, rows))
        if not np.array_equal(labels, expected):
            raise DamagedShardError(f"{path.name}: labels differ from the recipe's")
        for file in files:
            try:
                pixels.update(png.decode(file).tobytes())
            except ValueError as error:
                raise DamagedShardError(f"{path.name}: {error}") from None
        report(len(files), sum(map(len, files)))
    if row != shard.end:
        raise DamagedShardError(f"{path.name}: not the {shard.end - shard.start:,} images it should hold")
    return pixels.hexdigest()
