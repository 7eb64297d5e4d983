"""The settings of all commands for classifiers. Imports no torch, so that `--help` is instant."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from shapesgen.attributes import AttributeSpace
from sqrtvocab.atomic import parse_json
from sqrtvocab.errors import UserError, shortened
from sqrtvocab.flags import Device, Flags, Precision, at_least, flag
from sqrtvocab.heads.registry import HEADS
from sqrtvocab.settings import HeadFlags, MachineFlags, PresetFlag, RunFlags, StepFlags

EMBEDDING = 512  # width of what the CNN makes of an image; here because --rank is checked without torch

Grouping = Literal["auto", "aligned", "index", "frequency", "random", "taxonomy", "clusters", "discovered"]
FOUND = ("clusters", "discovered")  # groupings that are found in the images


@dataclass(frozen=True)
class _HeadFlags(HeadFlags):
    OPTIONS: ClassVar[tuple[str, ...]] = (*HeadFlags.OPTIONS, "storage")

    grouping: Grouping = "aligned"
    """Which classes share a group. aligned: the group count nearest √V at which member t means the same
    attributes in every group (384 of 184,320). index: consecutive classes, floor(√V) groups unless
    --num-groups is given (429; the paper's). frequency: classes with about as many training images. random:
    dealt out at random. taxonomy: those of a super-class, as --taxonomy tells. clusters: classes whose mean
    images at 10 x 10 pixels are alike. discovered: the same, and member t of all groups differs alike from
    the others of its group, for --head grouped where nothing is known of the labels. auto: taxonomy if there
    is one, aligned if there are --radices, else index. A head without groups uses it only to report group
    accuracy."""
    embeddings: Path | None = None
    """For --grouping clusters and discovered: a run of train_classifier, such as a short one with --head
    prototype, by whose embeddings of the images classes are alike; by default pixels decide. Needed only to
    begin."""
    storage: Literal["float32", "float16"] | None = None
    """Number format in which --head prototype keeps its classes; float32 by default."""
    radices: str | None = None
    """How your own classes are made of attributes, as in 19,21,28 (the syllables of Hangul in their order):
    the options of each attribute, those that change slowest first. For --grouping aligned, and for a head
    that is made of attributes, too."""
    taxonomy: Path | None = None
    """A table (.csv, .tsv, .jsonl) of your classes and their super-classes: reports how often the super-class
    is right, and lets --grouping taxonomy keep them together."""
    prior: Annotated[bool | None, tyro.conf.arg(constructor=bool)] = None  # type: ignore[assignment]
    """Start the head's biases at the log frequencies of the classes in the training images; by default where
    one class has more than twice the images of another."""

    @property
    def chosen_grouping(self) -> Grouping:
        """`--grouping`, where auto is what the other flags say."""
        if self.grouping != "auto":
            return self.grouping
        return "taxonomy" if self.taxonomy is not None else "index" if self.radices is None else "aligned"

    @property
    def given_radices(self) -> tuple[int, ...] | None:
        """`--radices` as numbers.

        Raises:
            ValueError: if they are none, or not positive.
        """
        if self.radices is None:
            return None
        numbers = tuple(int(word) for word in self.radices.split(","))
        if min(numbers) < 1:
            raise ValueError("an attribute has at least one option")
        return numbers

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.num_groups is not None and self.chosen_grouping == "aligned":
            problems.append(
                "--num-groups needs --grouping index, frequency, random, taxonomy, clusters or discovered: "
                "aligned chooses the number itself"
            )
        if self.embeddings is not None and self.grouping not in FOUND:
            problems.append(f"--embeddings is for --grouping {' or '.join(FOUND)}, not {self.grouping}")
        if self.grouping == "taxonomy" and self.taxonomy is None:
            problems.append("--grouping taxonomy needs --taxonomy FILE")
        if self.radices is not None:
            try:
                _ = self.given_radices
            except ValueError:
                given = shortened(self.radices)
                problems.append(f"--radices {given}: expected numbers of options, as in 19,21,28")
            takers = [name for name, head in HEADS.items() if head.takes("radices")]
            if self.chosen_grouping != "aligned" and self.head not in takers:
                problems.append(f"--radices is for --grouping aligned or --head {', '.join(takers)}")
        return problems


@dataclass(frozen=True)
class _ImageFlags(Flags):
    SECTION: ClassVar[str] = "data"

    data: Path | None = None
    """Your own pictures: a folder of class folders (with or without train, val and test above them), Parquet
    files as Hugging Face has them, or a table (.csv, .jsonl, .parquet) of paths and labels. Or a set written
    by `shapesgen render`. By default shapes are drawn on the fly."""
    image_column: str | None = None
    """The column of a table that holds the pictures or their paths; found by its name by default."""
    label_column: str | None = None
    """The column of a table that holds the classes; found by its name by default."""
    valid_fraction: float = 0.1
    """Share of your pictures of each class kept for validation, where the data has no such split."""
    test_fraction: float = 0.1
    """Share of your pictures of each class kept for testing, where the data has no such split."""
    skip_damaged: bool = False
    """Go on without pictures that cannot be read, instead of naming them."""
    image_size: int | None = None
    """Side of the square that images are brought to: 100 by default or, for your own pictures, what the
    backbone was made for."""
    grey: bool = False
    """Take the colours away."""
    augment: Literal["none", "shift", "standard", "letters"] = "none"
    """Change training images each time they are seen. shift: move them by up to an eighth. standard: cut out
    half or more, and change brightness, contrast and saturation. letters: turn, slant, stretch, bend and
    move them a little, with thicker or thinner strokes."""
    flip: Literal["none", "horizontal", "vertical", "both"] = "none"
    """Mirror every second training image, where that leaves its class the same."""
    mixup: float = 0.0
    """Lay training images over each other in pairs, with both classes as targets: α of the Beta distribution
    of their shares, such as 0.2; 0 for none."""
    cutmix: float = 0.0
    """Cut a part of another training image into each, with both classes as targets: α of the Beta
    distribution of their areas, such as 1; 0 for none. With --mixup, each batch takes one or the other."""
    cache: Path | None = None
    """Folder of your decoded pictures; $SQRTVOCAB_CACHE or ~/.cache/sqrtvocab by default."""
    cache_limit: float = 20.0
    """Decode pictures whenever they are needed if they would take more GB than this in the cache."""
    only: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Keep only these options of an attribute, as in --only shape=circle,star --only opacity=1.0. What a
    preset keeps of other attributes stays."""
    rotation_cue: Literal["notch", "none"] = "notch"
    """notch: a mark makes the rotation of every shape visible. none: the paper's table to the letter, in
    which only two thirds of the classes look different."""
    images_per_class: int = 10
    """Images of each class, split 8/1/1 into train, validation and test."""
    shuffle_labels: int | None = None
    """Number the classes of shapes at random, by this seed, as if nothing were known of how they are made."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 1, "images_per_class", "image_size")
        problems += at_least(self, 0, "shuffle_labels", "mixup", "cutmix")
        problems += at_least(self, 0, "valid_fraction", "test_fraction", "cache_limit")
        if self.valid_fraction + self.test_fraction >= 1:
            problems.append("--valid-fraction and --test-fraction together must be less than 1")
        if self.images_per_class in (1, 2):
            problems.append("--images-per-class must be at least 3: train, validation and test need one each")
        try:
            self.space()
        except ValueError as error:
            problems.append(f"--only: {error}")
        return problems

    @property
    def has_shapes(self) -> bool:
        """Whether the images are shapes, drawn or rendered, and not the user's own pictures."""
        return self.data is None or holds_shapes(self.data)

    def require_own_flags(self) -> None:
        """Raise UserError if a flag was given that says nothing about this kind of images."""
        of_shapes = ("only", "rotation_cue", "images_per_class", "shuffle_labels")
        of_pictures = (
            "image_column", "label_column", "valid_fraction", "test_fraction", "skip_damaged", "cache",
            "cache_limit", "radices", "taxonomy",
        )  # fmt: skip
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        others, kind = (of_pictures, "your own pictures") if self.has_shapes else (of_shapes, "shapes")
        if given := [flag(name) for name in others if getattr(self, name) != fields[name]]:
            images = "shapes drawn on the fly" if self.data is None else f"--data {self.data}"
            raise UserError(f"{', '.join(given)}: for {kind}, not for {images}")

    def space(self) -> AttributeSpace:
        """The classes of shapes that `--only` leaves.

        Raises:
            ValueError: for an attribute or option that does not exist.
        """
        return AttributeSpace.parse_only(self.only)


def holds_shapes(path: Path) -> bool:
    """Whether `shapesgen render` wrote this folder."""
    try:
        settings = parse_json((path / "config.json").read_bytes())
        return {"attributes", "format", "rotation_cue"} <= set(settings)
    except (OSError, ValueError, TypeError):
        return False


@dataclass(frozen=True)
class _BackboneFlags(Flags):
    SECTION: ClassVar[str] = "model"

    backbone: str = "cnn"
    """What makes an embedding of an image: cnn (the paper's), swift (seven times as fast), swift-wide (twice
    its filters), any classification model of torchvision.models by name, such as resnet18 or
    mobilenet_v3_small, or timm:NAME."""
    weights: str = "none"
    """Where the backbone's weights begin. none: at random. default: the library's best (downloaded). Or a
    file: the model's state dict, or model.safetensors of another run."""


@dataclass(frozen=True)
class _ExampleFlags(Flags):
    images_of_a_class: int | None = None
    """Images of each of its classes in a batch. By default what the head needs: 2 for --head prototype, whose
    images are compared with each other; else images are drawn one by one."""
    class_balance: Literal["equal", "frequency"] = "equal"
    """With --images-of-a-class: whether all classes come equally often, or as often as they have images."""
    mine_at: tuple[int, ...] = ()
    """Steps at which to look, through one image of each of --mine-classes, which classes are hard to tell
    apart; from then on five in six of the classes of a batch are near each other. For --head prototype."""
    mine_classes: int = 60_000
    """Classes to look at then, drawn at random."""
    refresh_images: int = 1
    """Training images that say what a class of --head prototype is, in each evaluation."""
    hold_out_classes: float = 0.0
    """Share of the classes never to train on; the evaluation then tells how well they are known all the same,
    from their --refresh-images. For --head prototype."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 2, "images_of_a_class")
        problems += at_least(self, 1, "mine_classes", "refresh_images") + at_least(
            self, 0, "hold_out_classes"
        )
        if self.hold_out_classes >= 1:
            problems.append("--hold-out-classes must be less than 1: a share of the classes")
        if any(step < 1 for step in self.mine_at):
            problems.append("--mine-at: steps are counted from 1")
        return problems


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
class TrainConfig(
    _RunFlags, _MachineFlags, _StepFlags, _ExampleFlags, _ImageFlags, _BackboneFlags, _HeadFlags, PresetFlag
):
    """Train a classifier on your own pictures (`--data`) or on procedurally drawn shapes, with any output
    head, and watch it in TensorBoard.

    The defaults are the paper's run (10 epochs of 1,474,560 shapes: hours on a GPU, days on a CPU).
    `--preset quickstart` takes about a minute on two CPU cores. With your own pictures `--preset pictures` is
    the default. Several GPUs or machines: `torchrun --nproc-per-node 2 -m classifier.train ...`
    """

    PROGRAM: ClassVar[str] = "train_classifier"
    EXAMPLES = (
        ("train_classifier --preset quickstart", "a minute on two cores"),
        ("train_classifier --data photos", "your own pictures"),
        ("train_classifier --resume runs/NAME --epochs 20", "train it longer"),
    )
    MODULE: ClassVar[str] = "classifier.train"
    ADDED_LATER: ClassVar[dict[str, Any]] = {
        "modulation": None, "rank": None, "chunk_size": None, "samples": None, "hashes": None,
        "buckets": None, "embeddings": None, "storage": None, "radices": None, "taxonomy": None,
        "optimizer": "adam",
        **{
            field.name: field.default
            for kind in (_ImageFlags, _BackboneFlags, _ExampleFlags)
            for field in dataclasses.fields(kind)
            if field.name not in ("data", "only", "rotation_cue", "images_per_class")
        },
        "image_size": 100,
        "vocab_parallel": False,
    }  # fmt: skip

    preset: Literal["paper", "quickstart", "fast", "prototype", "pictures"] = "paper"

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.backbone == "cnn" and self.rank is not None and self.rank > EMBEDDING:
            problems.append(f"--rank {self.rank} must be at most {EMBEDDING}, the width of the embedding")
        return problems

    def not_for(self, head: str) -> dict[str, list[str]]:
        found = super().not_for(head)
        if given := [name for name in ("mine_at", "hold_out_classes") if getattr(self, name)]:
            takers = [name for name, kind in HEADS.items() if kind.from_examples]
            found |= dict.fromkeys(given, takers) if head not in takers else {}
        return found

    @property
    def per_class(self) -> int | None:
        """Images of each class in a batch; None if they are drawn one by one. Imports torch."""
        needed = HEADS[self.head].rows_per_class
        return self.images_of_a_class or (needed if needed > 1 else None)

    @property
    def run_name(self) -> str:
        if self.data is None or self.has_shapes:
            images = str(self.space().num_classes)
        else:
            images = self.data.resolve().name.removesuffix(self.data.suffix if self.data.is_file() else "")
        backbone = "" if self.backbone == "cnn" else f"-{self.backbone.replace(':', '-')}"
        grouping = f"-{self.chosen_grouping}" if HEADS[self.head].has_groups else ""
        return f"classifier-{images}{backbone}-{self.head}{grouping}"


@dataclass(frozen=True)
class EvalConfig(Flags):
    """Score a trained classifier against the attainable ceiling, or let it name a picture."""

    EXAMPLES = (
        ("eval_classifier runs/NAME", "all test images"),
        ("eval_classifier runs/NAME --split validation", "those it was watched on"),
        ("eval_classifier runs/NAME --image picture.png", "what is this?"),
    )
    SECTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("run", "checkpoint"),
        "data": ("split", "images", "data", "skip_damaged"),
        "machine": ("device", "precision", "batch_size", "workers"),
    }

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
    """Name this picture instead."""
    data: Path | None = None
    """Other images, or the same if they have moved since training."""
    skip_damaged: bool = False
    """Go on without pictures that cannot be read, instead of naming them."""
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


@dataclass(frozen=True)
class PredictConfig(Flags):
    """Name pictures of any size with a trained classifier: a line for each, on standard output."""

    EXAMPLES = (
        ("predict_classifier runs/NAME picture.jpg", "what is this?"),
        ("predict_classifier runs/NAME photos", "all pictures in a folder"),
        ("predict_classifier runs/NAME photos --json", "for another program"),
    )
    SECTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("run", "checkpoint"),
        "data": ("pictures",),
        "machine": ("device", "precision", "batch_size", "workers"),
    }

    run: tyro.conf.Positional[Path]
    """Run folder of train_classifier."""
    pictures: tyro.conf.Positional[tuple[Path, ...]]
    """Pictures, and folders of pictures at any depth."""
    top_k: int = 5
    """How many classes to name for each, with their probabilities."""
    json: bool = False
    """Write a JSON object in each line: file and classes, or file and error."""
    checkpoint: Literal["best", "last"] = "best"
    """Weights that scored best in validation, or the newest."""
    device: Device = "auto"
    """auto takes cuda before mps before cpu."""
    precision: Precision = "auto"
    """Number format of the forward pass; auto chooses for the device."""
    batch_size: int = 64
    """Pictures at a time."""
    workers: int = 1
    """Processes that decode pictures ahead."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 0, "workers")
        problems += at_least(self, 1, "top_k", "batch_size")
        if not self.pictures:
            problems.append("name a picture or a folder of pictures after RUN")
        return problems


@dataclass(frozen=True)
class ExportConfig(Flags):
    """Write a trained classifier into one file that needs nothing of this package: pictures of any size go
    in, the most probable classes come out. Their names go into labels.json beside it."""

    EXAMPLES = (
        ("export_classifier runs/NAME", "model.onnx in the run folder"),
        ("export_classifier runs/NAME --format torch", "a program of torch.export"),
        ("export_classifier runs/NAME --out plants.onnx --images 0", "checked on every validation image"),
    )
    SECTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("run", "checkpoint"),
        "data": ("images", "data"),
    }

    run: tyro.conf.Positional[Path]
    """Run folder of train_classifier."""
    out: Path | None = None
    """The file, with the suffix of its format; model.onnx or model.pt2 in the run folder by default."""
    format: Literal["onnx", "torch"] = "onnx"
    """onnx: for onnxruntime and others. torch: a program of torch.export."""
    top_k: int = 5
    """How many classes to name for each picture."""
    images: int = 256
    """Validation images on which the file must name the same classes as the model; 0 takes them all."""
    checkpoint: Literal["best", "last"] = "best"
    """Weights that scored best in validation, or the newest."""
    data: Path | None = None
    """Where the training data are now, if they have moved."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 0, "images") + at_least(self, 1, "top_k")
        if self.out is not None and self.out.is_dir():
            problems.append(f"--out {self.out}: a folder; expected the name of a file")
        elif self.out is not None and self.out.suffix != self.suffix:  # not, say, over the run's config.json
            problems.append(
                f"--out {self.out}: expected a name that ends in {self.suffix}, for --format {self.format}"
            )
        return problems

    @property
    def suffix(self) -> str:
        """How the name of the file ends."""
        return {"onnx": ".onnx", "torch": ".pt2"}[self.format]


@dataclass(frozen=True)
class AddConfig(Flags):
    """Let a trained classifier know further classes, from a few pictures of each, without training.

    For runs on your own pictures whose classes are examples (--head prototype).
    """

    EXAMPLES = (
        ("add_classes runs/NAME more", "a folder for each new class"),
        ("add_classes runs/NAME more.csv --label-column name", "a table"),
        ("add_classes runs/NAME more --out runs/larger", "under another name"),
    )
    SECTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("run", "checkpoint"),
        "data": ("folder", "image_column", "label_column", "skip_damaged"),
        "machine": ("device", "precision", "workers"),
    }

    run: tyro.conf.Positional[Path]
    """Run folder of train_classifier."""
    folder: tyro.conf.Positional[Path]
    """Pictures of the new classes, one or more of each: anything that --data of train_classifier takes."""
    out: Path | None = None
    """Run folder to write, which eval_classifier takes; RUN-more by default."""
    checkpoint: Literal["best", "last"] = "best"
    """Weights that scored best in validation, or the newest."""
    image_column: str | None = None
    """The column of a table that holds the pictures or their paths; found by its name by default."""
    label_column: str | None = None
    """The column of a table that holds the classes; found by its name by default."""
    skip_damaged: bool = False
    """Go on without pictures that cannot be read, instead of naming them."""
    device: Device = "auto"
    """auto takes cuda before mps before cpu."""
    precision: Precision = "auto"
    """Number format of the forward pass; auto chooses for the device and says why."""
    workers: int = 1
    """Processes that read pictures ahead."""

    def problems(self) -> list[str]:
        return super().problems() + at_least(self, 0, "workers")
