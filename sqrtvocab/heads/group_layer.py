"""The layer that scores groups: one direction for each, or several where one is too few."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sqrtvocab.heads.base import wide


class GroupLayer(nn.Linear):
    """hidden [..., d] -> [..., G]: log Σ exp of K linear scores a group; one is an ordinary linear layer.

    The K rows of a group stand together: ``weight`` is [G·K, d], ``bias`` [G·K]. As probabilities of groups
    go, K scores are a mixture: a group is likely where any of its directions is.
    """

    def __init__(self, in_features: int, num_groups: int, centroids: int = 1, **like: Any) -> None:
        super().__init__(in_features, num_groups * centroids, **like)
        self.centroids = centroids

    def forward(self, hidden: Tensor) -> Tensor:
        return self.joined(super().forward(hidden))

    def joined(self, scores: Tensor) -> Tensor:
        """The scores of all directions [..., G·K] -> [..., G]."""
        if self.centroids == 1:
            return scores
        return wide(scores).unflatten(-1, (-1, self.centroids)).logsumexp(-1)

    @torch.no_grad()
    def set_bias(self, scores: Tensor) -> None:
        """Give each group this score [G] where the hidden state is zero."""
        self.bias.copy_((scores - math.log(self.centroids)).repeat_interleave(self.centroids))

    def rows_of(self, groups: Tensor) -> Tensor:
        """[n] -> [n·K] the rows of groups."""
        places = torch.arange(self.centroids, device=groups.device)
        return (groups.unsqueeze(-1) * self.centroids + places).flatten()

    def extra_repr(self) -> str:
        several = f", centroids={self.centroids}" if self.centroids > 1 else ""
        return super().extra_repr() + several
