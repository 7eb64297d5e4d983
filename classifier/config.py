"""The settings of `train_classifier` and `eval_classifier`. Imports no torch, so that `--help` is instant."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shapesgen.attributes import AttributeSpace
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, positive, seed_fits

EMBEDDING = 512  # width of what the CNN makes of an image; here because --rank is checked without torch
YOUNGER = ("modulation", "rank", "chunk_size")  # settings that older runs lack; None in all of them


@dataclass(frozen=True)
class TrainConfig:
    """Train the paper's CNN on procedurally drawn shapes, with any output head, and watch it in TensorBoard.

    The defaults are the paper's run (10 epochs of 1,474,560 images: hours on a GPU, days on a CPU).
    `--preset quickstart` takes about a minute on two CPU cores. Several GPUs or machines:
    `torchrun --nproc-per-node 2 -m classifier.train ...`
    """

    preset: Literal["paper", "quickstart"] = "paper"
    """Where the defaults of all other flags come from; flags given besides it win."""

    head: Literal["grouped", "flat", "grouped-linear", "grouped-low-rank", "adaptive", "factored"] = "grouped"
    """Output head: the paper's grouped one, the ordinary flat one, one linear layer per group, a mixture of a
    few layers that all groups share, adaptive softmax, or one softmax for each attribute, which must know how
    the classes are made."""
    grouping: Literal["aligned", "index", "random"] = "aligned"
    """Which classes share a group. aligned: the group count nearest √V at which member t means the same
    attributes in every group (384 of 184,320). index: consecutive classes, floor(√V) groups unless
    --num-groups is given (429; the paper's). random: dealt out at random. A flat, adaptive or factored head
    uses it only to report group accuracy."""
    num_groups: int | None = None
    """Number of groups, for --grouping index or random; floor(√V) by default."""
    modulation: Literal["scale-shift", "film", "both"] | None = None
    """How a group makes the shared layer of --head grouped its own: scale and shift after it (the paper's,
    and the default), before it (film), or both."""
    rank: int | None = None
    """How many layers the groups of --head grouped-low-rank share; 16 by default."""
    chunk_size: int | None = None
    """Let --head flat work on so many images at a time: the same loss, exactly, in less memory."""
    prior: bool = False
    """Start the head's biases at the log frequencies of the training classes (even, unless --data was
    rendered with --sampling random)."""

    data: Path | None = None
    """Folder written by `shapesgen render`; by default images are drawn on the fly."""
    only: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Keep only these options of an attribute, as in --only shape=circle,star --only opacity=1.0"""
    rotation_cue: Literal["notch", "none"] = "notch"
    """notch: a mark makes the rotation of every shape visible. none: the paper's table to the letter, in
    which only two thirds of the classes look different."""
    images_per_class: int = 10
    """Images of each class, split 8/1/1 into train, validation and test."""

    epochs: int = 10
    """Times through the training images."""
    max_steps: int | None = None
    """Stop after this many optimiser steps."""
    max_minutes: float | None = None
    """Stop this call after so many minutes: finish the step, evaluate, save."""
    batch_size: int = 64
    """Images of one micro-batch on one device."""
    accumulate: int = 4
    """Micro-batches whose gradients are added up in one step. A step sees batch-size x accumulate x ranks
    images."""
    lr: float = 1e-3
    """Learning rate of Adam."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over the steps: constant (the paper's), or falling to zero along a cosine."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises from zero."""

    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """auto takes cuda before mps before cpu."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format of the forward pass; auto chooses for the device and says why."""
    compile: bool = False
    """Compile the model with torch.compile (worth it on a GPU; takes a minute at the start)."""
    workers: int | None = None
    """Processes that draw or read images ahead; by default 1 on the CPU, up to 8 for each GPU."""

    eval_every: int = 500
    """Evaluate and save every so many steps; also at the end."""
    eval_images: int = 5000
    """Validation images of each evaluation, the same ones every time; 0 takes them all."""
    out: Path | None = None
    """Run folder; runs/classifier-<classes>-<head>-<grouping> by default. TensorBoard overlays the runs of
    one parent."""
    resume: str | None = None
    """auto: continue the run in --out if it has begun, else begin. A path: continue the run in that folder,
    with its settings unless other flags are given."""
    seed: int = 0
    """Decides the images, their order and the initial weights."""

    def __post_init__(self) -> None:
        problems = at_least(
            self, 1, "images_per_class", "epochs", "batch_size", "accumulate", "eval_every", "num_groups",
            "max_steps", "chunk_size", "rank",
        )  # fmt: skip
        problems += at_least(self, 0, "warmup_steps", "workers", "eval_images", "seed")
        problems += seed_fits(self)
        problems += positive(self, "lr", "max_minutes")
        if self.num_groups is not None and self.grouping == "aligned":
            problems.append(
                "--num-groups needs --grouping index or random: aligned chooses the number itself"
            )
        if self.modulation is not None and self.head != "grouped":
            problems.append(f"--modulation is for --head grouped, not {self.head}")
        if self.rank is not None and self.head != "grouped-low-rank":
            problems.append(f"--rank is for --head grouped-low-rank, not {self.head}")
        elif self.rank is not None and self.rank > EMBEDDING:
            problems.append(f"--rank {self.rank} must be at most {EMBEDDING}, the width of the embedding")
        if self.chunk_size is not None and self.head != "flat":
            problems.append(f"--chunk-size is for --head flat, not {self.head}")
        if self.images_per_class in (1, 2):
            problems.append("--images-per-class must be at least 3: train, validation and test need one each")
        if self.resume not in (None, "auto") and self.out is not None and Path(self.resume) != self.out:
            problems.append("--resume PATH continues the run in that folder: leave --out away")
        try:
            self.space()
        except ValueError as error:
            problems.append(f"--only: {error}")
        if problems:
            raise UserError("; ".join(problems))

    def space(self) -> AttributeSpace:
        """The classes that `--only` leaves.

        Raises:
            ValueError: for an attribute or option that does not exist.
        """
        kept: dict[str, list[object]] = {}
        for item in self.only:
            name, equals, options = item.partition("=")
            if not equals:
                raise ValueError(f"expected ATTRIBUTE=OPTION,OPTION, got {item!r}")
            kept.setdefault(name, []).extend(options.split(","))
        return AttributeSpace.only(kept)

    def head_options(self) -> dict[str, Any]:
        """The options of the head's class, its partition left out."""
        from sqrtvocab.heads import head_class

        kind = head_class(self.head)
        options: dict[str, Any] = {name: getattr(self, name) for name in ("modulation", "rank", "chunk_size")}
        options["radices"] = self.space().radices
        return {name: value for name, value in options.items() if value is not None and kind.takes(name)}

    @property
    def has_groups(self) -> bool:
        """Whether the head predicts a group first."""
        from sqrtvocab.heads import head_class

        return head_class(self.head).has_groups

    @property
    def run_folder(self) -> Path:
        """The folder that holds everything about this run."""
        if self.resume not in (None, "auto"):
            return Path(str(self.resume))
        suffix = f"-{self.grouping}" if self.has_groups else ""
        return self.out or Path("runs") / f"classifier-{self.space().num_classes}-{self.head}{suffix}"

    def num_workers(self, device_type: str, ranks_here: int) -> int:
        """`--workers`, or what suits the device: drawing takes 1 % of a CPU step, but a GPU needs several
        helpers."""
        if self.workers is not None:
            return self.workers
        return 1 if device_type == "cpu" else max(1, min(8, (os.cpu_count() or 2) // ranks_here - 1))

    @classmethod
    def from_json(cls, settings: dict[str, Any], **changes: Any) -> TrainConfig:
        """The inverse of `to_json`; further keys in `settings` are ignored.

        Raises:
            UserError: for settings that were not written by `to_json`.
        """
        try:
            settings = {**dict.fromkeys(YOUNGER), **settings}
            values = {field.name: settings[field.name] for field in dataclasses.fields(cls)}
        except KeyError as error:
            raise UserError(f"the setting {error} is missing") from error
        for name in ("data", "out"):
            values[name] = None if values[name] is None else Path(values[name])
        return cls(**{**values, "only": tuple(values["only"]), **changes})

    def to_json(self) -> dict[str, Any]:
        """All settings as plain JSON values."""
        plain = {key: str(value) if isinstance(value, Path) else value for key, value in vars(self).items()}
        return {**plain, "only": list(self.only)}


@dataclass(frozen=True)
class EvalConfig:
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
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """auto takes cuda before mps before cpu."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format of the forward pass; auto chooses for the device and says why."""
    batch_size: int = 256
    """Images at a time."""
    workers: int = 1
    """Processes that draw or read images ahead."""

    def __post_init__(self) -> None:
        problems = at_least(self, 0, "images", "workers") + at_least(self, 1, "top_k", "batch_size")
        if self.image is not None and not self.image.is_file():
            problems.append(f"--image {self.image}: no such file")
        if problems:
            raise UserError("; ".join(problems))
