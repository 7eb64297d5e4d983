"""The page of `compare_heads`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scripts.common.command import command_with, values_of
from scripts.common.contenders import Comparison
from scripts.common.jobs import about_older, rate_of
from scripts.common.means import Mean, paired
from scripts.common.pages import table
from scripts.common.records import Row
from scripts.reports.heads_rows import (
    Entry,
    Place,
    best_rates,
    chosen_by,
    families_of,
    losses_by_rate,
    sections,
    trained_on,
)


def document(rows: Sequence[Row], comparison: Comparison, figure: str, older: Sequence[Row] = ()) -> str:
    """The whole Markdown page; of the older rows it says only that they are there."""
    rates = "All heads share one learning rate; each may have a better one."
    if comparison.several_rates:
        rates = "Within a section all heads share one learning rate; sections differ in it."
    lines = [
        f"# {comparison.title}",
        "",
        f"Made by the command below each table from [its record](heads_{comparison.name}.csv); then the "
        "command of each run. Validation loss in nats; ± is half of a 95 % interval over seeds (Student t), "
        "n the number of seeds. Training seconds are the time of the training loop, reading batches "
        "included; tokenising, evaluation and saving are left out. Seconds a step are the median over the "
        f"steps. {rates}",
        "",
        f"![Validation loss against seconds a step]({figure})",
    ]
    for title, parts in rate_tables(rows, comparison).items():
        lines += ["", f"## Each at its best learning rate: {title}", "", *parts]
    for (settings, _), (place, entries) in sections(rows, comparison.contenders).items():
        lines += section(settings, place, entries, comparison)
    lines += about_older(older)
    lines += ["", *(f"- {note}" for note in comparison.notes)]
    return "\n".join(lines)


def section(settings: str, place: Place, entries: Sequence[Entry], comparison: Comparison) -> list[str]:
    """The lines about what was trained with the same settings."""
    first = entries[0].rows[0]
    rate = rate_of(first) if comparison.several_rates else ""
    lines = [
        "",
        f"## {trained_on(first, comparison)}" + (f", learning rate {rate}" if rate else ""),
        "",
        f"`{settings}`, {int(first['training_items']):,} {comparison.item}s to train on. {place[0]}, "
        f"{place[1]} thread(s), torch {place[2]}.",
        "",
        results_table(entries, comparison),
    ]
    losses = {entry.name: entry.losses for entry in entries}
    flats = {name: flat_of(name, losses, comparison) for name in comparison.like if name in losses}
    found = {
        f"`{name}` less `{flat}`": paired(losses[name], losses[flat])
        for name, flat in flats.items()
        if flat in losses
    }
    shown = [f"{pair} {mean.show(3, '+')} (n = {mean.n})" for pair, mean in found.items() if mean]
    if shown:
        lines += ["", f"Like for like, paired by seed: {'; '.join(shown)}."]
    if any(row not in entry.timed for entry in entries for row in entry.rows):
        lines += [
            "",
            "Losses are of all runs; seconds are left out where other work shared a core, or on another "
            "machine.",
        ]
    again = command_with(f"scripts/compare_heads.py {comparison.name}", flags_of(entries, comparison))
    lines += ["", again, "", "```bash", f'settings="{settings}"']
    for entry in entries:
        known = comparison.contenders[entry.name]
        source = f" --embeddings RUN_OF_{known.embeddings_of}" if known.embeddings_of else ""
        lines.append(f"{comparison.program} $settings {known.flags}{source}  # {entry.name}")
    return [*lines, "```"]


def flags_of(entries: Sequence[Entry], comparison: Comparison) -> dict[str, Sequence[object]]:
    """The flags of `compare_heads` that train what a section holds."""
    rows = [row for entry in entries for row in entry.rows]
    values = values_of(rows[0]["settings"])
    values["--steps"] = values["--max-steps"]
    shape = ("--hidden-size", "--num-layers", "--num-attention-heads", "--seq-len")
    text = ("--data", "--tokenizer", *shape, "--optimizer", "--lr")
    known = [*(text if "--data" in values else ("--only",)), "--batch-size", "--steps"]
    known += ["--eval-tokens", "--eval-images"]
    seeds = sorted({int(row["seed"]) for row in rows})
    flags: dict[str, Sequence[object]] = {flag: values[flag] for flag in known if flag in values}
    flags["--seeds"] = seeds
    names = [entry.name for entry in entries]
    return flags if set(names) <= set(comparison.listed) else {**flags, "--contenders": names}


def rate_tables(rows: Sequence[Row], comparison: Comparison) -> dict[str, list[str]]:
    """What was trained -> the lines about the heads, each at the best of its learning rates.

    Only where a head and the flat head to compare it with were both trained at several.
    """
    tables = {}
    for family in families_of(rows):
        losses = losses_by_rate(family)
        several = {name: by_rate for name, by_rate in losses.items() if len(by_rate) > 1}
        if not any(
            name in several and flat_of(name, several, comparison) in several for name in comparison.like
        ):
            continue
        best = {name: rate for name, rate in best_rates(family).items() if name in several}
        at_best = {name: several[name][rate] for name, rate in best.items()}
        means = {name: Mean.of(list(found.values())) for name, found in at_best.items()}
        lines = []
        for name in sorted(best, key=lambda name: means[name].value):
            gap = paired(at_best[name], at_best.get(flat_of(name, at_best, comparison), {}))
            shown = "" if gap is None else f"{gap.show(3, '+')} (n = {gap.n})"
            tried = ", ".join(sorted(several[name], key=float))
            lines.append([f"`{name}`", best[name], tried, str(means[name].n), means[name].show(3), shown])
        head = ["", "best rate", "of", "n", "validation loss", "less its flat head"]
        by = "mean loss over the seeds that a head has at a rate"
        if chosen_by(family) == "training_loss":
            by = "training loss of the last tenth of the steps, on text not seen before"
        about = f"By the {by}; `less its flat head` compares both at their best, paired by seed."
        tables[trained_on(family[0], comparison)] = [about, "", table(head, lines)]
    return tables


def flat_of(name: str, trained: Collection[str], comparison: Comparison) -> str:
    """The flat head to compare another with, in the form of it that was trained."""
    flat = comparison.like.get(name, "")
    return flat if flat in trained else comparison.same.get(flat, "")


def results_table(entries: Sequence[Entry], comparison: Comparison) -> str:
    """The contenders by loss."""
    losses = {entry.name: entry.losses for entry in entries}
    reference = comparison.reference
    if reference not in losses:
        reference = next((other for other in comparison.same.values() if other in losses), reference)
    flat = losses.get(reference, {})
    head = ["", "head", "n", "validation loss", f"less `{reference}`", *comparison.columns.values()]
    head += ["training s", "s a step", "peak GiB", "parameters", "of the head"]
    rows = []
    for entry in entries:
        loss = Mean.of(list(entry.losses.values()))
        difference = None if entry.name == reference else paired(entry.losses, flat)
        gap = "" if difference is None else difference.show(3, "+")
        if difference is not None and difference.n < loss.n:
            gap += f" (n = {difference.n})"
        cells = [f"`{entry.name}`", entry.title, str(loss.n), loss.show(3), gap]
        for column in comparison.columns:
            mean = entry.mean(column)
            percent = Mean(100 * mean.value, mean.half and 100 * mean.half, mean.n)
            cells.append(f"{percent.show(1)} %" if "accuracy" in column else mean.show(3))
        seconds, per_step = entry.timed_mean("seconds"), entry.timed_mean("seconds_per_step")
        cells.append("" if seconds is None else f"{seconds.value:,.{0 if seconds.value >= 100 else 2}f}")
        cells.append("" if per_step is None else f"{per_step.value:,.2f}")
        cells.append(f"{entry.mean('peak_gib').value:,.2f}")
        cells += [f"{int(entry.rows[0][column]):,}" for column in ("parameters", "head_parameters")]
        rows.append(cells)
    return table(head, rows, left=2)
