"""What a training step of the classifier costs: waiting for images, and the head, at 184,320 classes.

    python scripts/bench_classifier.py                 # about three minutes on two CPU cores
    python scripts/bench_classifier.py --json out.json

What is compared is timed alternately in one process, and medians are reported, so that other work on the
machine disturbs all sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from classifier.cnn import Encoder
from classifier.config import EMBEDDING, TrainConfig
from classifier.data import image_batches, open_images
from classifier.model import Classifier, make_classifier
from scripts.common.command import json_problems, read_flags, run_script
from scripts.common.learner import Batch, Learner, Timing
from sqrtvocab import Partition, make_head
from sqrtvocab.atomic import write_json
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least
from sqrtvocab.training import BatchPlan, Runtime, open_runtime


@dataclass(frozen=True)
class Config:
    """What a training step of the classifier costs."""

    rounds: int = 9
    """How often every candidate is timed."""
    batch_size: int = 64
    """Images of a micro-batch."""
    accumulate: int = 4
    """Micro-batches of a step."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """Where to compute."""
    workers: int | None = None
    """Processes that draw images; the trainer's default unless given."""
    json: Path | None = None
    """Write the figures to this file."""

    def __post_init__(self) -> None:
        problems = at_least(self, 1, "rounds", "batch_size", "accumulate") + at_least(self, 0, "workers")
        if problems := [*problems, *json_problems(self.json)]:
            raise UserError("; ".join(problems))


def interleaved(candidates: dict[str, Callable[[], Timing]], rounds: int) -> dict[str, list[Timing]]:
    """Call every candidate once to warm up, then all in turn, `rounds` times."""
    for call in candidates.values():
        call()
    timings: dict[str, list[Timing]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            timings[name].append(call())
    return timings


def bench_images(config: Config, runtime: Runtime) -> tuple[dict[str, float], list[Batch]]:
    """Images drawn while training, against images that are all there. Returns some images, too."""
    settings = TrainConfig(workers=config.workers)
    images = open_images(settings)["train"]
    plan = BatchPlan(len(images), config.batch_size, config.accumulate, seed=0)
    items, workers = plan.effective_batch, settings.num_workers(runtime.device.type, 1)
    loader = iter(image_batches(images, plan.batches(0, plan.steps_per_epoch), workers, runtime))
    ready_batches = [next(loader) for _ in range(config.accumulate)]
    learner = Learner(make_classifier("grouped", Partition.aligned(settings.space().radices)), runtime)

    def step_with_drawn() -> Timing:
        for _ in range(4 * workers):  # those drawn ahead while the other candidate was being timed
            next(loader)
        return learner.step((next(loader) for _ in range(config.accumulate)), items)

    timings = interleaved(
        {"drawn": step_with_drawn, "ready": lambda: learner.step(ready_batches, items)}, config.rounds
    )
    seconds = {name: statistics.median(timing.total for timing in rows) for name, rows in timings.items()}
    figures = {
        "workers": workers,
        "images_per_s": items / seconds["drawn"],
        "images_per_s_ready": items / seconds["ready"],
        "throughput_ratio": statistics.median(
            ready.total / drawn.total for ready, drawn in zip(timings["ready"], timings["drawn"], strict=True)
        ),
        "data_wait_fraction": statistics.median(timing.waited / timing.total for timing in timings["drawn"]),
    }
    print(f"{figures['images_per_s']:8.1f} images/s drawn on the fly by {workers} worker(s)")
    print(f"{figures['images_per_s_ready']:8.1f} images/s made beforehand")
    print(f"{figures['throughput_ratio']:8.3f} throughput ratio (goal: at least 0.95)")
    print(f"{figures['data_wait_fraction']:8.2%} of the time spent waiting for images (goal: under 2 %)\n")
    return figures, ready_batches


def bench_heads(config: Config, runtime: Runtime, batches: list[Batch]) -> dict[str, dict[str, float]]:
    """A step with the grouped and the flat head over all classes, against a 10-class linear head."""
    space = TrainConfig().space()
    partition = Partition.aligned(space.radices)
    items = config.batch_size * config.accumulate
    models = {
        "linear, 10 classes": Classifier(Encoder(), make_head("flat", EMBEDDING, 10)),
        f"grouped, {space.num_classes:,} classes": make_classifier("grouped", partition),
        f"flat, {space.num_classes:,} classes": make_classifier("flat", partition),
    }
    learners = {name: Learner(model, runtime) for name, model in models.items()}
    timings = interleaved(
        {name: partial(learner.step, batches, items) for name, learner in learners.items()}, config.rounds
    )
    base = timings["linear, 10 classes"]
    figures = {}
    for name, rows in timings.items():
        seconds = statistics.median(timing.total for timing in rows)
        ratio = statistics.median(one.total / other.total for one, other in zip(rows, base, strict=True))
        figures[name] = {"seconds": seconds, "ratio": ratio}
        print(f"{name:<26}{seconds:8.3f} s a step of {items} images, {ratio:.3f}x")
    return figures


def main(config: Config) -> None:
    """Time, tabulate."""
    with open_runtime(config.device, "auto", seed=0) as runtime:
        print(runtime.describe())
        images, batches = bench_images(config, runtime)
        heads = bench_heads(config, runtime, batches)
        document = {
            "runtime": runtime.describe(),
            "torch": torch.__version__,
            "images": images,
            "step": heads,
        }
    if config.json is not None:
        write_json(config.json, document)


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
