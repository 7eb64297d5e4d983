"""What prototypes cost: exact decoding against a bare product, probing, a training step's memory and time.

    python scripts/bench_prototypes.py                               # random class vectors: no recall
    python scripts/bench_prototypes.py --run runs/prototype          # those of a trained run
    python scripts/bench_prototypes.py --only decoding --json out.json

What is compared is timed alternately in one process, and medians are reported, so that other work on the
machine disturbs all sides alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classifier.backbones import make_encoder
from classifier.data import image_batches, in_batches, open_images, sample_of
from classifier.model import Classifier
from classifier.trained import open_trained
from scripts.common.command import json_problems, read_flags, run_script
from sqrtvocab import Head, make_head
from sqrtvocab.atomic import write_json
from sqrtvocab.flags import Flags, at_least
from sqrtvocab.measure.simulate import Training, simulate
from sqrtvocab.training import open_runtime

CLASSES, WIDTH = 184_320, 512  # of the memory and the step
ROWS, BEST = 256, 5  # images decoded at a time, classes asked for
BATCH = 128


@dataclass(frozen=True)
class Config(Flags):
    """What prototypes cost."""

    run: Path | None = None
    """A run of train_classifier --head prototype: its vectors, and validation images to look for."""
    only: Literal["all", "decoding", "training"] = "all"
    """What to measure."""
    probe: int = 8
    """Groups that are opened."""
    rounds: int = 5
    """How often every candidate is timed."""
    json: Path | None = None
    """Write the figures to this file."""

    def problems(self) -> list[str]:
        return super().problems() + at_least(self, 1, "probe", "rounds") + json_problems(self.json)


def main(config: Config) -> None:
    """Measure and print."""
    figures: dict[str, Any] = {"threads": torch.get_num_threads()}
    if config.only != "training":
        figures["decoding"] = decoding(config)
    if config.only != "decoding":
        figures["training"] = {**memory(), **step(config.rounds)}
    for part, values in figures.items():
        for name, value in values.items() if isinstance(values, dict) else [("", values)]:
            print(f"{part + ' ' + name:<44}{value:>12,.4g}")
    if config.json is not None:
        write_json(config.json, figures)


@torch.no_grad()
def decoding(config: Config) -> dict[str, float]:
    """Seconds of the best few classes of some rows, and what probing finds of them."""
    head, rows = _trained(config.run) if config.run else _random()
    vectors = head.get_buffer("vectors").float()
    directions = F.normalize(rows, dim=1)
    began = time.perf_counter()
    head.topk(rows, BEST, probe=config.probe)  # type: ignore[call-arg]  # makes the groups
    making = time.perf_counter() - began
    seconds = timed(
        config.rounds,
        bare=lambda: (directions @ vectors.T).topk(BEST),
        exact=lambda: head.topk(rows, BEST),
        probed=lambda: head.topk(rows, BEST, probe=config.probe),  # type: ignore[call-arg]
    )
    found: Any = head.topk(rows, BEST, probe=config.probe)  # type: ignore[call-arg]
    _, classes = head.topk(rows, BEST)
    among = (found.classes.unsqueeze(2) == classes.unsqueeze(1)).any(1)  # [N, k]
    return {
        **{f"{name} seconds": value for name, value in seconds.items()},
        "exact / bare": seconds["exact"] / seconds["bare"],
        "exact / probed": seconds["exact"] / seconds["probed"],
        "recall of the best": float(among[:, 0].float().mean()),
        f"recall of the best {BEST}": float(among.float().mean()),
        "certain": float(found.certain.float().mean()),
        "seconds to make the groups": making,
    }


def _random() -> tuple[Head, Tensor]:
    head = make_head("prototype", WIDTH, CLASSES)
    head.learn_classes(torch.randn(CLASSES, WIDTH), torch.arange(CLASSES))
    return head.eval(), torch.randn(ROWS, WIDTH)


def _trained(run: Path) -> tuple[Head, Tensor]:
    """The head of a run, and embeddings of validation images."""
    opened = open_trained(run)
    images = open_images(opened.config)["validation"]
    with open_runtime("cpu", "fp32", 0) as runtime:
        chosen = in_batches(sample_of(images, ROWS, 1), BATCH)
        batches = image_batches(images, chosen, 0, runtime)
        model = opened.model.eval()
        return model.head, torch.cat([model.encoder(pixels) for pixels, _ in batches])


def memory() -> dict[str, float]:
    """Bytes of a training step of the output layer and Adam, from shapes alone."""
    flat = simulate(partial(_head_step, "flat")).peak
    figures: dict[str, float] = {"flat bytes": flat}
    for storage in ("float32", "float16"):
        peak = simulate(partial(_head_step, "prototype", storage=storage)).peak
        figures |= {f"{storage} bytes": peak, f"{storage} / flat memory": peak / flat}
    return figures


def _head_step(name: str, **options: Any) -> Training:
    head = make_head(name, WIDTH, CLASSES, **options)
    hidden, target = torch.randn(BATCH, WIDTH, requires_grad=True), torch.arange(BATCH // 2).repeat(2)
    return Training(head, torch.optim.Adam(head.parameters()), lambda: head(hidden, target).loss)


def step(rounds: int) -> dict[str, float]:
    """Seconds of a training step of the fast encoder, with the head and without any."""
    encoder = make_encoder("swift", 100, 3)
    head = make_head("prototype", encoder.width, CLASSES)
    model = Classifier(encoder, head)
    images = torch.randint(256, (BATCH, 3, 100, 100), dtype=torch.uint8)
    target = torch.arange(BATCH // 2).repeat(2)

    def alone() -> None:
        encoder(images).square().mean().backward()

    def whole() -> None:
        model(images, target).loss.backward()

    seconds = timed(rounds, encoder=_stepping(alone, encoder), both=_stepping(whole, model))
    return {
        "encoder seconds": seconds["encoder"],
        "with the head seconds": seconds["both"],
        "with the head / encoder": seconds["both"] / seconds["encoder"],
    }


def _stepping(backward: Callable[[], None], module: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.Adam(module.parameters(), fused=True)

    def run() -> None:
        backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def timed(rounds: int, **candidates: Callable[[], object]) -> dict[str, float]:
    """Median CPU seconds of this process of each, in turns: waiting for other work does not count."""
    for candidate in candidates.values():
        candidate()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            began = time.process_time()
            candidate()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
