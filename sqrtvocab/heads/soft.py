"""The loss of several targets a row: a group is scored once for all targets that the row has in it.

What costs is a pair of a row and a group. Pairs are sorted by group and scored a group at a time, few enough
for a CPU's cache, in the backward pass once more. As in `segments`, an operator hides the loop from the
compiler, the host reads the bounds, and the operator can be differentiated once, in reverse mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sqrtvocab.heads.base import block_rows, wide


class Tables(NamedTuple):
    """What the members of group g are scored by: scale ∘ (weight (film_scale ∘ row + film_shift)) + shift.

    The tables of all groups are joined; what is None takes no part.
    """

    rows: Tensor
    """[N, d], or the members' scores [N, ≥ S] where there is no weight."""
    shift: Tensor
    """[T] of each member."""
    first: Tensor
    """[G] where each group begins in ``shift`` and ``scale``."""
    sizes: Tensor
    """[G] the members of each group."""
    weight: Tensor | None = None
    """[W, d]."""
    weight_first: Tensor | None = None
    """[G] where each group begins in ``weight``; None is where it begins in ``shift``."""
    scale: Tensor | None = None
    """[T]."""
    film_scale: Tensor | None = None
    """[G, d]."""
    film_shift: Tensor | None = None
    """[G, d]."""


def nll(tables: Tables, group: Tensor, member: Tensor, label_smoothing: float, spread: float) -> Tensor:
    """(1 − ε)·nll + ε·spread·Σ_c −log p_c of each target, c the members of its group: [N, K] -> [N, K].

    A target whose group is G has no loss.
    """
    rows, shift, first, sizes, weight, weight_first, scale, film_scale, film_shift = tables
    return _soft_nll(
        rows,
        weight,
        shift,
        scale,
        film_scale,
        film_shift,
        group,
        member,
        first,
        first if weight_first is None else weight_first,
        sizes,
        label_smoothing,
        spread,
    )


class _Block(NamedTuple):
    """Pairs of one group."""

    group: int
    row: Tensor
    """[n] of each pair; none is there twice."""
    targets: slice
    """In the sorted order."""
    pair: Tensor
    """[t] of each target."""
    member: Tensor
    """[t]."""
    table: slice
    weight: slice


def _blocks(
    group: Tensor, member: Tensor, first: Tensor, weight_first: Tensor, sizes: Tensor
) -> tuple[Tensor, Iterator[_Block]]:
    """The order [N·K] that sorts the targets by group and row, and the blocks of those in a group."""
    num_rows, num_groups = len(group), len(sizes)
    row = torch.arange(num_rows, device=group.device).unsqueeze(1)  # [N, 1]
    key, order = (group * num_rows + row).flatten().sort()  # [N·K]
    is_first = torch.ones_like(key, dtype=torch.bool)
    is_first[1:] = key[1:] != key[:-1]
    pair = is_first.cumsum(0) - 1  # [N·K] of each target
    targets_of = is_first.nonzero().squeeze(1)  # [pairs] where its targets begin
    row = key[targets_of] % num_rows  # [pairs]
    edges = num_rows * torch.arange(num_groups + 1, device=key.device)
    ends = torch.searchsorted(key[targets_of], edges).tolist()  # [G + 1] in pairs
    begins = [*targets_of.tolist(), len(key)]
    starts, weight_starts, widths = first.tolist(), weight_first.tolist(), sizes.tolist()
    member = member.flatten()[order]

    def blocks() -> Iterator[_Block]:
        for g, width in enumerate(widths):
            step = block_rows(width)
            for a in range(ends[g], ends[g + 1], step):
                b = min(a + step, ends[g + 1])
                targets = slice(begins[a], begins[b])
                table = slice(starts[g], starts[g] + width)
                weight = slice(weight_starts[g], weight_starts[g] + width)
                yield _Block(g, row[a:b], targets, pair[targets] - a, member[targets], table, weight)

    return order, blocks()


