"""A set on disk in any of its formats as a dataset: `open_rendered` takes the right one."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shapesgen import png
from shapesgen.attributes import IntArray
from shapesgen.choices import Format, Split
from shapesgen.dataset import ShapeImages
from shapesgen.errors import DamagedShardError
from shapesgen.kernel import SIDE
from shapesgen.layout import read_manifest, shards_of
from shapesgen.reader import ShapesParquet
from shapesgen.recipe import check_split
from shapesgen.renderer import Images
from shapesgen.shards import image_name
from sqrtvocab.errors import UserError

_BLOCK = 512  # a tar is made of these


class _ByName(ShapeImages):
    """A split in which an image is found by its name, LABEL-INSTANCE.png, which the recipe knows."""

    form: Format

    def __init__(self, folder: Path, split: Split = "train") -> None:
        super().__init__(None, None, folder)
        self.split = check_split(split)
        self.folder = folder
        self.recipe, form, _ = read_manifest(folder)
        if form != self.form:
            raise UserError(f"{folder} is a set in format {form}, not {self.form}")
        if not len(self):
            raise UserError(f"{folder} has no images in the {split} split")

    def locate(self, indices: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        return super().locate(self.recipe.shuffle(self.split, indices))

    def batch(self, indices: npt.ArrayLike, out: Images | None = None) -> tuple[Images, IntArray]:
        indices = np.asarray(indices, np.int64)
        labels, instances = self.locate(indices)
        images = np.empty((len(indices), SIDE, SIDE, 3), np.uint8) if out is None else out
        for n, (row, label, instance) in enumerate(
            zip(indices.tolist(), labels.tolist(), instances.tolist(), strict=True)
        ):
            name = image_name(label, instance)
            try:
                images[n] = png.decode(self._read(row, label, name))
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise DamagedShardError(
                    f"{name} of {self.split}: {reason}; `shapesgen render` with the same settings repairs it"
                ) from None
        return images, labels

    def _read(self, row: int, label: int, name: str) -> bytes:
        raise NotImplementedError


class ShapesFolder(_ByName):
    """A split of a set in format folder, in the shuffled order of the other formats."""

    form = "folder"

    def _read(self, row: int, label: int, name: str) -> bytes:
        return (self.folder / self.split / f"{label:06d}" / name).read_bytes()


class ShapesTar(_ByName):
    """A split of a set in format webdataset: the archives are memory-mapped, and quick in any order."""

    form = "webdataset"

    def __init__(self, folder: Path, split: Split = "train") -> None:
        super().__init__(folder, split)
        shards = [shard for shard in shards_of(self.recipe) if shard.split == split]
        self._starts = np.array([shard.start for shard in shards])
        self._paths = [shard.path(folder, self.form) for shard in shards]
        self._open: dict[int, tuple[mmap.mmap, list[tuple[str, int, int]]]] = {}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_open": {}}

    def _read(self, row: int, label: int, name: str) -> bytes:
        shard = int(np.searchsorted(self._starts, row, side="right")) - 1
        if shard not in self._open:
            with self._paths[shard].open("rb") as file:
                archive = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            images = [member for member in _members(archive) if member[0].endswith(".png")]
            self._open[shard] = archive, images
        archive, images = self._open[shard]
        place = row - int(self._starts[shard])
        if place >= len(images) or images[place][0] != name:
            raise ValueError(f"not where it should be in {self._paths[shard].name}")
        _, at, size = images[place]
        return archive[at : at + size]


def _members(archive: mmap.mmap) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of each file in a tar, without the overhead of `tarfile` for its 50,000."""
    at = 0
    while archive[at : at + 1] not in (b"\0", b""):
        name = archive[at : at + 100].rstrip(b"\0").decode("ascii", "replace")
        size = int(archive[at + 124 : at + 135], 8)
        yield name, at + _BLOCK, size
        at += _BLOCK + -(-size // _BLOCK) * _BLOCK


def open_rendered(folder: Path, split: Split) -> ShapeImages:
    """A split of a set that `shapesgen render` wrote.

    Raises UserError if the folder holds no finished set, DamagedShardError if a file is missing or cut short.
    """
    _, form, _ = read_manifest(folder)
    datasets = {"parquet": ShapesParquet, "webdataset": ShapesTar, "folder": ShapesFolder}
    return datasets[form](folder, split)
