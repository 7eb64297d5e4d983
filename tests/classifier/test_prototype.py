"""Batches of pairs, hard classes, classes refreshed and held out: `train_classifier --head prototype`."""

import json
import signal

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from classifier.backbones import make_encoder
from classifier.config import TrainConfig
from classifier.examples import Examples, _spread, make_plan
from classifier.model import make_classifier
from sqrtvocab import Partition

# Of the tiny images' 48 classes, one training image each is too few for pairs.
PAIRS = (
    "--preset", "prototype", "--images-per-class", 6, "--batch-size", 8, "--accumulate", 1, "--max-steps", 6,
    "--mine-at", 2, 4, "--mine-classes", 30, "--eval-every", 3, "--image-size", 32, "--shuffle-labels", 1,
    "--schedule", "constant",
)  # fmt: skip
FLAT = ("--head", "flat")


def weights(run, name="last"):
    return load_file(run / name / "model.safetensors")


def metrics(run):
    return json.loads((run / "last" / "state.json").read_text())["metrics"]


def test_it_trains_and_every_class_is_known_in_the_end(train, score, tmp_path):
    result = train(*PAIRS, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert "prototype, 0 of 48 classes known" in result.err
    state = weights(tmp_path / "run")
    assert state["head.vectors"].dtype == np.float16
    assert state["head.known"].all()
    table = state["head.hard"]
    assert table.shape == (48, 9)
    assert (table[:30] >= 0).all()
    assert (table[30:] == -1).all()
    assert state["head.fitted_scale"] > 0
    assert score(tmp_path / "run").code == 0


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_resumed_run_equals_an_uninterrupted_one(train, tmp_path, stop):
    """Before, at, between and after the steps that look for hard classes; workers read ahead."""
    flags = (*PAIRS, "--workers", 1)
    assert train(*flags, "--out", tmp_path / "whole").code == 0
    half = ("--out", tmp_path / "half")
    assert train(*flags, *half, "--max-steps", stop).code == 0
    assert train(*flags, *half, "--resume", "auto").code == 0
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "half")
    assert all(np.array_equal(value, resumed[name]) for name, value in whole.items())


def test_how_it_was_stopped_does_not_change_the_run(start_train, train, wait_for_step, tmp_path):
    """A run that is told to stop shows its classes for a last evaluation, but goes on from before that."""
    flags = (*PAIRS, "--max-steps", 40, "--eval-every", 50, "--samples", 4)
    whole = train(*flags, "--out", tmp_path / "whole")
    assert whole.code == 0, whole.err
    process = start_train(*flags, "--out", tmp_path / "half")
    wait_for_step(tmp_path / "half", 10)
    process.kill(signal.SIGINT)
    stopped = process.wait()
    assert stopped.code == 0, stopped.err
    assert "stopped after step" in stopped.err
    assert train(*flags, "--out", tmp_path / "half", "--resume", "auto").code == 0
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "half")
    assert all(np.array_equal(value, resumed[name]) for name, value in whole.items())


def test_a_killed_run_goes_on_from_where_it_last_looked_for_hard_classes(
    start_train, train, wait_for_step, tmp_path
):
    flags = (*PAIRS, "--max-steps", 40, "--eval-every", 50)
    process = start_train(*flags, "--out", tmp_path / "half")
    wait_for_step(tmp_path / "half", 6)
    process.kill()
    process.wait()
    result = train(*flags, "--out", tmp_path / "half", "--resume", "auto")
    assert "from step 4" in result.err
    assert train(*flags, "--out", tmp_path / "whole").code == 0
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "half")
    assert all(np.array_equal(value, resumed[name]) for name, value in whole.items())


def test_classes_held_out_are_never_trained_on_but_known(train, tmp_path):
    result = train(*PAIRS, "--hold-out-classes", 0.25, "--eval-images", 0, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert ", trained classes " in result.err
    assert ", held out classes " in result.err
    assert weights(tmp_path / "run")["head.known"].all()
    values = metrics(tmp_path / "run")
    parts = 0.75 * values["accuracy/trained_classes"] + 0.25 * values["accuracy/held_out_classes"]
    assert values["accuracy/overall"] == pytest.approx(parts)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 9])
