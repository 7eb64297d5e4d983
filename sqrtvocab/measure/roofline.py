"""How long a computation would take on a GPU at the very least: an estimate, from shapes alone.

Every operator takes as long as its bytes at the card's bandwidth or its operations at the card's peak,
whichever is longer, and the host needs a moment to start each. No kernel reaches either limit, so real times
are longer; what is told well is what a step spends its time on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, shape_wrapper

from sqrtvocab.heads.base import block_rows
from sqrtvocab.measure.flops import FORMULAS
from sqrtvocab.measure.gpu import GPUS, gpu_rules

START = 4e-6
"""Seconds that the host takes to start a kernel."""
_READS_ROWS = ("embedding", "index_select", "gather", "index")  # not all of their first argument
_NOTHING = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "_unsafe_view",
    "new_empty_strided",
    "lift_fresh",
)


@dataclass(frozen=True)
class Limits:
    """What a card can do at most, from its data sheet; dense, without sparsity."""

    bandwidth: float
    """Bytes a second."""
    half: float
    """Operations a second in half precision, on tensor cores."""
    single: float
    """The same in float32, without them."""
    dtype: torch.dtype
    """The half precision that it has tensor cores for."""


LIMITS = {
    "t4": Limits(320e9, 65e12, 8.1e12, torch.float16),
    "l40s": Limits(864e9, 181e12, 91.6e12, torch.bfloat16),
    "h100": Limits(3.35e12, 989e12, 67e12, torch.bfloat16),
}


_OPERATIONS = {**flop_registry, **{op: shape_wrapper(formula) for op, formula in FORMULAS.items()}}


class Estimate(NamedTuple):
    """Of a computation on a card."""

    launches: int
    bytes: float
    operations: float
    seconds: float


def estimate(make: Callable[[], Callable[[], Any]], card: str) -> Estimate:
    """What the computation that `make` returns takes on a card of `LIMITS`, under its autocast.

    Args:
        make: builds everything and returns the computation. It runs with fake tensors: it must not look at
            data.
    """
    limits = LIMITS[card]
    with gpu_rules(GPUS[card]), FakeTensorMode():
        run = make()
        with torch.autocast("cpu", limits.dtype), _Counter(limits) as counter:
            run()
    seconds = max(counter.seconds, START * counter.launches)
    return Estimate(counter.launches, counter.bytes, counter.operations, seconds)


class _Counter(TorchDispatchMode):
    """Adds up kernels; what only looks at a tensor in another way is none."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits
        self.launches, self.bytes, self.operations, self.seconds = 0, 0.0, 0.0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        is_view = any(
            out.alias_info is not None and not out.alias_info.is_write for out in func._schema.returns
        )
        if is_view or name in _NOTHING:
            return result
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not outputs:
            return result
        if name in _READS_ROWS:
            inputs = [*inputs[1:], *outputs]  # as much is read as is written
        moved = float(sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs)))
        formula = _OPERATIONS.get(func.overloadpacket)
        done = 0.0 if formula is None else float(formula(*args, **(kwargs or {}), out_val=result))
        self._add(1, moved, done, outputs[0].dtype)
        if inside := _INSIDE.get(name):
            self._add(*inside(*args), outputs[0].dtype)
        return result

    def _add(self, launches: int, moved: float, done: float, dtype: torch.dtype) -> None:
        peak = self._limits.half if dtype.itemsize == 2 else self._limits.single
        self.launches += launches
        self.bytes += moved
        self.operations += done
        self.seconds += max(moved / self._limits.bandwidth, done / peak)


def _rows_nll(rows: Tensor, weight: Tensor, *_: Any) -> tuple[int, float, float]:
    """What the adaptive head's operator does inside: logits of all rows, a block at a time, widened, and
    their log-softmax."""
    logits, blocks = (
        rows.shape[0] * weight.shape[0],
        -(-rows.shape[0] // block_rows(weight.shape[0], rows.device)),
    )
    return 3 * blocks, logits * (2 * rows.element_size() + 3 * 4.0), 2.0 * logits * rows.shape[1]


def _rows_nll_backward(grad: Tensor, rows: Tensor, weight: Tensor, *_: Any) -> tuple[int, float, float]:
    """The logits once more, their gradient in several passes, and two products with it."""
    launches, moved, done = _rows_nll(rows, weight)
    return 3 * launches, 3 * moved, 3 * done


_INSIDE: dict[str, Callable[..., tuple[int, float, float]]] = {
    "rows_nll": _rows_nll,
    "rows_nll_backward": _rows_nll_backward,
}
