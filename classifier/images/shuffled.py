"""An image set whose labels were shuffled, so that they tell nothing about how its classes are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from classifier.images.protocol import ImageSet, IntArray, Pixels
from shapesgen.attributes import AttributeSpace
from shapesgen.ceiling import Ceiling
from shapesgen.dataset import ClassNames


def shuffled(images: ImageSet, seed: int | None) -> ImageSet:
    """`images`, every class under a number drawn at random; itself if `seed` is None. All splits of one set
    of classes get the same numbers."""
    return images if seed is None else Shuffled(images, seed)


def shape_names(space: AttributeSpace, seed: int | None) -> Sequence[str]:
    """The names of the classes of shapes by label, shuffled or not."""
    names = ClassNames(space)
    return names if seed is None else _Names(names, _new_labels(len(names), seed))


class Shuffled:
    """Gives every class of another set a new label; its `space` is not told."""

    space = None

    def __init__(self, images: ImageSet, seed: int) -> None:
        self._images, self._seed = images, seed
        self._new = _new_labels(len(images.classes), seed)  # [V] old label -> new label
        self.classes: Sequence[str] = _Names(images.classes, self._new)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._images.shape

    @property
    def labels(self) -> IntArray:
        return self._new[self._images.labels]

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, indices: Any) -> tuple[Pixels, IntArray]:
        """Images [N, height, width, channels] and labels [N]."""
        pixels, labels = self._images.batch(indices)
        return pixels, self._new[labels]

    def identity(self) -> dict[str, Any]:
        return self._images.identity() | {"shuffled": self._seed}

    def ceiling(self) -> Ceiling | None:
        """Other numbers leave classes as hard to tell apart as they were."""
        return self._images.ceiling()


class _Names(Sequence[str]):
    """Names by their new labels, made when asked for."""

    def __init__(self, names: Sequence[str], new: IntArray) -> None:
        self._names, self._old = names, np.argsort(new)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._names[int(self._old[index])]


def _new_labels(num_classes: int, seed: int) -> IntArray:
    return np.random.default_rng(seed).permutation(num_classes)
