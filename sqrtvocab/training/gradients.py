"""How long the gradients are, and how often they are clipped, without a wait for the GPU between reports."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from sqrtvocab.training.runtime import Runtime


class GradientNorms:
    """Measures the whole gradient of each step, and shortens it to `limit` if there is one.

    The norms stay on the device until `fetch`. A step in float16 whose gradient overflows is left out: the
    scaler skips it.

    Args:
        limit: the largest norm; None leaves the gradients as they are.
    """

    def __init__(self, runtime: Runtime, limit: float | None = None) -> None:
        self._device, self._limit = runtime.device, limit
        self._reset()

    def _reset(self) -> None:
        self._sums = torch.zeros(3, device=self._device)  # steps, norms, clipped steps

    def measure(self, parameters: Iterable[nn.Parameter]) -> None:
        """Call once a step, when the gradients are whole and unscaled; every rank has the same."""
        some = list(parameters)
        if self._limit is None:
            gradients = [parameter.grad for parameter in some if parameter.grad is not None]
            norm: Tensor = nn.utils.get_total_norm(gradients)
        else:
            norm = nn.utils.clip_grad_norm_(some, self._limit)
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
