"""The figure and the benchmark of the classifier run, and say what they should."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from sqrtvocab.settings import read_config
from sqrtvocab.training import read_metrics

ROOT = Path(__file__).parents[2]


def test_the_figure_of_a_run(call, classifier_run, tmp_path):
    result = call("figure_classification", classifier_run, "--out", tmp_path / "new" / "figure.png")
    assert result.returncode == 0, result.stderr
    with Image.open(tmp_path / "new" / "figure.png") as figure:
        assert figure.width > 1000
    with (tmp_path / "new" / "figure.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    scored = [r for r in read_metrics(classifier_run / "metrics.jsonl") if "accuracy/overall" in r]
    assert [float(row["accuracy/overall"]) for row in rows] == [r["accuracy/overall"] for r in scored]
    page = (tmp_path / "new" / "figure.md").read_text()
    assert f"{scored[-1]['loss/validation']:.3f}" in page
    assert "\ntrain_classifier --" in page
    assert f"--out {classifier_run.name}/\n" in page
    assert "python scripts/figure_classification.py " in page
    assert not any(str(folder) in page for folder in (tmp_path, *list(classifier_run.parents)[:-1]))


def test_no_figure_of_runs_with_different_classes(call, classifier_run, tmp_path):
    """Their accuracies mean different things."""
    other = shutil.copytree(classifier_run, tmp_path / "other")
    config = read_config(other)
    (other / "config.json").write_text(json.dumps({**config, "only": ["shape=circle"]}))
    result = call("figure_classification", classifier_run, other, "--out", tmp_path / "figure.png")
    assert result.returncode == 2
    assert result.stderr.startswith(f"figure_classification: {other}: other classes than those of")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "figure.png").exists()


@pytest.mark.slow
def test_no_figure_of_what_is_no_run(call, tmp_path):
    result = call("figure_classification", tmp_path)
    assert result.returncode == 2
    assert result.stderr == f"figure_classification: {tmp_path}: not a run folder (it has no config.json)\n"
    (tmp_path / "config.json").write_text('{"head": "flat"}')
    result = call("figure_classification", tmp_path)
    assert result.returncode == 2
    said = f"figure_classification: {tmp_path}: no run of train_classifier with an evaluation to draw\n"
    assert result.stderr == said
    for flags in ((), (tmp_path, "--out", tmp_path / "figure.csv"), (tmp_path, "--quick")):
        result = call("figure_classification", *flags)
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_quick_figure(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("figure_classification", "--quick", "--against", "images", PYTHONPATH=str(ROOT))
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "runs" / "quick" / "classification.md").read_text()
    assert "minutes" not in page.split("```")[0]
    assert (tmp_path / "runs" / "quick" / "classification.png").stat().st_size > 10_000


@pytest.mark.slow
def test_no_benchmark_of_no_rounds(call):
    result = call("bench_classifier", "--rounds", 0)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_benchmark_writes_its_figures(call, tmp_path):
    flags = ("--rounds", 1, "--batch-size", 2, "--accumulate", 2, "--device", "cpu")
    result = call("bench_classifier", *flags, "--json", tmp_path / "b.json")
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "b.json").read_text())
    assert set(figures["images"]) >= {"throughput_ratio", "data_wait_fraction"}
    assert set(figures["step"]) == {"linear, 10 classes", "grouped, 184,320 classes", "flat, 184,320 classes"}


@pytest.mark.slow
def test_exports_are_compared_with_their_models(call, tmp_path):
    flags = ["--heads", "flat", "grouped", "--images", 40, "--steps", 1, "--json", tmp_path / "exports.json"]
    result = call("check_exports", *flags)
    assert result.returncode == 0, result.stderr
    for row in json.loads((tmp_path / "exports.json").read_text()).values():
        assert row["images"] == row["same"] == 40
        assert row["weights"] < row["size"] < 1.05 * row["weights"]
