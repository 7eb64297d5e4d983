"""Shapes at another size and in grey."""

import numpy as np
from PIL import Image

from classifier.images.resized import resized
from shapesgen import AttributeSpace, ShapesDataset

SMALL = AttributeSpace.only({"shape": ["circle", "star"], "pattern": ["solid"], "size": ["huge"]})


def test_what_need_not_change_stays_itself():
    shapes = ShapesDataset(space=SMALL)
    assert resized(shapes, 100, grey=False) is shapes


def test_smaller_and_grey_as_pillow_does_it():
    shapes = ShapesDataset(space=SMALL)
    small = resized(shapes, 32, grey=True)
    assert small.shape == (32, 32, 1)
    assert len(small) == len(shapes)
    images, labels = small.batch([3, 700])
    originals, expected_labels = shapes.batch([3, 700])
    assert np.array_equal(labels, expected_labels)
    assert np.array_equal(small.labels, shapes.labels)
    for image, original in zip(images, originals, strict=True):
        expected = Image.fromarray(original).resize((32, 32), Image.Resampling.BILINEAR).convert("L")
        assert np.abs(image[..., 0] - np.asarray(expected).astype(int)).max() <= 2
    assert small.identity() == {**shapes.identity(), "image": [32, 32, 1]}
    assert small.space is shapes.space
    assert small.classes[5] == shapes.classes[5]
    assert small.ceiling() == shapes.ceiling()
