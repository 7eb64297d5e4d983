"""The figures of docs/results, drawn again from the tables beside them.

    python scripts/redraw_figures.py
    python scripts/redraw_figures.py --only memory heads_lm
    python scripts/redraw_figures.py --out /tmp/figures

Measures nothing.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scripts.common.command import RESULTS, make_folder, read_flags, run_script
from scripts.common.pages import write_figure
from scripts.common.records import Row

# What draws is imported where it is used: --help must not wait for matplotlib.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

Name = Literal[
    "classification", "classification_4608", "memory", "ablation", "heads_lm", "heads_images",
    "heads_shuffled",
]  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Draw figures again from their tables."""

    only: tuple[Name, ...] = (
        "classification",
        "classification_4608",
        "memory",
        "ablation",
        "heads_lm",
        "heads_images",
        "heads_shuffled",
    )
    """Which ones."""
    out: Path | None = None
    """Folder to write them to; docs/results by default."""


def rows_of(name: str) -> list[Row]:
    """A table of docs/results."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def classification(name: str) -> Figure:
    """The figure of `figure_classification`."""
    from scripts.reports.classification import draw

    curves = defaultdict(list)
    for row in rows_of(name):
        curves[row["run"]].append(row)
    # The page of the smaller set has no minutes: its run was paused.
    return draw(curves, ["minutes" if "minutes" in (RESULTS / f"{name}.md").read_text() else "images"])


def memory() -> Figure:
    """The figure of `table2_memory`."""
    from scripts.common.paper_memory import PAPER, SIZES
    from scripts.reports.memory_figure import draw

    return draw(rows_of("memory"), SIZES, list(PAPER))


def ablation() -> Figure:
    """The figure of `figure_ablation`."""
    from scripts.common.lm_models import Shape
    from scripts.reports.ablation import draw, joined

    page = (RESULTS / "ablation.md").read_text()
    # The record has losses of other settings, too; the page names those that it is about.
    losses = [row for row in rows_of("ablation_loss") if f"{row['settings']} --seed {row['seed']}`" in page]
    return draw(joined(rows_of("ablation"), losses), Shape())


def heads(name: str) -> Figure:
    """The figure of `compare_heads`."""
    from scripts.common.contenders import COMPARISONS
    from scripts.common.jobs import by_definition
    from scripts.reports.heads_figure import draw

    comparison = COMPARISONS[name]
    return draw(by_definition(rows_of(f"heads_{name}"), comparison.contenders)[0], comparison)


def heads_shuffled() -> Figure:
    """The figure of `compare_heads images --shuffled-labels`."""
    from scripts.reports.shuffled_figure import draw

    return draw(rows_of("heads_shuffled"))


def main(config: Config) -> None:
    """Read, draw."""
    out = make_folder(config.out, False)
    for name in config.only:
        if name == "heads_shuffled":
            figure = heads_shuffled()
        elif name.startswith("heads_"):
            figure = heads(name.removeprefix("heads_"))
        elif name.startswith("classification"):
            figure = classification(name)
        else:
            figure = {"memory": memory, "ablation": ablation}[name]()
        write_figure(out / f"{name}.png", figure)
        print(out / f"{name}.png")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