def test_the_images_that_say_what_a_class_is_are_spread_over_it(most):
    lengths = [1, 2, 5, 9, 40]
    labels = np.repeat(np.arange(len(lengths)), lengths)
    chosen = _spread(labels, most)
    for label, length in enumerate(lengths):
        places = np.flatnonzero(chosen[labels == label])
        assert len(places) == min(most, length)
        assert places[0] == 0
        gaps = np.diff([*places, length])
        assert gaps.max() - gaps.min() <= 1


def test_any_head_may_have_batches_of_pairs(train, tmp_path):
    flags = ("--images-per-class", 6, "--images-of-a-class", 2, "--max-steps", 2)
    assert train(*flags, "--out", tmp_path / "run").code == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["images_of_a_class"] == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--images-per-class", 3),
            "--images-of-a-class 2: 0 classes have 2 items each: at least two must (the largest class has 1",
        ),
        (("--batch-size", 9), "--images-of-a-class 2: a batch of 9 does not hold whole classes of 2"),
        (("--images-of-a-class", 1), "--images-of-a-class must be at least 2"),
        (("--hold-out-classes", 1), "--hold-out-classes must be less than 1"),
        (("--hold-out-classes", 0.99), "0 classes have 2 items each"),
        (("--mine-at", 0), "--mine-at: steps are counted from 1"),
        (("--head", "flat", "--storage", "float16"), "--storage is for --head prototype, not flat"),
        ((*FLAT, "--mine-at", 2), "--mine-at is for --head prototype, not flat"),
        ((*FLAT, "--mine-at", "--hold-out-classes", 0.1), "--hold-out-classes is for --head prototype"),
        (("--image-size", 15), "--image-size 15: --backbone swift needs at least 16"),
        (("--weights", "default"), "--weights default: there are none for --backbone swift"),
        (("--backbone", "swift-wide", "--image-size", 15), "--backbone swift-wide needs at least 16"),
    ],
    ids=str,
)
def test_bad_input(train, flags, message, tmp_path):
    result = train(*PAIRS, *flags, "--out", tmp_path / "run")
    assert result.code == 2
    assert message in result.err


class ThreeOfFour:
    """Two images of each of the classes a, b and c; none of d."""

    classes, shape, space = "abcd", (16, 16, 3), None
    labels = np.repeat([0, 1, 2], 2)

    def __len__(self):
        return 6

    def batch(self, indices):
        return np.stack([np.full(self.shape, 40 * i, np.uint8) for i in indices]), self.labels[indices]


def test_a_class_without_a_training_image_is_named_and_has_no_probability(alone, capsys):
    config = TrainConfig(head="prototype", backbone="swift", grouping="index", batch_size=4)
    images = ThreeOfFour()
    model = make_classifier("prototype", Partition(4), make_encoder("swift", 16, 3))
    examples = Examples(images, make_plan(config, images, alone), config, 0, alone)
    assert examples.refresh(model) > 0
    told = capsys.readouterr()
    assert "no training image of d: unknown, never named by this model" in told.out + told.err
    assert model.head.known.tolist() == [True, True, True, False]
    assert model.head.fitted_scale > 0
    assert model.training
    hidden = torch.randn(2, model.encoder.width)
    assert model.eval().head.log_prob(hidden).isinf().tolist() == [[False, False, False, True]] * 2


@pytest.mark.slow
def test_two_ranks_train_the_model_of_one_process(train, start_train, two_ranks, tmp_path):
    flags = (*PAIRS, "--max-steps", 5)
    assert train(*flags, "--out", tmp_path / "one").code == 0
    processes = [
        start_train(*flags, "--batch-size", 4, "--out", tmp_path / "two", **env) for env in two_ranks
    ]
    for process in processes:
        result = process.wait()
        assert result.code == 0, result.err
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name, value in one.items():
        if name not in ("head.fitted_scale",):
            np.testing.assert_allclose(value, two[name], atol=2e-3, rtol=0, err_msg=name)
