"""Operations on rows sorted into segments, opaque to the compiler because segment lengths are data.

Each is a custom operator: a compiled graph or a fake tensor sees only its fixed output shape, while the loop
inside runs over the segments that are not empty. The bounds are read by the host, one synchronisation a call,
which no CUDA graph can hold; only `rows_nll` takes all rows and reads nothing. They know reverse-mode
differentiation, once; see `refuse_forward_mode`.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from torch import Tensor

from sqrtvocab.heads.base import block_rows, token_nll, wide


def carries_tangent(*tensors: Tensor) -> bool:
    """Whether one of the tensors is being differentiated in forward mode."""
    if torch.compiler.is_compiling() or fwAD._current_level < 0:
        return False
    return any(fwAD.unpack_dual(tensor).tangent is not None for tensor in tensors)


def refuse_forward_mode(*tensors: Tensor) -> None:
    """Forward-mode differentiation of an operator here would silently give a slope of zero.

    Raises:
        NotImplementedError: if one of the tensors carries a tangent.
    """
    if carries_tangent(*tensors):
        raise NotImplementedError(
            "this head cannot be differentiated in forward mode; grouped-linear and grouped-low-rank can, "
            'with kernel="tiles"'
        )


def segment_ends(groups: Tensor, num_groups: int) -> Tensor:
    """Sorted group of each row [N] -> int32 [G]: the row at which each group's segment ends."""
    bounds = torch.arange(num_groups, device=groups.device, dtype=groups.dtype)
    return torch.searchsorted(groups, bounds, right=True, out_int32=True)


def _segments(ends: Tensor) -> list[tuple[int, slice]]:
    return [(g, slice(a, b)) for g, (a, b) in enumerate(pairwise([0, *ends.tolist()])) if a < b]


