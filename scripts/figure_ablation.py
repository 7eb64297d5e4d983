"""The paper's ablation: validation loss and memory against the number of groups.

    python scripts/figure_ablation.py --only memory                       # from shapes, under a minute
    python scripts/figure_ablation.py --data tinystories --steps 300      # both; hours: see below
    python scripts/figure_ablation.py --quick                             # to see that everything works

Hidden 64, 4 layers, 2 attention heads (`train_lm --preset ablation --num-groups G`), G from 1 to V. Memory is
that of the 32 x 512 step, float32, exact. For the loss every G is really trained: with 300 steps of 8
sequences a run takes some minutes on two CPU cores near √V and much longer at G = 1 and G = V, whose heads
are as wide as a flat one. Runs are resumed, and ablation.csv and ablation_loss.csv are the record: a G that
is there with the same settings is not computed again, so the work can be done in parts (--groups). Writes
them, ablation.md and ablation.png.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from contenders import lm_recipe
from lm_models import Setting, Shape, simulate_training
from records import KEY, Contender, Data, Job, Row, exit_code, key_of, read_rows, run_all
from results import (
    GRID,
    INK,
    MUTED,
    SURFACE,
    command_line,
    folder,
    read_csv,
    table,
    write_csv,
    write_figure,
    write_page,
)  # fmt: skip

from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, one_line_errors, positive

# torch is imported where it is used: --help must not wait for it.

VOCABULARY = 50257
MEMORY_COLUMNS = ("groups", "peak_bytes", "logits_bytes", "head_parameters", "memory_settings")
BLUE = "#2a78d6"


@dataclass(frozen=True)
class Config:
    """Validation loss and memory against the number of groups."""

    only: Literal["all", "memory", "loss"] = "all"
    """Measure only this; the rest is kept from an earlier call."""
    groups: tuple[int, ...] | None = None
    """Only these numbers of groups, to do the work in parts; the whole grid by default."""
    points: int = 12
    """Steps of the grid from 1 to V, evenly on a logarithmic scale; floor(√V) is always one of them."""
    data: str | None = None
    """As `train_lm --data`, but not auto, which may mean two texts. Needed for the loss."""
    steps: int = 300
    """Optimiser steps of each run."""
    batch_size: int = 8
    """Sequences of a training step (memory is always that of 32)."""
    seq_len: int = 512
    """Tokens of a sequence."""
    lr: float = 1e-3
    """Peak learning rate: how much the groups cost after a few steps depends on it."""
    seed: int = 0
    """Decides the order of the text and the initial weights."""
    threads: int = 2
    """Torch threads of a run."""
    quick: bool = False
    """A small vocabulary, a tiny model and built-in stories, to see that everything works; written to
    runs/quick."""
    runs: Path = Path("runs/ablation")
    """Folder for the training runs."""
    out: Path | None = None
    """Folder for ablation.md, ablation.csv, ablation_loss.csv and ablation.png; docs/results by default."""

    def __post_init__(self) -> None:
        problems = at_least(self, 1, "points", "steps", "batch_size", "seq_len", "threads")
        problems += at_least(self, 0, "seed") + positive(self, "lr")
        if not self.quick and self.data in (None, "auto") and self.only != "memory":
            problems.append("--data: name the text to train on (not auto), or say --only memory")
        vocabulary = self.shape().vocab_size
        if self.groups and not 1 <= min(self.groups) <= max(self.groups) <= vocabulary:
            problems.append(f"--groups must lie between 1 and V = {vocabulary}, got {self.groups}")
        if problems:
            raise UserError("; ".join(problems))

    def shape(self) -> Shape:
        """Of the step whose memory is counted."""
        return Shape(2000, 16, 2, 2, 32, 2) if self.quick else Shape(VOCABULARY, 64, 4, 2, 512, 32)


def grid(vocabulary: int, points: int) -> list[int]:
    """About `points` numbers from 1 to V, evenly on a logarithmic scale, floor(√V) among them.

    One half below √V and one above, so that √V is on the grid by construction.
    """
    below = max(1, round(points / 2))
    exponents = [index / (2 * below) for index in range(2 * below + 1)]
    numbers = {min(vocabulary, max(1, round(vocabulary**exponent))) for exponent in exponents}
    middle = round(vocabulary**0.5)
    return sorted((numbers - {middle}) | {math.isqrt(vocabulary)})


def measure_memory(shape: Shape, groups: int) -> dict[str, Any]:
    """Memory of a step with so many groups, from shapes."""
    import torch

    from sqrtvocab import Partition, make_head

    shape = replace(shape, num_groups=groups)
    memory = simulate_training("grouped", shape, Setting())
    with torch.device("meta"):
        partition = Partition(shape.vocab_size, groups)
        head = make_head("grouped", shape.hidden_size, shape.vocab_size, partition=partition)
    parameters = sum(parameter.numel() for parameter in head.parameters())
    figures = (groups, memory.peak, memory.logits, parameters, memory_settings(shape))
    return dict(zip(MEMORY_COLUMNS, figures, strict=True))


def memory_settings(shape: Shape) -> str:
    return (
        f"V={shape.vocab_size} hidden={shape.hidden_size} layers={shape.num_layers} "
        f"batch={shape.batch_size}x{shape.seq_len} fp32"
    )


def job_of(config: Config, groups: int) -> Job:
    """The training with so many groups. Every flag is spelled out: a row must keep its meaning."""
    shape, quick = config.shape(), config.quick
    steps = 4 if quick else config.steps
    flags = {
        "hidden-size": shape.hidden_size, "num-layers": shape.num_layers,
        "num-attention-heads": shape.num_attention_heads,
        "seq-len": shape.seq_len if quick else config.seq_len,
        "batch-size": shape.batch_size if quick else config.batch_size,
        "max-steps": steps, "epochs": 1000, "warmup-steps": min(100, max(1, steps // 10)),
        # Once: an evaluation with V groups takes minutes, since the best class is searched in every one.
        "eval-every": steps, "eval-tokens": 512 if quick else 32_768, "sample-every": 0,
    }  # fmt: skip
    head = "--head grouped --modulation scale-shift --no-tie-embeddings --grouping index --no-prior"
    recipe = lm_recipe(config.lr)
    if quick:
        recipe = recipe.replace("gpt2", f"train:{shape.vocab_size}")
    settings = [part for key, value in flags.items() for part in (f"--{key}", str(value))]
    return Job(
        trainer="lm.train",
        name=f"groups-{groups}",
        contender=Contender(f"{groups} groups", f"--num-groups {groups}"),
        seed=config.seed,
        settings=(*settings, *head.split(), *recipe.split()),
        steps=steps,
        runs=config.runs,
        data=Data.of("stories:200" if quick else str(config.data)),
    )


def losses(rows: Sequence[Row], config: Config) -> list[Row]:
    """The rows with the settings asked for, or, where no loss is asked for, with those that most have."""

    def settings(row: Row) -> tuple[str, ...]:
        return (row["settings"], row["seed"], row["data_bytes"])

    if not rows:
        return []
    if config.only != "memory":
        wanted = settings(dict(zip(KEY, job_of(config, 1).key, strict=True)))
    else:
        known = [settings(row) for row in rows]
        wanted = max(known, key=known.count)
    return [row for row in rows if settings(row) == wanted]


def joined(memory: Iterable[dict[str, Any]], loss: Sequence[Row], config: Config) -> list[dict[str, Any]]:
    """A row for each number of groups with its memory and its loss, "" where there is none."""
    found: dict[int, dict[str, Any]] = {}
    for row in memory:
        if row["memory_settings"] == memory_settings(config.shape()):
            found[int(row["groups"])] = {**row, "loss": "", "loss_settings": ""}
    for row in losses(loss, config):
        groups = int(row["contender"].removeprefix("groups-"))
        empty = {**dict.fromkeys(MEMORY_COLUMNS, ""), "groups": groups}
        settings = f"`{row['settings']} --seed {row['seed']}`"
        found[groups] = {**found.get(groups, empty), "loss": row["loss"], "loss_settings": settings}
    return [found[groups] for groups in sorted(found)]


def pages(rows: list[dict[str, Any]], config: Config) -> list[str]:
    """The Markdown, part by part."""
    from sqrtvocab.measure.machine import describe_machine

    shape = config.shape()
    root = math.isqrt(shape.vocab_size)
    lines = []
    for row in rows:
        peak = f"{float(row['peak_bytes']) / 2**30:.3f}" if row["peak_bytes"] else ""
        parameters = f"{int(row['head_parameters']):,}" if row["head_parameters"] else ""
        loss = f"{float(row['loss']):.3f}" if row["loss"] else ""
        groups = int(row["groups"])
        lines.append([f"**{groups:,}** (√V)" if groups == root else f"{groups:,}", parameters, peak, loss])
    parts = [
        "# Ablation: the number of groups",
        f"The paper's ablation: hidden {shape.hidden_size}, {shape.num_layers} layers, "
        f"{shape.num_attention_heads} attention heads, V = {shape.vocab_size:,}, the grouped head. Memory is "
        f"the peak of a training step of {shape.batch_size} x {shape.seq_len} tokens in float32 with AdamW, "
        "from shapes. Last written by:",
        command_line(),
        f"on {describe_machine()}.",
        "![Loss and memory against the number of groups](ablation.png)",
        table(["groups", "parameters of the head", "peak memory, GiB", "validation loss"], lines),
    ]
    if best := lowest(rows, "peak_bytes"):
        verdict = (
            f"Least memory at G = {best['groups']}; √V is {root}. The logits of group and member are G + V/G "
            "wide together, which is least at √V."
        )
        parts.append(verdict)
    if best := lowest(rows, "loss"):
        worst = max((row for row in rows if row["loss"]), key=lambda row: float(row["loss"]))
        parts.append(
            f"Loss ({best['loss_settings']}): lowest {float(best['loss']):.3f} at G = {best['groups']}, "
            f"highest {float(worst['loss']):.3f} at G = {worst['groups']}. The paper finds its maximum at "
            "√V, and 3.7 to 3.9 for most group sizes around it."
        )
    return parts


def lowest(rows: list[dict[str, Any]], column: str) -> dict[str, Any] | None:
    """The row with the least figure in this column, of those that have one."""
    return min((row for row in rows if row[column] != ""), key=lambda row: float(row[column]), default=None)


def draw(rows: list[dict[str, Any]], shape: Shape) -> Any:
    """A panel each for loss and memory, as far as measured, over the number of groups."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    root = math.isqrt(shape.vocab_size)
    panels = [("loss", "validation loss (nats)", 1.0), ("peak_bytes", "peak memory of a step (GiB)", 2.0**30)]
    panels = [panel for panel in panels if any(row[panel[0]] != "" for row in rows)]
    figure = Figure(figsize=(5.2 * len(panels), 3.9), layout="constrained", facecolor=SURFACE)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (column, title, unit) in zip(axes, panels, strict=True):
        points = [(int(row["groups"]), float(row[column]) / unit) for row in rows if row[column] != ""]
        panel.set_xscale("log")
        panel.set_xlim(0.7, shape.vocab_size * 1.5)
        panel.axvline(root, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        panel.text(root * 1.12, 0.98, f"√V = {root}", transform=panel.get_xaxis_transform(), va="top",
                   fontsize=8, color=MUTED)  # fmt: skip
        panel.plot(*zip(*points, strict=True), color=BLUE, linewidth=2, marker="o", markersize=5)
        x, y = min(points, key=lambda point: point[1])
        panel.plot([x], [y], "o", markersize=10, markerfacecolor="none", markeredgecolor=INK)
        place = math.log(x) / math.log(shape.vocab_size)  # from 0 at the left edge to 1 at the right
        side = "left" if place < 0.2 else "right" if place > 0.8 else "center"
        panel.annotate(
            f"least: {y:.3g} at G = {x:,}", (x, y), xytext=(0, -20), fontsize=8, color=INK,
            textcoords="offset points", ha=side,
            bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1},
        )  # fmt: skip
        low, high = (f(point[1] for point in points) for f in (min, max))
        panel.set_ylim(low - 0.2 * (high - low) - 1e-3, high + 0.15 * (high - low) + 1e-3)
        if high > 5 * low:
            panel.set_yscale("log")
            panel.set_ylim(low / 1.7, high * 1.5)
            ticks = [factor * 10.0**power for power in range(-6, 4) for factor in (1, 2, 5)]
            panel.yaxis.set_major_locator(FixedLocator(ticks))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.set_ylim(low / 1.7, high * 1.5)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        panel.set_xlabel("number of groups G", fontsize=8.5, color=MUTED)
        panel.set_title(title, fontsize=10, color=INK, loc="left")
        panel.tick_params(labelsize=8, colors=MUTED, length=0, which="both")
        panel.grid(color=GRID, linewidth=0.7, which="major")
        panel.set_axisbelow(True)
        panel.set_facecolor(SURFACE)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
        panel.spines["bottom"].set_color(GRID)
    return figure


