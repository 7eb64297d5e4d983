"""What a training step would take on GPUs at the very least: an estimate from shapes, for every head.

    python scripts/roofline.py                        # about three minutes on one core
    python scripts/roofline.py --quick                # small shapes, to see that everything works
    python scripts/roofline.py --out runs/roofline    # another folder

Nothing is run, and no card was there: every kernel is counted at the bandwidth or the peak of the card's data
sheet. Writes roofline.md and roofline.csv.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scripts.common.command import command_line, make_folder, read_flags, run_script
from scripts.common.head_steps import Work, bench_head
from scripts.common.lm_models import QUICK_SIZES, Shape, make_training
from scripts.common.pages import table, write_csv, write_page
from scripts.common.records import Row
from scripts.common.registered import heads_with_variants
from sqrtvocab.heads.registry import HEADS

# torch is imported where it is used: --help must not wait for it.

CARDS = {"t4": "T4", "l40s": "L40S", "h100": "H100"}
BACKBONES = {"backbone": "no head", "backbone, GELU as in `transformers`": "no head, gelu_new"}


@dataclass(frozen=True)
class Config:
    """What a training step would take on GPUs at the very least."""

    quick: bool = False
    """Small shapes, to see that everything works; written to runs/quick."""
    out: Path | None = None
    """Folder for roofline.md and roofline.csv; docs/results by default."""


def backbone_step(name: str, shape: Shape) -> Callable[[], Any]:
    """Forward and backward of GPT-2 without an output layer."""
    training = make_training(name, shape)
    return lambda: training.loss().backward()


def head_step(name: str, options: dict[str, Any], work: Work) -> Callable[[], Any]:
    """Forward and backward of a head, with the gradient of the hidden states."""
    import torch

    head = bench_head(name, options, work)
    hidden = torch.zeros(work.tokens, work.width, requires_grad=True)
    target = torch.zeros(work.tokens, dtype=torch.int64)
    return lambda: head(hidden, target).loss.backward()


def measure(shape: Shape) -> Iterator[Row]:
    """A row for each part of a model and each card."""
    from tqdm import tqdm

    from sqrtvocab.measure.roofline import estimate

    work = Work(shape.batch_size * shape.seq_len, shape.hidden_size, shape.vocab_size)
    steps: dict[str, Callable[[], Callable[[], Any]]] = {
        title: partial(backbone_step, name, shape) for title, name in BACKBONES.items()
    }
    for title, (name, options) in heads_with_variants().items():
        if HEADS[name].rows_per_class == 1:  # others are not trained on text
            steps[f"`{title}`"] = partial(head_step, name, options, work)
    jobs = [(title, card) for title in steps for card in CARDS]
    for title, card in tqdm(jobs, desc="estimating", disable=None):
        found = estimate(steps[title], card)
        yield {
            "part": title,
            "card": card,
            "launches": str(found.launches),
            "gigabytes": f"{found.bytes / 1e9:.3f}",
            "teraflops": f"{found.operations / 1e12:.4f}",
            "milliseconds": f"{1e3 * found.seconds:.3f}",
        }


def page(rows: list[Row], shape: Shape) -> list[str]:
    """The table."""
    by_part: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_part.setdefault(row["part"], {})[row["card"]] = row
    cells = []
    for part, cards in by_part.items():
        first = cards["t4"]
        times = (f"{float(row['milliseconds']):.2f}" for row in cards.values())
        counts = (first["launches"], f"{float(first['gigabytes']):.2f}", f"{float(first['teraflops']):.3f}")
        cells.append([part, *counts, *times])
    headings = [
        "forward and backward",
        "launches",
        "GB",
        "TFLOP",
        *(f"{name}, ms" for name in CARDS.values()),
    ]
    return [
        "# A training step on a GPU: an estimate",
        "**Nothing here was measured: no card was there.** Every kernel takes as long as its bytes at the "
        "card's bandwidth or its operations at the card's peak, whichever is longer, and 4 µs to start. No "
        "kernel reaches these limits, so real steps take longer; the table tells what they are spent on. "
        "Launches, bytes and operations are those of a T4; an H100 has one kernel for the product by groups.",
        f"GPT-2, hidden {shape.hidden_size}, {shape.num_layers} layers, {shape.batch_size} x "
        f"{shape.seq_len} tokens, {shape.vocab_size:,} classes; autocast in float16 (T4) and bfloat16. The "
        "optimiser's step is left out. Some heads train on less than all classes: see "
        "[heads.md](../heads.md).",
        table(headings, cells),
        command_line(),
    ]


def main(config: Config) -> None:
    """Estimate, tabulate."""
    out = make_folder(config.out, config.quick)
    shape = QUICK_SIZES["tiny"] if config.quick else Shape()
    rows = list(measure(shape))
    write_csv(out / "roofline.csv", rows)
    write_page(out / "roofline.md", *page(rows, shape))
    print(out / "roofline.md")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