@torch.library.custom_op("sqrtvocab::segment_mm", mutates_args=(), tags=torch.Tag.cudagraph_unsafe)
def segment_mm(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each segment of ``rows`` [N, d] times its own ``weight`` [G, S, d] transposed -> [N, S].

    What ``F.grouped_mm`` computes, for the dtypes and devices that it lacks.
    """
    out = rows.new_empty(rows.shape[0], weight.shape[1])
    for group, part in _segments(ends):
        torch.mm(rows[part], weight[group].T, out=out[part])
    return out


@segment_mm.register_fake
def _(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


@torch.library.custom_op("sqrtvocab::segment_mm_backward", mutates_args=(), tags=torch.Tag.cudagraph_unsafe)
def _segment_mm_backward(grad: Tensor, rows: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    grad_rows, grad_weight = torch.empty_like(rows), torch.zeros_like(weight)
    for group, part in _segments(ends):
        torch.mm(grad[part], weight[group], out=grad_rows[part])
        torch.mm(grad[part].T, rows[part], out=grad_weight[group])
    return grad_rows, grad_weight


@_segment_mm_backward.register_fake
def _(grad: Tensor, rows: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rows), torch.empty_like(weight)


def _segment_mm_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _segment_mm_autograd(ctx, grad):  # type: ignore[no-untyped-def]
    rows, weight, ends = ctx.saved_tensors
    return *_segment_mm_backward(grad.contiguous(), rows, weight, ends), None


segment_mm.register_autograd(_segment_mm_autograd, setup_context=_segment_mm_setup)


@torch.library.custom_op("sqrtvocab::segment_nll", mutates_args=(), tags=torch.Tag.cudagraph_unsafe)
def segment_nll(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    ends: Tensor,
    segment: int,
    label_smoothing: float,
    spread: float,
) -> Tensor:
    """The loss of one segment's rows under softmax(rows @ weight.T + bias); zero for all other rows.

    (1 − ε)·nll + ε·spread·Σ_c −log p_c for rows [N, d], weight [C, d], bias [C], target [N] -> float32 [N].
    The logits are built for a block of rows at a time, in the backward pass once more.
    """
    parts = _blocks_of(_bounds(ends, segment), weight)
    return _nll(parts, rows, weight, bias, target, label_smoothing, spread)


@segment_nll.register_fake
def _(rows, weight, bias, target, ends, segment, label_smoothing, spread):  # type: ignore[no-untyped-def]
    return torch.empty_like(target, dtype=wide(rows[:0]).dtype)


@torch.library.custom_op("sqrtvocab::segment_nll_backward", mutates_args=(), tags=torch.Tag.cudagraph_unsafe)
def _segment_nll_backward(
    grad: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    ends: Tensor,
    segment: int,
    label_smoothing: float,
    spread: float,
) -> tuple[Tensor, Tensor, Tensor]:
    parts = _blocks_of(_bounds(ends, segment), weight)
    return _nll_gradients(parts, grad, rows, weight, bias, target, label_smoothing, spread)


@_segment_nll_backward.register_fake
def _(grad, rows, weight, bias, *rest):  # type: ignore[no-untyped-def]
    return torch.empty_like(rows), torch.empty_like(weight), torch.empty_like(bias)


def _segment_nll_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, ctx.segment, ctx.label_smoothing, ctx.spread = inputs
    ctx.save_for_backward(*tensors)


def _segment_nll_autograd(ctx, grad):  # type: ignore[no-untyped-def]
    grads = _segment_nll_backward(grad, *ctx.saved_tensors, ctx.segment, ctx.label_smoothing, ctx.spread)
    return *grads, *[None] * 5


segment_nll.register_autograd(_segment_nll_autograd, setup_context=_segment_nll_setup)


@torch.library.custom_op("sqrtvocab::rows_nll", mutates_args=())
def rows_nll(
    rows: Tensor, weight: Tensor, bias: Tensor, target: Tensor, label_smoothing: float, spread: float
) -> Tensor:
    """:func:`segment_nll` of all rows, in which nobody waits for bounds."""
    return _nll(_blocks_of((0, len(rows)), weight), rows, weight, bias, target, label_smoothing, spread)


@rows_nll.register_fake
def _(rows, weight, bias, target, label_smoothing, spread):  # type: ignore[no-untyped-def]
    return torch.empty_like(target, dtype=wide(rows[:0]).dtype)


@torch.library.custom_op("sqrtvocab::rows_nll_backward", mutates_args=())
def _rows_nll_backward(
    grad: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    label_smoothing: float,
    spread: float,
) -> tuple[Tensor, Tensor, Tensor]:
    parts = _blocks_of((0, len(rows)), weight)
    return _nll_gradients(parts, grad, rows, weight, bias, target, label_smoothing, spread)


@_rows_nll_backward.register_fake
def _(grad, rows, weight, bias, *rest):  # type: ignore[no-untyped-def]
    return torch.empty_like(rows), torch.empty_like(weight), torch.empty_like(bias)


def _rows_nll_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, ctx.label_smoothing, ctx.spread = inputs
    ctx.save_for_backward(*tensors)


def _rows_nll_autograd(ctx, grad):  # type: ignore[no-untyped-def]
    grads = _rows_nll_backward(grad, *ctx.saved_tensors, ctx.label_smoothing, ctx.spread)
    return *grads, None, None, None


rows_nll.register_autograd(_rows_nll_autograd, setup_context=_rows_nll_setup)


def _nll(
    parts: list[slice],
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    label_smoothing: float,
    spread: float,
) -> Tensor:
    """[N] the losses of some blocks of rows; zero for all other rows."""
    out = torch.zeros_like(target, dtype=wide(rows[:0]).dtype)
    for part in parts:
        logits = F.linear(rows[part], weight, bias)
        out[part] = token_nll(logits, target[part], label_smoothing, spread)
    return out


def _nll_gradients(
    parts: list[slice],
    grad: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    label_smoothing: float,
    spread: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of `_nll` to rows, weight and bias."""
    grad_rows = torch.zeros_like(rows)
    # Many blocks add to these: in half precision the sum would lose them.
    grad_weight, grad_bias = (torch.zeros_like(x, dtype=wide(x[:0]).dtype) for x in (weight, bias))
    for part in parts:
        probs = wide(F.linear(rows[part], weight, bias)).softmax(-1)  # [B, C]
        # d/dlogits of −log p_y is p − onehot(y), of Σ_c −log p_c it is C·p − 1.
        keep, each = 1 - label_smoothing, label_smoothing * spread
        grad_logits = probs.mul_(keep + each * probs.shape[1]).sub_(each)
        grad_logits[torch.arange(len(grad_logits), device=grad.device), target[part]] -= keep
        grad_bias += grad_logits.mul_(grad[part].unsqueeze(1)).sum(0)
        grad_logits = grad_logits.to(rows.dtype)
        torch.mm(grad_logits, weight, out=grad_rows[part])
        grad_weight += grad_logits.T @ rows[part]
    return grad_rows, grad_weight.to(weight.dtype), grad_bias.to(bias.dtype)


def _bounds(ends: Tensor, segment: int) -> tuple[int, int]:
    """Where a segment begins and ends; waits for the device."""
    start, stop = [0, *ends.tolist()][segment : segment + 2]
    return start, stop


def _blocks_of(bounds: tuple[int, int], weight: Tensor) -> list[slice]:
    """The rows between two bounds in blocks whose logits are as wide as ``weight`` [C, d] has rows."""
    (start, stop), step = bounds, block_rows(weight.shape[0], weight.device)
    return [slice(a, min(a + step, stop)) for a in range(start, stop, step)]
