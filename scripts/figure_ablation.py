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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scripts.common.command import make_folder, read_flags, run_script
from scripts.common.contenders import lm_recipe, lm_settings
from scripts.common.jobs import KEY, Contender, Data, Job, record_of_runs
from scripts.common.lm_models import QUICK_SIZES, Setting, Shape, simulate_training
from scripts.common.pages import write_figure, write_page
from scripts.common.records import Record, Row, lock_of
from scripts.common.runs import run_all
from scripts.reports.ablation import draw, joined, pages
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, positive

# torch is imported where it is used: --help must not wait for it.

HEAD = "--head grouped --modulation scale-shift --no-tie-embeddings --grouping index --no-prior"


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
        return (
            QUICK_SIZES["tiny"] if self.quick else Shape(hidden_size=64, num_layers=4, num_attention_heads=2)
        )


def grid(vocabulary: int, points: int) -> list[int]:
    """About `points` numbers from 1 to V, evenly on a logarithmic scale, floor(√V) among them.

    One half below √V and one above, so that √V is on the grid by construction.
    """
    below = max(1, round(points / 2))
    exponents = [index / (2 * below) for index in range(2 * below + 1)]
    numbers = {min(vocabulary, max(1, round(vocabulary**exponent))) for exponent in exponents}
    middle = round(vocabulary**0.5)
    return sorted((numbers - {middle}) | {math.isqrt(vocabulary)})


def measure_memory(shape: Shape, groups: int) -> Row:
    """Memory of a step with so many groups, from shapes."""
    import torch

    from sqrtvocab import Partition, make_head

    memory = simulate_training("grouped", replace(shape, num_groups=groups), Setting())
    with torch.device("meta"):
        partition = Partition(shape.vocab_size, groups)
        head = make_head("grouped", shape.hidden_size, shape.vocab_size, partition=partition)
    return {
        "groups": str(groups),
        "peak_bytes": str(memory.peak),
        "logits_bytes": str(memory.logits),
        "head_parameters": str(sum(parameter.numel() for parameter in head.parameters())),
        "memory_settings": memory_settings(shape),
    }


def memory_settings(shape: Shape) -> str:
    """What a row's memory is about."""
    return (
        f"V={shape.vocab_size} hidden={shape.hidden_size} layers={shape.num_layers} "
        f"batch={shape.batch_size}x{shape.seq_len} fp32"
    )


def job_of(config: Config, groups: int) -> Job:
    """The training with so many groups. Every flag is spelled out: a row must keep its meaning."""
    shape = replace(config.shape(), seq_len=config.seq_len, batch_size=config.batch_size)
    steps, eval_tokens, recipe = config.steps, 32_768, lm_recipe(config.lr)
    if config.quick:
        shape, steps, eval_tokens = config.shape(), 4, 512
        recipe = recipe.replace("gpt2", f"train:{shape.vocab_size}")
    # One evaluation: with V groups it takes minutes, since the best class is searched in every one.
    settings = lm_settings(shape, steps, min(100, max(1, steps // 10)), eval_tokens)
    return Job(
        trainer="lm.train",
        name=f"groups-{groups}",
        contender=Contender(f"{groups} groups", f"--num-groups {groups}"),
        seed=config.seed,
        settings=(*settings.split(), *HEAD.split(), *recipe.split()),
        steps=steps,
        runs=config.runs,
        data=Data.of("stories:200" if config.quick else str(config.data)),
    )


def losses_to_show(rows: Sequence[Row], config: Config) -> list[Row]:
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


def main(config: Config) -> None:
    """Count, train, tabulate, draw."""
    from tqdm import tqdm

    shape = config.shape()
    numbers = sorted(set(config.groups or grid(shape.vocab_size, config.points)))
    out = make_folder(config.out, config.quick)
    memory = Record(out / "ablation.csv", ("groups", "memory_settings"))
    loss = record_of_runs(out / "ablation_loss.csv")

    def report() -> None:
        # Rows of other settings stay in the record; page and figure leave them out.
        mine = [row for row in memory.rows() if row["memory_settings"] == memory_settings(shape)]
        rows = joined(mine, losses_to_show(loss.rows(), config))
        with lock_of(out / "ablation.md"):  # another part of the ablation may report, too
            write_figure(out / "ablation.png", draw(rows, shape))
            write_page(out / "ablation.md", *pages(rows, shape))

    if config.only != "loss":
        known = memory.known()
        for groups in tqdm(numbers, desc="memory", disable=None):
            if (str(groups), memory_settings(shape)) not in known:
                memory.keep(measure_memory(shape, groups))
        report()
    if config.only != "memory":
        known = loss.known()
        jobs = [job for job in (job_of(config, groups) for groups in numbers) if job.key not in known]
        run_all(jobs, loss, config.threads, None, report)
    report()
    print(out / "ablation.md")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
