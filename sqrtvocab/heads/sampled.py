"""Sampled softmax: the flat head, trained on the classes of the batch and some drawn ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from sqrtvocab.heads.base import Head, HeadCost, block_rows, reset_linear, weighted_sum, wide
from sqrtvocab.heads.flat import FlatHead
from sqrtvocab.partition import ClassOrder, positive

SAMPLES = 1024  # drawn by default, or all classes if there are fewer


class SampledHead(FlatHead):
    """P(class) = softmax(W h + b), as :class:`FlatHead`; in training mode the sum over all V classes in its
    denominator is estimated.

    A training step draws M classes for the whole batch. Z = Σ_c exp(logit_c) is estimated by the sum over the
    classes of the batch, which are there anyway, and exp(logit_c) / π_c over the drawn ones that are not
    among them, where π_c is how often class c is expected among the M draws (the "log Q correction"). This
    estimate of Z has no bias, whatever the M; its logarithm, which is the loss, lies below that of Z on
    average, by less the larger M is. With M = V it is the flat head exactly. Label smoothing estimates the
    mean logit in the same way.

    Draws are stratified: one from each M-th of the distribution that they follow, so a class comes twice
    only where two parts meet. Only the rows of W and b that took part have a gradient, which after
    :meth:`give_sparse_gradients` is a sparse tensor: a step then costs (M + batch)·d, not V·d.

    In evaluation mode everything is exact, a block of rows at a time.

    Args:
        in_features, num_classes, validate, device, dtype: see :class:`~sqrtvocab.heads.base.Head`.
        samples: M, at most V; 1,024 by default.
        order: [V] a permutation of the classes, the most frequent first. Given it, the class at rank r is
            drawn in proportion to log((r + 2) / (r + 1)), about as often as the r-th word of a language
            occurs, but never more than once on average; without it all classes are drawn equally often.
    """

    surrogate = True
    frequent_first = True
    can_grow = False
    split_tables: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        samples: int | None = None,
        order: Tensor | None = None,
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        # Not FlatHead's: the rows are kept in embeddings, for torch's DistributedDataParallel expects sparse
        # gradients of nothing else.
        Head.__init__(self, in_features, num_classes, validate)
        self.samples = min(SAMPLES, num_classes) if samples is None else positive("samples", samples)
        if self.samples > num_classes:
            raise ValueError(f"samples must be at most num_classes = {num_classes}, got {samples}")
        self.tied = False
        self.chunk_size = block_rows(num_classes)  # of an evaluation
        self.rows = nn.Embedding(num_classes, in_features, device=device, dtype=dtype)
        self.shifts = nn.Embedding(num_classes, 1, device=device, dtype=dtype)
        self.ranking = ClassOrder(num_classes, order).to(device)
        self.reset_parameters()

    @property
    def weight(self) -> nn.Parameter:  # type: ignore[override]
        """[V, d]"""
        return cast(nn.Parameter, self.rows.weight)

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """[V]"""
        return self.shifts.weight.squeeze(1)

    def reset_parameters(self) -> None:
        reset_linear(self.rows.weight, self.in_features)
        nn.init.zeros_(self.shifts.weight)

    def give_sparse_gradients(self) -> list[nn.Parameter]:
        self.rows.sparse = self.shifts.sparse = True
        return [*self.rows.parameters(), *self.shifts.parameters()]

    # ---- training ----

    def _nll(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        if not self.training:
            return super()._nll(hidden, target, label_smoothing)
        nll = self._estimate(hidden, target.unsqueeze(1), label_smoothing).squeeze(1)
        return torch.zeros_like(nll), nll

    def _estimate(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
        """hidden [N, d], targets [N, K] -> the loss of each, [N, K]."""
        own, log_weight, column = _classes_of_batch(target)  # [U], [U], [N, K]
        drawn, log_expected = self._draw(target.device)  # [M], [M]
        # A drawn class that the batch has, too, is in the sum already. (torch.isin would make a GPU wait.)
        bounded = F.pad(own, (0, 1), value=self.num_classes)  # [U + 1]
        is_own = bounded[torch.searchsorted(own, drawn)] == drawn  # [M]
        log_weight = torch.cat([log_weight, (-log_expected).masked_fill(is_own, -math.inf)])
        classes = torch.cat([own, drawn])
        logits = wide(F.linear(hidden, self.rows(classes), self.shifts(classes).squeeze(1)))  # [N, U + M]
        log_weight = log_weight.to(logits.dtype)
        of_target = logits.gather(1, column)  # [N, K]
        nll = (logits + log_weight).logsumexp(-1, keepdim=True) - of_target
        if label_smoothing:
            mean_logit = (logits * log_weight.exp()).sum(-1, keepdim=True) / self.num_classes  # [N, 1]
            nll = nll + label_smoothing * (of_target - mean_logit)
        return nll

    def _draw(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """M classes, and the logarithm of how often each of them is expected among the M."""
        dtype = torch.float32 if device.type == "mps" else torch.float64  # float32 cannot tell rare ranks
        v, m = self.num_classes, self.samples
        k = 0 if self.ranking.order is None else always_drawn(v, m)
        # float32 on purpose: j + u must not be rounded up to j + 1.
        u = torch.rand(m - k, device=device)
        strata = torch.arange(m - k, device=device, dtype=dtype) + u.to(dtype)  # [M − k]
        if self.ranking.order is None:
            position = (strata * (v / m)).long().clamp(max=v - 1)
            return position, torch.full((m,), math.log(m / v), device=device, dtype=dtype)
        span = math.log((v + 1) / (k + 1))
        rank = ((k + 1) * (strata * (span / (m - k))).exp() - 1).long().clamp(k, v - 1)  # [M − k]
        log_expected = (torch.log1p(1 / (rank.to(dtype) + 1)) * ((m - k) / span)).log()
        always = torch.arange(k, device=device)
        return (
            self.ranking.classes_at(torch.cat([always, rank])),
            torch.cat([always.to(dtype) * 0, log_expected]),
        )

    def _soft_nll(
        self, hidden: Tensor, target: Tensor, share: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        if not self.training:
            return super()._soft_nll(hidden, target, share, label_smoothing)
        nll = weighted_sum(self._estimate(hidden, target, label_smoothing), share)
        return torch.zeros_like(nll), nll

    def _spread_nll(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        if not self.training:
            return super()._spread_nll(hidden)
        return self._nll(hidden, torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device), 1.0)

    def _nll_sum(
        self, hidden: Tensor, target: Tensor, kept: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        if not self.training:
            return super()._nll_sum(hidden, target, kept, label_smoothing)
        return Head._nll_sum(self, hidden, target, kept, label_smoothing)

    # ---- reports ----

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        """Without the classes of the batch, which come on top."""
        return HeadCost(self.in_features * self.samples, self.samples)

    def describe(self) -> str:
        how = "equally often" if self.ranking.order is None else "frequent ones more often"
        return f"{self.num_classes:,} classes, {self.samples:,} drawn for a batch, {how}"

    def grow(self, num_classes: int, weight: nn.Parameter | None = None) -> FlatHead:
        raise NotImplementedError(f"a {type(self).__name__} cannot grow from {self.num_classes:,} classes")


def _classes_of_batch(target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Targets [...] -> classes [U], sorted, the logarithm of what each weighs in a sum over them [U], and
    where each target is among them [...].

    On a GPU, which would have to be waited for, and where shapes must not depend on data, a class is there as
    often as in the batch, and shares its weight.
    """
    if target.device.type == "cpu" and not (torch.compiler.is_compiling() or isinstance(target, FakeTensor)):
        own, column = target.unique(return_inverse=True)
        return own, torch.zeros(len(own), device=target.device), column
    own = target.flatten().sort().values  # [N]
    times = torch.searchsorted(own, own, right=True) - torch.searchsorted(own, own)  # [N]
    return own, -times.float().log(), torch.searchsorted(own, target)


def always_drawn(num_classes: int, samples: int) -> int:
    """How many of the first ranks are in every draw: those that would be expected more than once among
    M = ``samples`` that follow log((r + 2) / (r + 1)) over the ranks r from there on."""
    low, high = 0, samples - 1  # at M − 1 there is one draw left, and more than one rank to share it
    while low < high:
        k = (low + high) // 2
        if (samples - k) * math.log1p(1 / (k + 1)) <= math.log((num_classes + 1) / (k + 1)):
            high = k
        else:
            low = k + 1
    return low
