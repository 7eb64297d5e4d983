"""Pictures decoded and resized once, on all cores, into a memory-mapped file; opened in no time ever after.

    CACHE/NAME-KEY/pixels.bin     uint8 [N, size, size, channels], in the order of the listing
    CACHE/NAME-KEY/done.json      what it was made of, checksums, damaged pictures; written last
    CACHE/NAME-KEY/chunks/        while it is made: a small file for each chunk that is done

A run that is killed leaves its finished chunks behind, and the next one makes the others. Sets that would be
too large are decoded whenever an image is asked for; the pass is made all the same, once, and finds the
damaged pictures, but keeps no pixels.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from classifier.images.decode import PictureError, decode
from classifier.images.protocol import IntArray, Pixels
from classifier.images.stores import Store
from shapesgen.workers import Report, run
from sqrtvocab.atomic import SEAL, read_json, read_sealed, sealed, write_json
from sqrtvocab.errors import RunError, UserError

FORMAT = 2  # to be raised when `decode` makes other pixels of the same file
CHUNK = 512  # pictures
_REPORT = 32  # pictures between two reports
_PER_WORKER = 5_000  # pictures that are worth the start of another process, which imports torch
_MUCH = 2_000_000_000  # bytes whose reading may take a while
Say = Callable[[str], None]


@dataclass(frozen=True)
class Shape:
    """What pictures are brought to."""

    size: int
    channels: int

    @property
    def image(self) -> tuple[int, int, int]:
        return self.size, self.size, self.channels

    @property
    def bytes(self) -> int:
        return self.size * self.size * self.channels


class Cached:
    """Decoded pictures in a file. Another process opens the file for itself."""

    def __init__(self, path: Path, count: int, shape: Shape) -> None:
        self.path, self.count, self.shape = path, count, shape
        self._pixels: Pixels | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pixels": None}  # a memory map would travel with all its pixels

    def take(self, rows: IntArray) -> Pixels:
        """[N, size, size, channels]."""
        if self._pixels is None:
            self._pixels = np.memmap(self.path, np.uint8, "r", shape=(self.count, *self.shape.image))
        return np.asarray(self._pixels[rows])


class DamagedPictureError(RunError):
    """A picture was damaged in mid-run. The message names it."""


class OnTheFly:
    """Pictures decoded when asked for."""

    def __init__(self, store: Store, shape: Shape) -> None:
        self.store, self.shape = store, shape

    def take(self, rows: IntArray) -> Pixels:
        """[N, size, size, channels]. Raises DamagedPictureError."""
        images = np.empty((len(rows), *self.shape.image), np.uint8)
        for n in self.store.reading_order(rows).tolist():
            row = int(rows[n])
            try:
                images[n] = decode(self.store.read(row), self.shape.size, self.shape.channels)
            except PictureError as error:
                name = self.store.name(row)
                raise DamagedPictureError(f"{name} was whole when the run began, and now: {error}") from error
        return images


def open_pixels(
    source: str, store: Store, shape: Shape, cache: Path, limit: int, workers: int, say: Say
) -> tuple[Cached | OnTheFly, dict[int, str]]:
    """The pixels of all pictures, from the cache if nothing has changed, else decoded now; and by number the
    reasons why some are damaged (their pixels are black).

    Args:
        source: `--data PATH`, for messages and the name in the cache.
        limit: bytes; a set with more is decoded on the fly.
        workers: processes.
        say: called with what the user should know.

    Raises:
        UserError: the cache cannot be written, or the disk is too small.
        RunError: a worker was killed.
    """
    keeps = len(store) * shape.bytes <= limit
    place = _place(source, shape, cache, keeps)
    made_of = {
        "format": FORMAT,
        "pictures": len(store),
        "image": list(shape.image),
        "kept": keeps,
        "source": store.fingerprint(),
    }
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(place.name + ".lock")):  # of several processes one decodes, others wait
            facts, problem = _read(place, made_of, say)
            if facts is None:
                if problem:
                    say(f"{place}: {problem}; decoding again")
                if len(store) >= _PER_WORKER:
                    kept = f"into {place}" if keeps else "to find damaged ones (no pixels are kept)"
                    say(f"decoding {len(store):,} pictures once, {kept}")
                facts = _make(place, store, shape, keeps, workers, made_of)
            shutil.rmtree(place / "chunks", ignore_errors=True)  # also what a kill has left of them
    except OSError as error:
        raise UserError(f"--cache {cache}: cannot be written ({error.strerror or error})") from error
    damaged = {int(number): str(reason) for number, reason in facts["damaged"].items()}
    if keeps:
        return Cached(place / "pixels.bin", len(store), shape), damaged
    return OnTheFly(store, shape), damaged


def _place(source: str, shape: Shape, cache: Path, keeps: bool) -> Path:
    path = Path(source.removeprefix("--data ")).resolve()
    name = re.sub(r"[^A-Za-z0-9.]+", "-", path.name).strip("-.") or "images"
    key = hashlib.sha256(f"{path}\0{shape}\0{keeps}".encode()).hexdigest()[:12]
    return cache / f"{name}-{key}"


def _read(place: Path, made_of: dict[str, Any], say: Say) -> tuple[dict[str, Any] | None, str]:
    """What done.json says, or None and why it cannot be used ("" if there is none)."""
    path = place / "done.json"
    if not path.exists():
        return None, ""
    if made_of["kept"] and _bytes(made_of) > _MUCH:
        say(f"checking {_bytes(made_of) / 1e9:.1f} GB of decoded pictures in {place}")
    try:
        facts = read_sealed(path)
        if SEAL not in facts:
            return None, "of an older version"
        if any(facts.get(key) != value for key, value in made_of.items()):
            return None, "the pictures have changed since"
        checksums = facts["checksums"]
        if made_of["kept"]:
            if (place / "pixels.bin").stat().st_size != _bytes(made_of):
                return None, "the file is torn"
            wrong = _wrong_chunks(place, dict(enumerate(checksums)), made_of)
            if wrong:
                return None, f"{len(wrong)} of {len(checksums)} chunks are damaged"
        return facts, ""
    except (UserError, OSError):
        return None, "it cannot be read"


def _bytes(made_of: dict[str, Any]) -> int:
    return made_of["pictures"] * int(np.prod(made_of["image"]))


def _wrong_chunks(place: Path, checksums: dict[int, int], made_of: dict[str, Any]) -> set[int]:
    """Which of these chunks of pixels do not have their checksum."""
    pixels = np.memmap(place / "pixels.bin", np.uint8, "r", shape=(made_of["pictures"], *made_of["image"]))

    def checksum(chunk: int) -> int:
        return zlib.crc32(pixels[chunk * CHUNK : (chunk + 1) * CHUNK].data)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # crc32 lets other threads work
        found = dict(zip(checksums, pool.map(checksum, checksums), strict=True))
    return {chunk for chunk in checksums if found[chunk] != checksums[chunk]}


# ---- making it


def _make(
    place: Path, store: Store, shape: Shape, keeps: bool, workers: int, made_of: dict[str, Any]
) -> dict[str, Any]:
    (place / "done.json").unlink(missing_ok=True)
    started = place / "chunks" / "made_of.json"
    if not _is_same(started, made_of):  # of other pictures
        shutil.rmtree(place, ignore_errors=True)
        started.parent.mkdir(parents=True)
        if keeps:
            _reserve(place, _bytes(made_of))
        write_json(started, made_of)
    chunks = range(-(-len(store) // CHUNK))
    records = {chunk: record for chunk in chunks if (record := _record(place, chunk))}
    if keeps and records:
        checksums = {chunk: record["checksum"] for chunk, record in records.items()}
        for chunk in _wrong_chunks(place, checksums, made_of):
            del records[chunk]
    todo = [
        _Chunk(chunk, store.take(np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, len(store)))))
        for chunk in chunks
        if chunk not in records
    ]
    task = partial(_decode_chunk, place=place, shape=shape, keeps=keeps)
    count = sum(len(chunk.store) for chunk in todo)
    workers = max(1, min(workers, count // _PER_WORKER))
    try:
        made = run(task, todo, workers, count, progress=sys.stderr.isatty(), joins=True)
    except BrokenProcessPool as error:
        raise RunError(
            "a process that decodes pictures was killed (out of memory?); run again to continue, "
            "perhaps with fewer --workers"
        ) from error
    records |= {chunk.number: record for chunk, record in zip(todo, made, strict=True)}
    damaged: dict[str, str] = {}
    for chunk in chunks:
        damaged |= records[chunk]["damaged"]
    facts = {**made_of, "checksums": [records[chunk]["checksum"] for chunk in chunks], "damaged": damaged}
    write_json(place / "done.json", sealed(facts))
    return facts


@dataclass(frozen=True)
class _Chunk:
    number: int
    store: Store  # its pictures


def _decode_chunk(chunk: _Chunk, report: Report, place: Path, shape: Shape, keeps: bool) -> dict[str, Any]:
    """Decode the pictures of a chunk into its place, and write down that it is done."""
    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)  # the processes are what runs in parallel
    damaged, checksum, first = {}, 0, chunk.number * CHUNK
    images = np.empty((_REPORT, *shape.image), np.uint8)  # so few that they stay in the cache
    with (place / "pixels.bin").open("r+b") if keeps else nullcontext() as pixels:
        for start in range(0, len(chunk.store), _REPORT):
            part, read = images[: len(chunk.store) - start], 0
            for n in range(len(part)):
                try:
                    file = chunk.store.read(start + n)
                    read += len(file)
                    part[n] = decode(file, shape.size, shape.channels)
                except PictureError as error:
                    part[n] = 0
                    damaged[str(first + start + n)] = str(error)
            if pixels is not None:
                pixels.seek((first + start) * shape.bytes)
                pixels.write(part.data)
                checksum = zlib.crc32(part.data, checksum)
            report(len(part), read)
    record = {"checksum": checksum, "damaged": damaged}
    # Nobody waits for the disk: what a power cut leaves half written has another checksum, and is made again.
    _record_path(place, chunk.number).write_text(json.dumps(sealed(record)))
    return record


def _record_path(place: Path, chunk: int) -> Path:
    return place / "chunks" / f"{chunk:07d}.json"


def _record(place: Path, chunk: int) -> dict[str, Any] | None:
    try:
        record = read_sealed(_record_path(place, chunk))
        return record if SEAL in record else None
    except UserError:  # none, or damaged
        return None


def _is_same(path: Path, made_of: dict[str, Any]) -> bool:
    try:
        return bool(read_json(path) == made_of)
    except UserError:
        return False


def _reserve(place: Path, size: int) -> None:
    free = shutil.disk_usage(place).free
    if free < size + (64 << 20):
        raise UserError(
            f"--cache {place.parent}: not enough disk: {free / 1e9:.1f} GB free, the decoded pictures need "
            f"{size / 1e9:.1f} GB; name another folder, or decode on the fly with --cache-limit 0"
        )
    with (place / "pixels.bin").open("wb") as file:
        file.truncate(size)
