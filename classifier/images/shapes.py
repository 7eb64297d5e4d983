"""The shapes, drawn on the fly or read from what `shapesgen render` wrote, as image sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from classifier.images.protocol import ImageSet
from classifier.images.resized import resized
from classifier.images.shuffled import shuffled
from shapesgen import ShapesDataset
from shapesgen.attributes import AttributeSpace
from shapesgen.choices import RotationCue, Split
from shapesgen.dataset import ShapeImages
from shapesgen.errors import DamagedShardError
from shapesgen.rendered import open_rendered
from sqrtvocab.errors import UserError

_COMPARED = 256  # labels of a rendered set


@dataclass(frozen=True)
class Shapes:
    """Where the shapes of each split come from (an `ImageSource`)."""

    folder: Path | None  # None: drawn
    space: AttributeSpace
    rotation_cue: RotationCue
    images_per_class: int
    seed: int
    size: int
    grey: bool
    shuffle_labels: int | None = None  # the seed
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return "drawn on the fly" if self.folder is None else f"in {self.folder}"

    def __getitem__(self, split: Split) -> ImageSet:
        """The images of a split.

        Raises UserError if the folder is damaged, or holds other classes than those asked for.
        """
        images = self._drawn(split) if self.folder is None else self._rendered(split)
        return shuffled(resized(images, self.size, self.grey), self.shuffle_labels)

    def _drawn(self, split: Split) -> ShapeImages:
        try:
            return ShapesDataset(split, self.space, self.images_per_class, self.seed, self.rotation_cue)
        except ValueError as error:  # "images_per_class must be ..."
            raise UserError(f"--{str(error).replace('_', '-')}") from error

    def _rendered(self, split: Split) -> ShapeImages:
        assert self.folder is not None
        try:
            images = open_rendered(self.folder, split)
        except (UserError, DamagedShardError) as error:
            raise UserError(f"--data {self.folder}: {error}") from error
        if images.space != self.space:
            raise UserError(
                f"--data {self.folder} holds {images.space.num_classes:,} classes, not the "
                f"{self.space.num_classes:,} asked for ({_differences(images.space, self.space)}): give the "
                "--only it was rendered with"
            )
        if images.recipe.rotation_cue != self.rotation_cue:
            raise UserError(
                f"--data {self.folder} was rendered with --rotation-cue {images.recipe.rotation_cue}, "
                f"not {self.rotation_cue}: give the same flag here"
            )
        check_labels(images, self.folder)
        return images


def check_labels(images: ShapeImages, folder: Path) -> None:
    """Compare some labels with those of the recipe in the manifest: a set whose labels were changed, or that
    another program made, would train without complaint and mean nothing."""
    rows = np.random.default_rng(0).permutation(len(images))[:_COMPARED]
    expected, _ = images.locate(rows)
    try:
        _, labels = images.batch(rows)
    except DamagedShardError as error:
        raise UserError(f"--data {folder}: {error}") from error
    wrong = np.flatnonzero(labels != expected)
    if len(wrong):
        row = wrong[0]
        raise UserError(
            f"--data {folder}: {images.split} image {rows[row]} has label {labels[row]}, but by the "
            f"manifest it shows class {expected[row]}; `shapesgen verify {folder}` tells more"
        )


def _differences(there: AttributeSpace, here: AttributeSpace) -> str:
    return "; ".join(
        f"{name} {','.join(there.options[name])} there and {','.join(here.options[name])} here"
        for name in there.names
        if there.options[name] != here.options[name]
    )
