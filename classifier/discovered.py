"""Groups found in the training images themselves: `--grouping clusters` and `discovered`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from classifier.images.protocol import ImageSet, IntArray
from sqrtvocab import Partition

SIDE = 10  # pixels: what tells classes apart at a glance, whatever the place and the noise of an image
IMAGES = 4  # of each class, at most
_BATCH = 256
_FINDERS = {"clusters": Partition.by_clusters, "discovered": Partition.discovered}


def find_groups(
    images: ImageSet, grouping: str, num_groups: int | None, seed: int, say: Callable[[str], None]
) -> Partition:
    """The groups that the mean images of the classes make."""
    vectors = class_vectors(images)
    say(
        f"grouping {len(vectors):,} classes by their mean images: "
        f"{'a few seconds' if len(vectors) < 20_000 else 'minutes'}"
    )
    return _FINDERS[grouping](vectors, num_groups, seed=seed)


def class_vectors(images: ImageSet) -> Tensor:
    """[V, d] the mean of the first few images of each class at 10 x 10 pixels, less that of all classes.

    A function of the image set alone. A class without images has the mean of all, zero.
    """
    chosen = first_of_each(images.labels, IMAGES)
    channels = images.shape[2]
    sums = torch.zeros(len(images.classes), channels * SIDE * SIDE)
    counts = torch.zeros(len(images.classes), 1)
    for start in tqdm(range(0, len(chosen), _BATCH), "mean images", unit="batch", leave=False, disable=None):
        pixels, labels = images.batch(chosen[start : start + _BATCH])  # [N, height, width, C], [N]
        small = F.adaptive_avg_pool2d(torch.from_numpy(pixels).permute(0, 3, 1, 2).float(), SIDE)
        index = torch.from_numpy(labels)
        sums.index_add_(0, index, small.flatten(1))
        counts.index_add_(0, index, torch.ones(len(index), 1))
    means = sums / counts.clamp(min=1)
    return torch.where(counts > 0, means - means[counts[:, 0] > 0].mean(0), 0.0)


def first_of_each(labels: IntArray, most: int) -> IntArray:
    """The indices of the first `most` images of each class, in their order."""
    by_class = np.argsort(labels, kind="stable")
    ranked = labels[by_class]
    place = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)  # among those of its class
    return np.sort(by_class[place < most])
