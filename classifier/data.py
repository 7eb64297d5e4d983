"""The images that a run asks for, as whole batches in the order it asks for them."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from classifier.augment import Augmentation
from classifier.backbones import default_size
from classifier.config import TrainConfig
from classifier.images.cache import DamagedPictureError, Say
from classifier.images.pictures import open_pictures
from classifier.images.protocol import ImageSet, ImageSource
from classifier.images.shapes import Shapes
from shapesgen.errors import DamagedShardError
from shapesgen.kernel import SIDE
from sqrtvocab.cache import default_cache
from sqrtvocab.errors import UserError
from sqrtvocab.training import BatchPlan, RunError, Runtime
from sqrtvocab.training.class_plan import ClassPlan

_Batch = tuple[int, list[int]]  # epoch, indices


def open_images(config: TrainConfig, say: Say = print, classes: Sequence[str] | None = None) -> ImageSource:
    """The images that `--data` names, brought to the size asked for.

    Args:
        say: called with what the user should know at once.
        classes: those of a trained model, which the labels of pictures must be among.

    Raises:
        UserError: if there are none, or they cannot be used.
    """
    if config.data is not None and not config.data.exists():
        raise UserError(
            f"--data {config.data}: no such file or folder; `shapesgen render --out {config.data}` would "
            "make a folder of shapes"
        )
    if config.has_shapes:
        source: ImageSource = Shapes(
            config.data,
            config.space(),
            config.rotation_cue,
            config.images_per_class,
            config.seed,
            size=config.image_size or SIDE,
            grey=config.grey,
            shuffle_labels=config.shuffle_labels,
        )
    else:
        assert config.data is not None
        source = open_pictures(
            config.data,
            size=config.image_size or default_size(config.backbone),
            grey=config.grey,
            cache=(config.cache or default_cache()) / "images",
            cache_limit=config.cache_limit,
            image_column=config.image_column,
            label_column=config.label_column,
            valid_fraction=config.valid_fraction,
            test_fraction=config.test_fraction,
            skip_damaged=config.skip_damaged,
            classes=classes,
            say=say,
        )
    config.require_own_flags()  # last: what is wrong with the data matters more
    return source


@contextmanager
def image_errors(data: Path | None) -> Iterator[None]:
    """Turn what may befall the images and the workers in mid-run into a `RunError`."""
    try:
        yield
    except (DamagedShardError, DamagedPictureError) as error:
        # From a worker it comes with that worker's traceback in front.
        raise RunError(f"--data {data}: {str(error).splitlines()[-1].split('Error: ')[-1]}") from error
    except (ConnectionResetError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise RunError(f"a process that draws images ended (out of memory?): {error}") from error


def training_batches(
    images: ImageSet,
    plan: BatchPlan | ClassPlan,
    steps: range,
    workers: int,
    runtime: Runtime,
    augmentation: Augmentation,
) -> DataLoader[tuple[Tensor, ...]]:
    """As `image_batches`, for all micro-batches of `steps`, and a third tensor [N, ·] for
    `Augmentation.apply`. On the CPU it has no columns: there the workers have changed the images already."""
    return _loader(images, _Epochs(plan, steps), workers, runtime, augmentation)


def image_batches(
    images: ImageSet, batches: Iterable[list[int]], workers: int, runtime: Runtime
) -> DataLoader[tuple[Tensor, ...]]:
    """uint8 images [N, C, height, width] in channels_last and classes [N], one pair for each list of
    indices."""
    return _loader(images, [(0, batch) for batch in batches], workers, runtime, None)


class _Epochs:
    """The micro-batches of a plan, each with its epoch."""

    def __init__(self, plan: BatchPlan | ClassPlan, steps: range) -> None:
        self.plan, self.steps = plan, steps

    def __iter__(self) -> Iterator[_Batch]:
        batches = iter(self.plan.batches(self.steps.start, self.steps.stop))
        for step in self.steps:
            for _ in range(self.plan.micro_batches(step)):
                yield step // self.plan.steps_per_epoch, next(batches)


def _loader(
    images: ImageSet,
    batches: Iterable[_Batch],
    workers: int,
    runtime: Runtime,
    augmentation: Augmentation | None,
) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(
        _WholeBatches(images, augmentation, leave_to_device=runtime.device.type != "cpu"),
        batch_size=None,  # an "index" is a whole batch: nothing is collated
        sampler=batches,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=runtime.device.type == "cuda",
        worker_init_fn=leave_signals_to_the_trainer,
        generator=torch.Generator(),  # or each loader would draw a number from the training's generator
    )


def leave_signals_to_the_trainer(worker: int) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach all processes, but the trainer still needs images to finish its
    step. Workers end when the loader closes their queue or, by its watchdog, when the trainer is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _WholeBatches(Dataset[tuple[Tensor, ...]]):
    def __init__(self, images: ImageSet, augmentation: Augmentation | None, leave_to_device: bool) -> None:
        self.images, self.augmentation, self.leave_to_device = images, augmentation, leave_to_device

    def __getitem__(self, batch: Any) -> tuple[Tensor, ...]:
        epoch, indices = batch
        pixels, labels = self.images.batch(indices)  # [N, height, width, C], [N]
        # Height x width x colour, seen as colour x height x width, is what channels_last means: no copy.
        images, classes = torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels)
        if self.augmentation is None:
            return images, classes
        if self.leave_to_device:
            return images, classes, self.augmentation.draw(indices, epoch)
        return self.augmentation(images, indices, epoch), classes, torch.empty(len(indices), 0)


def sample_of(images: ImageSet, count: int, seed: int) -> list[int]:
    """Indices of `count` images drawn at random (the same for the same seed), or of all of them for 0."""
    order = np.random.default_rng(seed).permutation(len(images)) if count else np.arange(len(images))
    return order[: count or None].tolist()


def in_batches(indices: list[int], batch_size: int) -> list[list[int]]:
    """`indices` cut into batches of at most `batch_size`."""
    return [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]


def class_counts(images: ImageSet) -> Tensor:
    """[V] how many images each class has."""
    return torch.from_numpy(np.bincount(images.labels, minlength=len(images.classes)))