def main(config: Config) -> None:
    from tqdm import tqdm

    shape = config.shape()
    numbers = sorted(set(config.groups or grid(shape.vocab_size, config.points)))
    out = folder(config.out, config.quick)
    memory_path, loss_path = out / "ablation.csv", out / "ablation_loss.csv"
    # Rows of other settings stay in the record; `joined` leaves them out of page and figure.
    memory: dict[tuple[str, str], dict[str, Any]] = {
        (row["groups"], row["memory_settings"]): {name: row.get(name, "") for name in MEMORY_COLUMNS}
        for row in read_csv(memory_path, ("groups", "memory_settings"))
    }

    def report(_: Job | None = None) -> None:
        rows = joined(memory.values(), read_rows(loss_path), config)
        write_figure(out / "ablation.png", draw(rows, shape))
        write_page(out / "ablation.md", *pages(rows, config))

    if config.only != "loss":
        for groups in tqdm(numbers, desc="memory", disable=None):
            key = (str(groups), memory_settings(shape))
            if key not in memory:
                memory[key] = measure_memory(shape, groups)
        rows = sorted(memory.values(), key=lambda row: (row["memory_settings"], int(row["groups"])))
        write_csv(memory_path, rows)
        report()
    if config.only != "memory":
        done = {key_of(row) for row in read_rows(loss_path)}
        jobs = [job for job in (job_of(config, groups) for groups in numbers) if job.key not in done]
        run_all(jobs, loss_path, config.threads, None, report)
        report()
    print(out / "ablation.md")


if __name__ == "__main__":
    with one_line_errors("figure_ablation"):
        arguments = tyro.cli(Config, description=__doc__)
    raise SystemExit(exit_code("figure_ablation", lambda: main(arguments)))
