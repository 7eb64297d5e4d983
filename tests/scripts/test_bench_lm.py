"""The benchmark of language models runs, reports every contender and refuses bad flags in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_lm.py"


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.slow
def test_quick(tmp_path):
    result = run("--quick", "--repeats", 1, "--json", tmp_path / "lm.json")
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "lm.json").read_text())
    peaks = figures["memory"]["peak_bytes"]
    assert peaks["no head"] < peaks["grouped"] < peaks["GPT2LMHeadModel"]
    assert set(figures["training"]["tokens_per_s"]) == set(peaks)
    written = figures["writing"]["ms_per_token"]["batch 32"]
    assert set(written) == {
        "GPT2LMHeadModel",
        "grouped",
        "grouped-linear",
        "grouped, all logits",
        "grouped-linear, all logits",
    }
    assert "grouped against no head at all" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", 0), "--repeats must be at least 1"),
        (("--json", "/no/such/folder/x.json"), "--json: no folder /no/such/folder"),
    ],
)
def test_bad_flags(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
