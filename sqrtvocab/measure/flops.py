"""How many floating-point operations a computation takes, from shapes alone.

torch's FlopCounterMode counts matrix products and attention; a multiply-add is two operations, and causal
attention counts as if all positions attended to all, as torch does it. Formulas for the products of
`grouped-linear` are added here, for torch knows none.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import sqrtvocab.heads.segments  # noqa: F401  defines the operators counted below

Shape = tuple[int, ...]


class Flops(NamedTuple):
    """Floating-point operations."""

    linear: int
    """Of products with weights (and convolutions)."""
    attention: int
    """Of attention scores and of the averages they weigh, and of all other products of two batches of
    matrices, which look like eager attention: the class vectors of `grouped-low-rank` are such a one."""

    @property
    def total(self) -> int:
        return self.linear + self.attention

    @property
    def multiply_adds(self) -> int:
        """Of linear layers alone: what the paper calls FLOPs, for one sequence."""
        return self.linear // 2


def count_flops(make: Callable[[], Callable[[], Any]]) -> Flops:
    """The operations of what `make` returns, without doing them.

    Args:
        make: builds everything and returns the computation. It runs with fake tensors: it must not look at
            data.

    Raises:
        NotImplementedError: for the adaptive head, whose cost depends on the data.
    """
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
    with FakeTensorMode():
        run = make()
        with counter:
            run()
    counts = counter.get_flop_counts().get("Global", {})
    attention = sum(count for operator, count in counts.items() if _is_attention(str(operator)))
    return Flops(sum(counts.values()) - attention, attention)


def _is_attention(operator: str) -> bool:
    # A product of two batches of matrices has no weight in it: eager attention.
    return "attention" in operator or operator in ("aten.bmm", "aten.baddbmm")


def _grouped_mm(a: Shape, b: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    """[N, d] x [G, d, S] -> [N, S], or with the rows summed up: [d, N] x [N, S] -> [G, d, S]."""
    return 2 * prod(a) * b[-1]


def _segment_mm(rows: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    """[N, d] x [G, S, d] -> [N, S]."""
    return 2 * prod(rows) * weight[1]


def _segment_mm_backward(grad: Shape, rows: Shape, *_: Any, **__: Any) -> int:
    """The gradients of rows and of weights: two products."""
    return 2 * 2 * prod(rows) * grad[1]


def _unknown(*_: Any, **__: Any) -> int:
    raise NotImplementedError("the adaptive head's FLOPs depend on which classes occur")


FORMULAS = {
    torch.ops.aten._grouped_mm: _grouped_mm,
    torch.ops.sqrtvocab.segment_mm: _segment_mm,
    torch.ops.sqrtvocab.segment_mm_backward: _segment_mm_backward,
    torch.ops.sqrtvocab.segment_nll: _unknown,
    torch.ops.sqrtvocab.segment_nll_backward: _unknown,
}
