"""A linear layer of its own for every group: the variant that the paper gave up as too slow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads.base import check_tied, reset_linear
from sqrtvocab.heads.per_group import PerGroupHead
from sqrtvocab.partition import Partition


class GroupedLinearHead(PerGroupHead):
    """P(group) = softmax(W_g h); P(member | group g) = softmax(W_g,members h + Q_g).

    The FLOPs of ``grouped``, but every class keeps a direction of its own, for the V·d parameters of a flat
    head.

    Args:
        in_features, num_classes, num_groups, partition, kernel, validate: see
            :class:`~sqrtvocab.heads.per_group.PerGroupHead`.
        weight: a [V, d] parameter to share, such as an embedding's (tied). Its rows are brought into the
            order of the groups at each training step, V·d elements of copying.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_groups: int | None = None,
        partition: Partition | None = None,
        weight: nn.Parameter | None = None,
        kernel: str = "auto",
        validate: bool = False,
    ) -> None:
        super().__init__(in_features, num_classes, num_groups, partition, kernel, validate)
        self.tied = weight is not None
        if weight is None:
            self.weight = nn.Parameter(torch.empty(self.partition.num_groups, self.width, in_features))
        else:
            self.weight = check_tied(weight, num_classes, in_features)  # [V, d]
            if (weight.device, weight.dtype) != (self.shift.device, self.shift.dtype):
                self.to(device=weight.device, dtype=weight.dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if not self.tied:
            reset_linear(self.weight, self.in_features)
            with torch.no_grad():  # padding slots never receive a gradient; zero keeps them out of norms
                self.weight[self.partition.padding(self.width, self.weight.device)] = 0.0

    def member_weight(self) -> Tensor:
        return F.embedding(self._slots(), self.weight) if self.tied else self.weight

    def _slots(self) -> Tensor:
        groups = torch.arange(self.partition.num_groups, device=self.weight.device)
        return self.partition.slots(groups, self.width)  # [G, width]

    def _member_scores(self, hidden: Tensor, groups: Tensor | None) -> Tensor:
        if groups is None:
            if not self.tied:
                scores = F.linear(hidden, self.weight.flatten(0, 1))  # [N, G·width]
            else:  # the scores are brought into the order of the groups, which is less than the weight
                scores = F.linear(hidden, self.weight).index_select(1, self._slots().flatten())
            return scores.unflatten(-1, (self.partition.num_groups, self.width))
        # Decoding opens few groups for few rows: a loop touches their weights alone, and copies none.
        sorted_groups, pair = groups.flatten().sort()  # [N·K]
        rows = hidden.index_select(0, pair // groups.shape[1])  # [N·K, d]
        opened, counts = sorted_groups.unique_consecutive(return_counts=True)
        pieces = zip(opened.tolist(), rows.split(counts.tolist()), strict=True)
        parts = [F.linear(part, self._weight_of(group)) for group, part in pieces]
        scores = torch.cat(parts or [rows.new_empty(0, self.partition.group_size)])
        return torch.zeros_like(scores).index_copy(0, pair, scores).unflatten(0, groups.shape)

    def _weight_of(self, group: int) -> Tensor:
        """[S, d] the weight rows of one group; the row after a group of S − 1 members is masked."""
        if not self.tied:
            return self.weight[group, : self.partition.group_size]
        start = self.num_classes * group // self.partition.num_groups
        rows = slice(start, start + self.partition.group_size)  # within V, for the last group has S members
        return self.weight[rows if self.partition.order is None else self.partition.order[rows]]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}{', tied' if self.tied else ''}"
