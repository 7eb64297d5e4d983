"""The settings of `train_classifier` and `eval_classifier`. Imports no torch, so that `--help` is instant."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from shapesgen.attributes import AttributeSpace
from sqrtvocab.flags import Device, Flags, Precision, at_least
from sqrtvocab.heads.registry import HEADS
from sqrtvocab.settings import HeadFlags, MachineFlags, PresetFlag, RunFlags, StepFlags

EMBEDDING = 512  # width of what the CNN makes of an image; here because --rank is checked without torch


@dataclass(frozen=True)
class _HeadFlags(HeadFlags):
    grouping: Literal["aligned", "index", "random"] = "aligned"
    """Which classes share a group. aligned: the group count nearest √V at which member t means the same
    attributes in every group (384 of 184,320). index: consecutive classes, floor(√V) groups unless
    --num-groups is given (429; the paper's). random: dealt out at random. A head without groups uses it only
    to report group accuracy."""

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.num_groups is not None and self.grouping == "aligned":
            problems.append(
                "--num-groups needs --grouping index or random: aligned chooses the number itself"
            )
        if self.rank is not None and self.rank > EMBEDDING:
            problems.append(f"--rank {self.rank} must be at most {EMBEDDING}, the width of the embedding")
        return problems


@dataclass(frozen=True)
class _ImageFlags(Flags):
    data: Path | None = None
    """Folder written by `shapesgen render`; by default images are drawn on the fly."""
    only: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Keep only these options of an attribute, as in --only shape=circle,star --only opacity=1.0"""
    rotation_cue: Literal["notch", "none"] = "notch"
    """notch: a mark makes the rotation of every shape visible. none: the paper's table to the letter, in
    which only two thirds of the classes look different."""
    images_per_class: int = 10
    """Images of each class, split 8/1/1 into train, validation and test."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 1, "images_per_class")
        if self.images_per_class in (1, 2):
            problems.append("--images-per-class must be at least 3: train, validation and test need one each")
        try:
            self.space()
        except ValueError as error:
            problems.append(f"--only: {error}")
        return problems

    def space(self) -> AttributeSpace:
        """The classes that `--only` leaves.

        Raises:
            ValueError: for an attribute or option that does not exist.
        """
        return AttributeSpace.parse_only(self.only)


@dataclass(frozen=True)
class _StepFlags(StepFlags):
    epochs: int = 10
    batch_size: int = 64
    accumulate: int = 4


@dataclass(frozen=True)
class _MachineFlags(MachineFlags):
    workers: int | None = None
    """Processes that draw or read images ahead; by default 1 on the CPU, up to 8 for each GPU."""

    def problems(self) -> list[str]:
        return super().problems() + at_least(self, 0, "workers")

    def num_workers(self, device_type: str, processes_here: int) -> int:
        """`--workers`, or what suits the device: drawing takes 1 % of a CPU step, but a GPU needs several
        helpers."""
        if self.workers is not None:
            return self.workers
        return 1 if device_type == "cpu" else max(1, min(8, (os.cpu_count() or 2) // processes_here - 1))


@dataclass(frozen=True)
class _RunFlags(RunFlags):
    eval_images: int = 5000
    """Validation images of each evaluation, the same ones every time; 0 takes them all."""

    def problems(self) -> list[str]:
        return super().problems() + at_least(self, 0, "eval_images")


@dataclass(frozen=True)
class TrainConfig(_RunFlags, _MachineFlags, _StepFlags, _ImageFlags, _HeadFlags, PresetFlag):
    """Train the paper's CNN on procedurally drawn shapes, with any output head, and watch it in TensorBoard.

    The defaults are the paper's run (10 epochs of 1,474,560 images: hours on a GPU, days on a CPU).
    `--preset quickstart` takes about a minute on two CPU cores. Several GPUs or machines:
    `torchrun --nproc-per-node 2 -m classifier.train ...`
    """

    PROGRAM: ClassVar[str] = "train_classifier"
    MODULE: ClassVar[str] = "classifier.train"
    ADDED_LATER: ClassVar[dict[str, Any]] = {"modulation": None, "rank": None, "chunk_size": None}

    preset: Literal["paper", "quickstart"] = "paper"

    def head_options(self) -> dict[str, Any]:
        """The options of the head's class, its partition left out."""
        radices = {"radices": self.space().radices} if HEADS[self.head].takes("radices") else {}
        return {**self.given_head_options(), **radices}

    @property
    def run_name(self) -> str:
        grouping = f"-{self.grouping}" if HEADS[self.head].has_groups else ""
        return f"classifier-{self.space().num_classes}-{self.head}{grouping}"


@dataclass(frozen=True)
class EvalConfig(Flags):
    """Score a trained classifier against the attainable ceiling, or let it name a picture."""

    run: tyro.conf.Positional[Path]
    """Run folder of train_classifier."""
    split: Literal["train", "validation", "test"] = "test"
    """Images to score."""
    images: int = 0
    """How many of them, drawn at random; 0 takes them all."""
    checkpoint: Literal["best", "last"] = "best"
    """Weights that scored best in validation, or the newest."""
    top_k: int = 5
    """Count a class among the k most probable as found; with --image, list as many."""
    image: Path | None = None
    """Name this picture (100 x 100 pixels) instead."""
    data: Path | None = None
    """Folder of rendered images, if it has moved since training."""
    device: Device = "auto"
    """auto takes cuda before mps before cpu."""
    precision: Precision = "auto"
    """Number format of the forward pass; auto chooses for the device and says why."""
    batch_size: int = 256
    """Images at a time."""
    workers: int = 1
    """Processes that draw or read images ahead."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 0, "images", "workers")
        problems += at_least(self, 1, "top_k", "batch_size")
        if self.image is not None and not self.image.is_file():
            problems.append(f"--image {self.image}: no such file")
        return problems
