"""Typefaces that are one family in truth, and which families are kept for validation and test."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shapesgen.choices import Split
from sqrtvocab.errors import UserError

Sample = Mapping[int, NDArray[np.float32]]  # code point -> what `outline` makes of its picture

# Fonts are made from each other: one that takes its Hangul from another font would be in training and in the
# test under two names. Two faces are kin if a third of the characters of both have nearly the same outline.
# Measured on Debian's fonts: kin have 37 to 99 %, others at most 29 %.
ALIKE, SHARE = 0.95, 1 / 3
MIN_COMMON = 16  # characters that two faces must both have to be compared
SIDE = 32


def outline(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A picture [size, size], cropped to its ink and stretched to a square: mean 0, length 1 [SIDE²]."""
    ink = 255 - pixels
    rows, columns = (np.flatnonzero(ink.max(axis) > 76) for axis in (1, 0))
    if len(rows) and len(columns):
        ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    small = Image.fromarray(ink).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    flat = np.asarray(small, np.float32).ravel()
    flat = flat - flat.mean()
    return flat / max(float(np.linalg.norm(flat)), 1e-6)


def share_alike(one: Sample, other: Sample) -> float:
    """The share of the characters of both that are nearly the same; 0 where they have too few in common."""
    common = sorted(one.keys() & other.keys())
    if len(common) < MIN_COMMON:
        return 0.0
    products = sum(float(np.dot(one[code], other[code])) > ALIKE for code in common)
    return products / len(common)


def merge_kin(families: Sequence[str], samples: Sequence[Sample]) -> dict[str, str]:
    """Family -> the name under which it goes on: "A + B" for two that are one.

    Args:
        families: [N] of each face.
        samples: [N] the same characters, as far as each face has them.
    """
    root = {family: family for family in families}

    def find(family: str) -> str:
        while root[family] != family:
            family = root[family]
        return family

    for (a, one), (b, other) in combinations(zip(families, samples, strict=True), 2):
        if find(a) != find(b) and share_alike(one, other) >= SHARE:
            root[find(b)] = find(a)
    members: dict[str, list[str]] = {}
    for family in sorted(root):
        members.setdefault(find(family), []).append(family)
    return {family: " + ".join(members[find(family)]) for family in root}


def choose_splits(
    sizes: Mapping[str, int], half: int, test: Sequence[str], valid: Sequence[str]
) -> dict[str, Split]:
    """The split of each family.

    Unless they are named, a fifth of the families that have at least `half` characters is kept for the test,
    and a tenth for validation; which ones follows from their names alone.

    Args:
        sizes: family -> how many characters it draws.
        test, valid: families that were named, or ().

    Raises:
        UserError: a name that is no family, or that is in both; none left for training.
    """
    chosen: dict[str, Split] = {}
    wanted: tuple[tuple[str, Split, Sequence[str]], ...] = (
        ("--test-families", "test", test), ("--valid-families", "validation", valid),
    )  # fmt: skip
    for flag, split, names in wanted:
        for name in names:
            family = _find(name, sizes, flag)
            if chosen.setdefault(family, split) != split:
                raise UserError(f"{flag} {name}: it is in --test-families, too")
    whole = sorted((family for family in sizes if sizes[family] >= half), key=_place)
    for split, names, share in (("test", test, 5), ("validation", valid, 10)):
        if not names:
            free = [family for family in whole if family not in chosen]
            chosen |= dict.fromkeys(free[: max(1, round(len(whole) / share))], split)
    result: dict[str, Split] = {family: chosen.get(family, "train") for family in sizes}
    if "train" not in result.values():
        raise UserError("no family is left for training: name fewer in --test-families and --valid-families")
    return result


def _find(name: str, families: Mapping[str, int], flag: str) -> str:
    for family in families:
        if name.casefold() in (family.casefold(), *(part.casefold() for part in family.split(" + "))):
            return family
    raise UserError(f"{flag} {name}: no such family here; there are {', '.join(sorted(families))}")


def _place(family: str) -> bytes:
    return hashlib.blake2b(family.encode(), digest_size=8).digest()
