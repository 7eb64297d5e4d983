"""Rows of all ranks of a process group, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sqrtvocab.heads.base import wide

Group = dist.ProcessGroup | None  # None: all ranks


def is_alone(group: Group = None) -> bool:
    """Whether there are no other ranks."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1


def row_counts(count: int, group: Group = None) -> list[int]:
    """How many rows each rank has."""
    # A GPU is not waited for where the group can talk without one.
    device = dist.distributed_c10d._get_object_coll_device(group)
    counts = [torch.empty(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, torch.tensor([count], device=device), group)
    return [int(number) for number in counts]


def gather_rows(rows: Tensor, sizes: list[int], group: Group = None) -> Tensor:
    """Rows [n, ...] of all ranks, rank 0's first; their gradients are what all ranks' losses say of them."""
    if rows.is_floating_point() and rows.requires_grad and torch.is_grad_enabled():
        return _Gathered.apply(rows, sizes, group)
    return _all_rows(rows, sizes, group)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int], group: Group) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        return _all_rows(rows, sizes, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        total = wide(gradient).contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total.to(gradient.dtype).split(ctx.sizes)[dist.get_rank(ctx.group)], None, None


def _all_rows(rows: Tensor, sizes: list[int], group: Group) -> Tensor:
    if not any(sizes):
        return rows.detach()
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])  # collectives want equal shapes
    padded[: len(rows)] = rows.detach()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
