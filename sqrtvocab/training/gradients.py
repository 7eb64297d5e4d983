"""How long the gradients are, and how often they are clipped, without a wait for the GPU between reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn

from sqrtvocab.training.runtime import Runtime


class GradientNorms:
    """Measures the whole gradient of each step, and shortens it to `limit` if there is one.

    The norms stay on the device until `fetch`. A step in float16 whose gradient overflows is left out: the
    scaler skips it.

    Args:
        limit: the largest norm; None leaves the gradients as they are.
        split: parameters of which other ranks have other rows.
    """

    def __init__(
        self, runtime: Runtime, limit: float | None = None, split: Collection[nn.Parameter] = ()
    ) -> None:
        self._runtime, self._limit = runtime, limit
        self._split = {id(parameter) for parameter in split}
        self._reset()

    def _reset(self) -> None:
        self._sums = torch.zeros(3, device=self._runtime.device)  # steps, norms, clipped steps

    def measure(self, parameters: Iterable[nn.Parameter]) -> None:
        """Call once a step, when the gradients are whole and unscaled; every rank has the same."""
        some = list(parameters)
        norm = _norm(parameter for parameter in some if id(parameter) not in self._split)
        if self._split:
            here = _norm(parameter for parameter in some if id(parameter) in self._split)
            norm = (norm.square() + self._runtime.sum(here.square())).sqrt()
        if self._limit is not None:
            nn.utils.clip_grads_with_norm_(some, self._limit, norm)
        norm = norm.to(self._sums)
        is_finite = norm.isfinite()
        is_clipped = is_finite & (norm > (torch.inf if self._limit is None else self._limit))
        self._sums += torch.stack(
            [is_finite.to(norm.dtype), torch.where(is_finite, norm, 0.0), is_clipped.to(norm.dtype)]
        )

    def fetch(self) -> dict[str, float]:
        """The mean norm and the share of clipped steps since the last call, for TensorBoard; waits for the
        GPU. Nothing if no step was finite."""
        steps, norms, clipped = self._sums.tolist()
        self._reset()
        if not steps:
            return {}
        share = {} if self._limit is None else {"gradient/clipped": clipped / steps}
        return {"gradient/norm": norms / steps, **share}


def _norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    return nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])
