"""Page and figure of `figure_scaling`: how time and memory of the heads grow with the classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scripts.common.command import command_line
from scripts.common.pages import GRID, INK, MUTED, WIDTH, plain, table
from scripts.common.records import Row

# matplotlib is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {"step_ms": "training step, ms", "step_mb": "its memory, MB", "topk_ms": "topk(10), ms"}
FROM = 2**16  # classes from which on exponents are fitted: below, the fixed costs of a step show


def exponent(rows: Sequence[Row], column: str) -> float | None:
    """x in column ∝ V^x, by least squares of the logarithms; None of fewer than three values."""
    points = [
        (math.log(int(row["classes"])), math.log(float(row[column])))
        for row in rows
        if row[column] and int(row["classes"]) >= FROM
    ]
    if len(points) < 3:
        return None
    mean_x, mean_y = (math.fsum(values) / len(points) for values in zip(*points, strict=True))
    across = math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    return across / math.fsum((x - mean_x) ** 2 for x, _ in points)


def of(rows: Sequence[Row], head: str, width: str) -> list[Row]:
    """The rows of a head and width, by vocabulary."""
    mine = [row for row in rows if row["head"] == head and row["width"] == width]
    return sorted(mine, key=lambda row: int(row["classes"]))


def pages(rows: Sequence[Row]) -> list[str]:
    """The parts of the page."""
    heads = list(dict.fromkeys(row["head"] for row in rows))
    widths = sorted({row["width"] for row in rows}, key=int)
    tokens = ", ".join(sorted({f"{int(row['tokens']):,}" for row in rows}))
    parts = [
        "# Growth",
        command_line(),
        f"Time and memory of a training step (forward and backward of the head alone, N = {tokens} rows, "
        "targets as frequent as words) and of `topk(10)` of as many peaked rows, float32, one thread. Each "
        "head goes as far as its race fits into the memory given. "
        f"On {'; '.join(dict.fromkeys(row['machine'] for row in rows))}.",
        "![Time and memory against the number of classes](scaling.png)",
        f"x in time ∝ V^x, fitted from V = {FROM:,} on, and the figures at the largest V measured. "
        "*Products*: the two matrix products [N, d] x [d, √V], forward and backward. *Whole step*: with "
        "fused Adam, against the products and Adam's pass over its parameters, measured by themselves.",
    ]
    for width in widths:
        lines = []
        for head in heads:
            if not (mine := of(rows, head, width)):
                continue
            last = mine[-1]
            fitted = [exponent(mine, column) for column in COLUMNS]
            lines.append(
                [
                    head,
                    *("" if x is None else f"{x:.2f}" for x in fitted),
                    f"2^{round(math.log2(int(last['classes'])))}",
                    shown(last["step_ms"]),
                    ratio(last, ("step_ms",), ("products_ms",)),
                    ratio(last, ("whole_ms",), ("products_ms", "adam_ms")),
                    shown(last["step_mb"]),
                    shown(last["topk_ms"]),
                ]
            )
        header = [
            f"d = {width}", "step: x", "memory: x", "topk: x", "largest V", "step, ms", "of products",
            "whole step of its bound", "memory, MB", "topk, ms",
        ]  # fmt: skip
        parts.append(table(header, lines))
    parts.append(
        "No head's step is O(√V) to the last: the gradient of a parameter that every class has is as long as "
        "V, and has to be cleared. For `grouped` these are two numbers a class, for `grouped-linear` d."
    )
    return parts


def shown(cell: str) -> str:
    """A measurement as a table has it; "" if there is none."""
    return f"{float(cell):,.1f}" if cell else ""


def ratio(row: Row, above: Sequence[str], below: Sequence[str]) -> str:
    """The ratio of two sums of columns; "" if one is missing."""
    if not all(row[column] for column in (*above, *below)):
        return ""
    return f"{sum(float(row[c]) for c in above) / sum(float(row[c]) for c in below):.2f}x"


def draw(rows: Sequence[Row]) -> Figure:
    """A row of panels for each width: the step, its memory, topk."""
    from matplotlib.figure import Figure

    widths = sorted({row["width"] for row in rows}, key=int)
    heads = list(dict.fromkeys(row["head"] for row in rows))
    figure = Figure(figsize=(WIDTH, 0.8 + 2.9 * len(widths)), layout="constrained")
    grid = figure.subplots(len(widths), len(COLUMNS), squeeze=False, sharex=True)
    for panels, width in zip(grid, widths, strict=True):
        for panel, (column, title) in zip(panels, COLUMNS.items(), strict=True):
            for place, head in enumerate(heads):
                mine = [row for row in of(rows, head, width) if row[column]]
                panel.plot(
                    [int(row["classes"]) for row in mine],
                    [float(row[column]) for row in mine],
                    "o-", color=f"C{place}", markersize=3, linewidth=1.3, label=head,
                )  # fmt: skip
            if column == "step_ms":
                bound = {int(row["classes"]): float(row["products_ms"]) for row in rows
                         if row["width"] == width and row["products_ms"]}  # fmt: skip
                panel.plot(*zip(*sorted(bound.items()), strict=True), "--", color=MUTED, label="two products")
            plain(panel)
            panel.grid(color=GRID)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_title(f"{title}, d = {width}", fontsize=9, color=INK, loc="left")
    for panel in grid[-1]:
        panel.set_xlabel("classes", fontsize=9, color=MUTED)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=5, fontsize=9, frameon=False, labelcolor=INK
    )
    return figure
