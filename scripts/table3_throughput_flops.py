"""The paper's table 3: throughput and FLOPs of GPT-2, GPT-Neo and ours.

    python scripts/table3_throughput_flops.py                # about eight minutes on two free cores
    python scripts/table3_throughput_flops.py --only flops   # exact, from shapes: a minute
    python scripts/table3_throughput_flops.py --quick        # small shapes, to see that everything works

FLOPs by torch's counter, and by the paper's convention: multiply-adds of linear layers for one sequence of
512 tokens. Throughput is that of whole training steps; the contenders take turns, so trust the ratios. Writes
throughput_flops.md and throughput_flops.csv; what --only leaves out is kept from an earlier call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from lm_models import MODELS, QUICK_SIZES, Shape, make_training
from results import command_line, folder, read_csv, refuse, table, write_csv, write_page

from sqrtvocab.errors import UserError
from sqrtvocab.flags import one_line_errors

# torch is imported where it is used: --help must not wait for it.

# Sequences of a timed step: about as many as a CPU takes in some seconds with the slowest contender.
SIZES = {
    "8.1 M": Shape(hidden_size=128, batch_size=4),
    "19.3 M": Shape(hidden_size=256, batch_size=2),
    "152 M": Shape(hidden_size=1024, batch_size=1),
}
# Tokens a second on one L40S, and GFLOPs: GPT-2, GPT-Neo, ours.
PAPER = {
    "8.1 M": ((108_373, 80_757, 313_049), (4.10, 4.64, 0.83)),
    "19.3 M": ((90_458, 69_967, 234_268), (9.00, 10.0, 3.30)),
    "152 M": ((32_194, 31_523, 59_106), (72.0, 82.0, 52.0)),
}
PAPER_MODELS = ("GPT-2", "GPT-Neo", "grouped")
MEASURES = {
    "flops": ("multiply_adds", "forward_flops", "step_flops"),
    "throughput": ("tokens_per_s", "batch_size", "device", "threads", "repeats", "machine"),
}


@dataclass(frozen=True)
class Config:
    """Throughput and FLOPs of GPT-2, GPT-Neo and ours."""

    only: Literal["all", "flops", "throughput"] = "all"
    """Measure only this."""
    quick: bool = False
    """Two small shapes, to see that everything works; written to runs/quick."""
    repeats: int = 5
    """Turns of each contender; those slower than five seconds a step take two."""
    threads: int = 1
    """Torch threads of each contender."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to run the steps that are timed; on cuda with the paper's batch of 32."""
    out: Path | None = None
    """Folder for throughput_flops.md and throughput_flops.csv; docs/results by default."""

    def __post_init__(self) -> None:
        if min(self.repeats, self.threads) < 1:
            raise UserError("--repeats and --threads must be at least 1")


def train_step(name: str, shape: Shape) -> Callable[[], Any]:
    """A whole step with AdamW, for `race`."""
    return make_training(name, shape).step


def measure_flops(model: str, shape: Shape) -> dict[str, Any]:
    """Of one sequence."""
    from sqrtvocab.measure.flops import count_flops

    one = replace(shape, batch_size=1, device="cpu")
    forward = count_flops(lambda: make_training(MODELS[model], one).loss)
    step = count_flops(lambda: make_training(MODELS[model], one).step)
    figures = (forward.multiply_adds, forward.total, step.total)
    return dict(zip(MEASURES["flops"], figures, strict=True))


def measure_throughput(size: str, shape: Shape, config: Config) -> dict[str, dict[str, Any]]:
    """Of training steps, for each model."""
    from sqrtvocab.measure.machine import describe_machine
    from sqrtvocab.measure.race import race

    shape = replace(shape, device=config.device)
    if config.device == "cuda" and not config.quick:
        shape = replace(shape, batch_size=32)
    results = race(
        {model: (train_step, (name, shape)) for model, name in MODELS.items()},
        repeats=config.repeats,
        threads=config.threads,
        device=config.device,
        title=size,
        preload=("torch", "lm.model"),
    )
    tokens = shape.batch_size * shape.seq_len
    machine = describe_machine(config.device, config.threads)
    rest = (shape.batch_size, config.device, config.threads, config.repeats, machine)
    return {
        model: dict(zip(MEASURES["throughput"], (round(tokens / r.seconds, 1), *rest), strict=True))
        for model, r in results.items()
    }


