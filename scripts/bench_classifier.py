"""What a training step of the classifier costs: waiting for images, and the head, at 184,320 classes.

    python scripts/bench_classifier.py                 # about three minutes on two CPU cores
    python scripts/bench_classifier.py --json out.json

Everything compared is timed alternately in one process, and medians are reported, so that other work on the machine
disturbs all sides alike.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import Tensor

from classifier.cnn import EMBEDDING, Classifier, make_classifier, make_partition
from classifier.config import TrainConfig
from classifier.data import image_batches, open_images
from sqrtvocab import make_head
from sqrtvocab.training import BatchPlan, Runtime, open_runtime, share_of_mean

Batch = tuple[Tensor, Tensor]


@dataclass
class Args:
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


class Learner:
    """A model with its optimiser, and the trainer's step."""

    def __init__(self, model: Classifier, runtime: Runtime) -> None:
        self.model, self.runtime = model.to(runtime.device).train(), runtime
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        self.scaler = runtime.scaler()

    def step(self, batches: Iterable[Batch], items: int) -> tuple[float, float]:
        """One optimiser step; the seconds it took, and those of them spent waiting for images."""
        began, waited, batches = time.perf_counter(), 0.0, iter(batches)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            images, target = (part.to(self.runtime.device, non_blocking=True) for part in batch)
            with self.runtime.autocast():
                loss = self.model(images, target % self.model.head.num_classes, reduction="sum").loss
            self.scaler.scale(share_of_mean(loss, items, self.runtime)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.runtime.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began, waited


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[object]]:
    """Call every candidate once to warm up, then all in turn, `rounds` times."""
    for call in candidates.values():
        call()
    results: dict[str, list[object]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            results[name].append(call())
    return results


def main(args: Args) -> None:
    config = TrainConfig(workers=args.workers)
    figures: dict[str, object] = {"torch": torch.__version__, **vars(args), "json": None}
    with open_runtime(args.device, "auto", seed=0) as runtime:
        print(runtime.describe())
        images = open_images(config, "train")
        partition = make_partition(config.space(), "aligned", None, 0)
        plan = BatchPlan(len(images), args.batch_size, args.accumulate, seed=0)
        items, workers = plan.effective_batch, config.num_workers(runtime.device.type, 1)
        loader = iter(image_batches(images, plan.batches(0, plan.steps_per_epoch), workers, runtime))
        ready = [next(loader) for _ in range(args.accumulate)]
        prefetched = 4 * workers

        # ---- images drawn while training, against images that are all there

        learner = Learner(make_classifier("grouped", partition), runtime)

        def drawn() -> tuple[float, float]:
            for _ in range(prefetched):  # those drawn ahead while the other candidate was being timed
                next(loader)
            return learner.step((next(loader) for _ in range(args.accumulate)), items)

        timed = interleaved({"drawn": drawn, "ready": lambda: learner.step(ready, items)}, args.rounds)
        seconds = {name: statistics.median(row[0] for row in rows) for name, rows in timed.items()}
        wait = statistics.median(waited / total for total, waited in timed["drawn"])
        figures |= {
            "workers": workers,
            "images_per_s": items / seconds["drawn"],
            "throughput_ratio": seconds["ready"] / seconds["drawn"],
            "data_wait_fraction": wait,
        }
        print(f"{items / seconds['drawn']:8.1f} images/s drawn on the fly by {workers} worker(s)")
        print(f"{items / seconds['ready']:8.1f} images/s with images made beforehand")
        print(f"{seconds['ready'] / seconds['drawn']:8.3f} throughput ratio (at least 0.95 is the goal)")
        print(f"{wait:8.2%} of the time spent waiting for images (under 2 % is the goal)\n")
        del learner, loader

        # ---- the head

        V = partition.num_classes
        learners = {
            "10-class linear": Learner(Classifier(make_head("flat", EMBEDDING, 10)), runtime),
            f"grouped, {V:,} classes": Learner(make_classifier("grouped", partition), runtime),
            f"flat, {V:,} classes": Learner(make_classifier("flat", partition), runtime),
        }
        timed = interleaved(
            {name: lambda one=one: one.step(ready, items)[0] for name, one in learners.items()}, args.rounds
        )
        base = timed["10-class linear"]
        figures["step"] = {}
        for name, rows in timed.items():
            median = statistics.median(rows)
            ratio = statistics.median(row / other for row, other in zip(rows, base, strict=True))
            figures["step"][name] = {"seconds": median, "ratio": ratio}
            print(f"{name:<26}{median:8.3f} s a step of {items} images, {ratio:.3f}x the 10-class linear head")

    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(tyro.cli(Args))
