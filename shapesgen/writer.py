"""`shapesgen render`: write a set to disk; interrupted at any moment, run again, it goes on. See `layout`."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shapesgen import png
from shapesgen.card import dataset_card
from shapesgen.choices import SPLITS, Format
from shapesgen.errors import WriteError, naming_out
from shapesgen.layout import (
    ROW_GROUP,
    Record,
    Shard,
    load_config,
    read_record,
    set_config,
    shards_of,
    write_config,
    write_manifest,
)
from shapesgen.recipe import Recipe
from shapesgen.shards import Rows, stored, write_shard
from shapesgen.workers import Report, run
from sqrtvocab.atomic import claimed, fsync, is_claimed, write_text
from sqrtvocab.errors import UserError, shortened

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
    config = set_config(recipe, form)
    try:
        _examine(recipe, out, form, overwrite)
        _check_space(recipe, out, form, mine)
        _check_draws(recipe)
        _begin(config, out)
        images = sum(shard.end - shard.start for shard in mine)
        task = partial(_ensure_shard, recipe=recipe, config=config, out=out, form=form)
        results = run(task, mine, workers, images, progress)
        records = [read_record(shard, out, form, config) for shard in shards]
        finished = [record for record in records if record is not None]
        if len(finished) == len(shards):
            write_text(out / "README.md", dataset_card(recipe, form))
            write_config(config, out, replace=True)  # with its seal, if an older version began the set
            write_manifest(recipe, out, form, finished)
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename2 or error.filename or out}"
        raise WriteError(f"{reason}; finished shards are kept, run again to continue") from None
    except BrokenProcessPool:
        raise WriteError(
            "a worker was killed (out of memory?); finished shards are kept, run again"
        ) from None
    return Summary(
        images=sum(record.images for record, _ in results),
        kept=sum(record.images for record, kept in results if kept),
        bytes=sum(record.bytes for record, _ in results),
        seconds=time.perf_counter() - started,
        missing=len(shards) - len(finished),
    )


def _examine(recipe: Recipe, out: Path, form: Format, overwrite: bool) -> None:
    """See that nothing in the folder, if it is there, speaks against this set."""
    with naming_out(out):
        if out.is_symlink() and not out.exists():
            raise UserError(f"--out {out}: a link that leads nowhere")
        if out.exists() and not out.is_dir():
            raise UserError(f"--out {out}: not a folder")
        if not out.exists():
            return
        # Looked at before config.json is, which another process may write at any moment, and first of all.
        is_bare = all(_is_draft(path) for path in out.iterdir())
        problem = "not empty, and no image set; name another folder"
        try:
            found = load_config(out)
            if found is not None and "version" not in found:  # nothing of ours
                found = None
        except UserError as error:  # damaged
            found, problem = None, f"{error}; name another folder, or the settings of the set that it holds"
        if found is not None and overwrite:
            _delete(out, found)
        elif found is not None:
            _refuse_others(out, found, set_config(recipe, form))
        elif not is_bare:
            if not _is_of(recipe, out, form):
                raise UserError(f"--out {out}: {problem}")
            (out / "config.json").unlink(missing_ok=True)  # of this very set: written again


def _begin(config: dict[str, Any], out: Path) -> None:
    """Make the folders and config.json, unless they are there."""
    with naming_out(out):
        out.mkdir(parents=True, exist_ok=True)
        # Machines may start together: the first one's file stays, and all compare with it.
        write_config(config, out, replace=False)
        _refuse_others(out, load_config(out) or {}, config)
        for name in ("data", "records"):
            (out / name).mkdir(exist_ok=True)


def _is_draft(path: Path) -> bool:
    """Whether it is all that a process may leave that was killed, or is still busy, before there is a set."""
    return path.name.startswith(".config.json.")


def _is_of(recipe: Recipe, out: Path, form: Format) -> bool:
    """Whether a set whose config.json is damaged or gone was made from this recipe: a record says so."""
    config = set_config(recipe, form)
    return any(read_record(shard, out, form, config) is not None for shard in shards_of(recipe))


def _delete(out: Path, found: dict[str, Any]) -> None:
    """Delete a set and nothing else; config.json last, so that a second try knows what it has before it."""
    if any(is_claimed(lock) for lock in out.glob("records/.*.lock")):
        raise UserError(f"--overwrite: another `shapesgen render` is writing to {out}")
    for name in ("manifest.json", "README.md"):
        (out / name).unlink(missing_ok=True)
    pictures = SPLITS if found.get("format") == "folder" else ()
    for name in ("data", "records", ".partial", *pictures):  # .partial: of older versions
        if (out / name).exists():
            shutil.rmtree(out / name)
    (out / "config.json").unlink()


def _refuse_others(out: Path, found: dict[str, Any], config: dict[str, Any]) -> None:
    if differences := list(_differences(found, config)):
        raise UserError(
            f"--out {out} holds a set with other settings: {'; '.join(differences)}. "
            "Nothing was changed: name another folder, or pass --overwrite"
        )


def _differences(there: dict[str, Any], asked: dict[str, Any]) -> Iterator[str]:
    for setting, value in asked.items():
        found = there.get(setting)
        if isinstance(value, dict) and isinstance(found, dict):
            yield from _differences(found, value)
        elif found != value:
            yield f"{setting} is {shortened(json.dumps(found))}, asked for {json.dumps(value)}"


def _check_space(recipe: Recipe, out: Path, form: Format, shards: list[Shard]) -> None:
    config = set_config(recipe, form)
    todo = [shard for shard in shards if read_record(shard, out, form, config) is None]
    images = sum(shard.end - shard.start for shard in todo)
    if not images:
        return
    first, end = recipe.class_range
    sample = np.linspace(first, end - 1, 256).astype(np.int64)
    sizes = np.array([len(file) for file in png.encode(recipe.render(sample, 0))])
    if form == "parquet":
        sizes += 16  # the other columns, compressed
    elif form == "webdataset":
        sizes = (sizes + 511) // 512 * 512 + 5 * 512  # three headers, label and attributes
    else:
        sizes = (sizes + 4095) // 4096 * 4096  # file systems give out blocks
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    needed, free = images * float(sizes.mean()), shutil.disk_usage(existing).free
    if needed > free:
        raise UserError(
            f"--out {out}: {images:,} images need about {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free"
        )


def _check_draws(recipe: Recipe) -> None:
    try:
        recipe.locate("train", [0])  # with random sampling this draws them all
    except ValueError as error:
        raise UserError(f"--sampling random: {error}") from None


def _ensure_shard(
    shard: Shard, report: Report, recipe: Recipe, config: dict[str, Any], out: Path, form: Format
) -> tuple[Record, bool]:
    """The shard's record, and whether it was there already, or has come while another process had it."""
    path = shard.path(out, form)
    with claimed(shard.lock_path(out), waiting=lambda: report(0, 0)):
        record = read_record(shard, out, form, config)
        if record is not None and stored(path, form) == (record.bytes, record.sha256):
            report(record.images, record.bytes)
            return record, True
        shard.record_path(out).unlink(missing_ok=True)
        pixels = hashlib.sha256()
        draft = path.with_name(f".{path.name}.tmp")
        try:
            write_shard(draft, form, recipe.space, _row_groups(shard, recipe, pixels, report))
            size, digest = stored(draft, form)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        fsync(path.parent)
        record = Record(
            file=shard.file(form),
            split=shard.split,
            images=shard.end - shard.start,
            bytes=size,
            sha256=digest,
            pixels_sha256=pixels.hexdigest(),
        )
        write_text(shard.record_path(out), json.dumps(record.to_json(config)) + "\n")
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
