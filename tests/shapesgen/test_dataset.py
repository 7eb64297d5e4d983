"""`ShapesDataset`: one line to load, safe in workers, torchvision's conventions."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate
from torchvision.datasets import VisionDataset

from shapesgen import AttributeSpace, ShapesDataset, render

SMALL = AttributeSpace.only({"shape": ["circle", "star"], "colour": ["red", "blue"], "opacity": [1.0]})


def test_samples_are_the_rendered_images() -> None:
    data = ShapesDataset("test", space=SMALL, seed=4, rotation_cue="none")
    assert len(data) == SMALL.num_classes
    image, label = data[17]
    assert label == 17
    assert image.shape == (3, 100, 100)
    assert image.dtype == torch.uint8
    expected = render(SMALL, 17, 9, seed=4, rotation_cue="none")[0]  # the last of ten instances
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)
    np.testing.assert_array_equal(data[-1][0].numpy(), data[len(data) - 1][0].numpy())


def test_a_batch_equals_its_samples() -> None:
    data = ShapesDataset("train", space=SMALL)
    indices = [5, 999, 5, 0]
    images, labels = data.batch(indices)
    assert images.shape == (4, 100, 100, 3)
    assert labels.dtype == np.int64
    for i, sample in enumerate(data.__getitems__(indices)):
        np.testing.assert_array_equal(sample[0].permute(1, 2, 0).numpy(), images[i])
        assert sample[1] == labels[i] == data[indices[i]][1]


def test_transforms_see_a_pil_image_and_the_label() -> None:
    data = ShapesDataset(
        space=SMALL, transform=lambda image: image, target_transform=lambda label: SMALL.decode(label)[0]
    )
    image, shape = data[len(data) - 1]
    assert isinstance(image, Image.Image)
    assert image.size == (100, 100)
    assert shape == 1


def test_iterating_ends_and_bad_indices_are_refused() -> None:
    one = AttributeSpace.only({name: [options[0]] for name, options in AttributeSpace.full().options.items()})
    assert len(list(ShapesDataset(space=one))) == 8  # type: ignore[arg-type]
    with pytest.raises(IndexError, match=r"train has images 0..7, got 8"):
        ShapesDataset(space=one)[8]


def test_classes_are_named_lazily() -> None:
    classes = ShapesDataset().classes
    assert len(classes) == 184_320
    assert classes[0] == "circle solid 0 red tiny none 0.25 solid"
    assert classes[-1] == "cross checkered 300 teal huge noise 1.0 dashed"
    assert classes[1:3] == [classes[1], classes[2]]
    with pytest.raises(IndexError):
        classes[184_320]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_give_the_same_batches(start: str) -> None:
    data = ShapesDataset("validation", space=SMALL, sampling="random")
    data[0]  # compiled and sampled before the fork
    alone = DataLoader(data, batch_size=100)
    shared = DataLoader(data, batch_size=100, num_workers=2, multiprocessing_context=start)
    for (images, labels), (images_2, labels_2) in zip(alone, shared, strict=True):
        assert images.shape[1:] == (3, 100, 100)
        assert torch.equal(images, images_2)
        assert torch.equal(labels, labels_2)


def test_any_way_of_collating_gives_the_same_batch() -> None:
    data = ShapesDataset("validation", space=SMALL)
    images, labels = next(iter(DataLoader(data, batch_size=5)))  # the batch as it was rendered
    assert (images.dtype, images.shape) == (torch.uint8, (5, 3, 100, 100))
    assert (labels.dtype, labels.shape) == (torch.int64, (5,))
    samples = next(iter(DataLoader(data, batch_size=5, collate_fn=list)))
    one_by_one = default_collate([data[i] for i in range(5)])
    for other, others in (default_collate(samples), one_by_one, default_collate(samples[:5])):
        assert torch.equal(other, images)
        assert torch.equal(others, labels)
    assert [label for _, label in samples] == labels.tolist()


def test_it_pickles_small() -> None:
    data = ShapesDataset(sampling="random", space=SMALL)
    expected = data[3][0]
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[3][0], expected)
    assert len(pickle.dumps(ShapesDataset())) < 2_000


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="split must be one of train, validation, test"):
        ShapesDataset("val")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="images_per_class=2 leaves none for test; use at least 3"):
        ShapesDataset("test", images_per_class=2)


def test_they_are_torchvisions() -> None:
    data = ShapesDataset(space=SMALL)
    assert isinstance(data, VisionDataset)
    assert f"Number of datapoints: {len(data)}" in repr(data)


def test_labels_are_those_of_the_samples() -> None:
    data = ShapesDataset("validation", space=SMALL, sampling="random")
    assert data.labels.tolist() == [label for _, label in data]  # type: ignore[attr-defined]


def test_the_command_line_does_not_import_torch() -> None:
    modules = "cli, writer, verifier, preview, ceiling, recipe"
    code = f"import sys, shapesgen; from shapesgen import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
