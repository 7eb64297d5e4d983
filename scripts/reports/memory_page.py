"""The page of `table2_memory`: peaks by setting, size and model, beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from scripts.common.command import command_line
from scripts.common.lm_models import FLAT, FUSED_GELU, Shape
from scripts.common.pages import table
from scripts.common.paper_memory import BEST, CASES, COLUMNS, PAPER, PAPER_SETTING, SIZES, STATED
from scripts.common.records import Row

# torch is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from sqrtvocab.measure.gpu import GPU

PLACES = {  # of a figure here, beside the paper's
    "near": "near: at most 5 % below the paper's, or above by less than its rounding",
    "below": "lower: the rest is not explained",
    "above": "above: refuted",
}
Peaks = dict[tuple[str, str, str], int]  # setting, size and model -> bytes


def pages(rows: Sequence[Row], sizes: Mapping[str, Shape], gpus: Sequence[str]) -> list[str]:
    """The Markdown, part by part."""
    from sqrtvocab.measure.gpu import ALLOWANCE, GPUS
    from sqrtvocab.measure.machine import describe_machine
    from sqrtvocab.measure.simulate import AGREES_WITHIN

    peaks = {(row["setting"], row["size"], row["model"]): int(row["peak_bytes"]) for row in rows}
    shape = next(iter(sizes.values()))
    capacities = ", ".join(f"{GPUS[gpu].name} {GPUS[gpu].usable / 2**30:.2f}" for gpu in gpus)
    parts = [
        "# Memory of a training step",
        f"The paper's table 2. Batch {shape.batch_size} x {shape.seq_len} tokens, V = {shape.vocab_size:,}, "
        f"{shape.num_layers} layers, {shape.num_attention_heads} attention heads, AdamW; *grouped* is the "
        "paper's head with G = ⌊√V⌋, on GPT-2 as in the paper, *grouped-linear* our default. GiB, from "
        "shapes alone: no GPU was used. On a CPU the simulation agrees with real allocations within "
        f"{100 * AGREES_WITHIN:g} %, as the tests show. What is different on CUDA (attention kernels, the "
        "mask of dropout, autocast, storages of whole 512 bytes) is done by the rules in torch's sources; "
        "it has not been compared with a real GPU.",
        command_line(),
        f"Simulated on {describe_machine()}.",
        f"A GPU's capacity is what nvidia-smi reports (ECC on) less {ALLOWANCE / 2**30:.2f} GiB for driver, "
        f"CUDA context and workspaces: {capacities} GiB. `oom` is a peak above it. The allocator's "
        "fragmentation, which is not counted, comes on top of a peak.",
        "![Peak memory by part](memory.png)",
        "The bars show the moment of the peak. With a flat head that is in the loss, before there are "
        "gradients of the layers; where the logits are small it comes later, with gradients and fewer "
        "activations.",
        "## In short",
        table(
            ["setting", "", *(f"at {size}" for size in sizes)],
            [
                [key, f"{model} / grouped", *(f"{ratio(peaks, key, size, model):.2f}x" for size in sizes)]
                for key in CASES
                for model in (*FLAT, *FUSED_GELU)
            ],
            left=2,
        ),
        "GPT-2 and GPT-Neo are as `transformers` has them, with a GELU of five kernels that keep what they "
        "make; our models have the same function in one. *GPT-2, fused GELU* is GPT-2 with that change.",
    ]
    if sizes is SIZES:
        parts += against_the_paper(rows, peaks)
    for key, case in CASES.items():
        parts += [f"## {case.title}", f"`{key}`. {case.note} {shares(rows, key, next(iter(sizes)))}"]
        parts += verdicts(key, sizes, gpus, peaks)
    return parts


def verdicts(key: str, sizes: Mapping[str, Shape], gpus: Sequence[str], peaks: Peaks) -> list[str]:
    """A table of what fits on which GPU, and why it differs from the paper's, if the sizes are its."""
    from sqrtvocab.measure.gpu import GPUS

    compared = sizes is SIZES
    lines, differences = [], []
    for gpu, size in product(gpus, sizes):
        card, paper = GPUS[gpu], PAPER.get(gpu, {}).get(size) if compared else None
        cells = []
        for index, model in enumerate(COLUMNS):
            here = verdict(card, peaks[key, size, model])
            theirs = "-" if paper is None else _paper_cell(paper[index])
            cells.append(f"{theirs} / {here}" if compared else here)
            if paper is not None and (paper[index] is None) == card.fits(peaks[key, size, model]):
                told = f"{card.name}, {size}, {model}: paper {theirs}, here {here}; "
                differences.append(told + reason(key, card, size, model, peaks))
        cells.append(verdict(card, peaks[key, size, "grouped-linear"]))
        cells.append(verdict(card, peaks[BEST, size, "grouped"]))
        lines.append([card.name, size, *cells])
    beside = ", paper / here" if compared else ""
    names = [f"{name}{beside}" for name in ("GPT-2", "GPT-Neo", "ours (grouped)")]
    parts = [table(["GPU", "size", *names, "grouped-linear", "grouped, best settings"], lines, left=2)]
    if differences:
        parts += ["Verdicts that differ from the paper's:", "\n".join(f"- {line}." for line in differences)]
    return parts


def ratio(peaks: Peaks, key: str, size: str, model: str = "GPT-2") -> float:
    """How many times more a flat model takes than ours with the same settings; GPT-2's backbone is ours."""
    return peaks[key, size, model] / peaks[key, size, "grouped"]


