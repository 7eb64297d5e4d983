"""`shapesgen verify`: does every shard hold what the manifest says, to the pixel?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shapesgen import png
from shapesgen.choices import Format
from shapesgen.errors import DamagedShardError
from shapesgen.layout import Record, Shard, read_manifest, set_config, shards_of
from shapesgen.recipe import Recipe
from shapesgen.renderer import Images
from shapesgen.shards import image_name, listed, picture_path, read_shard, stored
from shapesgen.workers import Report, run
from sqrtvocab.atomic import read_json
from sqrtvocab.errors import UserError


def verify_set(folder: Path, workers: int = 1, progress: bool = False) -> list[str]:
    """What is wrong with a set, one line for each damaged shard; empty if nothing is.

    Raises UserError if the folder holds no finished set.
    """
    recipe, form, records = read_manifest(folder)
    shards = shards_of(recipe)
    config = set_config(recipe, form)
    task = partial(_problem, records=records, recipe=recipe, config=config, folder=folder, form=form)
    problems = run(task, shards, workers, recipe.num_images, progress)
    return [problem for problem in problems if problem is not None]


def _problem(
    shard: Shard,
    report: Report,
    records: dict[str, Record],
    recipe: Recipe,
    config: dict[str, Any],
    folder: Path,
    form: Format,
) -> str | None:
    path = shard.path(folder, form)
    record = records[shard.name]
    if not path.is_file():
        return f"{record.file}: {'not a regular file' if path.exists() else 'missing'}"
    size, digest = stored(path, form)
    if size != record.bytes and form != "folder":  # where it is better to look for the picture at fault
        return f"{record.file}: {size:,} bytes instead of {record.bytes:,}"
    try:
        pixels = _pixel_hash(shard, report, recipe, path, form)
        if pixels != record.pixels_sha256:
            _find_wrong_image(shard, recipe, path, form)
            return f"manifest.json: the hash of the pixels of {record.file} is wrong"
    except DamagedShardError as error:
        return str(error)
    if digest != record.sha256:
        return f"{record.file}: the pixels are right, but other bytes of the file have changed"
    return _record_problem(shard, record, config, folder, form)


def _record_problem(
    shard: Shard, record: Record, config: dict[str, Any], folder: Path, form: Format
) -> str | None:
    path = shard.record_path(folder)
    name = path.relative_to(folder).as_posix()
    if not path.exists():
        return f"{name}: missing"
    try:
        document = read_json(path)
        if Record.from_json(document, shard, form, config) == record:
            return None
    except (UserError, ValueError):
        pass
    return f"{name}: damaged, for it is not what the manifest says of {record.file}"


def _pixel_hash(shard: Shard, report: Report, recipe: Recipe, path: Path, form: Format) -> str:
    """Of all images of a shard; raises DamagedShardError if one cannot be had."""
    pixels = hashlib.sha256()
    for image, size, _ in _images(shard, recipe, path, form):
        pixels.update(image.tobytes())
        report(1, size)
    return pixels.hexdigest()


def _find_wrong_image(shard: Shard, recipe: Recipe, path: Path, form: Format) -> None:
    """Raise DamagedShardError with the name of the first image that is not what the recipe draws, if any."""
    for image, _, (label, instance) in _images(shard, recipe, path, form):
        if not np.array_equal(image, recipe.render(label, instance)[0]):
            name = _name(shard, path, form, label, instance)
            raise DamagedShardError(f"{name}: the pixels are not those of the manifest")


def _images(
    shard: Shard, recipe: Recipe, path: Path, form: Format
) -> Iterator[tuple[Images, int, tuple[int, int]]]:
    """Each image [100, 100, 3] of a shard, the size of its PNG, and its class and instance. Labels are
    compared with the recipe. Raises DamagedShardError with the name of what is damaged."""
    labels, instances = recipe.locate(shard.split, recipe.shuffle(shard.split, range(shard.start, shard.end)))
    expected = list(zip(labels.tolist(), instances.tolist(), strict=True))
    if form == "folder" and listed(path) != [picture_path(shard.split, *image) for image in expected]:
        raise DamagedShardError(f"data/{path.name}: does not list the images that it should")
    row = 0
    for files, found in read_shard(path, form, recipe.space):
        if not np.array_equal(found, labels[row : row + len(files)]):
            raise DamagedShardError(f"data/{path.name}: labels differ from the recipe's")
        for file in files:
            try:
                image = png.decode(file)
            except ValueError as error:
                raise DamagedShardError(f"{_name(shard, path, form, *expected[row])}: {error}") from None
            yield image, len(file), expected[row]
            row += 1
    if row != len(expected):
        raise DamagedShardError(f"data/{path.name}: not the {len(expected):,} images it should hold")


def _name(shard: Shard, path: Path, form: Format, label: int, instance: int) -> str:
    """What to call an image: a file of its own in the folder format."""
    if form == "folder":
        return picture_path(shard.split, label, instance)
    return f"data/{path.name}: {image_name(label, instance)}"
