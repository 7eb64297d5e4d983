"""The page of `figure_vocabulary`: from which V on a head with groups pays, and what each model costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scripts.common.command import command_with, values_of
from scripts.common.contenders import MEMORY_NOTE
from scripts.common.jobs import SHARED
from scripts.common.means import Mean, paired
from scripts.common.pages import table
from scripts.common.records import Row
from scripts.reports.vocabulary_rows import (
    OCCURRING,
    OURS,
    THEIRS,
    Entry,
    Section,
    about,
    crossings,
    crossover,
)


def document(parts: Sequence[Section], figure: str) -> str:
    """The Markdown page."""
    lines = [
        "# How large a vocabulary pays",
        "",
        "The rival of a cheap head is a small vocabulary. Each model is trained for the same minutes and "
        "scored by bits per byte of the whole validation text, which do not depend on the tokenizer. "
        f"`train:N` is a byte-level BPE learnt from the training text; `gpt2` is GPT-2's, `{OCCURRING}` "
        "those of its tokens that occur in the training text, all else falling into smaller ones, at worst "
        "into bytes. Both heads start from a prior. A model sees as much text as it can in that time. From "
        "[the record of the trainings](vocabulary.csv) and "
        "[what was measured afterwards](vocabulary_after.csv).",
        "",
        f"![Bits per byte against V]({figure})",
    ]
    for part in parts:
        lines += ["", *_section(part)]
    return "\n".join(lines)


def _section(part: Section) -> list[str]:
    first = part.rows[0]
    values = values_of(first["settings"])
    shared = first["machine"].endswith(SHARED)
    lines = [
        f"## {part.minutes:g} minutes each on `{values['--data'][0]}`",
        "",
        f"Hidden {values['--hidden-size'][0]}, {values['--num-layers'][0]} layers, sequences of "
        f"{values['--seq-len'][0]} tokens, {values['--batch-size'][0]} in a step, learning rate "
        f"{values['--lr'][0]} for all. {first['machine'].removesuffix(SHARED)}, {first['threads']} "
        f"thread(s), torch {first['torch']}.",
        "",
        " ".join(verdict(part)),
        "",
        _table(part),
        "",
        " ".join(_notes(part, shared)),
    ]
    flags: dict[str, Sequence[object]] = {
        "--data": values["--data"],
        "--vocabularies": list(dict.fromkeys(entry.vocabulary for entry in part.entries)),
        "--minutes": [f"{part.minutes:g}"],
        "--lr": values["--lr"],
        **{
            flag: values[flag]
            for flag in (
                "--hidden-size",
                "--num-layers",
                "--num-attention-heads",
                "--seq-len",
                "--batch-size",
            )
        },
        "--threads": [first["threads"]],
        "--seeds": sorted({int(row["seed"]) for row in part.rows}),
    }
    return [*lines, "", command_with("scripts/figure_vocabulary.py", flags)]


# ---- in words ----


def verdict(part: Section) -> list[str]:
    """Sentences: where the heads cross, below which V nobody needs groups, each head at its best, and how
    sure that is."""
    ours, theirs = part.curve(OURS), part.curve(THEIRS)
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        return ["No vocabulary has both heads yet."]
    better = [v for v in both if ours[v].value < theirs[v].value]
    crossed, at = crossings(ours, theirs), crossover(ours, theirs)
    here = "(after these minutes, on this text)"
    if not better:
        said = [
            f"**Up to V = {both[-1]:,} nobody needs a head with groups** {here}: at no size is `{OURS}` "
            f"better than `{THEIRS}`."
        ]
    elif at is None:
        said = [
            f"**There is no V from which on a head with groups pays** {here}: `{OURS}` is better than "
            f"`{THEIRS}` at V = {_list(better)}, but not at {both[-1]:,}."
        ]
    elif not crossed:
        said = [
            f"`{OURS}` is better than `{THEIRS}` at every size tried {here}: **below which V nobody needs a "
            f"head with groups is not known**, it is less than {both[0]:,}."
        ]
    elif [v for v in better if v < at]:
        worse = [v for v in both if v not in better]
        said = [
            f"From V ≈ {about(at)} on `{OURS}` is better than `{THEIRS}` {here}, and so it is at smaller V, "
            f"but not at {_list(worse)}: **there is no single V below which nobody needs a head with "
            "groups**."
        ]
    else:
        said = [
            f"**Below V ≈ {about(at)} nobody needs a head with groups** {here}; from there on `{OURS}` is "
            f"better than `{THEIRS}`."
        ]
    return [*said, *_sureness(part, both), *_best(part)]


def _sureness(part: Section, sizes: Sequence[int]) -> list[str]:
    """What the seeds say about the differences at these sizes."""
    gaps = {v: paired(*(_by_seed(part, head, v) for head in (OURS, THEIRS))) for v in sizes}
    known = {v: gap for v, gap in gaps.items() if gap is not None and gap.half is not None}
    shown = ", ".join(f"{gap.show(3, '+')} at {v:,}" for v, gap in gaps.items() if gap is not None)
    said = [f"`{OURS}` less `{THEIRS}`: {shown}."]
    if len(known) < len(sizes):
        alone = "One seed each" if not known else f"One seed at {_list([v for v in sizes if v not in known])}"
        said.append(f"{alone}: how much of a difference is chance is not known.")
    if unclear := [v for v, gap in known.items() if abs(gap.value) <= (gap.half or 0)]:
        said.append(f"At {_list(unclear)} the seeds do not tell the two apart.")
    return said


def _best(part: Section) -> list[str]:
    """Each head at the vocabulary that suits it best: who may choose V compares these."""
    best = {}
    for head in (OURS, THEIRS):
        mine = [entry for entry in part.entries if entry.head == head]
        best[head] = min(mine, key=lambda entry: entry.mean("bits_per_byte").value)
    scores = (
        {row["seed"]: float(row["bits_per_byte"]) for row in best[head].rows} for head in (OURS, THEIRS)
    )
    gap = paired(*scores)
    shown = ", ".join(
        f"`{head}` with `{entry.vocabulary}` (V = {entry.size:,}, {entry.mean('bits_per_byte').show(3)})"
        for head, entry in best.items()
    )
    if gap is None:
        return [f"Each at its best: {shown}."]
    if gap.half is not None and abs(gap.value) <= gap.half:
        needs = "cannot tell whether groups gain"
    else:
        needs = "gains by groups" if gap.value < 0 else "needs no groups"
    return [f"Each at its best: {shown}; who may choose V {needs} here ({gap.show(3, '+')}, n = {gap.n})."]


def _by_seed(part: Section, head: str, size: int) -> dict[str, float]:
    return {
        row["seed"]: float(row["bits_per_byte"])
        for entry in part.entries
        if (entry.head, entry.size) == (head, size) and entry.vocabulary != OCCURRING
        for row in entry.rows
    }


def _list(sizes: Sequence[int]) -> str:
    return ", ".join(f"{v:,}" for v in sizes)


# ---- in numbers ----


def _table(part: Section) -> str:
    texts = sorted({row["other"] for row in part.rows if row.get("other")})
    head = [
        "vocabulary", "head", "V", "bits per byte", *(f"of `{text}`" for text in texts), "minutes", "steps",
        "tokens seen", "MB of text seen", "s a step", "peak GiB", "parameters", "characters/s",
    ]  # fmt: skip
    return table(head, [_line(entry, texts) for entry in part.entries], left=2)


def _line(entry: Entry, texts: Sequence[str]) -> list[str]:
    scored = [[row for row in entry.rows if row.get("other") == text] for text in texts]
    return [
        f"`{entry.vocabulary}`",
        f"`{entry.head}`",
        f"{entry.size:,}",
        entry.mean("bits_per_byte").show(3),
        *(_mean(rows, "other_bits_per_byte").show(3) if rows else "" for rows in scored),
        f"{entry.mean('seconds').value / 60:.1f}",
        f"{entry.mean('steps').value:,.0f}",
        f"{entry.mean('items').value:,.0f}",
        f"{Mean.of([bytes_seen(row) for row in entry.rows]).value / 1e6:.1f}",
        f"{entry.mean('seconds_per_step').value:.2f}",
        f"{entry.mean('peak_gib').value:.2f}",
        f"{int(entry.rows[0]['parameters']):,}",
        f"{_mean(timed, 'characters_per_s').value:,.0f}" if (timed := _timed(entry.rows)) else "",
    ]


def bytes_seen(row: Row) -> float:
    """Bytes of the text trained on. A token holds as many as in the validation text: of its bits per byte and
    the loss, one is the other by bytes of a token."""
    return int(row["items"]) * float(row["loss"]) / (math.log(2) * float(row["bits_per_byte"]))


def _timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.get("characters_per_s")]


def _mean(rows: Sequence[Row], column: str) -> Mean:
    return Mean.of([float(row[column]) for row in rows])


def _notes(part: Section, shared: bool) -> list[str]:
    notes = [
        f"Steps are those of {part.minutes:g} minutes at the speed of a trial; *minutes* is what they took.",
        MEMORY_NOTE,
        "MB of text by the length of a token in the validation text.",
    ]
    asked = {entry.vocabulary: entry.size for entry in part.entries if entry.vocabulary.startswith("train:")}
    notes += [
        f"The text has pairs for {size:,} tokens only, where `{name}` asks for more."
        for name, size in asked.items()
        if size < int(name.removeprefix("train:"))
    ]
    if shared:
        notes.append("Other work shared the cores: the steps compare, the minutes and the speeds do not.")
    sizes = sorted({int(row["other_bytes"]) for row in part.rows if row.get("other")})
    if sizes:
        shown = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,}"
        notes.append(f"Other text: {shown} bytes of its validation part, bits per byte.")
    for place in sorted({row["written_on"] for row in _timed(part.rows)}):
        busy = ", beside other work" if place.endswith(SHARED) else ""
        notes.append(
            "Characters a second: sampling with top-k 50, one text at a time, all models in turns, medians "
            f"({place.removesuffix(SHARED)}{busy})."
        )
    return notes
