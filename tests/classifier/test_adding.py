"""`add_classes`: pictures of classes never trained on become classes of the model."""

import json

import numpy as np
import pytest
from PIL import Image

from classifier import cli

COLOURS = {"red": (230, 20, 20), "blue": (20, 20, 230), "grey": (90, 90, 90)}
NEW = {"green": (20, 230, 20), "white": (250, 250, 250)}


def paint(folder, colours, each):
    """Pictures of one colour and a little noise, a folder for each colour."""
    dice = np.random.default_rng(len(colours))
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = np.clip(np.array(colour) + dice.integers(-20, 20, (16, 16, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def trained(forked, tmp_path_factory):
    """A run on three colours."""
    folder = tmp_path_factory.mktemp("adding")
    paint(folder / "data", COLOURS, 20)
    flags = (
        "--data", folder / "data", "--head", "prototype", "--backbone", "swift", "--image-size", 16,
        "--no-prior", "--max-steps", 10, "--batch-size", 12, "--workers", 0, "--augment", "none",
        "--device", "cpu",
        "--cache", folder / "cache", "--out", folder / "run",
    )  # fmt: skip
    result = forked(cli.train_main, flags, folder, {}).wait()
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def add(forked, small, tmp_path):
    def call(*flags):
        return forked(small(cli.add_main), [*flags, "--workers", "0", "--device", "cpu"], tmp_path, {}).wait()

    return call


def test_new_colours_are_named(trained, add, forked, tmp_path):
    paint(tmp_path / "new", NEW, 2)
    result = add(trained / "run", tmp_path / "new", "--out", tmp_path / "more")
    assert result.code == 0, result.err
    assert "2 classes from 4 pictures added, 5 in all" in result.out
    assert json.loads((tmp_path / "more/best/classes.json").read_text()) == [*sorted(COLOURS), *sorted(NEW)]
    assert json.loads((tmp_path / "more/config.json").read_text())["num_classes"] == 5
    # Scored on other pictures of all five
    every = paint(tmp_path / "every" / "test", COLOURS | NEW, 5)
    paint(tmp_path / "every" / "train", COLOURS | NEW, 1)
    flags = [tmp_path / "more", "--data", every.parent, "--workers", "0", "--device", "cpu"]
    result = forked(cli.eval_main, flags, tmp_path, {}).wait()
    assert result.code == 0, result.err
    scored = json.loads((tmp_path / "more/eval-test.json").read_text())
    assert (scored["classes"], scored["images"]) == (5, 25)
    assert scored["accuracy"]["overall"] > 0.7


def test_what_cannot_be_added(trained, add, finished, complaint, tmp_path):
    run = trained / "run"
    again = paint(tmp_path / "again", {"green": (0, 255, 0), "blue": (0, 0, 255)}, 1)
    assert "there is a class 'blue' already" in complaint(add(run, again, "--out", tmp_path / "x"))
    assert not (tmp_path / "x").exists()
    assert "no such file or folder" in complaint(add(run, tmp_path / "nowhere"))
    assert "is there already" in complaint(add(run, again, "--out", tmp_path))
    assert "learns its classes by training" in complaint(add(finished, again))
    assert "not a run folder" in complaint(add(tmp_path, again))
