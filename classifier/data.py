"""The images, drawn on the fly or read from disk, as whole batches in the order the training asks for."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from classifier.config import TrainConfig
from shapesgen import ShapesDataset, ShapesParquet
from shapesgen.attributes import AttributeSpace
from shapesgen.ceiling import Ceiling, ceiling
from shapesgen.choices import Split
from shapesgen.dataset import MapStyle
from shapesgen.errors import DamagedShardError
from sqrtvocab.errors import UserError
from sqrtvocab.training import RunError, Runtime

ShapeImages = MapStyle  # either dataset of shapesgen


def open_images(config: TrainConfig, split: Split) -> ShapeImages:
    """The images of a split, drawn on the fly or in the folder `--data`.

    Raises:
        UserError: if the folder is missing or damaged, or holds other classes than those asked for.
    """
    space = config.space()
    if config.data is None:
        try:
            return ShapesDataset(split, space, config.images_per_class, config.seed, config.rotation_cue)
        except ValueError as error:  # "images_per_class must be ..."
            raise UserError(f"--{str(error).replace('_', '-')}") from error
    if not config.data.is_dir():
        raise UserError(
            f"--data {config.data}: no such folder; `shapesgen render --out {config.data}` makes it"
        )
    try:
        images = ShapesParquet(config.data, split)
    except (UserError, DamagedShardError) as error:
        raise UserError(f"--data {config.data}: {error}") from error
    if images.space != space:
        raise UserError(
            f"--data {config.data} holds {images.space.num_classes:,} classes, not the {space.num_classes:,} "
            f"asked for ({_differences(images.space, space)}): give the --only it was rendered with"
        )
    if images.recipe.rotation_cue != config.rotation_cue:
        raise UserError(
            f"--data {config.data} was rendered with --rotation-cue {images.recipe.rotation_cue}, "
            f"not {config.rotation_cue}: give the same flag here"
        )
    _check_labels(images, config)
    return images


def _check_labels(images: ShapeImages, config: TrainConfig) -> None:
    """Compare some labels with those of the recipe in the manifest: a set whose labels were changed, or that
    another program made, would train without complaint and mean nothing."""
    rows = sample_of(images, 256, seed=0)
    expected, _ = images.recipe.locate(images.split, images.recipe.shuffle(images.split, rows))
    try:
        _, labels = images.batch(rows)
    except DamagedShardError as error:
        raise UserError(f"--data {config.data}: {error}") from error
    wrong = np.flatnonzero(labels != expected)
    if len(wrong):
        row = wrong[0]
        raise UserError(
            f"--data {config.data}: {images.split} image {rows[row]} has label {labels[row]}, but by the "
            f"manifest it shows class {expected[row]}; `shapesgen verify {config.data}` tells more"
        )


@contextmanager
def image_errors(data: Path | None) -> Iterator[None]:
    """Turn what may befall the images and the workers in mid-run into a `RunError`."""
    try:
        yield
    except DamagedShardError as error:  # from a worker it comes with that worker's traceback in front
        raise RunError(f"--data {data}: {str(error).splitlines()[-1].split('Error: ')[-1]}") from error
    except (ConnectionResetError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise RunError(f"a process that draws images ended (out of memory?): {error}") from error


def image_batches(
    images: ShapeImages, batches: Iterable[list[int]], workers: int, runtime: Runtime
) -> DataLoader[tuple[Tensor, Tensor]]:
    """uint8 images [N, 3, 100, 100] in channels_last and classes [N], one pair for each list of indices."""
    return DataLoader(
        _WholeBatches(images),
        batch_size=None,  # an "index" is a whole batch: nothing is collated
        sampler=batches,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=runtime.device.type == "cuda",
        worker_init_fn=_leave_signals_to_the_trainer,
        generator=torch.Generator(),  # or each loader would draw a number from the training's generator
    )


def _leave_signals_to_the_trainer(worker: int) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach all processes, but the trainer still needs images to finish its
    step. Workers end when the loader closes their queue or, by its watchdog, when the trainer is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _WholeBatches(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, images: ShapeImages) -> None:
        self.images = images

    def __getitem__(self, indices: Any) -> tuple[Tensor, Tensor]:
        pixels, classes = self.images.batch(indices)  # [N, 100, 100, 3], [N]
        # Height x width x colour, seen as colour x height x width, is what channels_last means: no copy.
        return torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(classes)


def sample_of(images: ShapeImages, count: int, seed: int) -> list[int]:
    """Indices of `count` images drawn at random (the same for the same seed), or of all of them for 0."""
    order = np.random.default_rng(seed).permutation(len(images)) if count else np.arange(len(images))
    return order[: count or None].tolist()


def identity_of(images: ShapeImages) -> dict[str, Any]:
    """What decides the images, as plain settings: another seed, other options or another sampling differ."""
    recipe = images.recipe.to_config()
    options = {name: ",".join(kept) for name, kept in recipe.pop("attributes").items()}
    return {f"data_{name}": value for name, value in {**options, **recipe}.items()}


def in_batches(indices: list[int], batch_size: int) -> list[list[int]]:
    """`indices` cut into batches of at most `batch_size`."""
    return [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]


def class_counts(images: ShapeImages) -> Tensor:
    """[V] how many images each class has."""
    classes, _ = images.recipe.locate(images.split, np.arange(len(images)))
    return torch.from_numpy(np.bincount(classes, minlength=images.space.num_classes))


def ceiling_of(config: TrainConfig) -> Ceiling:
    """The most that any classifier can reach: classes that look the same cannot be told apart."""
    return ceiling(config.space(), config.rotation_cue)


def _differences(there: AttributeSpace, here: AttributeSpace) -> str:
    return "; ".join(
        f"{name} {','.join(there.options[name])} there and {','.join(here.options[name])} here"
        for name in there.names
        if there.options[name] != here.options[name]
    )
