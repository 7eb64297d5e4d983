"""The README's figures that do not depend on a machine are those of the records."""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows_of(name):
    with (ROOT / "docs" / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def line_of(words):
    """The line of "What came out" that has all these words."""
    section = (ROOT / "README.md").read_text().partition("## What came out")[2].partition("\n## ")[0]
    (line,) = [line for line in section.splitlines() if all(word in line for word in words)]
    return line


def rounded(value):
    """As the README may round it, coarse or fine."""
    return {f"{value:.1f}x", f"{value:.2f}x", f"{round(20 * value) / 20:.2f}x"}


def test_memory():
    peaks = {
        (row["setting"], row["size"], row["model"]): int(row["peak_bytes"]) for row in rows_of("memory.csv")
    }
    here = line_of(["memory", "table2_memory.py"]).rpartition("|")[0].rpartition("|")[2]
    told = here.replace(",", " ").replace(";", " ").split()
    for setting in ("fp32", "half"):
        for size in ("8.1 M", "19.3 M"):
            ratio = peaks[setting, size, "GPT-2"] / peaks[setting, size, "grouped"]
            assert rounded(ratio) & set(told), f"{setting}, {size}: {ratio:.3f}"


def test_flops():
    adds = {
        row["model"]: int(row["multiply_adds"])
        for row in rows_of("throughput_flops.csv")
        if row["size"] == "8.1 M"
    }
    here = line_of(["FLOPs", "table3_throughput_flops.py"]).rpartition("|")[0].rpartition("|")[2]
    assert f"{adds['GPT-2'] / 1e9:.2f} → {adds['grouped'] / 1e9:.2f} G" in here
