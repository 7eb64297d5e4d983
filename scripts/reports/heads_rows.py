"""The rows of `compare_heads` put in order: which of them compare, at which learning rate a head is best."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.common.command import values_of
from scripts.common.contenders import Comparison
from scripts.common.jobs import SHARED, Contender, length_of, rate_of
from scripts.common.means import Mean
from scripts.common.records import Row


@dataclass(frozen=True)
class Entry:
    """One contender's rows with the same settings."""

    name: str
    title: str
    losses: dict[str, float]  # seed -> validation loss
    rows: list[Row]
    timed: list[Row]  # those whose seconds compare with the others'

    def mean(self, column: str) -> Mean:
        """Over the seeds."""
        return Mean.of([float(row[column]) for row in self.rows])

    def timed_mean(self, column: str) -> Mean | None:
        """The same of those rows whose seconds compare; None if there are none."""
        return Mean.of([float(row[column]) for row in self.timed]) if self.timed else None


Place = tuple[str, str, str]


def place_of(row: Row) -> Place:
    """Where the seconds of a row were measured."""
    return row["machine"], row["threads"], row["torch"]


def timed_rows(rows: Sequence[Row]) -> tuple[Place, list[Row]]:
    """The place of most rows, and those of them whose seconds compare: none where other work ran beside."""
    alone = [row for row in rows if not row["machine"].endswith(SHARED)]
    places = [place_of(row) for row in alone or rows]
    place = max(dict.fromkeys(places), key=places.count)
    return place, [row for row in alone if place_of(row) == place]


def sections(
    rows: Sequence[Row], contenders: Mapping[str, Contender]
) -> dict[tuple[str, str], tuple[Place, list[Entry]]]:
    """Settings and bytes of the data -> the place of most of its seconds, and its contenders by loss."""
    result = {}
    for setting in dict.fromkeys((row["settings"], row["data_bytes"]) for row in rows):
        mine = [row for row in rows if (row["settings"], row["data_bytes"]) == setting]
        place, timed = timed_rows(mine)
        entries = []
        for name, own in dict.fromkeys((row["contender"], row["flags"]) for row in mine):
            chosen = [row for row in mine if (row["contender"], row["flags"]) == (name, own)]
            title = contenders[name].title if name in contenders else name
            losses = {row["seed"]: float(row["loss"]) for row in chosen}
            entries.append(Entry(name, title, losses, chosen, [row for row in chosen if row in timed]))
        result[setting] = place, sorted(entries, key=lambda entry: Mean.of(list(entry.losses.values())).value)
    return result


def families_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that differ in contender, seed and learning rate only."""
    families: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        settings = re.sub(r" --lr \S+", "", row["settings"])
        families.setdefault((settings, row["data_bytes"]), []).append(row)
    return list(families.values())


def losses_by_rate(family: Sequence[Row], column: str = "loss") -> dict[str, dict[str, dict[str, float]]]:
    """Contender -> learning rate -> seed -> validation loss, or another column."""
    losses: dict[str, dict[str, dict[str, float]]] = {}
    for row in family:
        by_rate = losses.setdefault(row["contender"], {})
        by_rate.setdefault(rate_of(row), {})[row["seed"]] = float(row[column])
    return losses


def trained_on(row: Row, comparison: Comparison) -> str:
    """How long was trained, and what of the recipe is unusual: tokens, hidden width, optimiser."""
    words = values_of(row["settings"])
    tokenizer, hidden, optimizer = (
        words.get(flag, [""])[-1] for flag in ("--tokenizer", "--hidden-size", "--optimizer")
    )
    parts = [length_of(row, comparison.item)]
    if tokenizer.startswith("train:"):
        parts += [words["--data"][-1].rstrip("/"), f"V = {int(tokenizer.removeprefix('train:')):,}"]
    if hidden not in ("", "128"):
        parts.append(f"hidden {hidden}")
    if optimizer == "sgd":
        parts.append("SGD")
    return ", ".join(parts)


def chosen_by(family: Sequence[Row]) -> str:
    """The column that learning rates are chosen by: the training loss of the last steps if that is of text
    nobody had seen before, so that the score does not choose; older rows lack it."""
    fresh = all(int(row["items"]) <= int(row["training_items"]) for row in family)
    return "training_loss" if fresh and all(row.get("training_loss") for row in family) else "loss"


def best_rates(family: Sequence[Row]) -> dict[str, str]:
    """Contender -> the learning rate with the least mean loss over its seeds."""
    return {
        name: min(by_rate, key=lambda rate: Mean.of(list(by_rate[rate].values())).value)
        for name, by_rate in losses_by_rate(family, chosen_by(family)).items()
    }
