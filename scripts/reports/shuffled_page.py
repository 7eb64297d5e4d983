"""The page of `compare_heads images --shuffled-labels`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scripts.common.command import command_with, values_of
from scripts.common.jobs import SHARED, rate_of
from scripts.common.means import Mean
from scripts.common.pages import table
from scripts.common.records import Row
from scripts.common.shuffled import (
    NEAR,
    REFERENCE,
    Entry,
    classes_of,
    contenders,
    entries_of,
    family_of,
    steps_of,
)

WANTED = (4_608, 36_864, 184_320)


def document(rows: Sequence[Row], figure: str) -> str:
    """The whole Markdown page."""
    lines = [
        "# Many classes, labels that tell nothing",
        "",
        "Made by the command below each table from [its record](heads_shuffled.csv), a row for each run. "
        "Labels are shuffled (`--shuffle-labels`), so nothing is known of how the classes are made; the two "
        "oracles alone are told, and have the labels as they are made. Each contender is at the best of its "
        "learning rates *by validation images*; accuracy and exact negative log-likelihood (nats) are those "
        "of *test images*, which chose nothing. ± is half of a 95 % interval over seeds (Student t).",
        "",
        "**CPU s** are CPU seconds of the whole training command but its imports, not seconds on the clock: "
        "finding groups, drawing images, class vectors and the evaluation at the end included. *Equal time* "
        f"is what `{REFERENCE}` takes for the equal images: whose cost (the least of its runs) differs by "
        f"more than {NEAR:.0%} is trained again, at its best rate, for as many steps as fit.",
        "",
        f"![Accuracy and nats of the contenders]({figure})",
    ]
    families = dict.fromkeys(family_of(row["settings"]) for row in rows)
    for family in sorted(families, key=classes_of):
        lines += section([row for row in rows if family_of(row["settings"]) == family])
    there = {classes_of(row["settings"]) for row in rows}
    if missing := [f"{count:,}" for count in WANTED if count not in there]:
        lines += ["", f"Not trained yet: {' and '.join(missing)} classes."]
    return "\n".join(lines)


def section(rows: Sequence[Row]) -> list[str]:
    """The lines about runs that differ in contender, seed, rate and length only."""
    entries = entries_of(rows)
    first = entries[0].chosen
    num_classes, values = classes_of(first["settings"]), values_of(first["settings"])
    known = contenders(num_classes)
    by_name: dict[str, list[Entry]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    names = sorted(by_name, key=lambda name: mean(by_name[name], "test_loss").value)
    batch = values["--batch-size"][-1]
    guessing = f"Guessing: {1 / num_classes:.2%}, {math.log(num_classes):.3f} nats."
    machine = first["machine"].removesuffix(SHARED)
    lines = [
        "",
        f"## {num_classes:,} classes, {steps_of(first):,} steps of {batch} images",
        "",
        f"{guessing} `{family_of(first['settings'])}`. {machine}, {first['threads']} thread(s), torch "
        f"{first['torch']}.",
        "",
        table(
            ["", "head", "n", "rate", "of", "accuracy", "nats", "CPU s", "in equal time: steps", "accuracy",
             "nats", "CPU s", "peak GiB", "of the head"],
            [cells(name, known[name].title if name in known else name, by_name[name]) for name in names],
            left=2,
        ),
    ]  # fmt: skip
    gaps = {
        "Not trained yet": [name for name in known if name not in by_name],
        "At one learning rate so far, which may not be theirs": [
            name for name in names if all(len(entry.at_rates) == 1 for entry in by_name[name])
        ],
        "Equal time not trained yet": [
            name for name in names if any(entry.longer is None for entry in by_name[name])
        ],
    }
    for problem, of in gaps.items():
        if of:
            lines += ["", f"{problem}: {', '.join(f'`{name}`' for name in of)}."]
    if any(row["machine"].endswith(SHARED) for row in rows):
        lines += ["", "Other work shared the cores, which lengthens CPU seconds, too, and unevenly."]
    shared = ("--only", "--batch-size", "--eval-images", "--image-size", "--backbone")
    flags: dict[str, Sequence[object]] = {flag: values[flag] for flag in shared if flag in values}
    rates = sorted({rate_of(row) for entry in entries for row in entry.at_rates}, key=float)
    seeds = sorted({int(row["seed"]) for row in rows})
    flags |= {"--steps": [steps_of(first)], "--rates": rates, "--seeds": seeds}
    return [*lines, "", command_with("scripts/compare_heads.py images --shuffled-labels", flags)]


def mean(entries: Sequence[Entry], column: str) -> Mean:
    """Over the seeds, of the rows chosen."""
    return Mean.of([float(entry.chosen[column]) for entry in entries])


def cells(name: str, title: str, entries: Sequence[Entry]) -> list[str]:
    """The line of a contender."""
    chosen, longer = [entry.chosen for entry in entries], [entry.longer for entry in entries if entry.longer]
    rates = " and ".join(dict.fromkeys(rate_of(row) for row in chosen))
    tried = ", ".join(sorted({rate_of(row) for entry in entries for row in entry.at_rates}, key=float))
    line = [f"`{name}`", title, str(len(chosen)), rates, tried, *scores(chosen)]
    if longer:
        steps = Mean.of([float(steps_of(row)) for row in longer]).value
        line += [f"{steps:,.0f}", *scores(longer)]
    else:
        line += [""] * 4
    peak = Mean.of([float(row["peak_gib"]) for row in chosen]).value
    return [*line, f"{peak:.2f}", f"{int(chosen[0]['head_parameters']):,}"]


def scores(rows: Sequence[Row]) -> list[str]:
    """Accuracy, nats and CPU seconds."""
    accuracy = Mean.of([100 * float(row["test_accuracy"]) for row in rows])
    nats = Mean.of([float(row["test_loss"]) for row in rows])
    return [
        f"{accuracy.show(1)} %",
        nats.show(3),
        f"{Mean.of([float(row['cpu_seconds']) for row in rows]).value:,.0f}",
    ]
