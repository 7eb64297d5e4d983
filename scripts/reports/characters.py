"""The page and the figure of `figure_characters`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.common.command import values_of
from scripts.common.jobs import SHARED, Contender, in_steps, rate_of
from scripts.common.means import Mean
from scripts.common.pages import INK, MUTED, WIDTH, name_rows, table
from scripts.common.records import Row

# matplotlib is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from matplotlib.figure import Figure


def shared_settings(row: Row) -> tuple[str, ...]:
    """What two rows must share to be compared at several learning rates: all but the rate and the seed."""
    values = values_of(row["settings"])
    return tuple(f"{flag} {' '.join(given)}" for flag, given in values.items() if flag != "--lr")


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """Of each contender and length the rows of all seeds at the rate with the highest validation accuracy, by
    the seed that came first."""
    best = []
    for mine in _by_run(rows):
        first = [row for row in mine if row["seed"] == mine[0]["seed"]]
        rate = rate_of(max(first, key=lambda row: float(row["accuracy"])))
        best += [row for row in mine if rate_of(row) == rate]
    return best


def document(
    name: str,
    rows: Sequence[Row],
    contenders: Mapping[str, Contender],
    figure: str,
    pairs: Path,
    families: Sequence[Row] = (),
) -> str:
    """The Markdown page; `pairs` is a picture of the hardest pairs, if it is there, and `families` what the
    best run makes of each test family."""
    lines = [
        f"# Heads compared on characters: {name}",
        "",
        "Families of typefaces never seen in training: the learning rate is the best on the *validation* "
        "families, by the first seed; the runs at that rate are then scored once on all pictures of the "
        "*test* families. One row for each head and number of steps, from "
        f"[the record](characters_{name}.csv); ± is half of a 95 % interval over seeds (Student t), n their "
        "number. Nats are exact negative log-likelihoods. Seconds are those of the training loop; core "
        "seconds what the whole command took of the processor: start, evaluations and, for class means, the "
        "passes that make them.",
        "",
        f"![What each head reads of families never seen, and what it took]({figure})",
        "",
    ]
    cells = []
    for mine in sorted(_by_run(best_rows(rows)), key=lambda mine: -_mean(mine, "accuracy").value):
        first = mine[0]
        tried = {rate_of(row) for row in rows if _same_run(row, first)}
        quiet = [row for row in mine if not row["machine"].endswith(SHARED)]
        cells.append(
            [
                contenders[first["contender"]].title,
                str(len(mine)),
                f"{rate_of(first)} of {len(tried)}",
                f"{int(first['steps']):,}",
                _percent(mine, "accuracy"),
                _percent(mine, "test_accuracy"),
                _percent(mine, "test_new_accuracy"),
                _percent(mine, "test_group_accuracy"),
                _plain(mine, "test_loss", 3),
                _plain(quiet, "seconds", 0),
                _plain(mine, "core_seconds", 0),
                _plain(mine, "peak_gib", 2),
                f"{int(first['parameters']):,}",
                _plain(mine[:1], "exported_mb", 1),
            ]
        )
    heading = ["head", "n", "rate", "steps", "validation", "**test**", "never trained", "test, group"]
    heading += ["test nats", "seconds", "core s", "peak GiB", "parameters", "exported MB"]
    lines += [table(heading, cells), ""]
    if families:
        ordered = sorted(families, key=lambda row: -float(row["accuracy"]))
        cells = [
            [row["family"], f"{int(row['pictures']):,}", f"{100 * float(row['accuracy']):.2f} %"]
            for row in ordered
        ]
        title = contenders[families[0]["contender"]].title
        lines += [f"The test families one by one, as the best of them ({title}) reads them:", ""]
        lines += [table(["family", "pictures", "right"], cells), ""]
    if pairs.exists():
        lines += [
            "The characters that the best of them takes for each other most often, two and two, in the test "
            "families:",
            "",
            f"![The hardest pairs]({pairs.name})",
            "",
        ]
    lines += ["```bash"]
    for row in best_rows(rows):
        flags = " ".join(in_steps(row["flags"].split(), int(row["steps"])))
        lines += [f"train_classifier {row['settings']} {flags} --seed {row['seed']}"]
    lines += ["```"]
    if missing := [name for name in contenders if name not in {row["contender"] for row in rows}]:
        lines += ["", f"Not trained yet: {', '.join(missing)}."]
    return "\n".join(lines)


def draw(rows: Sequence[Row]) -> Figure:
    """What each head reads of families never seen, and what it took of the processor; the best one above."""
    from matplotlib.figure import Figure

    best = _by_run(best_rows(rows))
    best.sort(key=lambda mine: _mean(mine, "accuracy").value)
    names = [f"{mine[0]['contender']}, {int(mine[0]['steps']):,} steps" for mine in best]
    figure = Figure(figsize=(WIDTH, 1.2 + 0.28 * len(best)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for place, mine in enumerate(best):
        test = [100 * float(row["test_accuracy"]) for row in mine if row.get("test_accuracy")]
        if test:
            mean = Mean.of(test)
            left.errorbar(mean.value, place, xerr=mean.half, fmt="o", markersize=6, color="C0", capsize=2)
        valid = 100 * _mean(mine, "accuracy").value
        left.plot(valid, place, "o", markersize=8, color="C1", markerfacecolor="none")
        if any(row.get("core_seconds") for row in mine):
            right.plot(_mean(mine, "core_seconds").value, place, "o", markersize=6, color=MUTED)
    for panel in (left, right):
        name_rows(panel, names if panel is left else [""] * len(best))
    left.set_xlim(-3, 103)
    left.set_xlabel("pictures named right (%)", color=MUTED, fontsize=9)
    right.set_xlim(0, 1.15 * right.get_xlim()[1])
    right.set_xlabel("core seconds", color=MUTED, fontsize=9)
    left.plot([], [], "o", markersize=6, color="C0", label="test families")
    left.plot([], [], "o", markersize=8, color="C1", markerfacecolor="none", label="validation families")
    figure.legend(*left.get_legend_handles_labels(), fontsize=9, loc="outside upper right", ncols=2,
                  frameon=False, labelcolor=INK)  # fmt: skip
    return figure


def _by_run(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each contender and length, whatever their seeds."""
    runs: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        runs.setdefault((row["contender"], *shared_settings(row)), []).append(row)
    return list(runs.values())


def _same_run(row: Row, other: Row) -> bool:
    return row["contender"] == other["contender"] and shared_settings(row) == shared_settings(other)


def _mean(rows: Sequence[Row], column: str) -> Mean:
    return Mean.of([float(row[column]) for row in rows if row.get(column)])


def _percent(rows: Sequence[Row], column: str) -> str:
    found = [row for row in rows if row.get(column)]
    if not found:
        return ""
    mean = _mean(found, column)
    return f"{Mean(100 * mean.value, mean.half and 100 * mean.half, mean.n).show(2)} %"


def _plain(rows: Sequence[Row], column: str, digits: int) -> str:
    found = [row for row in rows if row.get(column)]
    return _mean(found, column).show(digits) if found else ""
