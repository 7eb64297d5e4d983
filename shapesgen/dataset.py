"""Map-style datasets as torchvision has them. They import torch, without which the command line does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map  # torch's documented way
from torchvision.datasets import VisionDataset

from shapesgen.attributes import AttributeSpace, IntArray
from shapesgen.ceiling import Ceiling, known_ceiling
from shapesgen.choices import RotationCue, Sampling, Split
from shapesgen.kernel import SIDE
from shapesgen.recipe import Recipe, check_split
from shapesgen.renderer import Images


class ClassNames(Sequence[str]):
    """The names of all classes of a space, made when asked for."""

    def __init__(self, space: AttributeSpace) -> None:
        self._space = space

    def __len__(self) -> int:
        return self._space.num_classes

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"class {index} of {len(self)}")
        return self._space.class_name(index % len(self))


class ShapeImages(VisionDataset[tuple[Any, Any]]):
    """What all datasets share: samples, batches and transforms on top of `batch` and `locate`."""

    recipe: Recipe
    split: Split

    def __init__(
        self,
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[int], Any] | None,
        root: Path | None = None,
    ) -> None:
        super().__init__(root, transform=transform, target_transform=target_transform)

    def __len__(self) -> int:
        return self.recipe.size(self.split)

    def batch(self, indices: npt.ArrayLike, out: Images | None = None) -> tuple[Images, IntArray]:
        """Images [N, 100, 100, 3] uint8 and labels [N] int64 of `indices` [N], without transforms. The images
        are put into `out` if given."""
        raise NotImplementedError

    def locate(self, indices: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """The class ids [N] and instances [N] that the recipe has at `indices` [N]."""
        return self.recipe.locate(self.split, indices)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return SIDE, SIDE, 3

    @property
    def space(self) -> AttributeSpace:
        return self.recipe.space

    @property
    def labels(self) -> IntArray:
        """[len] the class of each image."""
        return self.locate(np.arange(len(self)))[0]

    def identity(self) -> dict[str, Any]:
        """What decides the images, as plain settings: another seed, other options or another sampling
        differ."""
        recipe = self.recipe.to_config()
        return {name: ",".join(kept) for name, kept in recipe.pop("attributes").items()} | recipe

    def ceiling(self) -> Ceiling:
        """The most that any classifier can reach: classes that look the same cannot be told apart."""
        return known_ceiling(self.space, self.recipe.rotation_cue)

    @property
    def classes(self) -> Sequence[str]:
        """Class names by label."""
        return ClassNames(self.space)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """(image, label). With a `transform` the image is what it makes of a PIL image, as in torchvision;
        without one, a uint8 tensor [3, 100, 100], ready to be collated."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.split} has images 0..{len(self) - 1}, got {index}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[tuple[Any, Any]]:
        """The samples of a whole batch at once; DataLoader calls this by itself."""
        if self.transform is None and self.target_transform is None:
            images = _tensor(len(indices))
            return Batch(images, self.batch(indices, out=images.numpy())[1])
        arrays, labels = self.batch(indices)
        targets = labels.tolist()
        if self.target_transform is not None:
            targets = [self.target_transform(label) for label in targets]
        if self.transform is None:
            samples: Any = torch.from_numpy(arrays).permute(0, 3, 1, 2)  # [N, 3, 100, 100]
        else:
            samples = [self.transform(Image.fromarray(image)) for image in arrays]
        return list(zip(samples, targets, strict=True))


class Sample(tuple[Any, Any]):
    """(image, label). A type of its own by which torch's `default_collate` finds `_collate`."""


class Batch(Sequence[Sample]):
    """The samples of a batch, kept together: `default_collate` takes the tensors as they are, which spares
    DataLoader to copy every image; whoever wants single samples gets them as from a list."""

    def __init__(self, images: Tensor, labels: IntArray) -> None:
        """images: [N, 100, 100, 3]."""
        self.images = images.permute(0, 3, 1, 2)  # [N, 3, 100, 100], channels last in memory
        self.labels = torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Sample((self.images[index], int(self.labels[index])))


def _collate(batch: Sequence[Sample], *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, Batch):
        return [batch.images, batch.labels]
    return default_collate([tuple(sample) for sample in batch])  # from several batches, or one by one


default_collate_fn_map[Sample] = _collate


def _tensor(count: int) -> Tensor:
    """Uninitialised images [count, 100, 100, 3]: in a DataLoader worker in the shared memory in which they
    will travel, as torch's own `default_collate` does it."""
    shape = (count, SIDE, SIDE, 3)
    if torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(math.prod(shape))
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


class ShapesDataset(ShapeImages):
    """The images of a split, rendered when asked for: no files, and faster than decoding them.

    The images are those that `shapesgen render` writes with the same settings, in another order: here the
    images of a class follow each other, so let the DataLoader shuffle.
    """

    def __init__(
        self,
        split: Split = "train",
        space: AttributeSpace | None = None,
        images_per_class: int = 10,
        seed: int = 0,
        rotation_cue: RotationCue = "notch",
        sampling: Sampling = "balanced",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
    ) -> None:
        """Raises ValueError for settings out of range, and for a split that would be empty."""
        super().__init__(transform, target_transform)
        self.split = check_split(split)
        self.recipe = Recipe(
            space=space if space is not None else AttributeSpace.full(),
            images_per_class=images_per_class,
            sampling=sampling,
            seed=seed,
            rotation_cue=rotation_cue,
        )
        if not len(self):
            raise ValueError(f"images_per_class={images_per_class} leaves none for {split}; use at least 3")

    def batch(self, indices: npt.ArrayLike, out: Images | None = None) -> tuple[Images, IntArray]:
        class_ids, instances = self.locate(indices)
        return self.recipe.render(class_ids, instances, out), class_ids
