"""`shapesgen render`: write a set to disk; interrupted at any moment, run again, it goes on. See `layout`."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shapesgen import png
from shapesgen.card import dataset_card
from shapesgen.choices import SPLITS, Format
from shapesgen.errors import WriteError
from shapesgen.layout import (
    ROW_GROUP,
    Record,
    Shard,
    load_json,
    set_config,
    shards_of,
    sync_folder,
    write_atomically,
    write_manifest,
)
from shapesgen.recipe import Recipe
from shapesgen.shards import Rows, stored, write_shard
from shapesgen.workers import Report, run
from sqrtvocab.errors import UserError

MAX_FOLDER_IMAGES = 100_000


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    images: int
    """In the shards of this part."""
    kept: int
    """Of those, in shards that were there already and whole."""
    bytes: int
    seconds: float
    missing: int
    """Shards that other parts still have to write."""


def write_set(
    recipe: Recipe,
    out: Path,
    form: Format = "parquet",
    workers: int = 1,
    part: tuple[int, int] = (1, 1),
    overwrite: bool = False,
    progress: bool = False,
) -> Summary:
    """Write part I of N (counted from 1) of a set. Shards that are there and whole are kept.

    Raises UserError if it cannot be done as asked, WriteError if it fails on the way.
    """
    started = time.perf_counter()
    if form == "folder" and recipe.num_images > MAX_FOLDER_IMAGES:
        raise UserError(
            f"--format folder would make {recipe.num_images:,} files; beyond {MAX_FOLDER_IMAGES:,} file "
            "systems and tools crawl: use --format parquet, or fewer classes by --only or --classes"
        )
    first, parts = part
    shards = shards_of(recipe)
    mine = shards[first - 1 :: parts]
    try:
        _prepare(recipe, out, form, overwrite)
        _check_space(recipe, out, form, mine)
        images = sum(shard.end - shard.start for shard in mine)
        task = partial(_ensure_shard, recipe=recipe, out=out, form=form)
        results = run(task, mine, workers, images, progress)
        missing = sum(shard.record(out) is None for shard in shards)
        if not missing:
            write_atomically(out / "README.md", dataset_card(recipe, form))
            write_manifest(recipe, out, form)
            shutil.rmtree(out / ".partial", ignore_errors=True)
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename or out}"
        raise WriteError(f"{reason}; finished shards are kept, run again to go on") from None
    except BrokenProcessPool:
        raise WriteError(
            "a worker was killed (out of memory?); finished shards are kept, run again"
        ) from None
    return Summary(
        images=sum(record.images for record, _ in results),
        kept=sum(record.images for record, kept in results if kept),
        bytes=sum(record.bytes for record, _ in results),
        seconds=time.perf_counter() - started,
        missing=missing,
    )


def _prepare(recipe: Recipe, out: Path, form: Format, overwrite: bool) -> None:
    config = set_config(recipe, form)
    try:
        out.mkdir(parents=True, exist_ok=True)
        found = load_json(out / "config.json")
        if found is None and any(out.iterdir()):
            raise UserError(f"--out {out}: not empty, and no image set; name another folder")
        if found is not None and overwrite:
            for name in ("data", "records", ".partial", *(SPLITS if found.get("format") == "folder" else ())):
                shutil.rmtree(out / name, ignore_errors=True)
            for name in ("manifest.json", "README.md", "config.json"):
                (out / name).unlink(missing_ok=True)
            found = None
        if found is None:
            # Machines may start together: the first one's file stays, and all compare with it.
            write_atomically(out / "config.json", json.dumps(config, indent=1) + "\n", replace=False)
            found = load_json(out / "config.json") or {}
        if differences := list(_differences(found, config)):
            raise UserError(
                f"--out {out} holds a set with other settings: {'; '.join(differences)}. "
                "Nothing was changed: name another folder, or pass --overwrite"
            )
        for name in ("data", "records", ".partial"):
            (out / name).mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}") from None


def _differences(there: dict[str, Any], asked: dict[str, Any]) -> Iterator[str]:
    for setting, value in asked.items():
        found = there.get(setting)
        if isinstance(value, dict) and isinstance(found, dict):
            yield from _differences(found, value)
        elif found != value:
            yield f"{setting} is {json.dumps(found)}, asked for {json.dumps(value)}"


def _check_space(recipe: Recipe, out: Path, form: Format, shards: list[Shard]) -> None:
    images = sum(shard.end - shard.start for shard in shards if shard.record(out) is None)
    if not images:
        return
    sample = np.linspace(0, recipe.size("train") - 1, 256).astype(np.int64)
    sizes = np.array([len(file) for file in png.encode(recipe.render(*recipe.locate("train", sample)))])
    if form == "parquet":
        sizes += 16  # the other columns, compressed
    elif form == "webdataset":
        sizes = (sizes + 511) // 512 * 512 + 5 * 512  # three headers, label and attributes
    else:
        sizes = (sizes + 4095) // 4096 * 4096  # file systems give out blocks
    needed, free = images * float(sizes.mean()), shutil.disk_usage(out).free
    if needed > free:
        raise UserError(
            f"--out {out}: {images:,} images need about {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free"
        )


def _ensure_shard(
    shard: Shard, report: Report, recipe: Recipe, out: Path, form: Format
) -> tuple[Record, bool]:
    """The shard's record, and whether it was there already."""
    path = shard.path(out, form)
    record = shard.record(out)
    if record is not None and stored(path, form) == (record.bytes, record.sha256):
        report(record.images, record.bytes)
        return record, True
    shard.record_path(out).unlink(missing_ok=True)
    for leftover in (out / ".partial").glob(f"{shard.name}.*"):  # of a run that was killed
        leftover.unlink(missing_ok=True)
    pixels = hashlib.sha256()
    partial_path = out / ".partial" / f"{shard.name}.{uuid.uuid4().hex}"
    try:
        write_shard(partial_path, form, recipe.space, _row_groups(shard, recipe, pixels, report))
        size, digest = stored(partial_path, form)
        partial_path.replace(path)
    finally:
        partial_path.unlink(missing_ok=True)
    sync_folder(path.parent)
    record = Record(
        file=path.relative_to(out).as_posix(),
        split=shard.split,
        images=shard.end - shard.start,
        bytes=size,
        sha256=digest,
        pixels_sha256=pixels.hexdigest(),
    )
    write_atomically(shard.record_path(out), json.dumps(asdict(record)) + "\n")
    return record, False


def _row_groups(shard: Shard, recipe: Recipe, pixels: Any, report: Report) -> Iterator[Rows]:
    for start in range(shard.start, shard.end, ROW_GROUP):
        rows = np.arange(start, min(start + ROW_GROUP, shard.end))
        class_ids, instances = recipe.locate(shard.split, recipe.shuffle(shard.split, rows))
        images = recipe.render(class_ids, instances)  # [ROW_GROUP, 100, 100, 3]
        pixels.update(images.data)
        files = png.encode(images)
        yield files, class_ids, instances
        report(len(files), sum(map(len, files)))
