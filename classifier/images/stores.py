"""Where encoded pictures lie: files of their own, or rows of Parquet files. Read by number, in any order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from classifier.images.decode import PictureError
from classifier.images.protocol import IntArray

KEPT_BYTES = 256_000_000  # of row groups, in each process that reads; the one in use stays, however large


class Store(Protocol):
    """Encoded pictures, numbered from 0. Cheap to send to another process."""

    def __len__(self) -> int: ...

    def take(self, indices: IntArray) -> Store:
        """Some of the pictures."""

    def read(self, index: int) -> bytes:
        """One picture. Raises PictureError if it cannot be read."""

    def reading_order(self, indices: IntArray) -> IntArray:
        """Some of the pictures [N] -> [N] their places, in the order in which they are read quickest."""

    def name(self, index: int) -> str:
        """Where a picture lies, for messages."""

    def contents(self) -> str:
        """Digest of what can be told without reading it: sizes. The same after a move of the data."""

    def fingerprint(self) -> str:
        """Another one means that pictures may have changed: names, sizes, times of the last change."""


@dataclass(frozen=True)
class Files:
    """Pictures in files of their own."""

    root: Path
    names: Sequence[str]  # relative to the root, or absolute

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: IntArray) -> Files:
        return Files(self.root, [self.names[i] for i in indices])

    def read(self, index: int) -> bytes:
        try:
            with open(os.path.join(self.root, self.names[index]), "rb") as file:  # half the time of pathlib's
                return file.read()
        except OSError as error:
            raise PictureError(error.strerror or str(error)) from error

    def reading_order(self, indices: IntArray) -> IntArray:
        return np.arange(len(indices))  # one as good as another

    def name(self, index: int) -> str:
        return self.names[index]

    def contents(self) -> str:
        return digest(str(size) for size, _ in self._stats)

    def fingerprint(self) -> str:
        stats = zip(self.names, self._stats, strict=True)
        return digest(f"{name}\0{size}\0{time}" for name, (size, time) in stats)

    @cached_property
    def _stats(self) -> list[tuple[int, int]]:
        """Size and time of the last change. What a table lists need not be there: that is found out when the
        pictures are read."""
        stats = []
        for name in self.names:
            try:
                stat = os.stat(self.root / name)
                stats.append((stat.st_size, stat.st_mtime_ns))
            except OSError:
                stats.append((-1, 0))
        return stats


@dataclass
class Rows:
    """Pictures in a column of Parquet files: bytes, or a struct with a field `bytes`.

    A row group can only be read whole. The last few are kept, so that pictures that are read in their order,
    or all from a few row groups, are quick.
    """

    files: Sequence[Path]
    column: str
    file: IntArray  # [N] which file
    row: IntArray  # [N] which row of it

    def __post_init__(self) -> None:
        self._open: dict[int, Any] = {}
        self._kept: dict[tuple[int, int], Any] = {}  # file, row group -> its pictures; last used, last

    def __len__(self) -> int:
        return len(self.row)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}, "_kept": {}}

    def take(self, indices: IntArray) -> Rows:
        return Rows(self.files, self.column, self.file[indices], self.row[indices])

    def read(self, index: int) -> bytes:
        import pyarrow as pa

        try:
            picture = self._picture(int(self.file[index]), int(self.row[index]))
        except (OSError, pa.ArrowException) as error:
            raise PictureError(" ".join(str(error).split())[:100]) from error
        if picture is None:
            raise PictureError("there is no picture in this row")
        return picture

    def reading_order(self, indices: IntArray) -> IntArray:
        return np.lexsort((self.row[indices], self.file[indices]))  # by file, then by row

    def _picture(self, file: int, row: int) -> bytes | None:
        import pyarrow.parquet as pq

        if file not in self._open:
            parquet = pq.ParquetFile(self.files[file])
            sizes = [parquet.metadata.row_group(g).num_rows for g in range(parquet.num_row_groups)]
            self._open[file] = parquet, np.cumsum(sizes)
        parquet, ends = self._open[file]
        group = int(np.searchsorted(ends, row, side="right"))
        pictures = self._kept.pop((file, group), None)
        if pictures is None:
            pictures = self._read_group(parquet, group)
            room = KEPT_BYTES - pictures.nbytes
            while self._kept and sum(other.nbytes for other in self._kept.values()) > room:
                del self._kept[next(iter(self._kept))]
        self._kept[file, group] = pictures
        return pictures[row - int(ends[group - 1] if group else 0)].as_py()

    def _read_group(self, parquet: Any, group: int) -> Any:
        import pyarrow as pa

        pictures = parquet.read_row_group(group, columns=[self.column])[self.column].combine_chunks()
        return pictures.field("bytes") if pa.types.is_struct(pictures.type) else pictures

    def name(self, index: int) -> str:
        return f"{self.files[self.file[index]].name}, row {self.row[index]}"

    def contents(self) -> str:
        return digest(str(path.stat().st_size) for path in self.files)

    def fingerprint(self) -> str:
        stats = ((path.name, path.stat()) for path in self.files)
        rows = hashlib.sha256(self.file.tobytes() + self.row.tobytes()).hexdigest()
        return digest([self.column, rows, *(f"{n}\0{s.st_size}\0{s.st_mtime_ns}" for n, s in stats)])


def digest(lines: Iterable[str]) -> str:
    """SHA-256 of the lines."""
    total = hashlib.sha256()
    for line in lines:
        total.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return total.hexdigest()
