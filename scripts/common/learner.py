"""The classifier's training step, timed, with what it waits for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from classifier.model import Classifier
from sqrtvocab.training import Runtime, share_of_mean

Batch = tuple[Tensor, Tensor]


class Timing(NamedTuple):
    """Seconds of a step, and those of them spent waiting for images."""

    total: float
    waited: float


class Learner:
    """A model with its optimiser, and the trainer's step."""

    def __init__(self, model: Classifier, runtime: Runtime) -> None:
        self.model, self.runtime = model.to(runtime.device).train(), runtime
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        self.scaler = runtime.scaler()

    def step(self, batches: Iterable[Batch], items: int) -> Timing:
        """One optimiser step, as the trainer takes it."""
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
        return Timing(time.perf_counter() - began, waited)
