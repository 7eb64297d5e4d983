"""What an image set contains: which instance of which class is image i of which split."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shapesgen.attributes import AttributeSpace, IntArray
from shapesgen.choices import SAMPLINGS, SPLITS, RotationCue, Sampling, Split
from shapesgen.hashing import mix, shuffled, uint64
from shapesgen.kernel import compiled
from shapesgen.renderer import MAX_INSTANCES, Images, check_rotation_cue, check_seed, render


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the pixels and labels of a set. Two equal recipes give the same bytes."""

    space: AttributeSpace = field(default_factory=AttributeSpace.full)
    classes: tuple[int, int] | None = None
    """Only the class ids in this half-open range of `space`; they keep their ids. None: all."""
    images_per_class: int = 10
    sampling: Sampling = "balanced"
    """balanced: exactly `images_per_class` of each class; random: every attribute of every image is drawn
    independently, so that a class gets about as many."""
    seed: int = 0
    rotation_cue: RotationCue = "notch"

    def __post_init__(self) -> None:
        first, end = self.class_range
        if not 0 <= first < end <= self.space.num_classes:
            raise ValueError(
                f"classes must be A:B with 0 <= A < B <= {self.space.num_classes}, got {first}:{end}"
            )
        if not 1 <= self.images_per_class <= MAX_INSTANCES:
            raise ValueError(f"images_per_class must be 1..{MAX_INSTANCES}, got {self.images_per_class}")
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {self.sampling!r}")
        check_seed(self.seed)
        check_rotation_cue(self.rotation_cue)

    @property
    def class_range(self) -> tuple[int, int]:
        return self.classes if self.classes is not None else (0, self.space.num_classes)

    @property
    def num_images(self) -> int:
        first, end = self.class_range
        return (end - first) * self.images_per_class

    @cached_property
    def per_class(self) -> dict[Split, int]:
        """Images of a class in each split: a tenth each for validation and test, at least one of three."""
        held_out = max(self.images_per_class // 10, 1) if self.images_per_class >= 3 else 0
        return {
            "train": self.images_per_class - 2 * held_out,
            "validation": held_out,
            "test": held_out,
        }

    def size(self, split: Split) -> int:
        """How many images the split has."""
        first, end = self.class_range
        return (end - first) * self.per_class[check_split(split)]

    def locate(self, split: Split, indices: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """Images [N] of a split -> their class ids [N] and instances [N].

        Raises IndexError if an index is outside the split.
        """
        indices = np.asarray(indices, np.int64)
        size = self.size(split)
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            raise IndexError(f"{split} has images 0..{size - 1}, got {indices.min()}..{indices.max()}")
        first, end = self.class_range
        per_class = self.per_class[split]
        before = sum(self.per_class[s] for s in SPLITS[: SPLITS.index(split)])
        if self.sampling == "balanced":
            return first + indices // per_class, before + indices % per_class
        class_ids, instances = self._draws
        at = (end - first) * before + indices
        return class_ids[at].astype(np.int64), instances[at].astype(np.int64)

    def shuffle(self, split: Split, rows: npt.ArrayLike) -> IntArray:
        """The images that a shuffled listing of the split has in `rows` [N]."""
        return shuffled(np.asarray(rows, np.int64), self.size(split), self.seed, SPLITS.index(split))

    def render(self, class_ids: npt.ArrayLike, instances: npt.ArrayLike, out: Images | None = None) -> Images:
        """The images [N, 100, 100, 3] with this recipe's seed and rotation cue, in `out` if given."""
        return render(self.space, class_ids, instances, self.seed, self.rotation_cue, out)

    def to_config(self) -> dict[str, Any]:
        """Plain JSON; `from_config` rebuilds the recipe."""
        return {
            "attributes": self.space.to_config(),
            "classes": list(self.class_range),
            "images_per_class": self.images_per_class,
            "sampling": self.sampling,
            "seed": self.seed,
            "rotation_cue": self.rotation_cue,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Recipe:
        """The inverse of `to_config`. Raises KeyError, TypeError, ValueError or AttributeError for anything
        else."""
        first, end = config["classes"]
        numbers = (first, end, config["images_per_class"], config["seed"])
        if not all(type(number) is int for number in numbers):
            raise TypeError(f"expected integers, got {numbers}")
        return cls(
            space=AttributeSpace.from_config(config["attributes"]),
            classes=(first, end),
            images_per_class=config["images_per_class"],
            sampling=config["sampling"],
            seed=config["seed"],
            rotation_cue=config["rotation_cue"],
        )

    @cached_property
    def _draws(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
        """Random sampling: class and instance of every image. The instance counts the class's earlier images,
        which is what keeps the images of a class, and so the splits, apart."""
        first, end = self.class_range
        class_ids = np.empty(self.num_images, np.int32)
        instances = np.empty(self.num_images, np.uint16)
        drawn = np.zeros(end - first, np.int32)
        _draw_classes(uint64(self.seed), first, drawn, class_ids, instances)
        if drawn.max() > MAX_INSTANCES:
            raise ValueError(
                f"images_per_class {self.images_per_class}: with random sampling one class got {drawn.max()} "
                f"images, and a class has {MAX_INSTANCES}"
            )
        return class_ids, instances


@compiled
def _draw_classes(
    seed: np.uint64,
    first: int,
    drawn: npt.NDArray[np.int32],  # [classes], zeros; counts up
    class_ids: npt.NDArray[np.int32],  # [N]
    instances: npt.NDArray[np.uint16],  # [N]
) -> None:
    key = mix(mix(seed) ^ mix(uint64(drawn.size)))
    for j in range(class_ids.size):
        # A uniform class is a uniform draw of each attribute, independently.
        c = np.int64(mix(key + uint64(j)) % uint64(drawn.size))
        class_ids[j] = first + c
        instances[j] = drawn[c]
        drawn[c] += 1


def check_split(split: str) -> Split:
    """`split`, or ValueError naming the three."""
    for known in SPLITS:
        if split == known:
            return known
    raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
