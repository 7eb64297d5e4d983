"""What scripts say about GPUs where there is none."""

import csv
import json

import pytest

from scripts.common.registered import heads_with_variants
from scripts.gpu_check import MemoryRow, Numbers
from sqrtvocab import HEADS


def test_the_check_passes_on_a_cpu(call, tmp_path):
    found = tmp_path / "found.json"
    result = call("gpu_check", "--device", "cpu", "--quick", "--parts", "numbers", "memory", "--json", found)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(found.read_text())
    assert document["wrong"] == []
    heads = heads_with_variants()
    weighed = [title for title, (name, _) in heads.items() if not HEADS[name].surrogate]
    assert [row["head"] for row in document["memory"]] == weighed
    assert len(document["numbers"]) == 3 * len(heads)
    kernels = {(row["head"], row["dtype"]): row["kernel"] for row in document["numbers"]}
    assert kernels["grouped-linear", "bfloat16"] == "grouped_mm"
    assert kernels["flat", "float32"] is None
    assert f"{3 * len(heads) + len(weighed)} checks passed, 0 failed; see {found}" in result.stdout
    assert "WRONG" not in result.stdout


@pytest.mark.slow
def test_the_check_of_speed(call, tmp_path):
    found = tmp_path / "found.json"
    result = call("gpu_check", "--device", "cpu", "--quick", "--parts", "speed", "--json", found)
    assert result.returncode == 0, result.stdout + result.stderr
    times = {row["contender"]: row["times_flat"] for row in json.loads(found.read_text())["speed"]}
    assert times["flat"] == 1
    assert {"flat, chunked", "grouped-linear", "peer: torch chunked"} <= set(times)


def test_what_counts_as_wrong():
    right = Numbers("flat", "bfloat16", None, 0.01, 0.008, 0.001, 0, 0)
    assert right.is_right
    for change in (
        {"loss": 0.1},
        {"gradient": 0.02},
        {"gradient": float("inf")},
        {"topk": 0.03},
        {"training_waits": 1},
    ):
        assert not Numbers(**{**vars(right), **change}).is_right, change
    assert not Numbers(**{**vars(right), "dtype": "float32"}).is_right
    assert MemoryRow("flat", 100, 95).is_right
    assert not MemoryRow("flat", 120, 100).is_right


def test_the_check_wants_a_card(call, tmp_path):
    result = call("gpu_check", "--json", tmp_path / "found.json")
    assert result.returncode == 2
    assert result.stderr.strip() == "gpu_check: --device cuda: no CUDA device here; leave the flag out"


@pytest.mark.slow
def test_a_small_roofline(call, tmp_path):
    result = call("roofline", "--quick", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "roofline.md").read_text()
    assert "Nothing here was measured: no card was there." in page
    rows = list(csv.DictReader((tmp_path / "roofline.csv").open()))
    assert {row["part"] for row in rows} >= {"backbone", "`grouped-linear`", "`adaptive`"}
    assert {row["card"] for row in rows} == {"t4", "l40s", "h100"}
