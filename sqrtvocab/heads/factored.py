"""One softmax for each attribute of the label: P(class) is their product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads.base import Head, HeadCost, token_nll, weighted_sum, wide
from sqrtvocab.heads.sampling import draw
from sqrtvocab.partition import positive


class FactoredHead(Head):
    """P(class) = Π_a softmax(W_a h + b_a)[the class's option of attribute a].

    For labels that encode attributes in mixed radix, first attribute most significant, as
    ``Partition.aligned`` takes them. It needs Σ radices outputs instead of Π radices, but takes the
    attributes for independent given the hidden state: what knowing the whole structure of the label gives.
    The loss has no group part, and label smoothing is exact.

    ``init_prior`` sets the product of the attributes' marginals, which is the unigram distribution itself
    only where the attributes are independent.

    Args:
        in_features, num_classes, validate, device, dtype: see :class:`~sqrtvocab.heads.base.Head`.
        radices: the number of options of each attribute, most significant first; their product is V. By
            default one attribute of V options, which is the flat head.
    """

    sparse_topk = True
    needs = ("radices",)

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radices: Sequence[int] | None = None,
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, validate)
        radices = (num_classes,) if radices is None else tuple(radices)
        self.radices = tuple(positive("each of radices", radix) for radix in radices)
        if not self.radices:
            raise ValueError("radices must name at least one attribute")
        if math.prod(self.radices) != num_classes:
            raise ValueError(
                f"radices {self.radices} make {math.prod(self.radices)} classes, but num_classes is "
                f"{num_classes}"
            )
        self.options = nn.Linear(in_features, sum(self.radices), device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.options.reset_parameters()
        nn.init.zeros_(self.options.bias)

    def _attributes(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """[N, d] -> the logits of each attribute, [N, radix]."""
        return self.options(hidden).split(self.radices, dim=-1)

    def _log_probs(self, hidden: Tensor) -> list[Tensor]:
        """[N, d] -> the log-probabilities of each attribute, [N, radix]."""
        return [F.log_softmax(wide(logits), dim=-1) for logits in self._attributes(hidden)]

    def _nll(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        nll = torch.zeros((), device=hidden.device)
        stride = self.num_classes
        for logits, radix in zip(self._attributes(hidden), self.radices, strict=True):
            stride //= radix
            # The mean of −log p over all classes is the sum of the means over each attribute's options.
            nll = nll + token_nll(logits, target // stride % radix, label_smoothing, 1 / radix)
        return torch.zeros_like(nll), nll

    def _soft_nll(
        self, hidden: Tensor, target: Tensor, share: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        nll = torch.zeros(target.shape, device=hidden.device)  # [N, K]
        stride = self.num_classes
        for log_probs, radix in zip(self._log_probs(hidden), self.radices, strict=True):
            stride //= radix
            of_target = -log_probs.gather(1, target // stride % radix)  # [N, K]
            uniform = -log_probs.mean(-1, keepdim=True)  # [N, 1]
            nll = nll + (1 - label_smoothing) * of_target + label_smoothing * uniform
        member_nll = weighted_sum(nll, share)
        return torch.zeros_like(member_nll), member_nll

    def _spread_nll(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        nll = -torch.stack([log_probs.mean(-1) for log_probs in self._log_probs(hidden)]).sum(0)  # [N]
        return torch.zeros_like(nll), nll

    def _log_prob(self, hidden: Tensor) -> Tensor:
        return reduce(_outer_sum, self._log_probs(hidden))  # [N, V]

    def _topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Exact, attribute by attribute: the first digits of one of the k best classes are among the k best
        first digits, for with the same last digits all better ones would beat it."""
        best = torch.zeros(hidden.shape[0], 1, device=hidden.device)  # [N, ≤ k]
        classes = torch.zeros(best.shape, dtype=torch.int64, device=hidden.device)
        for log_probs in self._log_probs(hidden):
            radix = log_probs.shape[1]
            options, option = log_probs.topk(min(k, radix), dim=-1)  # [N, ≤ k]
            joint = _outer_sum(best, options)  # [N, ≤ k²]
            numbers = (classes.unsqueeze(2) * radix + option.unsqueeze(1)).flatten(1)
            best, index = joint.topk(min(k, joint.shape[1]), dim=-1)
            classes = numbers.gather(1, index)
        return best, classes

    def _sample(self, hidden: Tensor, generator: torch.Generator | None) -> Tensor:
        classes = torch.zeros(hidden.shape[0], dtype=torch.int64, device=hidden.device)
        for logits, radix in zip(self._attributes(hidden), self.radices, strict=True):
            classes = classes * radix + draw(wide(logits), generator)
        return classes

    def _set_prior(self, log_prior: Tensor) -> None:
        joint = log_prior.view(self.radices)
        rows = [
            joint.movedim(attribute, 0).reshape(radix, -1) for attribute, radix in enumerate(self.radices)
        ]
        self.options.bias.copy_(torch.cat([row.logsumexp(1) for row in rows]))

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        return HeadCost(self.in_features * sum(self.radices), sum(self.radices))

    def describe(self) -> str:
        return f"{len(self.radices)} attributes of {' x '.join(map(str, self.radices))} options"


def _outer_sum(one: Tensor, other: Tensor) -> Tensor:
    """[N, A], [N, B] -> [N, A·B]: every sum of two."""
    return (one.unsqueeze(2) + other.unsqueeze(1)).flatten(1)
