"""Sums kept on the device and fetched once a log interval, so that the training loop never waits for the
GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sqrtvocab.errors import RunError
from sqrtvocab.training.runtime import Runtime


class Tally:
    """Running sums of named numbers over micro-batches and ranks, with a watch for values that are not
    finite.

    Adding costs three small kernels and no synchronisation; `fetch` is the only place that waits. A value
    that is not finite is noticed at the next `fetch`, which still knows the step at which it first happened.
    """

    def __init__(self, names: Sequence[str], runtime: Runtime) -> None:
        self._names, self._runtime = tuple(names), runtime
        self._dtype = torch.float32 if runtime.device.type == "mps" else torch.float64  # MPS has no more
        self._never = 1 / torch.finfo(self._dtype).eps  # steps are counted exactly up to here
        self._reset()

    def _reset(self) -> None:
        device = self._runtime.device
        self._sums = torch.zeros(len(self._names), dtype=self._dtype, device=device)
        self._bad_step = torch.full((), self._never, dtype=self._dtype, device=device)

    def add(self, step: int, *values: Tensor) -> None:
        """Add one 0-d tensor for each name, in order; `step` is the optimiser step they belong to."""
        row = torch.stack([value.detach().to(self._dtype) for value in values])  # [names]
        self._sums += row
        self._bad_step = torch.where(
            torch.isfinite(row).all(), self._bad_step, self._bad_step.clamp(max=step)
        )

    def fetch(self) -> dict[str, float]:
        """The sums since the last fetch, over all ranks; starts again from zero.

        Raises:
            RunError: if a value was not finite; names the first step at which that happened.
        """
        sums = self._runtime.sum(self._sums)
        bad_step = self._runtime.min(self._bad_step)
        *totals, bad = torch.cat([sums, bad_step[None]]).tolist()  # one transfer
        self._reset()
        if bad < self._never:
            raise not_finite("loss", int(bad))
        return dict(zip(self._names, totals, strict=True))


def not_finite(what: str, step: int) -> RunError:
    """The error to raise when the loss or the validation loss is not finite at `step`."""
    return RunError(
        f"the {what} was not finite at step {step}; the last good checkpoint is kept. "
        "Go on from it with --resume RUN (its folder) and a lower --lr, or --precision fp32"
    )
