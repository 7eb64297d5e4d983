"""Run the commands as processes of their own, without paying for `import torch` each time."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sklearn.metrics  # noqa: F401  (imported here, so that the forked processes need not)

import classifier.cnn
import classifier.evaluate
import classifier.train
import shapesgen.cli
from classifier import cli
from shapesgen import ShapesDataset

# 48 classes that differ in shape, colour and size; as many images for training as there are classes.
TINY = [
    "--only", "shape=circle,star", "--only", "pattern=solid", "--only", "rotation=0",
    "--only", "size=tiny,huge", "--only", "texture=none", "--only", "opacity=1.0", "--only", "border=solid",
    "--images-per-class", "3", "--batch-size", "4", "--accumulate", "2", "--eval-images", "12",
    "--workers", "0", "--device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def _renderer() -> None:
    """Load the compiled renderer before any fork."""
    ShapesDataset(images_per_class=3).batch([0])


@pytest.fixture(scope="session")
def small() -> Callable[[Callable[[], int]], Callable[[], int]]:
    """`forked(small(main), ...)`: a command with few filters. The paper's CNN has nine million weights, and
    each checkpoint three times as many numbers."""

    def with_few_filters(main: Callable[[], int]) -> Callable[[], int]:
        def run() -> int:
            classifier.cnn.FILTERS = (4, 4, 8)
            return main()

        return run

    return with_few_filters


@pytest.fixture
def tiny_flags() -> list[str]:
    """The flags of a run on the tiny images."""
    return TINY


@pytest.fixture
def start_train(forked, small, tmp_path):
    """`start_train("--head", "flat", ..., RANK="0")` begins `train_classifier` on the tiny images."""

    def begin(*flags: object, **env: str):
        return forked(small(cli.train_main), [*TINY, *flags], tmp_path, env)

    return begin


@pytest.fixture
def train(start_train):
    """The same, to its end."""

    def finish(*flags: object, **env: str):
        return start_train(*flags, **env).wait()

    return finish


@pytest.fixture
def bare_train(forked, small, tmp_path):
    """`train_classifier` with just the flags given, to its end."""

    def finish(*flags: object):
        return forked(small(cli.train_main), flags, tmp_path, {}).wait()

    return finish


@pytest.fixture
def score(forked, small, tmp_path):
    """`score(RUN, "--split", "test", ...)` runs `eval_classifier` to its end."""

    def finish(*flags: object):
        argv = [*flags, "--device", "cpu", "--workers", 0]
        return forked(small(cli.eval_main), argv, tmp_path, {}).wait()

    return finish


@pytest.fixture(scope="session")
def finished(forked, small, tmp_path_factory) -> Path:
    """The folder of a short finished run. Copy it before changing anything in it."""
    folder = tmp_path_factory.mktemp("session")
    out = folder / "finished"
    argv = [*TINY, "--max-steps", 4, "--eval-every", 2, "--out", out]
    result = forked(small(cli.train_main), argv, folder, {}).wait()
    assert result.code == 0, result.err
    return out


@pytest.fixture(scope="session")
def rendered(forked, tmp_path_factory) -> Path:
    """The tiny images on disk. Copy the folder before changing anything in it."""
    folder = tmp_path_factory.mktemp("session")
    space = TINY[: TINY.index("--batch-size")]
    argv = ["render", "--out", folder / "images", *space, "--workers", 1]
    result = forked(shapesgen.cli.main, argv, folder, {}).wait()
    assert result.code == 0, result.err
    return folder / "images"