def pages(rows: dict[tuple[str, str], dict[str, Any]], sizes: dict[str, Shape]) -> list[str]:
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
        parts += _flops_pages(rows, sizes)
    timed = [size for size in sizes if all(rows[size, model].get("tokens_per_s") for model in MODELS)]
    if timed:
        parts += _throughput_pages(rows, timed)
    return parts


def _flops_pages(rows: dict[tuple[str, str], dict[str, Any]], sizes: dict[str, Shape]) -> list[str]:
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
    return [
        "## FLOPs, in the paper's convention",
        "Billions of multiply-adds of linear layers in one forward pass of one sequence, without attention "
        "scores; in brackets with them.",
        table(["size", *titles(sizes), "grouped-linear", "GPT-2 / ours"], paper_lines),
        *([findings(rows)] if sizes is SIZES else []),
        "## FLOPs, by torch's counter",
        "Billions of floating-point operations for one sequence, two for a multiply-add, attention included "
        "(torch counts causal attention as if every token attended to all).",
        table(["size", "pass", *MODELS, "GPT-2 / grouped"], lines, left=2),
    ]


def titles(sizes: Iterable[str]) -> list[str]:
    """Of the columns that the paper has, too, unless the sizes are others."""
    rest = ", paper / here" if set(sizes) <= set(PAPER) else ""
    return [f"{model}{rest}" for model in ("GPT-2", "GPT-Neo", "ours (grouped)")]


def beside(paper: Sequence[float] | None, here: Sequence[float], spec: str, unit: str = "") -> list[str]:
    """Figures, each after the paper's if it has them."""
    ours = [f"{value:{spec}}{unit}" for value in here]
    if paper is None:
        return ours
    return [f"{theirs:{spec}}{unit} / {value}" for theirs, value in zip(paper, ours, strict=True)]


def findings(rows: dict[tuple[str, str], dict[str, Any]]) -> str:
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


def _throughput_pages(rows: dict[tuple[str, str], dict[str, Any]], sizes: list[str]) -> list[str]:
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
    return [
        "## Throughput",
        "Tokens a second in training, the paper's on one L40S with 32 sequences a step; here whole steps "
        f"with AdamW, float32, no dropout, on {row['device']} ({row['machine']}), medians of up to "
        f"{row['repeats']} turns, the contenders one after the other in processes of their own. Compare the "
        "ratios.",
        table(
            ["size", "sequences", *titles(sizes), "grouped-linear", "ours / GPT-2",
             "grouped-linear / GPT-2"],
            lines,
        ),
    ]  # fmt: skip


def identity(row: dict[str, Any]) -> tuple[str, ...]:
    """What a row is about."""
    return tuple(str(row[name]) for name in ("size", "model", "hidden", "vocab"))


def main(config: Config) -> None:
    from tqdm import tqdm

    if config.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            refuse("--device cuda: no CUDA device here; leave the flag out")
    out = folder(config.out, config.quick)
    path = out / "throughput_flops.csv"
    sizes = QUICK_SIZES if config.quick else SIZES
    measured = [name for names in MEASURES.values() for name in names]
    record = {identity(row): row for row in read_csv(path, ("size", "model", "hidden", "vocab"))}
    rows = {}
    for size, shape in sizes.items():
        for model in MODELS:
            row = {"size": size, "model": model, "hidden": shape.hidden_size, "vocab": shape.vocab_size}
            old = record.pop(identity(row), {})
            rows[size, model] = {**row, **{name: old.get(name, "") for name in measured}}
    if config.only != "throughput":
        for size, model in tqdm(list(rows), desc="counting FLOPs", disable=None):
            rows[size, model].update(measure_flops(model, sizes[size]))
    if config.only != "flops":
        for size, shape in sizes.items():
            for model, figures in measure_throughput(size, shape, config).items():
                rows[size, model].update(figures)
    write_csv(path, [*rows.values(), *record.values()])  # rows of other shapes stay
    write_page(out / "throughput_flops.md", *pages(rows, sizes))
    print(out / "throughput_flops.md")


if __name__ == "__main__":
    with one_line_errors("table3_throughput_flops"):
        arguments = tyro.cli(Config, description=__doc__)
    from sqrtvocab.training import exit_code

    sys.exit(exit_code("table3_throughput_flops", lambda: main(arguments)))
