"""Training images of each class, embedded: what the classes of a head are, and which of them are hard to tell
apart. For heads whose classes are examples (`Head.from_examples`); for all others nothing happens here."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from classifier.config import TrainConfig
from classifier.data import image_batches, in_batches
from classifier.images.protocol import ImageSet, IntArray
from classifier.model import Classifier
from sqrtvocab.errors import UserError
from sqrtvocab.heads.registry import HEADS
from sqrtvocab.training.batch_plan import BatchPlan
from sqrtvocab.training.class_plan import ClassPlan
from sqrtvocab.training.runtime import Runtime

FITTED = 512  # images that the temperature is fitted on
AT_ONCE = 128  # images of a batch: there is nothing to keep for a backward pass
NAMED = 5  # classes without an image


def make_plan(config: TrainConfig, images: ImageSet, runtime: Runtime) -> BatchPlan | ClassPlan:
    """Which images each step sees: one by one in random order, or `--images-of-a-class` of each class.

    Raises:
        UserError: if the images are too few for that.
    """
    if HEADS[config.head].rows_per_class > 1 and (config.mixup or config.cutmix):
        raise UserError(f"--mixup and --cutmix: not with --head {config.head}, which compares whole images")
    ranks = (runtime.rank, runtime.world_size)
    per_class = config.per_class
    if per_class is None:
        return BatchPlan(len(images), config.batch_size, config.accumulate, config.seed, *ranks)
    labels, count = images.labels, len(images.classes)
    try:
        return ClassPlan(
            labels,
            count,
            per_class,
            config.batch_size,
            config.accumulate,
            config.seed,
            *ranks,
            balance=config.class_balance,
            allowed=~held_out(config, count),
        )
    except ValueError as error:
        most = int(np.bincount(labels, minlength=count).max())
        raise UserError(
            f"--images-of-a-class {per_class}: {error} (the largest class has {most} training images)"
        ) from error


def held_out(config: TrainConfig, num_classes: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[V] the classes that `--hold-out-classes` keeps from training, drawn at random."""
    count = round(config.hold_out_classes * num_classes)
    mask = np.zeros(num_classes, bool)
    mask[np.random.default_rng([config.seed, 3]).permutation(num_classes)[:count]] = True
    return mask


