"""The ceiling: computed by rendering, checked by brute force."""

import numpy as np
import pytest

from shapesgen.attributes import AttributeSpace
from shapesgen.ceiling import ceiling, known_ceiling
from shapesgen.renderer import render_centred


@pytest.mark.parametrize("rotation_cue", ["none", "notch"])
def test_it_agrees_with_comparing_every_pair(rotation_cue) -> None:
    space = AttributeSpace.only(
        {"shape": ["circle", "triangle", "hexagon"], "pattern": ["solid", "striped"], "colour": ["red"],
         "size": ["tiny"], "opacity": [0.5, 1.0], "texture": ["noise"]}
    )  # fmt: skip
    images = render_centred(space, np.arange(space.num_classes), rotation_cue).reshape(space.num_classes, -1)
    same = np.array([(images == image).all(1) for image in images])  # [classes, classes]
    overall = np.mean(1 / same.sum(1))  # guess among those that look the same
    best = ceiling(space, rotation_cue)
    assert best.distinct == len(np.unique(same, axis=0))
    assert best.overall == pytest.approx(overall)
    options = space.decode(np.arange(space.num_classes))
    for i, (name, radix) in enumerate(zip(space.names, space.radices, strict=True)):
        votes = np.stack(
            [(same & (options[:, i] == k)).sum(1) for k in range(radix)], axis=1
        )  # [classes, radix]
        expected = np.mean(votes.max(1) / same.sum(1))
        assert best.by_attribute[name] == pytest.approx(expected)
    assert (best.overall == 1) == (rotation_cue == "notch")
    assert known_ceiling(space, rotation_cue) == best


@pytest.mark.slow
@pytest.mark.parametrize(("rotation_cue", "distinct"), [("notch", 184_320), ("none", 122_880)])
def test_the_full_set(rotation_cue, distinct: int) -> None:
    best = ceiling(AttributeSpace.full(), rotation_cue)
    assert best.distinct == distinct
    assert best.overall == distinct / 184_320
    assert known_ceiling(AttributeSpace.full(), rotation_cue) == best
    for name, share in best.by_attribute.items():
        assert share == (best.overall if name == "rotation" else 1), name
