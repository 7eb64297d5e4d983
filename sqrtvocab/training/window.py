"""What is measured between two reports: losses, speed, waiting for data, the time left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch

from sqrtvocab.training.runtime import Runtime
from sqrtvocab.training.stop import StopRequests

Batch = TypeVar("Batch")
_STEPS_TO_JUDGE = 3  # the speed by
_LONG = 3 * 3600.0  # seconds that a user should hear of


@dataclass(frozen=True)
class Report:
    """The numbers of one window."""

    step: int
    total_steps: int
    unit: str  # what is counted: images, tokens
    seconds: float
    speed: float  # items a second
    wait_fraction: float  # of the time, by the rank that waits most for data
    memory: float  # GiB, of the rank that holds most
    time_left: timedelta
    loss: float  # the mean over the items, the sum of the other two
    group_loss: float
    member_loss: float
    notice: str = ""  # what the user should hear once

    def scalars(self, lr: float) -> dict[str, float]:
        """For TensorBoard."""
        # A head without groups has no group loss; a curve at 0.000 would look like winning.
        parts = {"loss/group": self.group_loss, "loss/member": self.member_loss} if self.group_loss else {}
        return {
            "loss/train": self.loss,
            **parts,
            "learning_rate": lr,
            f"speed/{self.unit}_per_s": self.speed,
            "memory/peak": self.memory,
        }

    def phrases(self, score: str) -> list[str]:
        """For the terminal, the most important first."""
        parts = [f"group {self.group_loss:.3f} + member {self.member_loss:.3f}"] if self.group_loss else []
        return [
            f"step {self.step:,}/{self.total_steps:,}",
            f"loss {self.loss:.3f}",
            score,
            f"ETA {self.time_left}",
            f"{self.speed:,.0f} {self.unit}/s",
            *parts,
            f"peak {self.memory:.1f} GiB",
        ]


class Window:
    """The time since the last report, and what was done in it.

    Args:
        unit: what is counted, such as images.
        step: the step from which the run continues.
        stop: knows how much time there is.
    """

    def __init__(self, unit: str, step: int, total_steps: int, stop: StopRequests, runtime: Runtime) -> None:
        self._unit, self._total_steps, self._stop, self._runtime = unit, total_steps, stop, runtime
        self._first_step, self._start, self._warned = step, time.monotonic(), False
        self._every = 1 if runtime.device.type == "cpu" else 20  # reading numbers off a GPU makes it wait
        self.restart()

    def restart(self) -> None:
        """Begin a new window, now."""
        self._items, self._waited, self._began = 0, 0.0, time.perf_counter()

    def next(self, batches: Iterator[Batch]) -> Batch:
        """The next batch; how long it took counts as waiting."""
        asked = time.perf_counter()
        batch = next(batches)
        self._waited += time.perf_counter() - asked
        return batch

    def add(self, items: int) -> None:
        """Count the items of one step, over all ranks."""
        self._items += items

    def is_due(self, step: int) -> bool:
        """Whether `step` is one to report after."""
        return step % self._every == 0

    def report(self, step: int, sums: Mapping[str, float]) -> Report:
        """What happened in this window; `sums` are the losses, summed over its items."""
        seconds = time.perf_counter() - self._began
        mine = [self._waited / seconds, self._runtime.peak_memory() / 2**30]
        wait_fraction, memory = self._runtime.max(torch.tensor(mine, dtype=torch.float64)).tolist()
        per_step = (time.monotonic() - self._start) / (step - self._first_step)  # evaluations included
        seconds_left = min((self._total_steps - step) * per_step, self._stop.seconds_left)
        notice = ""
        if not self._warned and step - self._first_step >= _STEPS_TO_JUDGE:
            self._warned = True
            if seconds_left > _LONG:
                took = f"{seconds_left / 3600:,.0f} hours" if seconds_left < 48 * 3600 else ""
                took = took or f"{seconds_left / 86400:,.1f} days"
                notice = (
                    f"NOTE: at this speed the rest takes {took}; Ctrl-C stops and saves at any time, "
                    "--max-minutes after a while, and --resume goes on"
                )
        return Report(
            step=step,
            total_steps=self._total_steps,
            unit=self._unit,
            seconds=seconds,
            speed=self._items / seconds,
            wait_fraction=wait_fraction,
            memory=memory,
            time_left=timedelta(seconds=round(seconds_left)),
            notice=notice,
            **{name: total / self._items for name, total in sums.items()},
        )
