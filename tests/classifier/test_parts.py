"""The CNN against its description, the settings, the pictures and the batches."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from classifier.cnn import Encoder
from classifier.config import TrainConfig
from classifier.data import image_batches, in_batches, open_images, sample_of
from classifier.evaluate import Evaluation
from classifier.figures import confused_grid, confusion_figure, example_grid
from classifier.labels import make_partition
from classifier.model import make_classifier, parameter_table
from classifier.presets import PRESETS
from shapesgen.attributes import AttributeSpace
from sqrtvocab import Partition
from sqrtvocab.training.scores import ScoreSheet


def test_the_encoder_is_the_papers_network():
    """ReLU before pooling, as one would write it down, in the plain memory layout: the same function and
    gradients."""
    torch.manual_seed(0)
    encoder = Encoder()
    plain: list[nn.Module] = []
    for layer in encoder.convolutions:
        if isinstance(layer, nn.Conv2d):
            plain += [layer, nn.ReLU(), nn.MaxPool2d(2)]
    reference = nn.Sequential(*plain, nn.Flatten(), encoder.embed, nn.ReLU())
    images = torch.randint(0, 256, (2, 3, 100, 100), dtype=torch.uint8)
    found, expected = encoder(images), reference(1 - images / 255)
    torch.testing.assert_close(found, expected)
    assert found.shape == (2, 512)
    for left, right in zip(
        *(torch.autograd.grad(y.sum(), encoder.parameters()) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_white_is_nothing():
    encoder = Encoder()
    seen = []
    encoder.convolutions.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    encoder(torch.full((1, 3, 100, 100), 255, dtype=torch.uint8))
    assert not seen[0].any()


def grouped(space, grouping):
    return make_partition(space.num_classes, grouping, None, 0, space.radices)


def test_with_one_seed_every_head_begins_with_the_same_encoder():
    partition = Partition.aligned(AttributeSpace.only({"shape": ["circle", "star"]}).radices)
    weights = []
    for head in ("grouped", "flat", "adaptive"):
        torch.manual_seed(7)
        weights.append(make_classifier(head, partition).encoder.state_dict())
    for other in weights[1:]:
        assert all(torch.equal(weights[0][name], other[name]) for name in weights[0])


def test_parameters_of_the_papers_run():
    space = AttributeSpace.full()
    with torch.device("meta"):
        table = {
            (head, grouping): parameter_table(make_classifier(head, grouped(space, grouping)))
            for head, grouping in (("grouped", "index"), ("grouped", "aligned"), ("flat", "aligned"))
        }
    flat = 184_320 * 513
    assert table["flat", "aligned"]["head"] == flat
    for grouping in ("index", "aligned"):
        parameters = table["grouped", grouping]
        assert parameters["flat head, for comparison"] == flat
        assert parameters["head"] < flat / 100
    assert (
        parameters["encoder"] == 3 * 9 * 32 + 32 + 32 * 9 * 64 + 64 + 64 * 9 * 128 + 128 + 18432 * 512 + 512
    )


@pytest.mark.parametrize(("grouping", "groups"), [("aligned", 384), ("index", 429), ("random", 429)])
def test_groupings(grouping, groups):
    assert grouped(AttributeSpace.full(), grouping).num_groups == groups


def test_defaults_are_the_papers():
    config = TrainConfig()
    assert (config.epochs, config.batch_size, config.accumulate, config.lr) == (10, 64, 4, 1e-3)
    assert config.space().num_classes == 184_320
    assert (config.head, config.schedule, config.images_per_class) == ("grouped", "constant", 10)
    assert PRESETS["paper"] == config


def test_runs_of_other_classes_have_other_folders():
    assert str(PRESETS["paper"].run_folder) == "runs/classifier-184320-grouped-aligned"
    assert str(PRESETS["quickstart"].run_folder) == "runs/classifier-960-grouped-aligned"
    assert str(TrainConfig(head="flat").run_folder) == "runs/classifier-184320-flat"


@pytest.mark.parametrize("name", PRESETS)
def test_settings_survive_json(name):
    config = PRESETS[name]
    assert config.preset == name
    assert TrainConfig.from_json({**config.to_json(), "torch": "2"}) == config


@pytest.mark.parametrize(
    "command", [["-m", "classifier.train"], ["-c", "from classifier.cli import eval_main as m; m()"]]
)
def test_help_needs_no_torch(command):
    watch = "import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); "
    code = watch + (
        "import runpy; runpy.run_module('classifier.train', run_name='__main__')"
        if command[0] == "-m"
        else command[1]
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "usage: " in result.stdout
    assert result.stdout.endswith("False\n")


# ---- images


@pytest.fixture
def tiny():
    config = TrainConfig(
        only=("shape=circle,star", "size=huge", "rotation=0", "texture=none"), images_per_class=3
    )
    return config, open_images(config)["validation"]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_come_as_asked_in_channels_last(alone, tiny, workers):
    _, images = tiny
    asked = [[5, 3, 90], [7]]
    for (pixels, classes), indices in zip(image_batches(images, asked, workers, alone), asked, strict=True):
        expected, labels = images.batch(indices)
        assert np.array_equal(pixels.permute(0, 2, 3, 1).numpy(), expected)
        assert np.array_equal(classes.numpy(), labels)
        assert pixels.dtype is torch.uint8
        assert pixels.is_contiguous(memory_format=torch.channels_last)


def test_making_batches_leaves_the_trainings_draws_alone(alone, tiny):
    before = torch.get_rng_state()
    list(image_batches(tiny[1], [[1]], 0, alone))
    assert torch.equal(torch.get_rng_state(), before)


def test_samples(tiny):
    _, images = tiny
    assert sample_of(images, 0, seed=1) == list(range(len(images)))
    some = sample_of(images, 20, seed=1)
    assert len(set(some)) == 20
    assert some == sample_of(images, 20, seed=1) != sample_of(images, 20, seed=2)
    assert sample_of(images, 10**6, seed=1) != list(range(len(images)))
    assert [len(batch) for batch in in_batches(some, 8)] == [8, 8, 4]


def test_mistakes_are_marked(tiny):
    config, images = tiny
    space = config.space()
    pixels, true = images.batch([0, 1])
    wrong = true.copy()
    wrong[1] = space.class_id(**{**space.describe(int(true[1])), "shape": "star", "opacity": "0.5"})
    figure = example_grid(pixels, true, wrong, space)
    captions = [text.get_text() for text in figure.texts]
    marked = [text for text in captions if text.startswith("✗")]
    assert marked == ["✗ star, not circle", "✗ 0.5, not 0.25"]
    frames = [axis.spines["left"].get_edgecolor() for axis in figure.axes]
    assert frames[0] != frames[1]


def test_confused_pairs_show_both_classes():
    pictures = np.zeros((2, 10, 10, 1), np.uint8)
    figure = confused_grid([(pictures[0], pictures[1], 1, 0, 3)], ["a long name of many words", "cat"])
    assert [text.get_text() for text in figure.texts] == ["cat", "a long name of", "many words", "3 x"]
    assert len(figure.axes) == 2


def test_pairs_are_counted_in_both_directions(alone):
    sheet = ScoreSheet(4, Partition(4, 2), alone).total()
    target, predicted = np.array([0, 1, 2, 3, 1, 2]), np.array([1, 0, 2, 2, 0, 3])
    found = Evaluation(0.0, target, predicted[:, None], sheet).confused()
    assert found == [(0, 1, 3, 0), (3, 2, 2, 3)]


def test_confusion_counts(tiny):
    space = tiny[0].space()
    circle, star = 0, space.num_classes - 1
    figure = confusion_figure(
        "shape", np.array([circle, circle, star]), np.array([circle, star, star]), space
    )
    assert np.array_equal(figure.axes[0].images[0].get_array(), [[0.5, 0.5], [0, 1]])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["circle", "star"]
