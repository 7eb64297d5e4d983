"""Groups of any sizes: which group a class belongs to, looked up instead of computed."""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sqrtvocab.partition import Partition, integer


class Bucket(NamedTuple):
    """Groups of similar size, which heads compute in one padded table: less than half of it is padding."""

    first: int
    stop: int
    """The groups ``by_size[first:stop]`` of the partition."""
    width: int
    """The size of the largest of them."""


class UnevenPartition(Partition):
    """What :meth:`Partition.from_groups` makes of groups that are not of equal size.

    Everything that :class:`Partition` promises, but the edges of the groups are a table. The tables of a head
    with such groups are [V], in the order of the positions, so that they cost what the classes cost and not
    G times the largest group.

    Args:
        group: int64 [V] on the CPU, the group of each class, from 0 to G − 1.
    """

    edges: Tensor  # [G + 1] S_g and, last, V
    by_size: Tensor  # [G] the groups, smallest first
    rank: Tensor  # [G] where each group stands among them

    def __init__(self, group: Tensor) -> None:
        sizes = group.bincount()
        super().__init__(len(group), len(sizes), _order(group))
        by_size = sizes.argsort(stable=True)
        # For the host, which must not wait for a device to know them.
        self.group_sizes: list[int] = sizes.tolist()
        self.ranked: list[int] = by_size.tolist()
        self.group_size = max(self.group_sizes)
        self.buckets = _buckets(sizes[by_size].tolist())
        # Persistent for the same reason as the order, and so that other groups are noticed when loaded.
        self.register_buffer("edges", torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))
        self.register_buffer("by_size", by_size)
        self.register_buffer("rank", by_size.argsort())

    def split(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        position = self.positions_of(classes).contiguous()
        group = torch.searchsorted(self.edges[1:], position, right=True)
        return group, position - self.starts(group)

    def starts(self, group: Tensor) -> Tensor:
        return self.edges[group]

    def sizes(self, device: torch.device | None = None) -> Tensor:
        return self.edges.diff().to(device)

    def span(self, rank: int) -> slice:
        """The positions of the group that has this rank."""
        group = self.ranked[rank]
        return slice(int(self.edges[group]), int(self.edges[group + 1]))

    def columns(self, width: int, device: torch.device | None = None) -> Tensor:
        group, member = self.split(torch.arange(self.num_classes, device=self.edges.device))
        return (group * width + member).to(device)

    def grow(self, num_classes: int) -> Partition:
        """The same groups over more classes: each of those from V on joins the group that is smallest."""
        if integer("num_classes", num_classes) < self.num_classes:
            raise ValueError(f"{self.num_classes} classes cannot become {num_classes}: groups only grow")
        heap = [(size, group) for group, size in enumerate(self.group_sizes)]
        heapify(heap)
        joined = []
        for _ in range(self.num_classes, num_classes):
            size, group = heap[0]
            joined.append(group)
            heapreplace(heap, (size + 1, group))
        old = self.split(torch.arange(self.num_classes, device=self.edges.device))[0].cpu()
        grown = UnevenPartition(torch.cat([old, torch.tensor(joined, dtype=torch.int64, device="cpu")]))
        return grown.to(self.edges.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (saved := state_dict.get(f"{prefix}edges")) is not None:
            check_same_groups(self, saved)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, of uneven sizes"


def partition_by(labels: Tensor) -> Partition:
    """See :meth:`Partition.from_groups`."""
    sizes = _sizes(labels)
    even = Partition(len(labels), len(sizes), _order(labels))
    return even if torch.equal(even.sizes(labels.device), sizes) else UnevenPartition(labels)


def cut(labels: Tensor, largest: int) -> Tensor:
    """Labels [V] of groups of which none has more than so many classes; see :meth:`Partition.from_groups`."""
    sizes = _sizes(labels)
    parts = -(-sizes // largest)  # [G]
    order = labels.argsort(stable=True)
    member = torch.empty_like(labels)  # [V] within its group
    member[order] = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[labels[order]]
    return (parts.cumsum(0) - parts)[labels] + member * parts[labels] // sizes[labels]


def _sizes(labels: Tensor) -> Tensor:
    """[G] how many classes have each label; they must be numbered from 0 on without gaps."""
    if int(labels.min()) < 0:
        raise ValueError(f"labels must number the groups from 0 on, got {int(labels.min())}")
    sizes = labels.bincount()
    if bool((sizes == 0).any()):
        raise ValueError(
            f"labels must number the groups without gaps, but no class has label {int(sizes.argmin())}; "
            "torch.unique(labels, return_inverse=True)[1] numbers them so"
        )
    return sizes


def _order(group: Tensor) -> Tensor | None:
    """The classes [V] by group; None if they already are."""
    return None if bool((group.diff() >= 0).all()) else group.argsort(stable=True)


def check_same_groups(partition: UnevenPartition, edges: Tensor) -> None:
    """The groups of a state dict must be those of the partition.

    Raises:
        ValueError: they are not.
    """
    if edges.is_meta:
        return
    sizes = edges.diff().tolist()
    if sizes != partition.group_sizes:
        raise ValueError(
            f"the state dict is of {len(sizes):,} groups of {_few(sizes)} classes, this partition has "
            f"{partition.num_groups:,} of {_few(partition.group_sizes)}: make it from the same labels"
        )


def _few(sizes: list[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes[:4]) + (" …" if len(sizes) > 4 else "")


def _buckets(sizes: list[int]) -> list[Bucket]:
    """Ascending sizes cut where the next power of two is passed; up to 8 is one bucket, for kernels round up
    to that anyway."""
    buckets, first = [], 0
    for i, size in enumerate(sizes):
        if i + 1 == len(sizes) or max(sizes[i + 1] - 1, 7).bit_length() > max(size - 1, 7).bit_length():
            buckets.append(Bucket(first, i + 1, size))
            first = i + 1
    return buckets
