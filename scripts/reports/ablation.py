"""The page and the figure of `figure_ablation`: loss and memory over the number of groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from scripts.common.command import command_line
from scripts.common.lm_models import Shape
from scripts.common.pages import GRID, INK, MUTED, SURFACE, WIDTH, plain, table
from scripts.common.records import Row

# matplotlib is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE = "#2a78d6"


def joined(memory: Iterable[Row], losses: Iterable[Row]) -> list[Row]:
    """A row for each number of groups with its memory and its loss, "" where there is none."""
    empty = dict.fromkeys(("peak_bytes", "head_parameters", "loss", "loss_settings"), "")
    found = {int(row["groups"]): {**empty, **row} for row in memory}
    for row in losses:
        groups = int(row["contender"].removeprefix("groups-"))
        settings = f"`{row['settings']} --seed {row['seed']}`"
        known = found.get(groups, {**empty, "groups": str(groups)})
        found[groups] = {**known, "loss": row["loss"], "loss_settings": settings}
    return [found[groups] for groups in sorted(found)]


def pages(rows: Sequence[Row], shape: Shape) -> list[str]:
    """The Markdown, part by part."""
    from sqrtvocab.measure.machine import describe_machine

    root = math.isqrt(shape.vocab_size)
    lines = []
    for row in rows:
        peak = f"{float(row['peak_bytes']) / 2**30:.3f}" if row["peak_bytes"] else ""
        parameters = f"{int(row['head_parameters']):,}" if row["head_parameters"] else ""
        loss = f"{float(row['loss']):.3f}" if row["loss"] else ""
        groups = int(row["groups"])
        lines.append([f"**{groups:,}** (√V)" if groups == root else f"{groups:,}", parameters, peak, loss])
    parts = [
        "# Ablation: the number of groups",
        f"The paper's ablation: hidden {shape.hidden_size}, {shape.num_layers} layers, "
        f"{shape.num_attention_heads} attention heads, V = {shape.vocab_size:,}, the grouped head. Memory is "
        f"the peak of a training step of {shape.batch_size} x {shape.seq_len} tokens in float32 with AdamW, "
        "from shapes. Last written by:",
        command_line(),
        f"on {describe_machine()}.",
        "![Loss and memory against the number of groups](ablation.png)",
        table(["groups", "parameters of the head", "peak memory, GiB", "validation loss"], lines),
    ]
    if best := lowest(rows, "peak_bytes"):
        parts.append(
            f"Least memory at G = {best['groups']}; √V is {root}. The logits of group and member are G + V/G "
            "wide together, which is least at √V."
        )
    if best := lowest(rows, "loss"):
        worst = max((row for row in rows if row["loss"]), key=lambda row: float(row["loss"]))
        parts.append(
            f"Loss ({best['loss_settings']}): lowest {float(best['loss']):.3f} at G = {best['groups']}, "
            f"highest {float(worst['loss']):.3f} at G = {worst['groups']}. The paper finds its maximum at "
            "√V, and 3.7 to 3.9 for most group sizes around it."
        )
    return parts


def lowest(rows: Sequence[Row], column: str) -> Row | None:
    """The row with the least figure in this column, of those that have one."""
    return min((row for row in rows if row[column] != ""), key=lambda row: float(row[column]), default=None)


def draw(rows: Sequence[Row], shape: Shape) -> Figure:
    """A panel each for loss and memory, as far as measured, over the number of groups."""
    from matplotlib.figure import Figure

    panels = [("loss", "validation loss (nats)", 1.0), ("peak_bytes", "peak memory of a step (GiB)", 2.0**30)]
    panels = [panel for panel in panels if any(row[panel[0]] != "" for row in rows)]
    figure = Figure(figsize=(WIDTH * len(panels) / 2, 3.6), layout="constrained", facecolor=SURFACE)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (column, title, unit) in zip(axes, panels, strict=True):
        points = [(int(row["groups"]), float(row[column]) / unit) for row in rows if row[column] != ""]
        draw_panel(panel, points, shape.vocab_size)
        panel.set_title(title, fontsize=10, color=INK, loc="left")
    return figure


def draw_panel(panel: Axes, points: Sequence[tuple[int, float]], vocab_size: int) -> None:
    """The points (groups, value) as a line, √V as another, the least value labelled."""
    from matplotlib.ticker import FuncFormatter

    root = math.isqrt(vocab_size)
    panel.set_xscale("log")
    panel.set_xlim(0.7, vocab_size * 1.5)
    panel.axvline(root, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    top = panel.get_xaxis_transform()
    panel.text(root * 1.12, 0.98, f"√V = {root}", transform=top, va="top", fontsize=9, color=MUTED)
    panel.plot(*zip(*points, strict=True), color=BLUE, linewidth=2, marker="o", markersize=5)
    x, y = min(points, key=lambda point: point[1])
    panel.plot([x], [y], "o", markersize=10, markerfacecolor="none", markeredgecolor=INK)
    place = math.log(x) / math.log(vocab_size)  # from 0 at the left edge to 1 at the right
    side = "left" if place < 0.2 else "right" if place > 0.8 else "center"
    panel.annotate(
        f"least: {y:.3g} at G = {x:,}", (x, y), xytext=(0, -20), textcoords="offset points", ha=side,
        fontsize=9, color=INK, bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1},
    )  # fmt: skip
    scale_height(panel, [value for _, value in points])
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.set_xlabel("number of groups G", fontsize=9.5, color=MUTED)
    panel.grid(color=GRID, linewidth=0.7, which="major")
    plain(panel)


def scale_height(panel: Axes, values: Sequence[float]) -> None:
    """Leave room below for the label; logarithmic where the values differ much."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = min(values), max(values)
    panel.set_ylim(low - 0.2 * (high - low) - 1e-3, high + 0.15 * (high - low) + 1e-3)
    if high > 5 * low:
        panel.set_yscale("log")
        ticks = [factor * 10.0**power for power in range(-6, 4) for factor in (1, 2, 5)]
        panel.yaxis.set_major_locator(FixedLocator(ticks))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.set_ylim(low / 1.7, high * 1.5)
