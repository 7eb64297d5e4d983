"""How well a model does, from sums that grow with the classes and groups and not with what is scored.

One evaluation fills a `ScoreSheet`, on the device and without waiting for it; `total` makes `Scores` of the
sheets of all ranks. Both trainers and both `eval_` commands take their numbers from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sqrtvocab.heads.base import Guesses, HeadOutput
from sqrtvocab.partition import Partition
from sqrtvocab.training.runtime import Runtime

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BINS = 15  # of the confidence; usual in the literature on calibration
PROBABILITY_BINS = 30  # of the histograms
MOST_CELLS = 1024  # rows of the confusion between groups; more groups share them
BANDS = ("rare", "middle", "frequent")


class Band(NamedTuple):
    """Classes of similar frequency in the training data."""

    name: str
    classes: int
    least: int  # examples in the training data
    most: int
    rows: int
    accuracy: float
    loss: float


class GroupScore(NamedTuple):
    """How the classes of one group fare."""

    group: int
    rows: int
    accuracy: float
    """Share of its rows whose class was predicted."""
    group_accuracy: float
    """Share of its rows whose group was predicted."""
    loss: float


class Bin(NamedTuple):
    """Predictions that were about equally sure."""

    rows: int
    confidence: float
    """Mean probability of the class predicted."""
    accuracy: float


class ScoreSheet:
    """The sums of an evaluation on one rank.

    Args:
        partition: what a group is.
    """

    def __init__(self, num_classes: int, partition: Partition, runtime: Runtime) -> None:
        self._partition, self._runtime = partition, runtime
        # MPS has no float64; up to 16 million rows are counted exactly nevertheless.
        dtype = torch.float32 if runtime.device.type == "mps" else torch.float64
        groups = partition.num_groups
        self._cells = min(groups, MOST_CELLS)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=runtime.device)

        self._by_class = zeros(num_classes, 3)  # rows, right ones, loss
        self._by_group = zeros(groups)  # rows whose group was right
        self._bins = zeros(BINS, 3)  # rows, right ones, confidence
        self._group_probability = zeros(PROBABILITY_BINS)  # rows
        self._confusion = zeros(self._cells * self._cells)  # rows
        self._totals = zeros(3)  # group loss, member loss, right members

    def add(self, target: Tensor, losses: HeadOutput, guesses: Guesses) -> None:
        """Count N rows: their classes [N], the losses of each [N], what the head took them for [N, ...]."""
        dtype = self._totals.dtype
        group = self._partition.split(target)[0]  # [N]
        right = (guesses.classes[:, 0] == target).to(dtype)  # [N]
        ones = torch.ones_like(right)
        loss = losses.loss.to(dtype)
        self._by_class.index_add_(0, target, torch.stack([ones, right, loss], 1))
        self._by_group.index_add_(0, group, (guesses.group == group).to(dtype))
        confidence = guesses.log_probs[:, 0].to(dtype).exp().clamp(0, 1)  # [N]
        self._bins.index_add_(0, _bin(confidence, BINS), torch.stack([ones, right, confidence], 1))
        group_probability = (-losses.group_loss.to(dtype)).exp().clamp(0, 1)  # [N]
        self._group_probability.index_add_(0, _bin(group_probability, PROBABILITY_BINS), ones)
        cell, predicted = (
            part * self._cells // self._partition.num_groups for part in (group, guesses.group)
        )
        self._confusion.index_add_(0, cell * self._cells + predicted, ones)
        right_member = (guesses.in_group == target).to(dtype)
        parts = [losses.group_loss.to(dtype), losses.member_loss.to(dtype), right_member]
        self._totals += torch.stack([part.sum() for part in parts])

    def total(self) -> Scores:
        """What all ranks have counted together; every rank gets it."""
        sums = (self._by_class, self._by_group, self._bins, self._group_probability, self._confusion)
        arrays = [self._runtime.sum(table).double().cpu().numpy() for table in (*sums, self._totals)]
        by_class, by_group, bins, group_probability, confusion, totals = arrays
        device = self._runtime.device
        group_of = self._partition.split(torch.arange(len(by_class), device=device))[0].cpu().numpy()
        return Scores(
            by_class,
            by_group,
            bins,
            group_probability,
            confusion.reshape(self._cells, self._cells),
            totals,
            group_of,
        )


def _bin(share: Tensor, bins: int) -> Tensor:
    """Which of `bins` equal parts of [0, 1] a number lies in; NaN, of a broken model, in the first."""
    return (share.nan_to_num(0.0) * bins).long().clamp(max=bins - 1)


@dataclass(frozen=True, eq=False)
class Scores:
    """An evaluation of N rows (images, tokens) over V classes in G groups; made by `ScoreSheet`."""

    by_class: FloatArray  # [V, 3] rows, right ones, loss
    by_group: FloatArray  # [G] rows whose group was right
    bins: FloatArray  # [BINS, 3] rows, right ones, confidence
    group_probability: FloatArray  # [PROBABILITY_BINS] rows by the probability of the true group
    confusion: FloatArray  # [C, C] rows by true and predicted group; groups share a cell if there are many
    totals: FloatArray  # [3] group loss, member loss, right members
    group_of: IntArray  # [V]

    @property
    def rows(self) -> int:
        return int(self.by_class[:, 0].sum())

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of the true class, in nats."""
        return self._mean(self.by_class[:, 2].sum())

    @property
    def group_loss(self) -> float:
        """The group's share of it; 0 for a head without groups."""
        return self._mean(self.totals[0])

    @property
    def member_loss(self) -> float:
        """The member's share of it."""
        return self._mean(self.totals[1])

    @property
    def accuracy(self) -> float:
        """Share of the rows whose class is the most probable one."""
        return self._mean(self.by_class[:, 1].sum())

    @property
    def group_accuracy(self) -> float:
        """Share of the rows whose group was predicted."""
        return self._mean(self.by_group.sum())

    @property
    def member_accuracy(self) -> float:
        """Share of the rows whose class is the most probable one of its group."""
        return self._mean(self.totals[2])

    @property
    def mean_class_accuracy(self) -> float:
        """The mean of the classes' accuracies, over the classes that occur: each counts the same."""
        seen = self.by_class[:, 0] > 0
        return float(np.mean(self.by_class[seen, 1] / self.by_class[seen, 0])) if seen.any() else np.nan

    def _mean(self, total: float) -> float:
        return float(total / self.rows) if self.rows else np.nan

    def bands(self, counts: npt.ArrayLike) -> list[Band]:
        """The scores of rare, middle and frequent classes, those that have rows.

        Each band holds about a third of the training data. Classes that are equally frequent are in one band,
        so a set in which all are has no bands: an empty list.

        Args:
            counts: [V] examples of each class in the training data.
        """
        examples = np.asarray(counts, np.int64)
        band_of = _thirds(examples)  # [V]
        bands = []
        for number, name in enumerate(BANDS):
            inside = band_of == number
            rows, right, loss = self.by_class[inside].sum(0).tolist()
            if rows:
                some = examples[inside]
                bands.append(
                    Band(
                        name,
                        len(some),
                        int(some.min()),
                        int(some.max()),
                        int(rows),
                        right / rows,
                        loss / rows,
                    )
                )
        return bands if len(bands) > 1 else []

    def groups(self) -> list[GroupScore]:
        """The groups, the one with the lowest loss first; those with less than half as many rows as the
        average say little and are left out."""
        sums = np.stack(
            [np.bincount(self.group_of, column, len(self.by_group)) for column in self.by_class.T], 1
        )  # [G, 3]
        seen = np.flatnonzero(sums[:, 0])
        kept = [group for group in seen.tolist() if 2 * sums[group, 0] * len(seen) >= sums[:, 0].sum()]
        scores = []
        for group in kept:
            rows, right, loss = sums[group].tolist()
            scores.append(
                GroupScore(group, int(rows), right / rows, float(self.by_group[group]) / rows, loss / rows)
            )
        return sorted(scores, key=lambda score: score.loss)

    def confused_groups(self, most: int = 10) -> list[tuple[int, int, int]]:
        """(true group, predicted group, rows) of the commonest confusions; none if groups share cells."""
        if len(self.confusion) < len(self.by_group):
            return []
        wrong = self.confusion - np.diag(np.diag(self.confusion))  # [G, G]
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = [(*divmod(cell, len(wrong)), int(wrong.flat[cell])) for cell in order.tolist()]
        return [pair for pair in pairs if pair[2]]

    def reliability(self) -> list[Bin | None]:
        """Predictions by their probability, from 0 to 1; None where there are none."""
        return [
            Bin(int(rows), confidence / rows, right / rows) if rows else None
            for rows, right, confidence in self.bins.tolist()
        ]

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: how far confidence and accuracy lie apart, on average over the rows."""
        return self._mean(np.abs(self.bins[:, 1] - self.bins[:, 2]).sum())

    def scalars(self, counts: npt.ArrayLike) -> dict[str, float]:
        """For TensorBoard: what both experiments mean the same by. `counts` as in `bands`."""
        bands = self.bands(counts)
        return {
            "accuracy/mean_over_classes": self.mean_class_accuracy,
            "calibration/error": self.calibration_error,
            **{f"accuracy_by_frequency/{band.name}": band.accuracy for band in bands},
            **{f"loss_by_frequency/{band.name}": band.loss for band in bands},
        }


def _thirds(counts: IntArray) -> IntArray:
    """[V] -> 0, 1 or 2: in which third of the data, from the rarest class up, the examples of equally
    frequent classes have their middle."""
    values, level = np.unique(counts, return_inverse=True)  # [levels], [V]
    mass = np.bincount(level, counts, len(values))  # [levels] examples
    if not mass.sum():
        return np.zeros_like(counts)
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()  # [levels]
    return np.minimum(middle * 3, 2).astype(np.int64)[level]
