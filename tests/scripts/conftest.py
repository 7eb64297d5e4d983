"""The scripts as commands, and a run of the classifier for them to read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from classifier import cli

ROOT = Path(__file__).parents[2]
TINY_IMAGES = (
    "--only shape=circle,star --only pattern=solid --only rotation=0 --only size=tiny,huge "
    "--only texture=none --only opacity=1.0 --only border=solid --images-per-class 3 --batch-size 4 "
    "--accumulate 2 --eval-images 12 --workers 0 --device cpu --max-steps 4 --eval-every 2"
)


@pytest.fixture
def call(tmp_path):
    """`call("compare_heads", "lm", ...)` runs a script to its end, with a cache of its own."""

    def run(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, ROOT / "scripts" / f"{name}.py", *map(str, arguments)]
        cache = {"SQRTVOCAB_CACHE": str(tmp_path / "cache")}
        return subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **cache, **environment}
        )

    return run


@pytest.fixture(scope="session")
def classifier_run(forked, tmp_path_factory) -> Path:
    """The folder of a short finished run of `train_classifier`. Copy it before changing anything in it."""
    folder = tmp_path_factory.mktemp("session")
    argv = [*TINY_IMAGES.split(), "--out", folder / "finished"]
    result = forked(cli.train_main, argv, folder, {}).wait()
    assert result.code == 0, result.err
    return folder / "finished"
