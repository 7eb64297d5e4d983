"""The paper's head: one linear layer shared by all groups, scaled and shifted per group."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads import buckets, soft
from sqrtvocab.heads.base import in_blocks, reset_linear, rows_of, token_nll, wide
from sqrtvocab.heads.place import autocast_dtype, spare_columns
from sqrtvocab.heads.two_level import TwoLevelHead
from sqrtvocab.partition import Partition

MODULATIONS = ("scale-shift", "film", "both")


class GroupedHead(TwoLevelHead):
    """P(group) = softmax(W_g h); P(member | group g) = softmax(P_g ∘ (W_s h) + Q_g).

    About 2·V + 2·d·√V parameters instead of V·d, and 2·√V logits a token instead of V. The price is
    expressivity: members at the same place in different groups share a direction in the hidden space.

    Args:
        in_features, num_classes, num_groups, partition, validate, device, dtype: see
            :class:`~sqrtvocab.heads.two_level.TwoLevelHead`.
        modulation: how a group makes the shared layer W_s its own.
            "scale-shift": P_g ∘ (W_s h) + Q_g, the paper.
            "film": W_s (A_g ∘ h + B_g) + Q_g: the hidden state is scaled and shifted before the shared layer,
            so every class has a direction of its own, for 2·G·d parameters instead of P's V.
            "both": P_g ∘ (W_s (A_g ∘ h + B_g)) + Q_g.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_groups: int | None = None,
        partition: Partition | None = None,
        modulation: str = "scale-shift",
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, num_groups, partition, validate, device, dtype)
        if modulation not in MODULATIONS:
            raise ValueError(f"modulation must be one of {', '.join(MODULATIONS)}; got {modulation!r}")
        self.modulation = modulation
        groups, size = self.partition.num_groups, self.partition.group_size
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.shared = nn.Parameter(torch.empty(size, in_features, **like))  # W_s, [S, d]
        self.scale = self.film_scale = self.film_shift = None
        if modulation != "film":
            self.scale = nn.Parameter(self._new_table(**like))  # P_g, [G, S]
        if modulation != "scale-shift":
            self.film_scale = nn.Parameter(torch.empty(groups, in_features, **like))  # A_g, [G, d]
            self.film_shift = nn.Parameter(torch.empty(groups, in_features, **like))  # B_g, [G, d]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_linear(self.shared, self.in_features)
        for scale in (self.scale, self.film_scale):
            if scale is not None:
                nn.init.ones_(scale)
        if self.film_shift is not None:
            nn.init.zeros_(self.film_shift)

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        if self.film_scale is None:
            return super()._blocks(rows)
        return in_blocks(rows, max(self.num_classes, self.film_scale.numel()))

    def _member_scores(self, hidden: Tensor, groups: Tensor | slice) -> Tensor:
        def of_groups(table: Tensor) -> Tensor:  # [G, ·] -> [N, K, ·], or [K, ·] for a slice
            return wide(table[groups]) if isinstance(groups, slice) else rows_of(table, groups)

        hidden = hidden.unsqueeze(1)  # [N, 1, d]
        if self.film_scale is not None and self.film_shift is not None:
            hidden = hidden * of_groups(self.film_scale) + of_groups(self.film_shift)  # [N, K, d]
            hidden = hidden.to(self.shared.dtype)
        spare = spare_columns(len(self.shared), hidden)
        scores = F.linear(hidden, F.pad(self.shared, (0, 0, 0, spare)))  # [N, 1 or K, ≥ S]
        return scores if self.scale is None else scores * of_groups(F.pad(self.scale, (0, spare)))

    def _class_vectors(self) -> Tensor:
        return self.shared

    def _pair_scores(self, hidden: Tensor, pairs: list[buckets.Pairs], vectors: Tensor) -> list[Tensor]:
        rows = hidden.index_select(0, torch.cat([part.row for part in pairs]))  # [n, d]
        if self.film_scale is not None and self.film_shift is not None:
            group = self.uneven.by_size[torch.cat([part.rank for part in pairs])]  # [n]
            rows = rows * rows_of(self.film_scale, group) + rows_of(self.film_shift, group)
            rows = rows.to(vectors.dtype)
        if (dtype := autocast_dtype(hidden)) is not None:
            rows, vectors = rows.to(dtype), vectors.to(dtype)
        # A group's members are the first places of the shared layer.
        counts, widths = [[len(part.row)] for part in pairs], [part.bucket.width for part in pairs]
        factors = buckets.Factors(counts, widths, [0] * len(pairs), [len(vectors)])
        scores = buckets.products(rows, vectors, pairs, factors)
        return self._scaled(scores, pairs)

    def _opened_scores(self, hidden: Tensor, pairs: buckets.Pairs) -> Tensor:
        if self.film_scale is not None or len(pairs.row) <= len(hidden):
            return super()._opened_scores(hidden, pairs)
        scores = F.linear(hidden, self.shared[: pairs.bucket.width])  # [N, width] for all groups of a row
        return self._scaled([scores.index_select(0, pairs.row)], [pairs])[0]

    def _scaled(self, scores: list[Tensor], pairs: list[buckets.Pairs]) -> list[Tensor]:
        if self.scale is None:
            return scores
        scales = buckets.pair_tables(self.uneven, self.scale, pairs)
        return [score * scale for score, scale in zip(scores, scales, strict=True)]

    def _bucket_scores(self, hidden: Tensor) -> list[Tensor]:
        scales = None if self.scale is None else buckets.bucket_tables(self.uneven, self.scale)
        found = []
        for i, (first, stop, width) in enumerate(self.uneven.buckets):
            rows = hidden.unsqueeze(1)  # [N, 1, d]
            if self.film_scale is not None and self.film_shift is not None:
                groups = self.uneven.by_size[first:stop]
                rows = rows * self.film_scale[groups] + self.film_shift[groups]  # [N, groups, d]
            scores = F.linear(rows, self.shared[:width])  # [N, 1 or groups, width]
            found.append(scores if scales is None else scores * scales[i])
        return found

    def _soft_tables(self, hidden: Tensor, vectors: Tensor | None = None) -> soft.Tables:
        first, sizes = self._table_places()
        shift, scale = self.shift.flatten(), None if self.scale is None else self.scale.flatten()
        if self.film_scale is None and not self.is_uneven:
            # The shared layer scores a row once for all of its groups.
            return soft.Tables(F.linear(hidden, self.shared), shift, first, sizes, scale=scale)
        dtype = autocast_dtype(hidden)
        weight = self.shared if dtype is None else self.shared.to(dtype)
        start = torch.zeros_like(first)  # a group's members are the first places of the shared layer
        return soft.Tables(
            hidden, shift, first, sizes, weight, start, scale, self.film_scale, self.film_shift
        )

    def _member_nll_without_waiting(
        self, hidden: Tensor, group: Tensor, member: Tensor, label_smoothing: float
    ) -> Tensor:
        if self.is_uneven:
            return super()._member_nll_without_waiting(hidden, group, member, label_smoothing)
        logits = self.member_logits(hidden, group).flatten(0, 1)  # [N·K, S]
        return token_nll(logits, member.flatten(), label_smoothing, 1 / self.num_classes).view_as(group)

    def describe(self) -> str:
        return f"{super().describe()}, {self.modulation}"
