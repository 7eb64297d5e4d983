"""Groups found in the training images themselves: `--grouping clusters` and `discovered`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from classifier.config import TrainConfig
from classifier.examples import class_means, embed
from classifier.images.protocol import ImageSet, IntArray
from classifier.labels import Labels, make_partition
from classifier.trained import ORDER, open_trained
from sqrtvocab import Partition
from sqrtvocab.atomic import read_json
from sqrtvocab.errors import UserError
from sqrtvocab.training import Runtime
from sqrtvocab.training.checkpoint import Checkpoint

SIDE = 10  # pixels: what tells classes apart at a glance, whatever the place and the noise of an image
IMAGES = 4  # of each class, at most
_BATCH = 256
_FINDERS = {"clusters": Partition.by_clusters, "discovered": Partition.discovered}


def groups_of_run(
    config: TrainConfig, labels: Labels, images: ImageSet, checkpoint: Checkpoint | None, runtime: Runtime
) -> Partition:
    """The groups that `--grouping` names; if they were found in the images, a run to go on with keeps those
    that it has.

    Raises:
        UserError: see `make_partition`.
    """
    if config.chosen_grouping not in _FINDERS:
        return labels.partition(config)
    num_classes = len(images.classes)
    num_groups = make_partition(num_classes, "index", config.num_groups, config.seed).num_groups
    if checkpoint is not None:
        path = checkpoint.folder / ORDER  # not there: of another grouping, which is refused further on
        kept = torch.tensor(read_json(path)) if path.exists() else None
        return Partition(num_classes, num_groups, kept)
    what = "their mean images" if config.embeddings is None else f"the embeddings of {config.embeddings}"
    if config.embeddings is not None:
        vectors = learnt_vectors(config.embeddings, images, runtime)
    elif runtime.is_main:
        vectors = class_vectors(images)
    order = torch.zeros(num_classes, dtype=torch.float64)
    if runtime.is_main:  # one for all: k-means need not end alike on two machines
        runtime.say(f"grouping {num_classes:,} classes by {what}; 100,000 take some minutes")
        found = _FINDERS[config.chosen_grouping](vectors, num_groups, seed=config.seed)
        order = found.classes_at(torch.arange(num_classes)).double()
    runtime.share([order])
    return Partition(num_classes, num_groups, order.long())


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


def learnt_vectors(run: Path, images: ImageSet, runtime: Runtime) -> Tensor:
    """[V, d] the mean direction of what the encoder of a run makes of the first few images of each class,
    less that of all classes; zero for a class without images.

    Raises:
        UserError: if there is no such run, or its encoder takes other images.
    """
    trained = open_trained(run)
    theirs, ours = (trained.image_size, trained.image_size, trained.channels), images.shape
    if theirs != tuple(ours):
        taken, given = (" x ".join(map(str, shape)) for shape in (theirs, ours))
        raise UserError(f"--embeddings {run}: its images are {taken}, height x width x channels, not {given}")
    chosen = first_of_each(images.labels, IMAGES)
    hidden = embed(trained.model.to(runtime.device), images, chosen, "embeddings", 0, runtime)
    labels = torch.from_numpy(images.labels[chosen])
    means = F.normalize(class_means(hidden, labels, len(images.classes)), dim=1)
    seen = means.any(1, keepdim=True)
    return torch.where(seen, means - means[seen[:, 0]].mean(0), 0.0)


def first_of_each(labels: IntArray, most: int) -> IntArray:
    """The indices of the first `most` images of each class, in their order."""
    by_class = np.argsort(labels, kind="stable")
    ranked = labels[by_class]
    place = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)  # among those of its class
    return np.sort(by_class[place < most])
