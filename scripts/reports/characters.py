"""The page and the curves of `figure_characters`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.common.command import values_of
from scripts.common.jobs import SHARED, Contender, in_steps, metrics, rate_of
from scripts.common.means import Mean
from scripts.common.pages import MUTED, WIDTH, plain, table
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
    runs: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        runs.setdefault((row["contender"], *shared_settings(row)), []).append(row)
    best = []
    for mine in runs.values():
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
        f"![Accuracy on the validation families against minutes of training]({figure})",
        "",
    ]
    best: dict[tuple[str, ...], list[Row]] = {}
    for row in best_rows(rows):
        best.setdefault((row["contender"], *shared_settings(row)), []).append(row)
    cells = []
    for mine in sorted(best.values(), key=lambda mine: -_mean(mine, "accuracy").value):
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


def curves(rows: Sequence[Row], contenders: Mapping[str, Contender], runs: Path) -> Figure:
    """Accuracy on the validation families against minutes of training, of the best run of each head."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    panel = figure.subplots()
    drawn = set()
    for row in sorted(best_rows(rows), key=lambda row: -float(row["accuracy"])):
        if row["contender"] in drawn:
            continue
        drawn.add(row["contender"])
        points = _points(row, runs)
        title = contenders[row["contender"]].title
        line = panel.plot(
            [x for x, _ in points], [y for _, y in points], marker="o", markersize=3, linewidth=1.4
        )[0]
        panel.annotate(
            f" {title}", points[-1], fontsize=7.5, color=line.get_color(), va="center", annotation_clip=False
        )
    panel.set_xlabel("minutes of training", fontsize=8, color=MUTED)
    panel.set_ylabel("right, % of the validation families", fontsize=8, color=MUTED)
    panel.set_xlim(left=0)
    panel.set_ylim(0, 100)
    plain(panel)
    return figure


def _points(row: Row, runs: Path) -> list[tuple[float, float]]:
    """Minutes and per cent; the last point alone if the run is not there any more."""
    end = (float(row["seconds"]) / 60, 100 * float(row["accuracy"]))
    for folder in sorted(runs.glob(f"{row['contender']}-seed{row['seed']}-*")):
        found = [
            (line["minutes"], 100 * line["accuracy/overall"]) for line in metrics(folder, "accuracy/overall")
        ]
        if (
            found
            and abs(found[-1][1] - end[1]) < 1e-9
            and abs(60 * found[-1][0] - float(row["seconds"])) < 0.1
        ):
            return found
    return [end]


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
