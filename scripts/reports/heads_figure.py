"""The figure of `compare_heads`: loss against seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scripts.common.contenders import Comparison
from scripts.common.jobs import rate_of
from scripts.common.means import Mean
from scripts.common.pages import WIDTH
from scripts.common.records import Row
from scripts.reports.heads_rows import best_rates, families_of, losses_by_rate, timed_rows, trained_on

# matplotlib is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator


Points = dict[str, tuple[float, float]]  # contender -> (seconds a step, loss)


def draw(rows: Sequence[Row], comparison: Comparison) -> Figure:
    """Validation loss at the best learning rate against seconds a step, the Pareto front as a line.

    A panel for all that differs only in the learning rate, on which the seconds do not depend. Of two heads
    alone the table tells as much, so they have a panel only if nothing else has.
    """
    from matplotlib.figure import Figure

    parts = [family for family in families_of(rows) if timed_rows(family)[1]]
    parts = [family for family in parts if len({row["contender"] for row in family}) > 2] or parts
    figure = Figure(
        figsize=(WIDTH, (5.2 if len(parts) < 3 else 4.5) * max(1, len(parts))), layout="constrained"
    )
    panels: Sequence[Axes] = list(figure.subplots(len(parts), squeeze=False)[:, 0]) if parts else []
    drawn = [draw_panel(panel, family, comparison) for panel, family in zip(panels, parts, strict=True)]
    figure.draw_without_rendering()  # fixes the scales, on which the places of the labels depend
    for panel, points in zip(panels, drawn, strict=True):
        put_labels(panel, points)
    return figure


def draw_panel(panel: Axes, family: Sequence[Row], comparison: Comparison) -> Points:
    """One panel, without labels -> its points.

    A head trained at one rate only, where others had several, is hollow: it may do better at another.
    """
    from matplotlib.ticker import NullLocator

    place, timed = timed_rows(family)
    losses, rates = losses_by_rate(family), best_rates(family)
    swept = max(map(len, losses.values())) > 1
    points: Points = {}
    for name, by_rate in losses.items():
        rate = rates[name]
        own = [row for row in timed if row["contender"] == name]
        # Those of the same runs, if they were timed: the machine may be another one on another day.
        own = [row for row in own if rate_of(row) == rate] or own
        if own:
            loss = Mean.of(list(by_rate[rate].values()))
            seconds = Mean.of([float(row["seconds_per_step"]) for row in own])
            points[name] = (seconds.value, loss.value)
            fill = "white" if swept and len(by_rate) == 1 else "C0"
            x, y = points[name]
            panel.errorbar(
                x, y, yerr=loss.half, fmt="o", markersize=5, capsize=2, color="C0", markerfacecolor=fill
            )
    best = [points[name] for name in front(points)]
    panel.plot(*zip(*best, strict=True), color="C1", linewidth=1.2, zorder=0, label="Pareto front")
    panel.set_xscale("log")
    panel.margins(x=0.32, y=0.12)
    panel.xaxis.set_major_locator(ticks(*panel.get_xlim()))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:,.5g}")
    panel.set(xlabel=f"seconds a training step, median ({place[0]}, {place[1]} thread(s))")
    panel.set(ylabel="validation loss (nats)", title=trained_on(family[0], comparison))
    panel.grid(alpha=0.3, which="both")
    if swept:
        panel.plot([], [], "o", color="C0", markersize=5, label="at the best learning rate of several")
        panel.plot([], [], "o", color="C0", markerfacecolor="white", markersize=5, label="at one only")
    panel.legend(fontsize=9)
    return points


def front(points: Points) -> list[str]:
    """The names of the points that no other point beats in both, from left to right."""
    best, names = math.inf, []
    for name, (_, loss) in sorted(points.items(), key=lambda item: item[1]):
        if loss < best:
            best = loss
            names.append(name)
    return names


def ticks(left: float, right: float) -> Locator:
    """What to label on a logarithmic axis: on a short one 1, 2 and 5 would leave a label, or none."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if right < 3 * left:
        return MaxNLocator(6, steps=(1, 2, 5, 10), min_n_ticks=3)
    return LogLocator(subs=(1, 2, 5) if right > 10 * left else (1, 1.5, 2, 3, 5, 7))


def put_labels(panel: Axes, points: Points) -> None:
    """Write each point's name beside it, on whichever side and height there is room."""
    size, scale = 9, panel.figure.dpi / 72
    places = {name: panel.transData.transform(point) / scale for name, point in points.items()}  # in points
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places.values()]
    for name, (x, y) in sorted(places.items(), key=lambda item: item[1][1]):
        width, height = 0.56 * size * len(name), 1.3 * size
        rows = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5)
        shifts = [(side, row * height) for row in rows for side in (6, -6 - width)]
        boxes = [(x + dx, y + dy - height / 2, x + dx + width, y + dy + height / 2) for dx, dy in shifts]
        free = [i for i, box in enumerate(boxes) if not any(overlap(box, other) for other in taken)]
        chosen = free[0] if free else 0
        taken.append(boxes[chosen])
        arrow = {"arrowstyle": "-", "linewidth": 0.4, "color": "grey"} if shifts[chosen][1] else None
        panel.annotate(
            name, points[name], shifts[chosen], textcoords="offset points", fontsize=size, va="center",
            arrowprops=arrow,
        )  # fmt: skip


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, bottom, right, top) share a point."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
