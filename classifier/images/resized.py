"""An image set at another size, or in grey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from classifier.images.protocol import ImageSet, IntArray, Pixels
from shapesgen.attributes import AttributeSpace
from shapesgen.ceiling import Ceiling


def resized(images: ImageSet, size: int, grey: bool) -> ImageSet:
    """`images` as squares of `size` pixels, in grey if asked for; itself if that is what it has."""
    shape = (size, size, 1 if grey else images.shape[2])
    return images if images.shape == shape else Resized(images, shape)


class Resized:
    """Brings every batch of another set to `shape`."""

    def __init__(self, images: ImageSet, shape: tuple[int, int, int]) -> None:
        self._images = images
        self.shape = shape

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, indices: Any) -> tuple[Pixels, IntArray]:
        """Images [N, height, width, channels] and labels [N]."""
        from torchvision.transforms.v2 import functional as F  # slow to import, and few sets are resized

        pixels, labels = self._images.batch(indices)
        height, width, channels = self.shape
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)  # [N, C, H, W]
        images = F.resize(images, [height, width], antialias=True)
        if channels != images.shape[1]:
            images = F.rgb_to_grayscale(images)
        return images.permute(0, 2, 3, 1).contiguous().numpy(), labels

    @property
    def labels(self) -> IntArray:
        return self._images.labels

    @property
    def classes(self) -> Sequence[str]:
        return self._images.classes

    @property
    def space(self) -> AttributeSpace | None:
        return self._images.space

    def identity(self) -> dict[str, Any]:
        return self._images.identity() | {"image": list(self.shape)}

    def ceiling(self) -> Ceiling | None:
        """Of the images as they were: a smaller size can only be harder."""
        return self._images.ceiling()
