"""Between the paper's head and a linear layer for every group: a few layers that all groups share, mixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads.base import HeadCost, in_blocks, reset_linear
from sqrtvocab.heads.per_group import PerGroupHead
from sqrtvocab.partition import Partition, positive


class GroupedLowRankHead(PerGroupHead):
    """P(group) = softmax(W_g h); P(member | group g) = softmax(Σ_r P_gr ∘ (W_r h) + Q_g), r = 1 … R.

    ``grouped`` has one shared layer (R = 1, up to initialisation), so that classes at the same place of two
    groups share a direction. With R of them each class has any direction of an R-dimensional space, which
    belongs to its place: ``grouped-linear`` in R·(V + S·d) parameters instead of V·d.

    In training the V·d class vectors are computed from these at each step, V·d·R multiply-adds, which is less
    than the product with the tokens if there are more than R·G of them, and they are never stored. Decoding
    works in the R-dimensional spaces, with R multiply-adds a class instead of d.

    Args:
        in_features, num_classes, num_groups, partition, kernel, validate, device, dtype: see
            :class:`~sqrtvocab.heads.per_group.PerGroupHead`.
        rank: R, between 1 and d; 16, or d if that is less, by default.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_groups: int | None = None,
        partition: Partition | None = None,
        rank: int | None = None,
        kernel: str = "auto",
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, num_groups, partition, kernel, validate, device, dtype)
        rank = min(16, in_features) if rank is None else positive("rank", rank)
        if rank > in_features:
            raise ValueError(
                f"rank is {rank}, but in_features = {in_features} is as many directions as there are; "
                "grouped-linear has them all"
            )
        self.rank = rank
        groups, size = self.partition.num_groups, self.partition.group_size
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.shared = nn.Parameter(torch.empty(size, rank, in_features, **like))  # W_r, [S, R, d]
        self.scale = nn.Parameter(torch.empty(groups, size, rank, **like))  # P_gr, [G, S, R]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_linear(self.shared, self.in_features)
        bound = math.sqrt(3 / self.rank)  # class vectors are then as large as those of grouped-linear
        nn.init.uniform_(self.scale, -bound, bound)

    def member_weight(self) -> Tensor:
        spare = self.width - self.partition.group_size
        scale = F.pad(self.scale, (0, 0, 0, spare)).transpose(0, 1)  # [width, G, R]
        shared = F.pad(self.shared, (0, 0, 0, 0, 0, spare))  # [width, R, d]
        return torch.bmm(scale, shared).transpose(0, 1).contiguous()  # [G, width, d]

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return in_blocks(rows, max(self.num_classes, self.shared.shape[0] * self.rank))

    def _member_scores(self, hidden: Tensor, groups: Tensor | None) -> Tensor:
        shared = F.linear(hidden, self.shared.flatten(0, 1)).unflatten(-1, self.shared.shape[:2])  # [N, S, R]
        if groups is None:
            scores = torch.bmm(shared.transpose(0, 1), self.scale.permute(1, 2, 0))  # [S, N, G]
            return scores.permute(1, 2, 0)  # [N, G, S]
        scale = F.embedding(groups, self.scale.flatten(1)).unflatten(-1, self.scale.shape[1:])  # [N, K, S, R]
        return torch.einsum("nksr,nsr->nks", scale, shared.to(scale.dtype))

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        class_vectors = self.in_features * self.num_classes * self.rank  # computed at each step
        return replace(super().cost(counts), fixed=class_vectors)

    def describe(self) -> str:
        return f"{super().describe()}, rank {self.rank}"
