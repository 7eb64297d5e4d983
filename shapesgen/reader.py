"""`ShapesParquet`: a set on disk as a map-style torch dataset, quick in any order."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shapesgen import png
from shapesgen.attributes import IntArray
from shapesgen.choices import Split
from shapesgen.dataset import ShapeImages
from shapesgen.errors import DamagedShardError
from shapesgen.kernel import SIDE
from shapesgen.layout import Record, read_manifest, shards_of
from shapesgen.recipe import check_split
from shapesgen.renderer import Images
from sqrtvocab.errors import UserError


class ShapesParquet(ShapeImages):
    """A split of a set written by `shapesgen render`, in its shuffled order.

    Shards are memory-mapped when first touched and images taken out of them one by one, so that shuffled
    reading costs no more than sequential, and memory belongs to the page cache. Safe in DataLoader workers,
    forked or spawned. A damaged image raises DamagedShardError with the name of the shard.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        split: Split = "train",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
    ) -> None:
        """Raises UserError if the folder holds no finished Parquet set, DamagedShardError if a shard of
        the split is missing or has another size than it should."""
        super().__init__(transform, target_transform, Path(folder))
        self.split = check_split(split)
        self.folder = Path(folder)
        self.recipe, form, records = read_manifest(self.folder)
        if form != "parquet":
            raise UserError(f"{folder} is a set in format {form}; ShapesParquet reads parquet")
        shards = [shard for shard in shards_of(self.recipe) if shard.split == split]
        if not shards:
            raise UserError(f"{folder} has no images in the {split} split")
        self._records = [records[shard.name] for shard in shards]
        self._starts = np.array([shard.start for shard in shards])
        for record in self._records:
            path = self.folder / record.file
            size = path.stat().st_size if path.is_file() else 0
            if size != record.bytes:
                raise _damaged(record, f"{size:,} bytes instead of {record.bytes:,}")
        self._open: dict[int, _MappedShard] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}  # maps do not travel; the other process makes its own

    def locate(self, indices: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        return super().locate(self.recipe.shuffle(self.split, indices))

    def batch(self, indices: npt.ArrayLike, out: Images | None = None) -> tuple[Images, IntArray]:
        indices = np.asarray(indices, np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(
                f"{self.split} has images 0..{len(self) - 1}, got {indices.min()}..{indices.max()}"
            )
        which = np.searchsorted(self._starts, indices, side="right") - 1  # [N]
        rows = indices - self._starts[which]
        images = np.empty((len(indices), SIDE, SIDE, 3), np.uint8) if out is None else out
        labels = np.empty(len(indices), np.int64)
        for n, (shard, row) in enumerate(zip(which.tolist(), rows.tolist(), strict=True)):
            mapped = self._open.get(shard) or self._map(shard)
            try:
                images[n] = png.decode(mapped.image(row))
            except ValueError as error:
                raise _damaged(self._records[shard], f"image {row}: {error}") from None
            labels[n] = mapped.labels[row]
        return images, labels

    def _map(self, shard: int) -> _MappedShard:
        record = self._records[shard]
        try:
            self._open[shard] = _MappedShard(self.folder / record.file, record.images)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise _damaged(record, " ".join(str(error).split())) from None
        return self._open[shard]


class _MappedShard:
    """Where each image of a shard lies in its file, and the labels."""

    def __init__(self, path: Path, images: int) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
                self.labels = parquet.read(["label"])["label"].to_numpy()
                chunks = [_image_chunk(parquet.metadata.row_group(g)) for g in range(parquet.num_row_groups)]
        # In a plain, uncompressed column a value is its length in four bytes, then its bytes. Page headers
        # lie between some of them, so look for the head that all our files begin with.
        self._offsets = np.empty(images, np.int64)
        self._lengths = np.empty(images, np.int64)
        image = 0
        for start, end in chunks:
            at = self._bytes.find(png.HEAD, start, end)
            while at >= 0 and image < images:
                length = int.from_bytes(self._bytes[at - 4 : at], "little")
                self._offsets[image], self._lengths[image] = at, length
                image += 1
                at = self._bytes.find(png.HEAD, at + length, end)
        if image != images or len(self.labels) != images:
            raise ValueError(f"{image} images and {len(self.labels)} labels instead of {images}")

    def image(self, row: int) -> bytes:
        at = self._offsets[row]
        return self._bytes[at : at + self._lengths[row]]


def _image_chunk(row_group: Any) -> tuple[int, int]:
    for i in range(row_group.num_columns):
        column = row_group.column(i)
        if column.path_in_schema == "image.bytes" and column.compression == "UNCOMPRESSED":
            return column.data_page_offset, column.data_page_offset + column.total_compressed_size
    raise ValueError("no uncompressed column image.bytes; was the file rewritten by another program?")


def _damaged(record: Record, reason: str) -> DamagedShardError:
    return DamagedShardError(f"{record.file}: {reason}; `shapesgen render` with the same settings repairs it")
