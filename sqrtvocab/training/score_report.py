"""The scores of an evaluation with the names of classes and groups: as JSON, in a terminal, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch

from sqrtvocab.partition import Partition
from sqrtvocab.training.scores import BINS, Scores

SHOWN = 10  # groups at either end
_NAMED = 3  # classes of a group
_WIDTH = 79  # a table with names must fit a terminal

GroupName = Callable[[int], str]


def group_by_classes(partition: Partition, classes: Sequence[str], counts: npt.ArrayLike) -> GroupName:
    """Names a group by its most frequent classes, such as "cat, dog, cow, …"."""
    examples = torch.as_tensor(counts)

    def name(group: int) -> str:
        members = members_of(partition, group)
        order = examples[members].argsort(descending=True, stable=True)
        few = [classes[int(member)] for member in members[order[:_NAMED]]]
        return ", ".join([*few, *(["…"] if len(members) > _NAMED else [])])

    return name


def members_of(partition: Partition, group: int) -> torch.Tensor:
    """The classes of a group, on the CPU."""
    device = None if partition.order is None else partition.order.device
    return partition.slots(torch.tensor([group], device=device))[0].unique().cpu()


def score_document(scores: Scores, counts: npt.ArrayLike, group_name: GroupName) -> dict[str, Any]:
    """Everything beyond the few main numbers, as plain JSON values. `counts` as in `Scores.bands`."""
    ranked = scores.groups()
    ends = {"best": ranked[:SHOWN], "worst": ranked[::-1][:SHOWN]}
    return {
        "mean_over_classes": scores.mean_class_accuracy,
        "by_frequency": {
            band.name: {
                "classes": band.classes,
                "examples": [band.least, band.most],
                "rows": band.rows,
                "accuracy": band.accuracy,
                "loss": band.loss,
            }
            for band in scores.bands(counts)
        },
        "calibration": {
            "error": scores.calibration_error,
            "bins": [
                {"from": number / BINS, **(one._asdict() if one else {"rows": 0})}
                for number, one in enumerate(scores.reliability())
            ],
        },
        "groups": {
            end: [{**score._asdict(), "name": group_name(score.group)} for score in few]
            for end, few in ends.items()
        },
        "confused_groups": [
            {"true": group_name(true), "predicted": group_name(predicted), "rows": rows}
            for true, predicted, rows in scores.confused_groups(SHOWN)
        ],
    }


def score_lines(document: Mapping[str, Any], unit: str) -> list[str]:
    """What `score_document` has made, as tables for a terminal.

    Args:
        unit: what a row is, such as images.
    """
    lines = []
    if bands := document["by_frequency"]:
        lines += ["", f"{'by frequency':<22}{'accuracy':>9}{'loss':>9}{unit:>9}  classes, examples of each"]
        for name, band in bands.items():
            least, most = band["examples"]
            seen = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            lines.append(f"{name:<20}{_numbers(band)}  {band['classes']:,}, {seen}")
    for end, scores in document["groups"].items():
        if scores:
            lines += ["", f"{f'{end} groups, by loss':<22}{'accuracy':>9}{'loss':>9}{unit:>9}"]
            for score in scores:
                label = f"{score['group']}"
                lines.append(_fit(f"{label:<20}{_numbers(score)}  {score['name']}"))
    if pairs := document["confused_groups"]:
        lines += ["", f"{unit} of one group taken for another"]
        for pair in pairs:
            half = (_WIDTH - 20) // 2
            true, predicted = (shorten(pair[end], half) for end in ("true", "predicted"))
            lines.append(_fit(f"{pair['rows']:>9,}  {true} taken for {predicted}"))
    lines += ["", f"{'calibration error':<20}{document['calibration']['error']:>11.2%}"]
    lines += [f"{'  when sure by':<22}{'accuracy':>9}{'':>9}{unit:>9}"]
    for one in document["calibration"]["bins"]:
        if one["rows"]:
            sure = f"  {one['confidence']:.1%}"
            lines.append(f"{sure:<22}{one['accuracy']:>9.1%}{'':>9}{one['rows']:>9,}")
    return lines


def _numbers(score: Mapping[str, Any]) -> str:
    return f"{score['accuracy']:>11.1%}{score['loss']:>9.3f}{score['rows']:>9,}"


def groups_in_markdown(document: Mapping[str, Any], unit: str) -> str:
    """The best and the worst groups, for `Logbook.text`."""
    lines = [f"| | group | accuracy | group right | loss | {unit} |", "|---|---|---:|---:|---:|---:|"]
    for end, scores in document["groups"].items():
        lines += [
            f"| {end} | {score['group']}: {_plain(score['name'])} | {score['accuracy']:.1%} "
            f"| {score['group_accuracy']:.1%} | {score['loss']:.3f} | {score['rows']:,} |"
            for score in scores
        ]
    return "\n".join(lines)


def shorten(name: str, width: int) -> str:
    """A name on one line of at most `width` characters."""
    words = " ".join(name.split())
    return words if len(words) <= width else words[: width - 1] + "…"


def _fit(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def _plain(name: str) -> str:
    """A name that Markdown leaves alone."""
    return "".join(f"\\{sign}" if sign in "|\\`*_<>[]#" else sign for sign in name)