def _scores(
    rows: Tensor, weight: Tensor | None, film_scale: Tensor | None, film_shift: Tensor | None, block: _Block
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of a block, what the weight is multiplied with, and the scores without scale and shift."""
    own = rows.index_select(0, block.row)  # [n, d]
    moved = own
    if film_scale is not None and film_shift is not None:
        moved = torch.addcmul(film_shift[block.group], own, film_scale[block.group])
    if weight is None:
        return own, moved, wide(own[:, : block.table.stop - block.table.start])
    moved = moved.to(weight.dtype)
    return own, moved, wide(moved @ weight[block.weight].T)  # [n, S]


def _logits(scores: Tensor, shift: Tensor, scale: Tensor | None, block: _Block) -> Tensor:
    shift = wide(shift[block.table])
    return scores + shift if scale is None else torch.addcmul(shift, scores, wide(scale[block.table]))


@torch.library.custom_op("sqrtvocab::soft_nll", mutates_args=(), tags=torch.Tag.cudagraph_unsafe)
def _soft_nll(
    rows: Tensor,
    weight: Tensor | None,
    shift: Tensor,
    scale: Tensor | None,
    film_scale: Tensor | None,
    film_shift: Tensor | None,
    group: Tensor,
    member: Tensor,
    first: Tensor,
    weight_first: Tensor,
    sizes: Tensor,
    label_smoothing: float,
    spread: float,
) -> Tensor:
    order, blocks = _blocks(group, member, first, weight_first, sizes)
    found = rows.new_zeros(group.numel(), dtype=wide(rows[:0]).dtype)  # in sorted order
    for block in blocks:
        scores = _scores(rows, weight, film_scale, film_shift, block)[2]
        log_probs = _logits(scores, shift, scale, block).log_softmax(-1)  # [n, S]
        losses = -log_probs.take(block.pair * log_probs.shape[1] + block.member)  # [t]
        if label_smoothing:
            uniform = -spread * log_probs.sum(-1)  # [n]
            losses = (1 - label_smoothing) * losses + label_smoothing * uniform[block.pair]
        found[block.targets] = losses
    return torch.empty_like(found).index_copy_(0, order, found).view_as(group)


@_soft_nll.register_fake
def _(rows, weight, shift, scale, film_scale, film_shift, group, *rest):  # type: ignore[no-untyped-def]
    return torch.empty_like(group, dtype=wide(rows[:0]).dtype)


@torch.library.custom_op("sqrtvocab::soft_nll_backward", mutates_args=(), tags=torch.Tag.cudagraph_unsafe)
def _soft_nll_backward(
    grad: Tensor,
    rows: Tensor,
    weight: Tensor | None,
    shift: Tensor,
    scale: Tensor | None,
    film_scale: Tensor | None,
    film_shift: Tensor | None,
    group: Tensor,
    member: Tensor,
    first: Tensor,
    weight_first: Tensor,
    sizes: Tensor,
    label_smoothing: float,
    spread: float,
) -> list[Tensor]:
    """To rows, weight, shift, scale, film_scale and film_shift; nothing for what is None."""
    order, blocks = _blocks(group, member, first, weight_first, sizes)
    grad = grad.flatten()[order]
    # Many blocks add to these: in half precision the sums would lose them.
    parts = (rows, weight, shift, scale, film_scale, film_shift)
    grads = [None if x is None else torch.zeros_like(x, dtype=wide(x[:0]).dtype) for x in parts]
    grad_rows, grad_weight, grad_shift, grad_scale, grad_film_scale, grad_film_shift = grads
    assert grad_rows is not None
    assert grad_shift is not None
    for block in blocks:
        own, moved, scores = _scores(rows, weight, film_scale, film_shift, block)
        grad_logits = _logits(scores, shift, scale, block).softmax(-1)  # [n, S]
        width, of_target = grad_logits.shape[1], grad[block.targets]  # [t]
        # d/dlogits of −log p_y is p − onehot(y), of Σ_c −log p_c it is S·p − 1.
        keep, each = 1 - label_smoothing, label_smoothing * spread
        total = of_target.new_zeros(len(own)).index_add_(0, block.pair, of_target).unsqueeze(1)  # [n, 1]
        grad_logits *= total * (keep + each * width)
        if each:
            grad_logits -= total * each
        grad_logits.put_(block.pair * width + block.member, -keep * of_target, accumulate=True)
        grad_shift[block.table] += grad_logits.sum(0)
        if scale is not None and grad_scale is not None:
            grad_scale[block.table] += (grad_logits * scores).sum(0)
            grad_logits *= scale[block.table]
        grad_own = grad_logits
        if weight is not None and grad_weight is not None:
            grad_logits = grad_logits.to(weight.dtype)
            _add_product(grad_weight[block.weight], grad_logits.T, moved)
            grad_own = wide(grad_logits @ weight[block.weight])  # [n, d]
        if film_scale is not None and grad_film_scale is not None and grad_film_shift is not None:
            grad_film_shift[block.group] += grad_own.sum(0)
            grad_film_scale[block.group] += (grad_own * own).sum(0)
            grad_own *= film_scale[block.group]
        grad_rows[:, : grad_own.shape[1]].index_add_(0, block.row, grad_own)
    return [
        x.to(part.dtype) for x, part in zip(grads, parts, strict=True) if x is not None and part is not None
    ]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


@_soft_nll_backward.register_fake
def _(grad, *inputs):  # type: ignore[no-untyped-def]
    return [torch.empty_like(x) for x in inputs[:6] if x is not None]


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, ctx.label_smoothing, ctx.spread = inputs
    ctx.save_for_backward(*tensors)


def _autograd(ctx, grad):  # type: ignore[no-untyped-def]
    tensors = ctx.saved_tensors
    grads = iter(_soft_nll_backward(grad, *tensors, ctx.label_smoothing, ctx.spread))
    return *(None if x is None else next(grads) for x in tensors[:6]), *[None] * 7


_soft_nll.register_autograd(_autograd, setup_context=_setup)
