"""The scripts that make the paper's tables and figures run, write what they say and refuse bad flags."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lm.stories import stories
from lm.tokenizer import END

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(script, *arguments, **environment):
    return subprocess.run(
        [sys.executable, SCRIPTS / f"{script}.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_table2(tmp_path):
    result = run("table2_memory", "--quick", "--gpu", "t4", "h100", "--out", tmp_path / "results")
    assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path / "results" / "memory.csv")
    peaks = {(row["setting"], row["size"], row["model"]): int(row["peak_bytes"]) for row in rows}
    for row in rows:
        parts = [int(value) for key, value in row.items() if key.endswith("_bytes") and key != "peak_bytes"]
        assert len(parts) == 5
        assert sum(parts) == int(row["peak_bytes"])
    for setting in ("paper", "eager", "fp32", "half", "best"):
        assert peaks[setting, "8.1 M", "GPT-2"] > peaks[setting, "8.1 M", "grouped"]
    # The copy of the logits, and the copy that is kept: 2 x 32 tokens of 2,000 floats each.
    assert peaks["paper", "8.1 M", "GPT-2"] > peaks["fp32", "8.1 M", "GPT-2"] + 0.9 * 4 * 2 * 32 * 2000
    assert peaks["eager", "8.1 M", "grouped"] > peaks["fp32", "8.1 M", "grouped"]
    assert peaks["best", "8.1 M", "grouped"] < peaks["half", "8.1 M", "grouped"]
    page = (tmp_path / "results" / "memory.md").read_text()
    assert "table2_memory.py --quick" in page
    assert "| H100 80 GB | 8.1 M |" in page
    assert 10_000 < (tmp_path / "results" / "memory.png").stat().st_size < 300_000


def test_table3_counts_and_keeps_what_it_does_not_measure(tmp_path):
    path = tmp_path / "throughput_flops.csv"
    timed = "tokens_per_s,batch_size,device,threads,repeats,machine"
    models = ("GPT-2", "GPT-Neo", "grouped", "grouped-linear")
    lines = [f"8.1 M,{model},16,2000,123.0,2,cpu,1,1,M" for model in models]  # as if timed before
    path.write_text("\n".join([f"size,model,hidden,vocab,{timed}", *lines]) + "\n")
    result = run("table3_throughput_flops", "--quick", "--only", "flops", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    rows = rows_of(path)
    assert len(rows) == 2 * len(models)
    assert rows[0]["model"] == "GPT-2"
    assert int(rows[0]["multiply_adds"]) == 32 * (2 * 12 * 16**2 + 16 * 2000)  # tokens x (blocks and head)
    assert int(rows[0]["forward_flops"]) == 2 * int(rows[0]["multiply_adds"]) + 2 * 2 * 2 * 32 * 32 * 16
    assert [row["tokens_per_s"] for row in rows] == 4 * ["123.0"] + 4 * [""]
    assert "on cpu (M)" in (tmp_path / "throughput_flops.md").read_text()


@pytest.mark.slow
def test_table3_throughput(tmp_path):
    flags = ("--quick", "--only", "throughput", "--repeats", 1, "--out", tmp_path)
    result = run("table3_throughput_flops", *flags)
    assert result.returncode == 0, result.stderr
    assert all(float(row["tokens_per_s"]) > 0 for row in rows_of(tmp_path / "throughput_flops.csv"))
    assert "## Throughput" in (tmp_path / "throughput_flops.md").read_text()


def test_ablation_memory(tmp_path):
    settings = "V=2000 hidden=16 layers=2 batch=2x32 fp32"
    (tmp_path / "ablation.csv").write_text(f"groups,peak_bytes,memory_settings\n1,7000000,{settings}\n")
    result = run("figure_ablation", "--only", "memory", "--quick", "--points", 6, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path / "ablation.csv")
    assert [int(row["groups"]) for row in rows] == [1, 4, 13, 44, 159, 563, 2000]  # √2000 = 44.7
    assert int(rows[3]["head_parameters"]) == 44 * 17 + 46 * 16 + 2 * 44 * 46  # W_g, W_s, P and Q
    peaks = [int(row["peak_bytes"]) for row in rows]
    assert peaks[0] == 7_000_000  # the record is believed
    assert peaks.index(min(peaks)) in (2, 3, 4)
    assert 5_000 < (tmp_path / "ablation.png").stat().st_size < 300_000
    assert "Least memory at G = " in (tmp_path / "ablation.md").read_text()


@pytest.mark.slow
def test_ablation_loss(tmp_path):
    text = tmp_path / "stories.txt"
    text.write_text(END.join(stories("train", 60)))
    flags = ["--only", "loss", "--data", text, "--steps", 2, "--batch-size", 1, "--seq-len", 32]
    flags += ["--threads", 1, "--runs", tmp_path / "runs", "--out", tmp_path]
    for groups in (224, 600):  # in parts
        cache = str(tmp_path / "cache")
        result = run("figure_ablation", *flags, "--groups", groups, SQRTVOCAB_CACHE=cache)
        assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path / "ablation.csv")
    assert [row["groups"] for row in rows] == ["224", "600"]
    assert all(9 < float(row["loss"]) < 13 for row in rows)  # log V = 10.8: nothing learnt in two steps
    assert "lowest" in (tmp_path / "ablation.md").read_text()


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("table2_memory", ("--gpu",), "--gpu: name at least one"),
        ("table2_memory", ("--out", "/proc/x"), "--out /proc/x"),
        ("table3_throughput_flops", ("--repeats", 0), "--repeats and --threads must be at least 1"),
        ("figure_ablation", ("--groups", 0), "--groups must lie between 1 and V = 50257"),
        ("figure_ablation", ("--steps", 0), "--steps must be at least 1"),
        ("figure_ablation", ("--quick",), "--quick is for --only memory"),
    ],
)
def test_bad_flags(script, arguments, message):
    result = run(script, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
