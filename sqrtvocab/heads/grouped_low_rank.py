"""Between the paper's head and a linear layer for every group: a few layers that all groups share, mixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads import buckets
from sqrtvocab.heads.base import HeadCost, in_blocks, reset_linear
from sqrtvocab.heads.per_group import PerGroupHead
from sqrtvocab.partition import Partition, positive
from sqrtvocab.uneven import Bucket


class GroupedLowRankHead(PerGroupHead):
    """P(group) = softmax(W_g h); P(member | group g) = softmax(Σ_r P_gr ∘ (W_r h) + Q_g), r = 1 … R.

    ``grouped`` has one shared layer (R = 1, up to initialisation), so that classes at the same place of two
    groups share a direction. With R of them each class has any direction of an R-dimensional space, which
    belongs to its place: ``grouped-linear`` in R·(V + S·d) parameters instead of V·d.

    In training the V·d class vectors are computed from these at each step, V·d·R multiply-adds, which is less
    than the product with the tokens if there are more than R·G of them, and they are never stored. Decoding
    works in the R-dimensional spaces, with R multiply-adds a class instead of d.

    The layers have a place for each member of a group; of groups of uneven sizes as many as V/G, and member t
    of a larger group is at place t mod S.

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
        # The average of uneven sizes: this many places serve all groups, the large ones repeatedly.
        size = -(-num_classes // self.partition.num_groups)  # S
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.shared = nn.Parameter(torch.empty(size, rank, in_features, **like))  # W_r, [S, R, d]
        self.scale = nn.Parameter(self._new_table(rank, **like))  # P_gr, [G, S, R]
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

    def _class_vectors(self) -> Tensor:
        # A group larger than the shared layers goes through them again, so it is cut into runs of S places.
        size, partition = len(self.shared), self.uneven
        runs = [count // size for count in self._vector_counts()]
        of_group = torch.tensor(runs, device=self.scale.device)  # [G]
        first = (partition.edges[:-1] - size * (of_group.cumsum(0) - of_group)).repeat_interleave(
            of_group, output_size=sum(runs)
        )  # [runs] of all groups; less the places of the runs before
        slots = (first.unsqueeze(1) + torch.arange(sum(runs) * size, device=first.device).view(-1, size)).T
        scale = self.scale.index_select(0, slots.clamp(max=self.num_classes - 1).flatten())
        vectors = torch.bmm(scale.unflatten(0, slots.shape), self.shared)  # [S, runs, d]
        return vectors.transpose(0, 1).flatten(0, 1)

    def _vector_counts(self) -> list[int]:
        size = len(self.shared)
        return [-(-members // size) * size for members in self.uneven.group_sizes]

    def _directions(self, hidden: Tensor, width: int) -> Tensor:
        """[N, d] -> [N, width, R] the hidden state in the space of each place."""
        directions = F.linear(hidden, self.shared.flatten(0, 1)).unflatten(-1, self.shared.shape[:2])
        return directions.index_select(1, torch.arange(width, device=hidden.device) % len(self.shared))

    def _opened_scores(self, hidden: Tensor, pairs: buckets.Pairs) -> Tensor:
        scale = buckets.pair_tables(self.uneven, self.scale, [pairs])[0]  # [n, width, R]
        directions = self._directions(hidden[pairs.row], pairs.bucket.width)
        return torch.einsum("nsr,nsr->ns", scale, directions.to(scale.dtype))

    def _bucket_scores(self, hidden: Tensor) -> list[Tensor]:
        found = []
        for scale in buckets.bucket_tables(self.uneven, self.scale):  # [groups, width, R]
            directions = self._directions(hidden, scale.shape[1]).transpose(0, 1)  # [width, N, R]
            found.append(torch.bmm(directions, scale.permute(1, 2, 0)).permute(1, 2, 0))  # [N, groups, width]
        return found

    def _pair_width(self, bucket: Bucket) -> int:
        return bucket.width * self.rank

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return in_blocks(rows, max(self.num_classes, self.shared.shape[0] * self.rank))

    def _dense_blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return self._blocks(rows)  # fewer, for what a row is in the space of each place takes R times as much

    def _member_scores(self, hidden: Tensor, groups: Tensor | slice) -> Tensor:
        shared = F.linear(hidden, self.shared.flatten(0, 1)).unflatten(-1, self.shared.shape[:2])  # [N, S, R]
        if isinstance(groups, slice):
            scores = torch.bmm(shared.transpose(0, 1), self.scale[groups].permute(1, 2, 0))  # [S, N, K]
            return scores.permute(1, 2, 0)  # [N, K, S]
        scale = F.embedding(groups, self.scale.flatten(1)).unflatten(-1, self.scale.shape[1:])  # [N, K, S, R]
        return torch.einsum("nksr,nsr->nks", scale, shared.to(scale.dtype))

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        class_vectors = self.in_features * self.num_classes * self.rank  # computed at each step
        return replace(super().cost(counts), fixed=class_vectors)

    def describe(self) -> str:
        return f"{super().describe()}, rank {self.rank}"
