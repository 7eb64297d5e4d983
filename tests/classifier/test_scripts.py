"""The scripts run, and say what they should."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from sqrtvocab.settings import read_config
from sqrtvocab.training import read_metrics

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name, *arguments):
    command = [sys.executable, SCRIPTS / name, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_figure_of_a_run(finished, tmp_path):
    result = script("figure_classification.py", finished, "--out", tmp_path / "new" / "figure.png")
    assert result.returncode == 0, result.stderr
    with Image.open(tmp_path / "new" / "figure.png") as figure:
        assert figure.width > 1000
    with (tmp_path / "new" / "figure.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    scored = [r for r in read_metrics(finished / "metrics.jsonl") if "accuracy/overall" in r]
    assert [float(row["accuracy/overall"]) for row in rows] == [r["accuracy/overall"] for r in scored]
    page = (tmp_path / "new" / "figure.md").read_text()
    assert f"{scored[-1]['loss/validation']:.3f}" in page
    assert "\ntrain_classifier --" in page
    assert f"--out {finished.name}/\n" in page
    assert "python scripts/figure_classification.py " in page
    assert not any(str(folder) in page for folder in (tmp_path, *list(finished.parents)[:-1]))


def test_no_figure_of_runs_with_different_classes(finished, tmp_path):
    """Their accuracies mean different things."""
    other = shutil.copytree(finished, tmp_path / "other")
    config = read_config(other)
    (other / "config.json").write_text(json.dumps({**config, "only": ["shape=circle"]}))
    result = script("figure_classification.py", finished, other, "--out", tmp_path / "figure.png")
    assert result.returncode == 2
    assert result.stderr.startswith(f"figure_classification: {other}: other classes than those of")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "figure.png").exists()


@pytest.mark.slow
def test_no_figure_of_what_is_no_run(tmp_path):
    result = script("figure_classification.py", tmp_path)
    assert result.returncode == 2
    assert result.stderr == f"figure_classification: {tmp_path}: no run folder (it has no config.json)\n"
    (tmp_path / "config.json").write_text('{"head": "flat"}')
    result = script("figure_classification.py", tmp_path)
    assert result.returncode == 2
    assert (
        result.stderr
        == f"figure_classification: {tmp_path}: no run of train_classifier with an evaluation to draw\n"
    )
    for flags in ((), (tmp_path, "--out", tmp_path / "figure.csv"), (tmp_path, "--quick")):
        result = script("figure_classification.py", *flags)
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_quick_figure(tmp_path):
    command = [sys.executable, SCRIPTS / "figure_classification.py", "--quick", "--against", "images"]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "runs" / "quick" / "classification.md").read_text()
    assert "minutes" not in page.split("```")[0]
    assert (tmp_path / "runs" / "quick" / "classification.png").stat().st_size > 10_000


@pytest.mark.slow
def test_no_benchmark_of_no_rounds():
    result = script("bench_classifier.py", "--rounds", 0)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_benchmark_writes_its_figures(tmp_path):
    flags = (
        "--rounds",
        1,
        "--batch-size",
        2,
        "--accumulate",
        2,
        "--json",
        tmp_path / "b.json",
        "--device",
        "cpu",
    )
    result = script("bench_classifier.py", *flags)
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "b.json").read_text())
    assert set(figures["images"]) >= {"throughput_ratio", "data_wait_fraction"}
    assert set(figures["step"]) == {"linear, 10 classes", "grouped, 184,320 classes", "flat, 184,320 classes"}
