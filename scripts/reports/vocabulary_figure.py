"""The figure of `figure_vocabulary`: bits per byte against V, and where the two heads cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scripts.common.command import values_of
from scripts.common.pages import GRID, INK, MUTED, WIDTH, plain
from scripts.reports.vocabulary_rows import OCCURRING, OURS, THEIRS, Section, about, crossings, crossover

# matplotlib is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {OURS: "C0", THEIRS: "C1"}
APART = 1.3  # the least ratio of two sizes whose numbers fit beside each other


def draw(parts: Sequence[Section]) -> Figure:
    """A panel for each part of the record."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 4.2 * max(1, len(parts))), layout="constrained")
    panels = figure.subplots(max(1, len(parts)), squeeze=False)[:, 0]
    for panel, part in zip(panels, parts, strict=False):
        _draw_panel(panel, part)
    return figure


def _draw_panel(panel: Axes, part: Section) -> None:
    """A line for each head, the crossover marked; GPT-2's tokens that occur beside the lines, hollow."""
    from matplotlib.ticker import NullLocator

    for head in [name for name in COLOURS if name in {entry.head for entry in part.entries}]:
        curve, colour = part.curve(head), COLOURS[head]
        panel.errorbar(
            list(curve), [mean.value for mean in curve.values()],
            yerr=[mean.half or 0 for mean in curve.values()],
            fmt="o-", markersize=5, capsize=2, color=colour, label=head,
        )  # fmt: skip
        for entry in part.entries:
            if (entry.head, entry.vocabulary) == (head, OCCURRING):
                mean = entry.mean("bits_per_byte")
                panel.errorbar(
                    [entry.size], [mean.value], yerr=[mean.half or 0], fmt="D", markersize=6, capsize=2,
                    color=colour, markerfacecolor="none", label=f"{head}, GPT-2's tokens that occur",
                )  # fmt: skip
    ours, theirs = part.curve(OURS), part.curve(THEIRS)
    at = crossover(ours, theirs)
    if at is not None and crossings(ours, theirs):
        panel.axvline(at, color=MUTED, linewidth=1, linestyle=":")
        panel.annotate(
            f"from V ≈ {about(at)}", (at, 1), (4, -10), xycoords=("data", "axes fraction"),
            textcoords="offset points", fontsize=9, color=MUTED,
        )  # fmt: skip
    plain(panel)
    panel.grid(axis="y", color=GRID)
    panel.set_xscale("log")
    sizes: list[int] = []
    for v in sorted({*ours, *theirs}):
        if not sizes or v > APART * sizes[-1]:
            sizes.append(v)
    panel.set_xticks(sizes, [f"{v:,}" for v in sizes])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("size of the vocabulary", color=MUTED, fontsize=9)
    panel.set_title(
        f"bits per byte of {values_of(part.rows[0]['settings'])['--data'][0]}, {part.minutes:g} minutes each",
        loc="left", fontsize=10, color=INK,
    )  # fmt: skip
    panel.legend(fontsize=9, frameon=False, labelcolor=INK)
