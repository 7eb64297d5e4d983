"""A product with one matrix per group without a loop over the groups and without waiting for the device.

Rows sorted by group are cut into tiles of B rows that belong to one group each; then one batched product
serves all tiles. How many there are depends on the data, but never more than (N + min(G, N)·(B − 1)) // B,
and that many are computed, so shapes are static: it compiles in one graph, exports, and differentiates in
both modes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Tiles(NamedTuple):
    """Which rows make which tile; T tiles of B rows."""

    group: Tensor
    """[T] the group of each tile."""
    row: Tensor
    """[T, B] its rows, in sorted order; spare places repeat a row of the group."""
    place: Tensor
    """[N] where each row, in sorted order, stands among the T·B places."""


def cut_into_tiles(groups: Tensor, num_groups: int, size: int) -> Tiles:
    """Sorted group of each row [N] -> tiles of ``size`` rows."""
    count, device = groups.shape[0], groups.device
    every_group = torch.arange(num_groups, device=device, dtype=groups.dtype)
    starts = torch.searchsorted(groups, every_group)  # [G]
    ends = torch.searchsorted(groups, every_group, right=True)  # [G]
    tile_ends = ((ends - starts + (size - 1)) // size).cumsum(0)  # [G]
    tile_starts = F.pad(tile_ends[:-1], (1, 0))  # [G]
    tile = torch.arange((count + min(num_groups, count) * (size - 1)) // size, device=device)  # [T]
    group = torch.searchsorted(tile_ends, tile, right=True).clamp(max=num_groups - 1)  # [T]
    first = starts[group] + (tile - tile_starts[group]) * size  # [T]
    row = first.unsqueeze(1) + torch.arange(size, device=device)  # [T, B]
    # Spare places take the group's last row, and spare tiles, which belong to no group, any row at all.
    row = torch.minimum(row, (ends[group] - 1).unsqueeze(1)).clamp(min=0)
    place = tile_starts[groups] * size + torch.arange(count, device=device) - starts[groups]  # [N]
    return Tiles(group, row, place)


def tile_size(rows: int, groups: int) -> int:
    """A power of two near the rows of a group: small tiles gather matrices often, large ones are empty."""
    size = 16  # what a tensor core multiplies at once
    while size < 128 and 2 * size * groups <= rows:
        size *= 2
    return size
