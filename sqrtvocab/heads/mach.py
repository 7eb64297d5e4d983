"""Hashed classes: several small softmaxes over random buckets (MACH, Medini et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads.base import Head, HeadCost, weighted_sum, wide
from sqrtvocab.partition import integer, positive

HASHES, MOST_HASHES = 16, 4096  # by default; at most


class MachHead(Head):
    """P(class) ∝ Π_r softmax(W_r h + b_r)[the bucket of the class in hash r], over R hashes of B buckets.

    Each hash deals the V classes at random to its B buckets, equally many to each. The head has R·B outputs
    instead of V, and what it learns of a class it learns of all that share a bucket with it.

    In training mode the loss is Σ_r −log P_r(bucket of the target): the R cross entropies of the paper, which
    never see the V classes. It is the negative log-likelihood less log Z, where Z = Σ_c Π_r P_r(bucket of c)
    is what the product must be divided by to be a distribution. As long as no two classes share all their
    buckets Z ≤ 1 and the training loss is an upper bound. In evaluation mode the loss is exact: Z is summed
    over all classes, a block of rows at a time. (The paper ranks classes by the mean, the median or the least
    of their buckets' probabilities instead; none of these is a distribution.)

    ``init_prior`` starts each hash at the marginal of its buckets, and keeps what is missing to the unigram
    distribution as an offset for each class, which is not trained. With it the bound no longer holds.

    Args:
        in_features, num_classes, validate, device, dtype: see :class:`~sqrtvocab.heads.base.Head`.
        hashes: R, at most 4,096.
        buckets: B, at most V; 4·√V by default, or V if that is less.
        seed: of the hashes.
    """

    surrogate = True
    bucket: Tensor  # [R, V] of each class, in each hash
    offset: Tensor  # [V]

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hashes: int = HASHES,
        buckets: int | None = None,
        seed: int = 0,
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, validate)
        self.hashes, self.seed = positive("hashes", hashes), integer("seed", seed)
        if self.hashes > MOST_HASHES:
            raise ValueError(f"hashes must be at most {MOST_HASHES}, got {hashes}")
        few = min(num_classes, 4 * math.isqrt(num_classes))
        self.buckets = few if buckets is None else positive("buckets", buckets)
        if self.buckets > num_classes:
            raise ValueError(f"buckets must be at most num_classes = {num_classes}, got {buckets}")
        self.scores = nn.Linear(in_features, self.hashes * self.buckets, device=device, dtype=dtype)
        empty = torch.empty(self.hashes, num_classes, dtype=torch.int32, device=device)
        self.register_buffer("bucket", empty)
        self.register_buffer("offset", torch.empty(num_classes, dtype=torch.float32, device=device))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.scores.reset_parameters()
        nn.init.zeros_(self.scores.bias)
        nn.init.zeros_(self.offset)
        if self.bucket.is_meta:  # filled when this is called again, or by the state dict
            return
        generator = torch.Generator().manual_seed(self.seed)
        by_place = torch.arange(self.num_classes, device="cpu") * self.buckets // self.num_classes  # [V]
        for hashed in self.bucket:
            places = torch.randperm(self.num_classes, generator=generator, device="cpu")
            hashed.copy_(by_place[places])

    def _hash_log_probs(self, hidden: Tensor) -> Tensor:
        """[N, d] -> [N, R, B]"""
        logits = wide(self.scores(hidden)).view(-1, self.hashes, self.buckets)
        return F.log_softmax(logits, dim=-1)

    def _joint(self, hidden: Tensor) -> Tensor:
        """[N, d] -> [N, V]: the logarithm of the product, not normalised."""
        log_probs = self._hash_log_probs(hidden)
        joint = self.offset.to(log_probs.dtype)  # [V]
        for number, bucket in enumerate(self.bucket.unbind()):
            joint = joint + log_probs[:, number].index_select(1, bucket)
        return joint

    def _nll(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        nll = self._nll_of_each(hidden, target.unsqueeze(1), label_smoothing).squeeze(1)
        return torch.zeros_like(nll), nll

    def _soft_nll(
        self, hidden: Tensor, target: Tensor, share: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        nll = weighted_sum(self._nll_of_each(hidden, target, label_smoothing), share)
        return torch.zeros_like(nll), nll

    def _nll_of_each(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
        """hidden [N, d], targets [N, K] -> the loss of each, [N, K]."""
        if self.training:
            return self._nll_of_hashes(hidden, target, label_smoothing)
        found = []
        for rows, truth in zip(self._blocks(hidden), self._blocks(target), strict=True):
            log_probs = self._log_prob(rows)  # [R, V]
            nll = -log_probs.gather(1, truth)  # [R, K]
            if label_smoothing:
                uniform = -log_probs.mean(-1, keepdim=True)  # [R, 1]
                nll = (1 - label_smoothing) * nll + label_smoothing * uniform
            found.append(nll)
        return torch.cat(found)

    def _nll_of_hashes(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
        log_probs = self._hash_log_probs(hidden)  # [N, R, B]
        bucket = self.bucket.index_select(1, target.flatten()).long()  # [R, N·K]
        bucket = bucket.unflatten(1, target.shape).transpose(0, 1)  # [N, R, K]
        nll = -log_probs.gather(2, bucket).sum(1)  # [N, K]
        if label_smoothing:
            # The mean over all classes: each bucket weighs as many as it holds.
            edges = torch.arange(self.buckets + 1, device=hidden.device) * self.num_classes
            edges = (edges + self.buckets - 1) // self.buckets  # the first place of each bucket
            uniform = -(log_probs * (edges.diff() / self.num_classes)).sum((1, 2)).unsqueeze(1)
            nll = (1 - label_smoothing) * nll + label_smoothing * uniform
        return nll

    def _spread_nll(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self._nll(hidden, torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device), 1.0)

    def _log_prob(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self._joint(hidden), dim=-1)

    def _set_prior(self, log_prior: Tensor) -> None:
        missing = log_prior.clone()
        biases = []
        for bucket in self.bucket.long().cpu().unbind():
            marginal = torch.zeros(self.buckets, dtype=log_prior.dtype)
            marginal = marginal.index_add(0, bucket, log_prior.exp()).log()  # [B]
            biases.append(marginal)
            missing -= marginal[bucket]
        self.scores.bias.copy_(torch.cat(biases))
        self.offset.copy_(missing)

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        outputs = self.hashes * self.buckets
        return HeadCost(self.in_features * outputs, outputs)

    def describe(self) -> str:
        return f"{self.num_classes:,} classes, {self.hashes} hashes of {self.buckets:,} buckets"
