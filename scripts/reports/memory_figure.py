"""The figure of `table2_memory`: what a step's memory is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scripts.common.lm_models import MODELS, Shape
from scripts.common.pages import GRID, INK, MUTED, SURFACE, WIDTH, plain
from scripts.common.paper_memory import BEST, SIZES, STATED
from scripts.common.records import Row

# matplotlib is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {  # in the order of sqrtvocab.measure.simulate.PARTS
    "parameters": "#4a3aa7",
    "gradients": "#1baf7a",
    "optimiser": "#eda100",
    "activations": "#2a78d6",
    "logits": "#eb6834",
}


SHOWN = ("8.1 M", "152 M")
BARS = {"fp32": "float32", "half": "half\nprecision", BEST: "half precision,\ncheckpointing"}


def draw(rows: Sequence[Row], sizes: Mapping[str, Shape], gpus: Sequence[str]) -> Figure:
    """A panel for each of two sizes: a bar for each model and setting, stacked by part; the GPUs as lines."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    shown = [size for size in SHOWN if size in sizes] or [size for size in sizes if size not in STATED][:2]
    layout = ConstrainedLayoutEngine(wspace=0.03)
    figure = Figure(figsize=(WIDTH, 4.3), layout=layout, facecolor=SURFACE)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for panel, size in zip(panels, shown, strict=True):
        draw_panel(panel, [row for row in rows if row["size"] == size], gpus)
        layers = f"hidden {sizes[size].hidden_size}, {sizes[size].num_layers} layers"
        name = f"{size} parameters" if size in SIZES else size
        panel.set_title(f"{name} ({layers})", fontsize=10, loc="left", color=INK)
    handles = [panels[0].bar(0, 0, color=color) for color in COLORS.values()]
    figure.legend(
        handles, list(COLORS), loc="outside upper center", ncols=5, frameon=False, fontsize=9,
        labelcolor=INK, title="Memory at the peak of a training step, by part", title_fontsize=10.5,
    )  # fmt: skip
    return figure


def draw_panel(panel: Axes, rows: Sequence[Row], gpus: Sequence[str]) -> None:
    """The bars of one size, in a block for each setting."""
    from sqrtvocab.measure.gpu import GPUS

    by_bar = {(row["setting"], row["model"]): row for row in rows if row["setting"] in BARS}
    top = max(int(row["peak_bytes"]) for row in by_bar.values()) / 2**30
    panel_top = 1.22 * top
    pitch = len(MODELS) + 0.8
    places = []
    plain(panel)
    for number, (key, title) in enumerate(BARS.items()):
        for index, model in enumerate(MODELS):
            x, bottom = number * pitch + index, 0.0
            for part, color in COLORS.items():
                height = int(by_bar[key, model][f"{part}_bytes"]) / 2**30
                panel.bar(x, height, 0.84, bottom, color=color, edgecolor=SURFACE, linewidth=0.8)
                bottom += height
            panel.text(
                x, bottom + 0.008 * panel_top, f"{bottom:.1f}", ha="center", va="bottom", fontsize=8,
                color=INK, bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip
            places.append(x)
        panel.text(
            number * pitch + (len(MODELS) - 1) / 2, 0.99, title, ha="center", va="top", fontsize=8.5,
            color=MUTED, transform=panel.get_xaxis_transform(),
            bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
    panel.set_ylim(0, panel_top)
    for gpu in gpus:
        if (usable := GPUS[gpu].usable / 2**30) < top * 1.1:
            panel.axhline(usable, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.5)
            right = panel.get_yaxis_transform()
            panel.text(1.005, usable, GPUS[gpu].name, transform=right, va="center", fontsize=8.5, color=MUTED)
    turned = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    panel.set_xticks(places)
    panel.set_xticklabels([*MODELS] * len(BARS), fontdict=turned, fontsize=8.5, color=MUTED)
    panel.set_ylabel("GiB", fontsize=9, color=MUTED)
    panel.yaxis.grid(color=GRID, linewidth=0.7)
