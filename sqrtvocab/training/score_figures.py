"""Pictures of an evaluation's scores for TensorBoard, legible at the size at which it shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sqrtvocab.training.logbook import Logbook
from sqrtvocab.training.score_report import GroupName, groups_in_markdown, score_document
from sqrtvocab.training.scores import BINS, Scores

if TYPE_CHECKING:  # a training must not wait for matplotlib before there is anything to draw
    from matplotlib.figure import Figure

# TensorBoard shows a picture about 345 pixels wide: at 100 dots an inch nothing is scaled down.
WIDTH, HEIGHT = 3.45, 3.15  # inches
NUMBERS_UP_TO = 12  # rows of a matrix that has room for its numbers
_SHOWN_CELLS = 64


def show_scores(
    book: Logbook, scores: Scores, counts: npt.ArrayLike, group_name: GroupName, unit: str, step: int
) -> None:
    """Everything of an evaluation that is no scalar and means the same in every experiment."""
    book.figure("calibration/reliability", reliability_figure(scores), step)
    book.figure("confusion/groups", group_confusion_figure(scores), step)
    book.text("groups", groups_in_markdown(score_document(scores, counts, group_name), unit), step)
    if scores.group_loss:  # a head without groups is always sure of them
        book.histogram("probability/true_group", scores.group_probability, step)


def reliability_figure(scores: Scores) -> Figure:
    """How often the best class is right, by the probability given to it."""
    figure = new_figure()
    axis = figure.add_axes((0.16, 0.16, 0.8, 0.66))
    bins = [(number, one) for number, one in enumerate(scores.reliability()) if one]
    most = max((one.rows for _, one in bins), default=1)
    middles = [(number + 0.5) / BINS for number, _ in bins]
    axis.bar(
        middles,
        [one.rows / most for _, one in bins],
        1 / BINS,
        color="0.88",
        label=f"predictions (most: {most:,})",
    )
    axis.plot([0, 1], [0, 1], color="0.4", linewidth=1, linestyle="--")
    axis.plot(
        [one.confidence for _, one in bins],
        [one.accuracy for _, one in bins],
        "o-",
        color="tab:blue",
        label="accuracy",
    )
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the best class", ylabel="how often it is right")
    axis.set_title(f"calibration error {scores.calibration_error:.1%}", fontsize=11, pad=22)
    axis.legend(loc="lower center", bbox_to_anchor=(0.46, 1.0), ncols=2, fontsize=8, frameon=False)
    return figure


def group_confusion_figure(scores: Scores) -> Figure:
    """Which group the rows of each group are taken for."""
    cells, groups = len(scores.confusion), len(scores.by_group)
    # Where groups go by frequency, the last ones may not occur at all.
    used = 1 + max(np.flatnonzero(scores.confusion.sum(0) + scores.confusion.sum(1)).tolist(), default=0)
    shown = -(-used * groups // cells)
    matrix = pooled(scores.confusion[:used, :used], _SHOWN_CELLS)
    title = f"{groups:,} groups" if shown == groups else f"the first {shown:,} of {groups:,} groups"
    title += "" if len(matrix) >= shown else f", about {shown / len(matrix):.1f} to a cell"
    return matrix_figure(matrix, None, "predicted group", "true group", title, span=shown)


def pooled(matrix: npt.NDArray[np.float64], most: int) -> npt.NDArray[np.float64]:
    """A square matrix of counts with neighbours added up, so that at most `most` rows are left."""
    cells = min(len(matrix), most)
    place = np.arange(len(matrix)) * cells // max(len(matrix), 1)
    rows = np.zeros((cells, len(matrix)))
    np.add.at(rows, place, matrix)
    pool = np.zeros((cells, cells))
    np.add.at(pool.T, place, rows.T)
    return pool


def matrix_figure(
    counts: npt.NDArray[np.float64],
    labels: list[str] | None,
    across: str,
    down: str,
    title: str,
    span: int | None = None,
) -> Figure:
    """A confusion matrix with a colour scale, and with its numbers in per cent where there is room.

    Args:
        counts: [C, C]; each row is divided by its sum.
        labels: of rows and columns; None numbers them.
        span: what the numbers go up to, where several things share a cell.
    """
    from matplotlib.ticker import MaxNLocator

    total = counts.sum(1, keepdims=True)
    shares = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    figure = new_figure()
    # Fixed places instead of a layout engine, which takes most of a second for each figure.
    longest = max(map(len, labels), default=0) if labels else 3
    left = 0.15 + 0.019 * longest
    bottom = 0.17 + (0.021 * longest if labels else 0.0)
    axis = figure.add_axes((left, bottom, 0.8 - left, 0.91 - bottom))
    size = len(counts)
    extent = (0, span, span, 0) if span else (-0.5, size - 0.5, size - 0.5, -0.5)
    image = axis.imshow(
        shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=extent, interpolation="nearest"
    )
    bar = figure.colorbar(image, cax=figure.add_axes((0.82, bottom, 0.03, 0.91 - bottom)))
    bar.set_ticks([0, 0.5, 1], labels=["0 %", "50 %", "100 %"], fontsize=8)
    axis.set_xlabel(across)
    axis.set_ylabel(down)
    axis.set_title(title, fontsize=11)
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_locator(MaxNLocator("auto", integer=True))  # there is no group 2.5
    if labels:
        axis.set_xticks(range(size), labels, rotation=90, fontsize=9)
        axis.set_yticks(range(size), labels, fontsize=9)
    if size <= NUMBERS_UP_TO and (not span or span == size):
        shift = 0.5 if span else 0.0
        for row, column in np.argwhere(shares >= 0.005):
            share = shares[row, column]
            axis.text(
                column + shift, row + shift, f"{100 * share:.0f}", ha="center", va="center",
                fontsize=9 if size <= 8 else 7.5, color="white" if share > 0.5 else "0.15",
            )  # fmt: skip
    return figure


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """A figure without pyplot: no global state, nothing to close, no display needed."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100)
