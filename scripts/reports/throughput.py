"""The page of `table3_throughput_flops`: throughput and FLOPs beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scripts.common.command import command_line
from scripts.common.lm_models import MODELS, Shape
from scripts.common.pages import table
from scripts.common.records import Row

Rows = dict[tuple[str, str], Row]  # size and model -> what was measured

# Tokens a second on one L40S, and GFLOPs: GPT-2, GPT-Neo, ours.
PAPER = {
    "8.1 M": ((108_373, 80_757, 313_049), (4.10, 4.64, 0.83)),
    "19.3 M": ((90_458, 69_967, 234_268), (9.00, 10.0, 3.30)),
    "152 M": ((32_194, 31_523, 59_106), (72.0, 82.0, 52.0)),
}
PAPER_MODELS = ("GPT-2", "GPT-Neo", "grouped")
COLUMNS = ("GPT-2", "GPT-Neo", "ours (grouped)")


def pages(rows: Rows, sizes: Mapping[str, Shape]) -> list[str]:
    """The Markdown, part by part."""
    from sqrtvocab.measure.machine import describe_machine

    shape = next(iter(sizes.values()))
    parts = [
        "# Throughput and FLOPs",
        f"The paper's table 3. V = {shape.vocab_size:,}, {shape.num_layers} layers, "
        f"{shape.num_attention_heads} attention heads, {shape.seq_len} tokens a sequence; *grouped* is the "
        "paper's head with G = ⌊√V⌋, *grouped-linear* our default, both on GPT-2. Last written by:",
        command_line(),
        f"on {describe_machine()}.",
    ]
    if all(rows[size, model].get("multiply_adds") for size in sizes for model in MODELS):
        parts += flops_pages(rows, sizes)
    timed = [size for size in sizes if all(rows[size, model].get("tokens_per_s") for model in MODELS)]
    if timed:
        parts += throughput_pages(rows, timed)
    return parts


def flops_pages(rows: Rows, sizes: Mapping[str, Shape]) -> list[str]:
    """What is said about FLOPs."""

    def giga(size: str, model: str, column: str) -> float:
        return float(rows[size, model][column]) / 1e9

    paper_lines, lines = [], []
    for size in sizes:
        here = {model: giga(size, model, "multiply_adds") for model in MODELS}
        paper = PAPER[size][1] if size in PAPER else None
        cells = beside(paper, [here[model] for model in PAPER_MODELS], ".2f")
        cells[1] += f" ({giga(size, 'GPT-Neo', 'forward_flops') / 2:.2f})"
        (ratio,) = beside(paper and [paper[0] / paper[2]], [here["GPT-2"] / here["grouped"]], ".1f", "x")
        paper_lines.append([size, *cells, f"{here['grouped-linear']:.2f}", ratio])
        for column, title in (("forward_flops", "forward"), ("step_flops", "training step")):
            here = {model: giga(size, model, column) for model in MODELS}
            ratio = f"{here['GPT-2'] / here['grouped']:.1f}x"
            lines.append([size, title, *(f"{value:.2f}" for value in here.values()), ratio])
    *models, ratio_title = titles(sizes, *COLUMNS, "GPT-2 / ours")
    return [
        "## FLOPs, in the paper's convention",
        "Billions of multiply-adds of linear layers in one forward pass of one sequence, without attention "
        "scores; in brackets with them.",
        table(["size", *models, "grouped-linear", ratio_title], paper_lines),
        *([findings(rows)] if set(sizes) == set(PAPER) else []),
        "## FLOPs, by torch's counter",
        "Billions of floating-point operations for one sequence, two for a multiply-add, attention included "
        "(torch counts causal attention as if every token attended to all).",
        table(["size", "pass", *MODELS, "GPT-2 / grouped"], lines, left=2),
    ]


def titles(sizes: Iterable[str], *columns: str) -> list[str]:
    """The headings of columns that the paper has, too, unless the sizes are others."""
    rest = ", paper / here" if set(sizes) <= set(PAPER) else ""
    return [f"{column}{rest}" for column in columns]


def beside(paper: Sequence[float] | None, here: Sequence[float], spec: str, unit: str = "") -> list[str]:
    """Figures, each after the paper's if it has them."""
    ours = [f"{value:{spec}}{unit}" for value in here]
    if paper is None:
        return ours
    return [f"{theirs:{spec}}{unit} / {value}" for theirs, value in zip(paper, ours, strict=True)]


def findings(rows: Rows) -> str:
    """How the paper's figures differ from those that its shapes give, and what would explain it."""

    def differences(model: str, column: str, unit: float) -> str:
        """Of the paper's figures, in per cent."""
        told = []
        for size, (_, figures) in PAPER.items():
            here = float(rows[size, model][column]) / unit
            told.append(f"{100 * (figures[PAPER_MODELS.index(model)] / here - 1):+.1f} % at {size}")
        return ", ".join(told).replace("-", "−")

    return (
        "The paper's figures against those that its shapes give: "
        f"GPT-2 {differences('GPT-2', 'multiply_adds', 1e9)}; "
        f"ours {differences('grouped', 'multiply_adds', 1e9)}; "
        f"GPT-Neo {differences('GPT-Neo', 'multiply_adds', 1e9)}, "
        f"or with attention scores {differences('GPT-Neo', 'forward_flops', 2e9)}. "
        "Where the paper has less for GPT-2 than its own shape gives (8·12·h²·512 + h·50,257·512), its ratio "
        "is smaller than ours; we have no explanation. GPT-Neo's linear layers are those of GPT-2. Attention "
        "scores would explain its figures at 8.1 M and 152 M but not the one at 19.3 M. A counter that knows "
        "only matrix products would count them for GPT-Neo, whose attention is eager, and not for GPT-2: a "
        "guess. If it is right, the paper's GPT-Neo column cannot be compared with the others."
    )


def throughput_pages(rows: Rows, sizes: list[str]) -> list[str]:
    """What is said about throughput."""
    lines = []
    for size in sizes:
        here = {model: float(rows[size, model]["tokens_per_s"]) for model in MODELS}
        paper = PAPER[size][0] if size in PAPER else None
        cells = beside(paper, [here[model] for model in PAPER_MODELS], ",.0f")
        (ratio,) = beside(paper and [paper[2] / paper[0]], [here["grouped"] / here["GPT-2"]], ".1f", "x")
        linear = f"{here['grouped-linear'] / here['GPT-2']:.1f}x"
        batch = rows[size, "GPT-2"]["batch_size"]
        lines.append([size, batch, *cells, f"{here['grouped-linear']:,.0f}", ratio, linear])
    row = rows[sizes[0], "GPT-2"]
    *models, ratio_title = titles(sizes, *COLUMNS, "ours / GPT-2")
    return [
        "## Throughput",
        "Tokens a second in training, the paper's on one L40S with 32 sequences a step; here whole steps "
        f"with AdamW, float32, no dropout, on {row['device']} ({row['machine']}), medians of up to "
        f"{row['repeats']} turns, the contenders one after the other in processes of their own. Compare the "
        "ratios.",
        table(["size", "sequences", *models, "grouped-linear", ratio_title, "grouped-linear / GPT-2"], lines),
    ]
