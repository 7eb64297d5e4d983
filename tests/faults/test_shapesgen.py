"""`shapesgen` under faults: nothing lost, nothing silent, no traceback."""

from pathlib import Path

import pytest

import shapesgen.preview
import shapesgen.verifier
import shapesgen.writer  # noqa: F401  (imported here, so that the forked processes need not)
from shapesgen import Recipe, cli
from shapesgen.choices import FORMATS

FEW = ["--classes", "0:4", "--images-per-class", "3", "--workers", "1"]  # 12 images in 3 shards


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Load the compiled renderer before any fork."""
    Recipe().render([0], [0])


@pytest.mark.parametrize("form", FORMATS)
def test_render_killed_anywhere_goes_on(form, kill_everywhere, tally, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    argv = ["render", "--out", inside / "set", "--format", form, *FEW]
    tally(f"kill points of render, {form}", kill_everywhere(cli.main, argv, inside))
