"""Steps of several items of each of a few classes, some of them hard to tell apart: a pure function of (seed,
step, table of hard classes)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

HARD_SHARE = 5 / 6  # of the classes of a step, once it is known which are hard

ClassBalance = Literal["equal", "frequency"]


class ClassPlan:
    """Which items each step trains on, K of each class; as `BatchPlan` in all that a trainer asks.

    The classes come in an endless row of permutations, each class once ("equal") or as often as K go into its
    items ("frequency"); a step takes the next P, whatever the number of ranks. Given a table of hard classes,
    most of a step's classes are rows of the table drawn at random, a class and those nearest to it. The items
    of a class are drawn anew each time, without repetition. A micro-batch holds whole classes.

    Args:
        labels: [num_items] the class of each item. Classes with fewer than K items take no part.
        num_classes: V.
        per_class: K.
        batch_size: items of one micro-batch on one rank, a multiple of K.
        accumulate, seed, rank, world_size: as for `BatchPlan`.
        balance: how often each class comes.
        allowed: [V] which classes may take part; all by default.

    Raises:
        ValueError: fewer than two classes have K items, or `batch_size` is no multiple of K.
    """

    def __init__(
        self,
        labels: IntArray,
        num_classes: int,
        per_class: int,
        batch_size: int,
        accumulate: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        balance: ClassBalance = "equal",
        allowed: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        if batch_size % per_class:
            raise ValueError(f"a batch of {batch_size} does not hold whole classes of {per_class}")
        self.per_class, self.batch_size, self.accumulate = per_class, batch_size, accumulate
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self._items = np.argsort(labels, kind="stable")  # class by class
        self._counts = np.bincount(labels, minlength=num_classes)
        self._starts = np.cumsum(self._counts) - self._counts
        takes_part = self._counts >= per_class
        if allowed is not None:
            takes_part &= allowed
        self.classes: IntArray = np.flatnonzero(takes_part)
        if len(self.classes) < 2:
            raise ValueError(f"{len(self.classes)} classes have {per_class} items each: at least two must")
        often = self._counts[self.classes] // per_class if balance == "frequency" else 1
        self._row = np.repeat(self.classes, often)
        self._hard: IntArray = np.empty((0, 1), np.int64)

    def mix_in(self, hard: IntArray) -> None:
        """From the next `batches` on, take classes from this table [T, 1 + k]: each row a class and the k
        that are hardest to tell from it; rows of negative numbers are none."""
        usable = np.isin(hard, self.classes) if len(hard) else np.ones_like(hard, dtype=bool)
        self._hard = np.where(usable, hard, -1)[usable[:, 0] if len(hard) else slice(None)]

    @property
    def effective_batch(self) -> int:
        """Items of a step, over all micro-batches and ranks."""
        return self.batch_size * self.accumulate * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Steps that see every class once (or as often as `balance` says)."""
        return -(-len(self._row) * self.per_class // self.effective_batch)

    def items(self, step: int) -> int:
        """Items of optimiser step `step`, over all ranks."""
        return self.effective_batch

    def items_before(self, step: int) -> int:
        """Items of all steps before `step`, over all ranks."""
        return step * self.effective_batch

    def micro_batches(self, step: int) -> int:
        """How many micro-batches this rank works through in optimiser step `step`."""
        return self.accumulate

    def batches(self, start: int, stop: int) -> ClassBatches:
        """The micro-batches of this rank from optimiser step `start` to `stop`: a DataLoader's
        `batch_sampler`."""
        return ClassBatches(self, start, stop)

    def step(self, step: int) -> IntArray:
        """The items [effective_batch] of a step, over all ranks, class by class."""
        count = self.effective_batch // self.per_class
        dice = np.random.default_rng([self.seed, 1, step])
        classes = self._hard_classes(int(HARD_SHARE * count), dice)
        if len(classes):
            fresh = self._next_classes(step, count)
            fresh = fresh[~np.isin(fresh, classes)]
            more = self._next_classes(step + 1, count)  # should the fresh ones not suffice
            classes = np.concatenate([classes, fresh, more])[:count]
            dice.shuffle(classes)  # or the first micro-batch would have all the hard ones
        else:
            classes = self._next_classes(step, count)
        return np.concatenate([self._draw(label, dice) for label in classes.tolist()])

    def _hard_classes(self, room: int, dice: np.random.Generator) -> IntArray:
        """Whole rows of the table, as many as there is room for, no class twice."""
        rows = min(room // self._hard.shape[1], len(self._hard))
        if not rows:
            return np.empty(0, np.int64)
        drawn = self._hard[dice.choice(len(self._hard), rows, replace=False)]
        return np.unique(drawn[drawn >= 0])

    def _next_classes(self, step: int, count: int) -> IntArray:
        """The classes [count] that are next in the endless row."""
        places = np.arange(step * count, (step + 1) * count)
        epochs, places = places // len(self._row), places % len(self._row)
        parts = [self._permutation(int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)]
        return np.concatenate(parts)

    def _permutation(self, epoch: int) -> IntArray:
        if getattr(self, "_epoch", None) != epoch:
            self._epoch = epoch
            self._order = self._row[np.random.default_rng([self.seed, 0, epoch]).permutation(len(self._row))]
        return self._order

    def _draw(self, label: int, dice: np.random.Generator) -> IntArray:
        count = int(self._counts[label])
        if count == self.per_class:
            chosen = np.arange(count)
        else:
            chosen = dice.choice(count, self.per_class, replace=False, shuffle=False)
        return self._items[self._starts[label] + chosen]


class ClassBatches:
    """One rank's micro-batches, each a list of item indices."""

    def __init__(self, plan: ClassPlan, start: int, stop: int) -> None:
        self.plan, self.start, self.stop = plan, start, stop

    def __iter__(self) -> Iterator[list[int]]:
        plan = self.plan
        for step in range(self.start, self.stop):
            shares: Any = plan.step(step).reshape(plan.accumulate, plan.world_size, plan.batch_size)
            for micro_batch in shares:
                yield micro_batch[plan.rank].tolist()

    def __len__(self) -> int:
        return (self.stop - self.start) * self.plan.accumulate