class Examples:
    """Shows a model its training images outside of training steps.

    Args:
        images: those of training, held-out classes included: to know a class is not to train on it.
        plan: gets the hard classes, if it can use them.
        workers: processes that draw or read them ahead.
    """

    def __init__(
        self,
        images: ImageSet,
        plan: BatchPlan | ClassPlan,
        config: TrainConfig,
        workers: int,
        runtime: Runtime,
    ) -> None:
        self._images, self._plan, self._config = images, plan, config
        self._workers, self._runtime = workers, runtime
        self._said: set[str] = set()

    def steps_from(self, step: int, total_steps: int, model: Classifier) -> range:
        """The steps from `step` on whose images can be planned now: up to the next of `--mine-at`, for what
        comes then depends on what was learnt by then. If `step` is one of those, looks for hard classes."""
        plan, config = self._plan, self._config
        if isinstance(plan, BatchPlan) or not config.mine_at:
            return range(step, total_steps)
        if step in config.mine_at:
            self._mine(model, plan, step)
        assert model.head.hard_classes is not None
        plan.mix_in(model.head.hard_classes.cpu().numpy())
        return range(step, min([total_steps, *(other for other in config.mine_at if other > step)]))

    def refresh(self, model: Classifier) -> float:
        """Bring all classes up to date by `--refresh-images` of each, evenly spread over its images, for
        neighbours in a set are often alike; then fit the temperature on training images that took no part in
        that. Returns the seconds that it took."""
        if not model.head.from_examples:
            return 0.0
        began = time.perf_counter()
        labels, count = self._images.labels, len(self._images.classes)
        by_class = np.argsort(labels, kind="stable")
        is_shown = _spread(labels[by_class], self._config.refresh_images)  # [len]
        shown = by_class[is_shown]
        hidden = self._embed(model, shown, "refresh")
        sums = class_means(hidden, torch.from_numpy(labels[shown]), count)  # [V, d]
        seen = torch.from_numpy(np.unique(labels))
        device = self._runtime.device
        model.head.forget_classes()
        model.head.learn_classes(sums[seen].to(device), seen.to(device))
        self._name_missing(np.setdiff1d(np.arange(count), labels))

        rest = by_class[~is_shown]
        rest = np.random.default_rng(self._config.seed).permutation(rest)[:FITTED]
        if len(rest):
            hidden = self._embed(model, rest, "temperature").to(device)
            model.head.fit_temperature(hidden, torch.from_numpy(labels[rest]).to(device))
        return time.perf_counter() - began

    def _mine(self, model: Classifier, plan: ClassPlan, step: int) -> None:
        """An image of each of many classes, to see which are near each other."""
        dice = np.random.default_rng([self._config.seed, 2, step])
        classes = dice.permutation(plan.classes)[: self._config.mine_classes]
        labels = self._images.labels
        order = dice.permutation(len(labels))
        first = order[np.unique(labels[order], return_index=True)[1]]  # a random image of each class
        rows = first[np.searchsorted(labels[first], classes)]
        hidden = self._embed(model, rows, f"step {step:,}: hard classes").to(self._runtime.device)
        target = torch.from_numpy(classes).to(self._runtime.device)
        model.head.learn_classes(hidden, target)
        model.head.find_hard_classes(hidden, target)

    def _embed(self, model: Classifier, rows: IntArray, what: str) -> Tensor:
        return embed(model, self._images, rows, what, self._workers, self._runtime)

    def _name_missing(self, missing: IntArray) -> None:
        if not len(missing):
            return
        names: Sequence[str] = self._images.classes
        some = ", ".join(names[label] for label in missing[:NAMED].tolist())
        more = f" and {len(missing) - NAMED:,} more" if len(missing) > NAMED else ""
        line = f"no training image of {some}{more}: unknown, never named by this model"
        if line not in self._said:
            self._said.add(line)
            self._runtime.say(line)


@torch.no_grad()
def embed(
    model: Classifier, images: ImageSet, rows: IntArray, what: str, workers: int, runtime: Runtime
) -> Tensor:
    """Images `rows` [M] -> their embeddings [M, d], in evaluation mode, on the CPU of every rank, each rank
    doing its share. `what` stands before the progress bar."""
    edges = [len(rows) * rank // runtime.world_size for rank in range(runtime.world_size + 1)]
    mine = rows[edges[runtime.rank] : edges[runtime.rank + 1]].tolist()
    runtime.share(model.encoder.buffers())
    was_training = model.training
    model.eval()
    parts = []
    hidden_bar = None if runtime.is_main else True  # None: shown on terminals
    with tqdm(total=len(mine), desc=what, unit="image", leave=False, delay=2, disable=hidden_bar) as bar:
        for pictures, _ in image_batches(images, in_batches(mine, AT_ONCE), workers, runtime):
            with runtime.autocast():
                parts.append(model.encoder(pictures.to(runtime.device, non_blocking=True)).float().cpu())
            bar.update(len(pictures))
    model.train(was_training)
    return runtime.gather(torch.cat(parts) if parts else torch.empty(0, model.encoder.width))


def class_means(hidden: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Embeddings [M, d] of classes [M] -> [V, d] the sums of their directions, which have those of means."""
    return torch.zeros(num_classes, hidden.shape[1]).index_add_(0, labels, F.normalize(hidden, dim=1))


def _spread(ordered: IntArray, most: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Sorted labels [N] -> [N] which items are chosen: the first of each class and, evenly spread over the
    others, as many as make `most`; all of a class that has no more."""
    starts = np.r_[0, np.flatnonzero(np.diff(ordered)) + 1] if len(ordered) else np.empty(0, np.int64)
    lengths = np.diff(np.r_[starts, len(ordered)])
    place, length = np.arange(len(ordered)) - np.repeat(starts, lengths), np.repeat(lengths, lengths)
    rank = -(-place * most // length)  # [N] how many are chosen before it
    return (rank * length // most == place) | (length <= most)
