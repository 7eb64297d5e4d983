"""The eight attributes of the image set, and the codec between class ids and attribute options."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from sqrtvocab.errors import shortened

IntArray = npt.NDArray[np.int64]

# The paper's table, in the paper's order. The first attribute is the most significant digit of a class id.
OPTIONS: dict[str, tuple[str, ...]] = {
    "shape": ("circle", "square", "triangle", "pentagon", "hexagon", "octagon", "star", "cross"),
    "pattern": ("solid", "striped", "dotted", "checkered"),
    "rotation": ("0", "60", "120", "180", "240", "300"),
    "colour": (
        "red", "green", "blue", "yellow", "purple", "orange",
        "pink", "brown", "cyan", "magenta", "lime", "teal",
    ),
    "size": ("tiny", "small", "medium", "large", "huge"),
    "texture": ("none", "noise"),
    "opacity": ("0.25", "0.5", "0.75", "1.0"),
    "border": ("solid", "dashed"),
}  # fmt: skip
ATTRIBUTES: tuple[str, ...] = tuple(OPTIONS)


@dataclass(frozen=True)
class AttributeSpace:
    """The classes spanned by a choice of options: one class for each combination, numbered densely.

    Class ids are mixed-radix numbers over the kept options, first attribute most significant. A sub-space is
    numbered from 0 again, and `full_ids` gives back the ids its classes have among all 184,320.
    """

    kept: tuple[tuple[int, ...], ...]
    """For each attribute the indices into `OPTIONS` that are kept, ascending."""

    def __post_init__(self) -> None:
        if len(self.kept) != len(ATTRIBUTES):
            raise ValueError(f"expected kept options for {len(ATTRIBUTES)} attributes, got {len(self.kept)}")
        for (name, options), kept in zip(OPTIONS.items(), self.kept, strict=True):
            if not kept or list(kept) != sorted({i for i in kept if 0 <= i < len(options)}):
                raise ValueError(f"{name}: expected ascending indices below {len(options)}, got {kept}")

    @classmethod
    def full(cls) -> AttributeSpace:
        """All 184,320 classes of the paper."""
        return _full_space()

    @classmethod
    def only(cls, kept: Mapping[str, Iterable[object]]) -> AttributeSpace:
        """The sub-space of the named options; attributes not named keep all of theirs.

        `only({"shape": ["circle", "star"], "opacity": [1.0]})`. Options keep the order of the paper's table,
        whatever order they are given in.

        Raises ValueError for an unknown attribute or option (listing the valid ones) or an empty choice.
        """
        indices = {name: tuple(range(len(options))) for name, options in OPTIONS.items()}
        for name, wanted in kept.items():
            check_attribute(name)
            if isinstance(wanted, str):
                raise ValueError(f"{name}: expected a list of options, got the string {wanted!r}")
            indices[name] = tuple(sorted({option_index(name, option) for option in wanted}))
            if not indices[name]:
                raise ValueError(f"{name}: keep at least one option of {', '.join(OPTIONS[name])}")
        return cls(tuple(indices.values()))

    @classmethod
    def parse_only(cls, items: Sequence[str]) -> AttributeSpace:
        """The sub-space that the values of `--only` keep, each "ATTRIBUTE=OPTION,OPTION,...".

        Raises ValueError as `only` does, and for a value of another form.
        """
        kept: dict[str, list[str]] = {}
        for item in items:
            name, equals, options = item.partition("=")
            if not equals:
                raise ValueError(f"expected ATTRIBUTE=OPTION,... got {shortened(item)!r}")
            check_attribute(name)
            kept.setdefault(name, []).extend(options.split(","))
        return cls.only(kept)

    @staticmethod
    def merge_only(usual: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
        """The values of `--only` that `usual` has for attributes that `given` does not name, and `given`."""
        named = {item.partition("=")[0] for item in given}
        return (*(item for item in usual if item.partition("=")[0] not in named), *given)

    def describe_only(self) -> str:
        """The attributes of which only some options are kept, with these; empty if all are."""
        kept = {name: options for name, options in self.options.items() if len(options) < len(OPTIONS[name])}
        return "; ".join(f"{name} {', '.join(options)}" for name, options in kept.items())

    @classmethod
    def from_config(cls, config: Mapping[str, Iterable[str]]) -> AttributeSpace:
        """The inverse of `to_config`."""
        return cls.only(config)

    def to_config(self) -> dict[str, list[str]]:
        """Attribute name -> kept option names; plain JSON."""
        return {name: list(options) for name, options in self.options.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Attribute names, most significant first."""
        return ATTRIBUTES

    @cached_property
    def options(self) -> dict[str, tuple[str, ...]]:
        """Attribute name -> kept option names, in digit order."""
        return {
            name: tuple(options[i] for i in kept)
            for (name, options), kept in zip(OPTIONS.items(), self.kept, strict=True)
        }

    @property
    def radices(self) -> tuple[int, ...]:
        """How many options each attribute keeps; (8, 4, 6, 12, 5, 2, 4, 2) for the full space."""
        return tuple(len(kept) for kept in self.kept)

    @cached_property
    def num_classes(self) -> int:
        return int(np.prod(self.radices, dtype=np.int64))

    @cached_property
    def _strides(self) -> IntArray:
        return np.cumprod((1, *self.radices[:0:-1]), dtype=np.int64)[::-1].copy()  # [8]

    def encode(self, options: npt.ArrayLike) -> IntArray:
        """Option indices [..., 8] (into this space's `options`) -> class ids [...].

        Raises ValueError if an index is out of range or the last dimension is not 8.
        """
        options = _integers(options, "option indices")
        if options.ndim == 0 or options.shape[-1] != len(ATTRIBUTES):
            raise ValueError(f"expected option indices of shape [..., 8], got {list(options.shape)}")
        for i, (name, radix) in enumerate(zip(ATTRIBUTES, self.radices, strict=True)):
            _check_range(options[..., i], radix, f"{name}: option index")
        return np.asarray(options @ self._strides)

    def decode(self, class_ids: npt.ArrayLike) -> IntArray:
        """Class ids [...] -> option indices [..., 8] (into this space's `options`).

        Raises ValueError if an id is out of range.
        """
        class_ids = self.check_ids(class_ids)
        return np.asarray(class_ids[..., None] // self._strides % np.array(self.radices))  # [..., 8]

    def full_ids(self, class_ids: npt.ArrayLike) -> IntArray:
        """Class ids of this space [...] -> the ids of the same classes in the full space [...]."""
        class_ids = self.check_ids(class_ids)
        if self == AttributeSpace.full():
            return class_ids
        options = self.decode(class_ids)  # [..., 8]
        full = np.zeros(class_ids.shape, np.int64)
        for i, (kept, stride) in enumerate(zip(self.kept, AttributeSpace.full()._strides, strict=True)):
            full += np.array(kept)[options[..., i]] * stride
        return full

    def class_ids(self, full_ids: npt.ArrayLike) -> IntArray:
        """The inverse of `full_ids`. Raises ValueError for a class that is not in this space."""
        options = AttributeSpace.full().decode(full_ids)  # [..., 8]
        for i, (name, kept) in enumerate(zip(ATTRIBUTES, self.kept, strict=True)):
            if not np.isin(options[..., i], kept).all():
                raise ValueError(f"a class lies outside this space, which keeps {name} {self.options[name]}")
            options[..., i] = np.searchsorted(kept, options[..., i])
        return self.encode(options)

    def describe(self, class_id: int) -> dict[str, str]:
        """Attribute name -> option name of one class."""
        digits = self.decode(class_id)
        return {name: options[d] for (name, options), d in zip(self.options.items(), digits, strict=True)}

    def class_id(self, **attributes: object) -> int:
        """The id of the class with these options, all eight named: `class_id(shape="star", ...)`.

        Raises ValueError for a missing or unknown attribute, an unknown option or one outside this space.
        """
        for name in attributes:
            check_attribute(name)
        if missing := [name for name in ATTRIBUTES if name not in attributes]:
            raise ValueError(f"a class needs all eight attributes; missing: {', '.join(missing)}")
        digits = []
        for name, kept in zip(ATTRIBUTES, self.kept, strict=True):
            index = option_index(name, attributes[name])
            if index not in kept:
                raise ValueError(
                    f"{name} {attributes[name]} is not in this space, which keeps {self.options[name]}"
                )
            digits.append(kept.index(index))
        return int(self.encode(digits))

    def class_name(self, class_id: int) -> str:
        """One readable line: "star dotted 60 red tiny none 0.5 solid"."""
        return " ".join(self.describe(class_id).values())

    def check_ids(self, class_ids: npt.ArrayLike) -> IntArray:
        """`class_ids` as int64; ValueError with the observed range if one is outside 0..num_classes - 1."""
        return _check_range(_integers(class_ids, "class ids"), self.num_classes, "class id")


@lru_cache(maxsize=1)
def _full_space() -> AttributeSpace:
    return AttributeSpace.only({})


def check_attribute(name: str) -> None:
    """Raise ValueError, with the valid names and the nearest, unless `name` is an attribute."""
    if name not in OPTIONS:
        raise ValueError(
            f"unknown attribute {name!r}{_nearest(name, ATTRIBUTES)}; valid: {', '.join(ATTRIBUTES)}"
        )


def option_index(name: str, option: object) -> int:
    """Index of an option of attribute `name` in the full table; numbers match by value (1 is opacity 1.0).

    Raises ValueError, with the valid options and the nearest, for an unknown one.
    """
    options = OPTIONS[name]
    text = str(option).strip().lower()
    if text in options:
        return options.index(text)
    try:
        return [float(o) for o in options].index(float(text))
    except ValueError:  # not numbers, or not one of them
        raise ValueError(
            f"unknown {name} {text!r}{_nearest(text, options)}; valid: {', '.join(options)}"
        ) from None


def _nearest(word: str, valid: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _integers(values: npt.ArrayLike, what: str) -> IntArray:
    array = np.asarray(values)
    if array.size and (
        array.dtype == object or array.dtype == np.uint64
    ):  # what numpy makes of huge integers
        raise ValueError(f"{what} must be integers below 2^63")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{what} must be integers, got {array.dtype}")
    return array.astype(np.int64)


def _check_range(values: IntArray, size: int, what: str) -> IntArray:
    if values.size and (values.min() < 0 or values.max() >= size):
        seen = f"{values.min()}" if values.size == 1 else f"{values.min()}..{values.max()}"
        raise ValueError(f"{what} must be 0..{size - 1}, got {seen}")
    return values
