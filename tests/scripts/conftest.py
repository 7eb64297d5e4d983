"""The scripts as commands, and a run of the classifier for them to read."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

# Imported here, so that the forked processes need not.
import classifier.train  # noqa: F401
import lm.train  # noqa: F401
import sqrtvocab.measure  # noqa: F401
from classifier import cli

ROOT = Path(__file__).parents[2]
TINY_IMAGES = (
    "--only shape=circle,star --only pattern=solid --only rotation=0 --only size=tiny,huge "
    "--only texture=none --only opacity=1.0 --only border=solid --images-per-class 3 --batch-size 4 "
    "--accumulate 2 --eval-images 12 --workers 0 --device cpu --max-steps 4 --eval-every 2"
)


@pytest.fixture
def call(forked, tmp_path):
    """`call("compare_heads", "lm", ...)` runs a script to its end, with a cache of its own, in a process that
    need not import torch again."""

    def run(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        script = str(ROOT / "scripts" / f"{name}.py")

        def main() -> int:
            sys.argv[0] = script
            runpy.run_path(script, run_name="__main__")
            return 0

        cache = {"SQRTVOCAB_CACHE": str(tmp_path / "cache")}
        result = forked(main, arguments, tmp_path, {**cache, **environment}).wait()
        return subprocess.CompletedProcess([script, *arguments], result.code, result.out, result.err)

    return run


@pytest.fixture(scope="session")
def classifier_run(forked, tmp_path_factory) -> Path:
    """The folder of a short finished run of `train_classifier`. Copy it before changing anything in it."""
    folder = tmp_path_factory.mktemp("session")
    argv = [*TINY_IMAGES.split(), "--out", folder / "finished"]
    result = forked(cli.train_main, argv, folder, {}).wait()
    assert result.code == 0, result.err
    return folder / "finished"
