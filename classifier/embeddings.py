"""The classes in TensorBoard's projector: what the backbone makes of a class's images, on average."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from classifier.images.protocol import ImageSet, IntArray
from sqrtvocab.training import Runtime
from sqrtvocab.training.projector import MOST, sprites, write_projection

_AT_ONCE = 256  # pictures in full size


class ClassMeans:
    """Adds up the embeddings of images by class, for at most 10,000 classes.

    Args:
        labels: [N] the classes of all images that will come, on all ranks.
    """

    def __init__(self, labels: IntArray, num_classes: int, runtime: Runtime) -> None:
        self._runtime = runtime
        self.classes = np.unique(labels)[:MOST]  # [C]
        place = torch.full((num_classes,), len(self.classes))  # the last row is for all others
        place[torch.from_numpy(self.classes)] = torch.arange(len(self.classes))
        self._place = place.to(runtime.device)  # [V]
        self._sums: Tensor | None = None  # [C + 1, d]

    def add(self, embedding: Tensor, target: Tensor) -> None:
        """Embeddings [N, d] of images of classes [N]."""
        if self._sums is None:
            self._sums = embedding.new_zeros(len(self.classes) + 1, embedding.shape[1], dtype=torch.float32)
            self._counts = self._sums.new_zeros(len(self._sums))
        rows = self._place[target]
        self._sums.index_add_(0, rows, embedding.float())
        self._counts.index_add_(0, rows, torch.ones_like(rows, dtype=torch.float32))

    def total(self) -> Tensor:
        """[C, d] the means over all ranks."""
        assert self._sums is not None
        sums, counts = self._runtime.sum(self._sums), self._runtime.sum(self._counts)
        return (sums / counts.clamp(min=1)[:, None])[:-1].cpu()


def show_classes(
    run: Path, means: ClassMeans, vectors: Tensor, images: ImageSet, names: Sequence[str]
) -> None:
    """Write the projector's files of `run`: a picture and the name of each class.

    Raises:
        RunError: they cannot be written.
    """
    labels, first = np.unique(images.labels, return_index=True)  # the first image of each class
    index = first[np.searchsorted(labels, means.classes)]  # [C]
    starts = range(0, len(index), _AT_ONCE)
    small = [sprites(images.batch(index[start : start + _AT_ONCE])[0], len(index)) for start in starts]
    titles = [names[int(number)] for number in means.classes]
    write_projection(run, "classes", vectors.numpy(), titles, np.concatenate(small))
