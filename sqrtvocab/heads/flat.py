"""The ordinary head: one linear layer to all V classes. The baseline, and the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import LinearCrossEntropyOptions
from torch.utils.checkpoint import checkpoint

from sqrtvocab.heads.base import (
    Head,
    HeadCost,
    check_growth,
    check_tied,
    reset_linear,
    token_nll,
    weighted_sum,
    wide,
)
from sqrtvocab.heads.place import autocast_dtype, spare_columns
from sqrtvocab.heads.sampling import draw
from sqrtvocab.partition import positive

IGNORED = -100  # what torch's chunked op is told to skip


class FlatHead(Head):
    """P(class) = softmax(W h + b).

    Args:
        in_features, num_classes, validate, device, dtype: see :class:`~sqrtvocab.heads.base.Head`.
        bias: whether there is a b; ``init_prior`` needs it.
        chunk_size: process this many tokens at a time with torch's exact ``F.linear_cross_entropy``: the same
            loss and gradients without the [N, V] logits, at about the same time. Set it so that chunk_size·V
            fits the memory you have. In half precision, under autocast too, the number that a reduced loss is
            has no more digits than the format, while its gradients are summed in float32. A reduced loss
            allows one backward pass (no ``retain_graph``), since torch computes the gradients in the forward
            pass.
        weight: a [V, d] parameter to use instead of an own one, such as an embedding's.
    """

    can_grow = True
    split_tables: ClassVar[tuple[str, ...]] = ("weight", "bias")
    starts_from_linear = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        bias: bool = True,
        chunk_size: int | None = None,
        weight: nn.Parameter | None = None,
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, validate)
        self.chunk_size = None if chunk_size is None else positive("chunk_size", chunk_size)
        self.tied = weight is not None
        if weight is None:
            weight = nn.Parameter(torch.empty(num_classes, in_features, device=device, dtype=dtype))
        self.weight = check_tied(weight, num_classes, in_features)  # [V, d]
        self.bias = nn.Parameter(weight.new_empty(num_classes)) if bias else None  # [V]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if not self.tied:
            reset_linear(self.weight, self.in_features)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _logits(self, hidden: Tensor) -> Tensor:
        return wide(F.linear(hidden, self.weight, self.bias))  # [N, V]

    def _aligned_layer(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weight [≥ V, d] and bias [≥ V] for the loss, in the format of the product. What is added where it
        must be aligned are classes without any probability; so few rows as decoding has are not worth a copy
        of the weight."""
        dtype = autocast_dtype(hidden) or self.weight.dtype
        weight, bias = self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)
        if spare := spare_columns(self.num_classes, hidden):
            bias = weight.new_zeros(self.num_classes) if bias is None else bias
            weight, bias = F.pad(weight, (0, 0, 0, spare)), F.pad(bias, (0, spare), value=-math.inf)
        return weight, bias

    def _nll(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        if self.chunk_size is None:
            logits = F.linear(hidden, *self._aligned_layer(hidden))  # [N, ≥ V]
            nll = token_nll(logits, target, label_smoothing, 1 / self.num_classes)
        else:
            nll = self._chunked_nll(hidden, target, "none")
            if label_smoothing:
                nll = nll + label_smoothing * self._smoothing_gap(hidden, target)
        return torch.zeros_like(nll), nll

    def _soft_nll(
        self, hidden: Tensor, target: Tensor, share: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        # −log P of any class is that of the first target plus the difference of two logits, which takes a dot
        # product: the V logits, or their chunks, are needed once.
        first = target[:, :1]  # [N, 1]
        _, nll = self._nll(hidden, first.squeeze(1), 0.0)  # [N]
        gap = self._logits_at(hidden, first) - self._logits_at(hidden, target)  # [N, K]
        nll_of_each = nll.unsqueeze(1) + gap  # [N, K]
        if label_smoothing:
            uniform = nll + self._smoothing_gap(hidden, first.squeeze(1))  # [N]
            nll_of_each = (1 - label_smoothing) * nll_of_each + label_smoothing * uniform.unsqueeze(1)
        return torch.zeros_like(nll), weighted_sum(nll_of_each, share)

    def _spread_nll(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
        nll = self._nll(hidden, first, 0.0)[1] + self._smoothing_gap(hidden, first)
        return torch.zeros_like(nll), nll

    def _logits_at(self, hidden: Tensor, classes: Tensor) -> Tensor:
        """hidden [N, d], classes [N, K] -> their logits [N, K]."""
        weight = F.embedding(classes, self.weight)  # [N, K, d]
        logits = wide(torch.einsum("nd,nkd->nk", hidden.to(weight.dtype), weight))
        return logits if self.bias is None else logits + F.embedding(classes, self.bias[:, None]).squeeze(-1)

    def _nll_sum(
        self, hidden: Tensor, target: Tensor, kept: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        # float16 ends at 65,504, which the sum over some thousand tokens passes. And where no gradients are
        # computed along with it a rounded sum has no merit.
        dtype = autocast_dtype(hidden) or self.weight.dtype
        if self.chunk_size is None or dtype == torch.float16 or not torch.is_grad_enabled():
            return super()._nll_sum(hidden, target, kept, label_smoothing)
        # Reduced, torch's op computes the gradients along with the loss and multiplies a third less.
        nll = self._chunked_nll(hidden, torch.where(kept, target, IGNORED), "sum")
        nll = torch.where(kept.any(), nll, 0.0)  # the mean over no token must send zeros back, not 0·inf
        if label_smoothing:
            gap = self._smoothing_gap(hidden, target)  # [N]
            nll = nll + label_smoothing * torch.where(kept, gap, 0.0).sum()
        return torch.zeros_like(nll), nll

    def _chunked_nll(self, hidden: Tensor, target: Tensor, reduction: str) -> Tensor:
        # In a compiled graph torch must keep the gradients for a second backward pass, and warns if not told.
        options = LinearCrossEntropyOptions(
            batch_chunk_size=self.chunk_size, allow_retain_graph=torch.compiler.is_compiling()
        )
        weight, bias = self._aligned_layer(hidden)
        nll = F.linear_cross_entropy(
            hidden.to(weight.dtype),
            weight,
            target,
            linear_bias=bias,
            ignore_index=IGNORED,
            reduction=reduction,
            options=options,
        )
        return wide(nll)

    def _smoothing_gap(self, hidden: Tensor, target: Tensor) -> Tensor:
        """[N] what ε = 1 adds to the loss: mean over the classes of −log p, less −log p of the target.

        torch's chunked op knows no smoothing, but this difference is free of the log-sum-exp: it is the
        target's logit less the mean logit.
        """
        gap = (hidden * (self.weight[target] - self.weight.mean(0))).sum(-1)
        return gap if self.bias is None else gap + self.bias[target] - self.bias.mean()

    def _log_prob(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self._logits(hidden), dim=-1)

    def _topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        log_probs, classes = [], []
        for rows in self._blocks(hidden):
            logits = self._logits(rows)  # [rows, V]
            best, index = logits.topk(k, dim=-1)
            log_probs.append(best - logits.logsumexp(-1, keepdim=True))
            classes.append(index)
        return torch.cat(log_probs), torch.cat(classes)

    def _sample(self, hidden: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.cat([draw(self._logits(rows), generator) for rows in self._blocks(hidden)])

    def why_whole(self) -> str | None:
        return "its weight is shared with an embedding" if self.tied else super().why_whole()

    @torch.no_grad()
    def make_part(self, rows: Tensor, classes: Tensor) -> FlatHead:
        like: Any = {"device": self.weight.device, "dtype": self.weight.dtype}
        has_bias = self.bias is not None
        part = FlatHead(
            self.in_features, len(classes), has_bias, self.chunk_size, None, self.validate, **like
        )
        part.weight.copy_(self.weight[rows])
        if self.bias is not None and part.bias is not None:
            part.bias.copy_(self.bias[rows])
        return part

    def _log_mass(self, hidden: Tensor) -> Tensor:
        return torch.cat([self._logits(rows).logsumexp(-1) for rows in self._blocks(hidden)])

    def _nll_and_mass(
        self, hidden: Tensor, target: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        def score(rows: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
            logits = self._logits(rows)  # [n, V]
            mass, own = logits.logsumexp(-1), logits.gather(1, classes.unsqueeze(1)).squeeze(1)
            if label_smoothing:
                own = (1 - label_smoothing) * own + label_smoothing * logits.mean(-1)
            return mass - own, mass

        if self.chunk_size is None or not len(hidden):
            nll, mass = score(hidden, target)
        else:  # torch's own op does not tell the mass; here the logits are made again in the backward pass
            chunks = zip(hidden.split(self.chunk_size), target.split(self.chunk_size), strict=True)
            found = [checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks]
            nll, mass = (torch.cat(parts) for parts in zip(*found, strict=True))
        return torch.zeros_like(nll), nll, mass

    def _set_prior(self, log_prior: Tensor) -> None:
        if self.bias is None:
            raise ValueError("init_prior needs a bias to hold the prior: make the flat head with bias=True")
        self.bias.copy_(log_prior)

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        return replace(super().cost(counts), chunk=self.chunk_size)

    @torch.no_grad()
    def init_from_linear(self, weight: Tensor, bias: Tensor | None, hidden: Tensor | None = None) -> bool:
        """Computes what the old layer did."""
        if self.bias is None and bias is not None and bool(bias.any()):
            raise ValueError("the old layer has a bias: make the flat head with bias=True")
        self.weight.copy_(weight)
        if self.bias is not None:
            self.bias.copy_(torch.zeros_like(self.bias) if bias is None else bias)
        return True

    @torch.no_grad()
    def grow(self, num_classes: int, weight: nn.Parameter | None = None) -> FlatHead:
        """New classes take the mean row and bias."""
        check_growth(self, num_classes, weight)
        grown = FlatHead(
            self.in_features,
            num_classes,
            self.bias is not None,
            self.chunk_size,
            weight,
            self.validate,
            self.weight.device,
            self.weight.dtype,
        )
        if weight is None:
            grown.weight[: self.num_classes] = self.weight
        if self.bias is not None and grown.bias is not None:
            grown.bias[: self.num_classes] = self.bias
            grown.bias[self.num_classes :] = self.bias.mean()
        grown.weight[self.num_classes :] = grown.weight[: self.num_classes].mean(0)
        return grown

    def describe(self) -> str:
        parts = [super().describe()]
        parts += ["tied"] if self.tied else []
        parts += [f"{self.chunk_size:,} rows at a time"] if self.chunk_size else []
        return ", ".join(parts)