def verdict(card: GPU, peak: int) -> str:
    """GiB, and whether that is too much."""
    return f"{peak / 2**30:.1f}" if card.fits(peak) else f"oom ({peak / 2**30:.1f})"


def shares(rows: Sequence[Row], key: str, size: str) -> str:
    """Which part of the peak the logits are."""
    told = []
    for model in COLUMNS:
        row = next(r for r in rows if (r["setting"], r["size"], r["model"]) == (key, size, model))
        logits, peak = (int(row[column]) / 2**30 for column in ("logits_bytes", "peak_bytes"))
        told.append(f"{logits:.1f} of {model}'s {peak:.1f}")
    return f"Logits and what is made of them at {size}: {', '.join(told)} GiB."


def reason(key: str, card: GPU, size: str, model: str, peaks: Peaks) -> str:
    """What is known about a verdict that is another than the paper's."""
    peak = peaks[key, size, model]
    left = (card.usable - peak) / 2**30
    narrow = abs(left) < 0.1 * card.usable / 2**30
    if not card.fits(peak):
        fitting = [other for other in CASES if card.fits(peaks[other, size, model])]
        told = ", ".join(f"`{other}` ({peaks[other, size, model] / 2**30:.1f})" for other in fitting)
        why = f"it fits under {told}" if told else "it fits under none of these settings"
        for smaller, row in STATED.items():
            if row == size:
                stated = peaks[key, smaller, model]
                fits = "fits" if card.fits(stated) else "does not fit either"
                why += f"; with the 8 layers that the paper states it takes {stated / 2**30:.1f} and {fits}"
        return f"only {-left:.2f} GiB too much, and {why}" if narrow else why
    paper = peaks[PAPER_SETTING, size, model]
    known = [] if key == PAPER_SETTING else [f"{100 * (1 - peak / paper):.0f} % less than under `paper`"]
    if narrow:
        known.append(f"only {left:.2f} GiB are left for the allocator's fragmentation")
    return ", and ".join(known) or "not explained"


def standing(paper: float, here: float, model: str) -> str:
    """Which of `PLACES` what is allocated here has beside what the paper says is reserved."""
    if here > paper + rounding(model):
        return "above"
    return "near" if here >= 0.95 * paper - rounding(model) else "below"


def rounding(model: str) -> float:
    """By how much more than it prints the paper may have measured: the flat models' are whole numbers."""
    return 0.5 if model in FLAT else 0.05


def against_the_paper(rows: Sequence[Row], peaks: Peaks) -> list[str]:
    """Which of the paper's figures each setting explains, leaves open or cannot have given."""
    figures = [
        (size, model, figure)
        for size in SIZES
        for model, figure in zip(COLUMNS, PAPER["l40s"][STATED.get(size, size)], strict=True)
        if figure is not None
    ]
    found: dict[str, dict[str, list[str]]] = {}
    lines = [[size, model, f"{figure:g}"] for size, model, figure in figures]
    for key in CASES:
        found[key] = {place: [] for place in PLACES}
        for line, (size, model, figure) in zip(lines, figures, strict=True):
            here = peaks[key, size, model] / 2**30
            place = standing(figure, here, model)
            line.append(f"**{here:.1f}**" if place == "above" else f"{here:.1f}")
            found[key][place].append(f"{model} at {size}, {here:.1f} against {figure:g}")
    counts = {key: {place: len(names) for place, names in places.items()} for key, places in found.items()}
    most = max(counts, key=lambda key: counts[key]["near"])
    room = [
        figure + rounding(model) - peaks[most, size, model] / 2**30
        for size, model, figure in figures
        if standing(figure, peaks[most, size, model] / 2**30, model) == "near"
    ]
    in_gb = [standing(f / 1.073741824, peaks[most, s, m] / 2**30, m) for s, m, f in figures]
    parameters = {row["size"]: row["million_parameters"] for row in rows if row["model"] == "GPT-2"}
    stated, built = (parameters[size] for size in ("507 M", "659 M"))
    return [
        "## Against the paper's figures",
        "The paper reports memory *reserved*; here it is memory *allocated*, which can only be less. So a "
        "figure here above the paper's (**bold**) refutes the setting for that model. One below refutes "
        "nothing, and leaves the rest to fragmentation or to something else that was run: which, we do not "
        "know. The paper's figures of the flat models are whole numbers, so 0.5 is allowed for rounding "
        "there, and 0.05 for ours. Its 659 M model has hidden 2048 and, as stated, 8 layers, which makes "
        f"{stated} M parameters; with 11 layers there are {built} M. Its figure stands beside both.",
        table(["size", "model", "paper's figure", *(f"`{key}`" for key in CASES)], lines, left=2),
        table(
            ["of these rows", *(f"`{key}`" for key in CASES)],
            [[told, *(counts[key][place] for key in CASES)] for place, told in PLACES.items()],
        ),
        f"Of all settings `{most}` is near the most:",
        "\n".join(f"- {told}: {'; '.join(found[most][place]) or 'none'}." for place, told in PLACES.items()),
        (f"The near ones leave {min(room):.1f} to {max(room):.1f} GiB for fragmentation. " if room else "")
        + "The paper's GB are taken for GiB. Were they 10⁹ bytes, this setting would be near "
        f"{in_gb.count('near')} of them and above {in_gb.count('above')}.",
    ]


def _paper_cell(value: float | None) -> str:
    return "oom" if value is None else f"{value:g}"
