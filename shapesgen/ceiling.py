"""How accurate any classifier can be: classes whose images are identical cannot be told apart."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from shapesgen.attributes import AttributeSpace
from shapesgen.choices import RotationCue
from shapesgen.renderer import render_centred

_CHUNK = 512  # classes at a time


@dataclass(frozen=True)
class Ceiling:
    """The best that can be reached on a set in which all classes are equally frequent."""

    num_classes: int
    distinct: int
    """Classes left when those that look the same count as one."""
    overall: float
    """Highest accuracy of the class."""
    by_attribute: dict[str, float]
    """Highest accuracy of each attribute."""


def ceiling(space: AttributeSpace, rotation_cue: RotationCue = "notch", progress: bool = False) -> Ceiling:
    """Render every class of `space` without what makes its instances differ, and group the identical ones.

    Position and noise are drawn alike for all classes, so classes that agree here agree in the distribution
    of their images, and guessing among them is the best one can do.
    """
    starts = range(0, space.num_classes, _CHUNK)

    def digests(start: int) -> bytes:
        ids = np.arange(start, min(start + _CHUNK, space.num_classes))
        images = render_centred(space, ids, rotation_cue)
        return b"".join(hashlib.sha256(image.data).digest() for image in images)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # both drawing and hashing release the GIL
        results = pool.map(digests, starts)
        bar = tqdm(results, total=len(starts), unit_scale=_CHUNK, unit=" classes", disable=not progress)
        every = np.frombuffer(b"".join(bar), "V32")  # [classes]
    _, look = np.unique(every, return_inverse=True)  # which of the distinct images a class has
    distinct = int(look.max()) + 1
    options = space.decode(np.arange(space.num_classes))  # [classes, 8]
    by_attribute = {}
    for i, (name, radix) in enumerate(zip(space.names, space.radices, strict=True)):
        counts = np.bincount(look * radix + options[:, i], minlength=distinct * radix).reshape(
            distinct, radix
        )
        by_attribute[name] = int(counts.max(1).sum()) / space.num_classes
    return Ceiling(space.num_classes, distinct, distinct / space.num_classes, by_attribute)


def known_ceiling(space: AttributeSpace, rotation_cue: RotationCue = "notch") -> Ceiling:
    """The same as `ceiling`, which renders only where that can tell something: with the notch no two of all
    184,320 classes look alike (`tests/shapesgen/test_ceiling.py` renders them), so no two of a sub-space do.

    Every training asks for it before its first step.
    """
    if rotation_cue != "notch":
        return ceiling(space, rotation_cue)
    return Ceiling(space.num_classes, space.num_classes, 1.0, dict.fromkeys(space.names, 1.0))
