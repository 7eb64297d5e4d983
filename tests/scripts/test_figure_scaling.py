"""The figure of growth: measured once, fitted, drawn, and what does not fit is left out."""

import csv

import pytest

from scripts.common.head_steps import Work
from scripts.figure_scaling import KEY, VALUES, bytes_of_race
from scripts.reports.scaling import draw, exponent, pages


def row(head, classes, step, **other):
    cells = {"head": head, "tokens": 8, "width": 4, "classes": classes, "step_ms": step, "whole_ms": 3 * step}
    cells |= {
        "topk_ms": "",
        "products_ms": 2.0,
        "adam_ms": 4.0,
        "step_mb": step,
        "parameters": 9,
        "machine": "m",
    }
    return {name: str(value) for name, value in (cells | other).items()}


def test_exponents_leave_small_vocabularies_out():
    rows = [row("grouped", 2**power, 2 ** (power / 2)) for power in (16, 18, 20)]
    assert exponent([row("grouped", 2**12, 1e6), *rows], "step_ms") == pytest.approx(0.5)
    assert exponent(rows[:2], "step_ms") is None
    assert exponent(rows, "topk_ms") is None


def test_the_page_tells_the_ratios_at_the_largest_vocabulary():
    rows = [row("grouped", 2**20, 8.0), row("grouped", 2**12, 1.0), row("flat", 2**12, 5.0)]
    page = "\n".join(pages(rows))
    # Of the products 8 / 2, of products and Adam 24 / 6.
    assert "| grouped |  |  |  | 2^20 | 8.0 | 4.00x | 4.00x | 8.0 |  |" in page
    assert draw(rows).axes


def test_a_flat_head_stops_fitting_long_before_a_grouped_one():
    work = Work(1024, 64, 2**20)
    assert bytes_of_race("grouped", work) < 1e9 < bytes_of_race("flat", work)
    assert bytes_of_race("grouped", work._replace(classes=2**24)) < 6e9


@pytest.mark.slow
def test_quick(call, tmp_path):
    flags = ("--quick", "--heads", "grouped", "flat", "--widths", 8, "--repeats", 1, "--out", tmp_path)
    result = call("figure_scaling", *flags)
    assert result.returncode == 0, result.stderr
    with (tmp_path / "scaling.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {*KEY, *VALUES}
    assert [(r["head"], r["classes"]) for r in rows] == [
        (head, size) for head in ("grouped", "flat") for size in ("256", "1024")
    ]
    assert all(float(r["step_ms"]) > 0 and float(r["topk_ms"]) > 0 for r in rows)
    before = (tmp_path / "scaling.csv").read_bytes()
    assert call("figure_scaling", *flags).returncode == 0  # nothing left to measure
    assert (tmp_path / "scaling.csv").read_bytes() == before
    assert (tmp_path / "scaling.png").stat().st_size > 1000


def test_bad_flags(call):
    result = call("figure_scaling", "--heads", "nonsense", "--powers", 30)
    assert result.returncode == 2
    assert "--powers from 4 to 24" in result.stderr
    assert "--heads nonsense: must be of flat, grouped" in result.stderr
