"""What training and evaluation ask of a set of images, wherever it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # nothing heavy: the processes that decode pictures import this
    from shapesgen.attributes import AttributeSpace
    from shapesgen.ceiling import Ceiling
    from shapesgen.choices import Split

Pixels = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]


class ImageSource(Protocol):
    """Image sets for training, validation and test."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""

    @property
    def where(self) -> str:
        """`in FOLDER`, or where else they come from."""

    def __getitem__(self, split: Split) -> ImageSet:
        """The images of a split; may be empty. Raises UserError if they cannot be used."""


class ImageSet(Protocol):
    """The images of one split, numbered from 0."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names by label."""

    @property
    def labels(self) -> IntArray:
        """[len] the class of each image."""

    @property
    def space(self) -> AttributeSpace | None:
        """How the classes are made of attributes, if they are."""

    def __len__(self) -> int: ...

    def batch(self, indices: Any) -> tuple[Pixels, IntArray]:
        """Images [N, height, width, channels] and labels [N] of `indices` [N]."""

    def identity(self) -> dict[str, Any]:
        """What decides the images and labels, as plain JSON values: a run is resumed only on the same."""

    def ceiling(self) -> Ceiling | None:
        """The most that any classifier can reach, if that is known."""
