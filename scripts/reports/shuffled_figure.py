"""The figure of `compare_heads images --shuffled-labels`: accuracy and nats of each contender."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scripts.common.means import Mean
from scripts.common.pages import INK, MUTED, WIDTH, name_rows
from scripts.common.records import Row
from scripts.common.shuffled import classes_of, entries_of, family_of, steps_of

# matplotlib is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(rows: Sequence[Row]) -> Figure:
    """A row of two panels for each number of classes: accuracy and exact nats on test images."""
    from matplotlib.figure import Figure

    families = sorted(dict.fromkeys(family_of(row["settings"]) for row in rows), key=classes_of)
    parts = [[row for row in rows if family_of(row["settings"]) == family] for family in families]
    heights = [1.2 + 0.28 * len({row["contender"] for row in part}) for part in parts]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    grid = figure.subplots(len(parts), 2, squeeze=False, height_ratios=heights)
    for (left, right), part in zip(grid, parts, strict=True):
        draw_family(left, right, part)
    grid[0][1].legend(fontsize=9, loc="best", frameon=False, labelcolor=INK)
    return figure


def draw_family(left: Axes, right: Axes, rows: Sequence[Row]) -> None:
    """Both panels of one number of classes; contenders from the least nats up."""
    entries = entries_of(rows)
    names = list(dict.fromkeys(entry.name for entry in entries))
    nats = {
        name: Mean.of([float(e.chosen["test_loss"]) for e in entries if e.name == name]) for name in names
    }
    names.sort(key=lambda name: -nats[name].value)
    num_classes = classes_of(rows[0]["settings"])
    for panel, column, factor in ((left, "test_accuracy", 100.0), (right, "test_loss", 1.0)):
        for place, name in enumerate(names):
            mine = [entry for entry in entries if entry.name == name]
            images = Mean.of([factor * float(entry.chosen[column]) for entry in mine])
            timed = [factor * float(entry.longer[column]) for entry in mine if entry.longer is not None]
            panel.errorbar(
                images.value, place, xerr=images.half, fmt="o", markersize=6, color="C0", capsize=2,
            )  # fmt: skip
            if timed:
                panel.plot(
                    Mean.of(timed).value, place, "o", markersize=10, color="C1", markerfacecolor="none",
                )  # fmt: skip
        name_rows(panel, names if panel is left else [""] * len(names))
    left.set_xlim(-3, 103)
    left.set_xlabel("test images named (%)", color=MUTED, fontsize=9)
    left.set_title(
        f"{num_classes:,} classes, {steps_of(entries[0].chosen):,} steps", loc="left", fontsize=10, color=INK
    )
    right.plot([], [], "o", markersize=6, color="C0", label="equal images")
    right.plot([], [], "o", markersize=10, color="C1", markerfacecolor="none", label="equal CPU time")
    right.axvline(math.log(num_classes), color=MUTED, linewidth=1, linestyle=":", label="guessing")
    right.set_xlim(left=0)
    right.set_xlabel("nats, test images", color=MUTED, fontsize=9)
