"""Which items each step trains on, as a pure function of (seed, step): resuming replays nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BatchPlan:
    """How the items of every epoch are dealt out to optimiser steps, ranks and micro-batches.

    Each epoch is a fresh permutation of all items. A step takes the next `effective_batch` of them, whatever
    the number of ranks, so that one process and several see the same steps; the last step of an epoch takes
    what is left. Within a step every rank gets an equal share and cuts it into micro-batches of at most
    `batch_size`. (A remainder smaller than the number of ranks is left out of its epoch: a rank with nothing
    to do could not join the others.)

    Args:
        num_items: size of the training set.
        batch_size: items of one micro-batch on one rank.
        accumulate: micro-batches a rank adds up in one full step.
        seed: decides the permutations, together with the epoch.
        rank, world_size: this process among all (see `Runtime`).

    Raises:
        ValueError: if there are fewer items than ranks, or a size is not positive.
    """

    num_items: int
    batch_size: int
    accumulate: int
    seed: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if min(self.batch_size, self.accumulate, self.world_size) < 1:
            raise ValueError("batch_size, accumulate and world_size must be positive")
        if self.num_items < self.world_size:
            raise ValueError(f"{self.num_items} training items cannot be shared by {self.world_size} ranks")

    @property
    def effective_batch(self) -> int:
        """Items of a full step, over all micro-batches and ranks."""
        return self.batch_size * self.accumulate * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(self.num_items, self.effective_batch)
        return full + (rest >= self.world_size)

    def items(self, step: int) -> int:
        """Items of optimiser step `step`, over all ranks: what the mean loss of that step is divided by."""
        position = step % self.steps_per_epoch
        return min(self.effective_batch, self.num_items - position * self.effective_batch)

    def items_before(self, step: int) -> int:
        """Items of all steps before `step`, over all ranks."""
        epochs, position = divmod(step, self.steps_per_epoch)
        per_epoch = (self.steps_per_epoch - 1) * self.effective_batch + self.items(self.steps_per_epoch - 1)
        return epochs * per_epoch + position * self.effective_batch

    def micro_batches(self, step: int) -> int:
        """How many micro-batches this rank works through in optimiser step `step`."""
        start, stop = self._share(step)
        return -(-(stop - start) // self.batch_size)

    def batches(self, start: int, stop: int) -> MicroBatches:
        """The micro-batches of this rank from optimiser step `start` to `stop`: a DataLoader's
        `batch_sampler`."""
        return MicroBatches(self, start, stop)

    def _share(self, step: int) -> tuple[int, int]:
        items, base = self.items(step), (step % self.steps_per_epoch) * self.effective_batch
        return base + items * self.rank // self.world_size, base + items * (self.rank + 1) // self.world_size


class MicroBatches:
    """One rank's micro-batches, each a list of item indices, across epoch boundaries (workers never
    restart)."""

    def __init__(self, plan: BatchPlan, start: int, stop: int) -> None:
        self.plan, self.start, self.stop = plan, start, stop

    def __iter__(self) -> Iterator[list[int]]:
        plan, current_epoch, permutation = self.plan, -1, np.empty(0, np.int64)
        for step in range(self.start, self.stop):
            epoch = step // plan.steps_per_epoch
            if epoch != current_epoch:
                current_epoch = epoch
                permutation = np.random.default_rng([plan.seed, epoch]).permutation(plan.num_items)
            first, last = plan._share(step)
            for begin in range(first, last, plan.batch_size):
                yield permutation[begin : min(begin + plan.batch_size, last)].tolist()

    def __len__(self) -> int:
        return sum(self.plan.micro_batches(step) for step in range(self.start, self.stop))
