"""The benchmark runs, reports every contender and refuses bad flags in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_heads.py"


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)


def test_a_small_shape(tmp_path):
    result = run(
        "--tables", "train", "--shape", 64, 16, 400, "--repeats", 1, "--json", tmp_path / "heads.json"
    )
    assert result.returncode == 0, result.stderr
    (table,) = json.loads((tmp_path / "heads.json").read_text())["tables"]
    rows = {row["name"]: row for row in table["rows"]}
    assert {"flat", "flat, chunked", "grouped", "grouped-linear", "adaptive", "bound: two GEMMs"} <= set(rows)
    assert rows["flat"]["parameters"] == 400 * 17
    assert rows["flat"]["megabytes"] > rows["grouped"]["megabytes"] > 0
    assert all(name in result.stdout for name in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", 0), "--repeats must be at least 1"),
        (("--shape", 0, 1, 1), "--shape must be positive"),
        (("--json", "/no/such/folder/x.json"), "--json: no folder /no/such/folder"),
        (("--bogus",), "Unrecognized options: --bogus"),
    ],
)
def test_bad_flags(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
