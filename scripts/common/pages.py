"""What the scripts leave in their folder: Markdown, CSV and pictures, each whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqrtvocab.atomic import write_bytes, write_text

# matplotlib is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.3  # inches of a figure: GitHub shows 830 pixels, so that 9 points are 12 pixels
SURFACE, INK, MUTED, GRID = "#fcfcfb", "#0b0b0b", "#52514e", "#e1e0d9"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A Markdown table; all but the first `left` columns are numbers."""
    marks = ["---"] * left + ["---:"] * (len(header) - left)
    lines = [header, marks, *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_page(path: Path, *parts: str) -> None:
    """Paragraphs, tables and code blocks, an empty line between them."""
    write_text(path, "\n\n".join(parts) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows, with all columns that any of them has; "" where a row has none."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_figure(path: Path, figure: Figure) -> None:
    """A PNG of at most 256 colours: a third of the bytes, and nobody sees it."""
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=130, facecolor=SURFACE)
    with Image.open(full) as image:
        image.convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    write_bytes(path, small.getvalue())


def name_rows(panel: Axes, names: Sequence[str]) -> None:
    """Give a chart of dots a row for each name, the first one below."""
    plain(panel)
    panel.grid(axis="x", color=GRID)
    panel.set_ylim(-0.7, len(names) - 0.3)
    panel.set_yticks(range(len(names)), names, color=INK)


def plain(panel: Axes) -> None:
    """Give a panel the look of the paper's figures here: a pale surface and no frame but the base line."""
    panel.tick_params(labelsize=9, colors=MUTED, length=0, which="both")
    panel.set_axisbelow(True)
    panel.set_facecolor(SURFACE)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(GRID)
