"""Adaptive softmax (Grave et al. 2017) under the common contract: frequent classes, tails of rarer ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads import place, soft
from sqrtvocab.heads.base import Head, HeadCost, token_nll, weighted_sum, wide
from sqrtvocab.heads.sampling import draw
from sqrtvocab.heads.segments import refuse_forward_mode, rows_nll, segment_ends, segment_nll
from sqrtvocab.partition import ClassOrder, check_counts, host_sees, integer

KERNELS = ("auto", "segments", "rows")


class Tail(nn.Module):
    """One cluster of infrequent classes, scored from a narrow projection of the hidden state."""

    def __init__(self, in_features: int, features: int, num_members: int, **like: Any) -> None:
        super().__init__()
        self.project = nn.Linear(in_features, features, bias=False, **like)
        self.score = nn.Linear(features, num_members, **like)

    def forward(self, hidden: Tensor) -> Tensor:
        return wide(self.score(self.project(hidden)))  # [N, members]


class AdaptiveHead(Head):
    """The model of ``nn.AdaptiveLogSoftmaxWithLoss``, with the biases that a prior needs.

    The first ``cutoffs[0]`` classes (the most frequent) and one entry per tail cluster share a softmax; the
    classes of cluster i follow from a projection of the hidden state to d / div_value^i features. Unlike
    torch's module it takes ``ignore_index``, any shape, other reductions, an ``order`` of the classes,
    compiles in one graph, uses every parameter in every step (DDP needs that), and scores a cluster in blocks
    of rows. The "group" of the contract is the entry of the first softmax.

    On a CPU a cluster scores the rows whose targets it holds. Elsewhere the host would have to wait to learn
    how many these are, so there each cluster scores all rows, a block at a time, and those of other clusters
    count nothing: V logits a row in all, as in a flat head, for a seventh of its multiply-adds or so.

    Args:
        in_features, num_classes, validate, device, dtype: see :class:`~sqrtvocab.heads.base.Head`.
        cutoffs: increasing positions where the clusters begin; V/25 and V/5 by default.
        div_value: how much narrower each further cluster's projection is.
        order: int [V], the class at each position, most frequent first; class indices as they are by default.
            ``Partition.by_frequency(counts).order`` is one.
        kernel: "segments" scores rows in their own cluster, "rows" all rows in every cluster; "auto" as said.
    """

    frequent_first = True
    sparse_topk = True
    renamed = {"partition.order": "ranking.order", "partition.position": "ranking.position"}  # noqa: RUF012

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        cutoffs: Sequence[int] | None = None,
        div_value: float = 4.0,
        order: Tensor | None = None,
        kernel: str = "auto",
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, validate)
        if cutoffs is None:
            cutoffs = sorted({cut for cut in (num_classes // 25, num_classes // 5) if cut > 0})
        cutoffs = [integer("each of cutoffs", cut) for cut in cutoffs]
        if any(a >= b for a, b in pairwise([0, *cutoffs, num_classes])):
            raise ValueError(f"cutoffs must increase strictly within (0, {num_classes}), got {cutoffs}")
        if kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}; got {kernel!r}")
        self.kernel = kernel
        if not div_value > 0:
            raise ValueError(f"div_value must be positive, got {div_value}")
        self.edges = [*cutoffs, num_classes]  # where the frequent classes end, then each cluster
        self.num_frequent = self.edges[0]
        self.num_clusters = len(cutoffs)
        self.ranking = ClassOrder(num_classes, order).to(device)
        like = {"device": device, "dtype": dtype}
        self.first = nn.Linear(in_features, self.num_frequent + self.num_clusters, **like)
        self.tails: Iterable[Tail] = nn.ModuleList(  # type: ignore[assignment]
            Tail(in_features, max(1, int(in_features // div_value**i)), stop - start, **like)
            for i, (start, stop) in enumerate(pairwise(self.edges), start=1)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        layers = [self.first, *(layer for tail in self.tails for layer in (tail.project, tail.score))]
        for layer in layers:
            layer.reset_parameters()
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def _spread(self, hidden: Tensor) -> Tensor:
        """[frequent classes + clusters] the share of all classes that each entry of the first softmax has."""
        sizes = [hidden.new_ones(self.num_frequent)]
        sizes += [hidden.new_full((1,), stop - start) for start, stop in pairwise(self.edges)]
        return wide(torch.cat(sizes)) / self.num_classes

    def _spread_nll(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        nll = -(self._spread(hidden) * self._first_log_prob(hidden)).sum(-1)
        return nll, torch.zeros_like(nll)

    def _places(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Position, cluster (0 is the frequent classes) and entry of the first softmax of each target."""
        position = self.ranking.positions_of(target)
        cluster = torch.zeros_like(position)
        for start in self.edges[:-1]:  # not bucketize: its bounds would be copied to the GPU at every call
            cluster += position >= start
        return position, cluster, torch.where(cluster == 0, position, self.num_frequent + cluster - 1)

    def _nll(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        position, cluster, entry = self._places(target)  # [N] each
        spread = self._spread(hidden) if label_smoothing else 0.0
        group_nll = token_nll(self.first(hidden), entry, label_smoothing, spread)  # [N]
        tails_nll = self._sorted_nll if self.kernel_for(hidden.dtype) == "segments" else self._every_row_nll
        return group_nll, tails_nll(hidden, position, cluster, label_smoothing)

    def _soft_nll(
        self, hidden: Tensor, target: Tensor, share: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        if self.kernel_for(hidden.dtype) != "segments":
            return super()._soft_nll(hidden, target, share, label_smoothing)
        # The first softmax serves all K targets of a row, and a cluster all those that it holds.
        position, cluster, entry = self._places(target)  # [N, K] each
        log_probs = self._first_log_prob(hidden)
        group_nll = -log_probs.gather(1, entry)  # [N, K]
        if label_smoothing:
            uniform = -(self._spread(hidden) * log_probs).sum(-1, keepdim=True)  # [N, 1]
            group_nll = (1 - label_smoothing) * group_nll + label_smoothing * uniform
        member_nll = torch.zeros_like(group_nll)
        for i, tail in enumerate(self.tails, start=1):
            rows, weight, bias, member = self._operands(i, tail, hidden, position)
            sizes = torch.tensor([len(bias)], device=bias.device)
            tables = soft.Tables(rows, bias, torch.zeros_like(sizes), sizes, weight)
            elsewhere = (cluster != i).long()
            member_nll = member_nll + soft.nll(
                tables, elsewhere, member, label_smoothing, 1 / self.num_classes
            )
        return weighted_sum(group_nll, share), weighted_sum(member_nll, share)

    def kernel_for(self, dtype: torch.dtype) -> str:
        if self.kernel != "auto":
            return self.kernel
        return "segments" if place.is_cpu(self.first.weight.device) else "rows"

    def _sorted_nll(
        self, hidden: Tensor, position: Tensor, cluster: Tensor, label_smoothing: float
    ) -> Tensor:
        """−log P(class | cluster), [N], zero for frequent classes. The host learns the clusters' sizes."""
        sorted_cluster, token = cluster.sort()  # [N], [N]
        ends = segment_ends(sorted_cluster, self.num_clusters + 1)
        rows, position = hidden.index_select(0, token), position[token]  # [N, d], [N]
        nll = torch.zeros_like(position, dtype=torch.float32)  # [N]
        for i, tail in enumerate(self.tails, start=1):
            operands = self._operands(i, tail, rows, position)
            nll = nll + segment_nll(*operands, ends, i, label_smoothing, 1 / self.num_classes)
        return torch.zeros_like(nll).index_copy(0, token, nll)

    def _every_row_nll(
        self, hidden: Tensor, position: Tensor, cluster: Tensor, label_smoothing: float
    ) -> Tensor:
        """The same, every cluster scoring all rows."""
        nll = torch.zeros_like(position, dtype=torch.float32)  # [N]
        for i, tail in enumerate(self.tails, start=1):
            operands = self._operands(i, tail, hidden, position)
            of_all = rows_nll(*operands, label_smoothing, 1 / self.num_classes)  # [N]
            nll = nll + torch.where(cluster == i, of_all, 0.0)
        return nll

    def _operands(
        self, i: int, tail: Tail, rows: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What a tail scores rows [N, d] by, and their members [N]: any member for rows of other clusters."""
        projected = tail.project(rows)  # [N, d / div_value^i]
        refuse_forward_mode(projected, tail.score.weight, tail.score.bias)
        member = (position - self.edges[i - 1]).clamp(0, tail.score.out_features - 1)
        dtype = projected.dtype
        return projected, tail.score.weight.to(dtype), tail.score.bias.to(dtype), member

    def _first_log_prob(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(wide(self.first(hidden)), dim=-1)  # [N, frequent classes + clusters]

    def _log_prob(self, hidden: Tensor) -> Tensor:
        first = self._first_log_prob(hidden)
        parts = [first[:, : self.num_frequent]]
        for i, tail in enumerate(self.tails, start=self.num_frequent):
            parts.append(first[:, i, None] + F.log_softmax(tail(hidden), dim=-1))
        by_position = torch.cat(parts, dim=1)  # [N, V]
        if self.ranking.position is None:
            return by_position
        return by_position.index_select(1, self.ranking.position)

    def _topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Exact: a cluster is opened only for the rows in which it may hold one of the k best, where the host
        can see which rows these are."""
        if not host_sees(hidden):
            return super()._topk(hidden, k)
        first = self._first_log_prob(hidden)
        best = first.new_full((len(hidden), k), -math.inf)
        position = torch.zeros(best.shape, dtype=torch.int64, device=hidden.device)
        known = min(k, self.num_frequent)
        best[:, :known], position[:, :known] = first[:, : self.num_frequent].topk(known, dim=-1)
        for i, tail in enumerate(self.tails):
            bound = first[:, self.num_frequent + i]  # [N]
            for rows in self._blocks((bound > best[:, -1]).nonzero().squeeze(1)):
                joint = bound[rows, None] + F.log_softmax(tail(hidden[rows]), dim=-1)
                found, member = joint.topk(min(k, joint.shape[1]), dim=-1)  # [R, ≤ k]
                best[rows], keep = torch.cat([best[rows], found], 1).topk(k, dim=-1)
                candidates = torch.cat([position[rows], self.edges[i] + member], 1)
                position[rows] = candidates.gather(1, keep)
        return best, self.ranking.classes_at(position)

    def _sample(self, hidden: Tensor, generator: torch.Generator | None) -> Tensor:
        if not host_sees(hidden):
            return super()._sample(hidden, generator)
        position = draw(wide(self.first(hidden)), generator)  # [N]
        entry = position.clone()
        for i, tail in enumerate(self.tails):
            for rows in self._blocks((entry == self.num_frequent + i).nonzero().squeeze(1)):
                position[rows] = self.edges[i] + draw(tail(hidden[rows]), generator)
        return self.ranking.classes_at(position)

    def _set_prior(self, log_prior: Tensor) -> None:
        if self.ranking.order is not None:
            log_prior = log_prior[self.ranking.order.to(log_prior.device)]  # by position
        frequent, *clusters = log_prior.tensor_split(self.edges[:-1])
        totals = [cluster.logsumexp(0, keepdim=True) for cluster in clusters]
        self.first.bias.copy_(torch.cat([frequent, *totals]))
        for tail, cluster, total in zip(self.tails, clusters, totals, strict=True):
            tail.score.bias.copy_(cluster - total)

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        counts = torch.ones(self.num_classes) if counts is None else check_counts(counts, self.num_classes)
        shares = (counts / counts.sum()).double().cpu()  # [V]
        if self.ranking.order is not None:
            shares = shares[self.ranking.order.cpu()]  # by position
        d, outputs = self.in_features, self.num_frequent + self.num_clusters
        multiply_adds, logits = float(d * outputs), float(outputs)
        for tail, (start, stop) in zip(self.tails, pairwise(self.edges), strict=True):
            share, width = float(shares[start:stop].sum()), tail.project.out_features
            multiply_adds += d * width + share * width * (stop - start)
            logits += share * (stop - start)
        return HeadCost(multiply_adds, logits)

    def describe(self) -> str:
        return f"{self.num_frequent:,} frequent classes and {self.num_clusters} clusters of rarer ones"
