"""The comparison of heads trains each of them and writes one table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lm.stories import stories
from lm.tokenizer import END

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_lm.py"


@pytest.mark.slow
def test_a_small_comparison(tmp_path):
    text = tmp_path / "stories.txt"
    text.write_text(END.join(stories("train", 60)))
    flags = ["--data", text, "--heads", "grouped", "grouped-linear", "--steps", 2, "--batch-size", 1]
    flags += ["--hidden-size", 16, "--threads", 1, "--out", tmp_path / "runs"]
    environment = {**os.environ, "SQRTVOCAB_CACHE": str(tmp_path / "cache")}
    for _ in range(2):  # the second time everything is there already
        result = subprocess.run(
            [sys.executable, SCRIPT, *map(str, flags)], capture_output=True, text=True, env=environment
        )
        assert result.returncode == 0, result.stderr
    assert "nothing to do" in result.stderr
    table = (tmp_path / "runs" / "table.md").read_text()
    assert "2 steps of 512 tokens" in table
    assert "| grouped (the paper's) | " in table
    assert "train_lm --data" in table


def test_no_such_head(tmp_path):
    result = subprocess.run(
        [sys.executable, SCRIPT, "--data", "stories", "--heads", "round"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr.startswith("compare_lm: --heads round: expected some of grouped-linear, grouped,")
