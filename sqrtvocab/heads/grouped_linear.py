"""A linear layer of its own for every group: the variant that the paper gave up as too slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads.base import autocast_dtype, check_tied, reset_linear, token_nll
from sqrtvocab.heads.segments import segment_ends, segment_mm
from sqrtvocab.heads.two_level import TwoLevelHead
from sqrtvocab.partition import Partition

# F.grouped_mm wants rows of whole 16-byte units: 8 elements serve every dtype it takes.
ALIGNMENT = 8


class GroupedLinearHead(TwoLevelHead):
    """P(group) = softmax(W_g h); P(member | group g) = softmax(W_g,members h + Q_g).

    Tokens are sorted by group and multiplied in one grouped matrix product: the FLOPs of ``grouped``, but
    every class keeps a direction of its own, for the V·d parameters of a flat head.

    Args:
        in_features, num_classes, num_groups, partition, validate: see
            :class:`~sqrtvocab.heads.two_level.TwoLevelHead`.
        weight: a [V, d] parameter to share, such as an embedding's (tied). Its rows are brought into the
            order of the groups at each training step, V·d elements of copying.
        kernel: "grouped_mm" (torch's grouped matrix product), "loop" (a loop over the groups present), or
            "auto": the first where it really is one product, chosen when the head is made, moved or loaded.
            float64, CUDA in other types than bfloat16, GPUs before Ampere, more than 1,023 groups on CUDA and
            other devices take the loop.
    """

    grouped_mm_dtypes: tuple[torch.dtype, ...] = ()

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_groups: int | None = None,
        partition: Partition | None = None,
        weight: nn.Parameter | None = None,
        kernel: str = "auto",
        validate: bool = False,
    ) -> None:
        super().__init__(in_features, num_classes, num_groups, partition, validate)
        if kernel not in ("auto", "grouped_mm", "loop"):
            raise ValueError(f"kernel must be one of auto, grouped_mm, loop; got {kernel!r}")
        self.tied = weight is not None
        self.width = -(-self.partition.group_size // ALIGNMENT) * ALIGNMENT  # S padded
        self.kernel = kernel
        if weight is None:
            self.weight = nn.Parameter(torch.empty(self.partition.num_groups, self.width, in_features))
        else:
            self.weight = check_tied(weight, num_classes, in_features)  # [V, d]
            if (weight.device, weight.dtype) != (self.shift.device, self.shift.dtype):
                self.to(device=weight.device, dtype=weight.dtype)
        self.reset_parameters()
        _choose_kernel(self)
        self.register_load_state_dict_post_hook(_choose_kernel)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if not self.tied:
            reset_linear(self.weight, self.in_features)
            with torch.no_grad():  # padding slots never receive a gradient; zero keeps them out of norms
                self.weight[self.partition.padding(self.width, self.weight.device)] = 0.0

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        module = super()._apply(fn, recurse)  # what .to(), .cuda(), .half() … call
        _choose_kernel(self)
        return module

    def member_weight(self) -> Tensor:
        """[G, ≥ S, d]: the weight row of every (group, member); padding slots hold any row."""
        return F.embedding(self._slots(), self.weight) if self.tied else self.weight

    def _slots(self) -> Tensor:
        groups = torch.arange(self.partition.num_groups, device=self.weight.device)
        return self.partition.slots(groups, self.width)  # [G, width]

    def _member_nll(self, hidden: Tensor, group: Tensor, member: Tensor, label_smoothing: float) -> Tensor:
        # Stay in sorted order up to the loss: putting [N] back in place is cheaper than [N, S].
        sorted_group, token = group.sort()  # [N], [N]
        # index_select, for the backward pass of hidden[token] is several times slower.
        scores = self._grouped_product(hidden.index_select(0, token), sorted_group)  # [N, width]
        logits = scores + self._shift_of(sorted_group, self.width)
        nll = token_nll(logits, member[token], label_smoothing, 1 / self.num_classes)  # [N]
        return torch.zeros_like(nll).index_copy(0, token, nll)

    def _grouped_product(self, rows: Tensor, groups: Tensor) -> Tensor:
        """Rows [N, d] in the order of their groups [N] -> [N, width]."""
        weight = self.member_weight()  # [G, width, d]
        dtype = autocast_dtype(rows)
        if dtype is not None:  # neither kernel is on autocast's list
            rows, weight = rows.to(dtype), weight.to(dtype)
        ends = segment_ends(groups, self.partition.num_groups)  # [G]
        if rows.dtype not in self.grouped_mm_dtypes:
            return segment_mm(rows, weight, ends)
        if pad := -self.in_features % ALIGNMENT:
            rows, weight = F.pad(rows, (0, pad)), F.pad(weight, (0, pad))
        return F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)

    def _member_scores(self, hidden: Tensor, groups: Tensor | None) -> Tensor:
        if groups is None:
            if not self.tied:
                scores = F.linear(hidden, self.weight.flatten(0, 1))  # [N, G·width]
            else:  # the scores are brought into the order of the groups, which is less than the weight
                scores = F.linear(hidden, self.weight).index_select(1, self._slots().flatten())
            return scores.unflatten(-1, (self.partition.num_groups, self.width))
        # Decoding opens few groups for few rows: a loop touches their weights alone, and copies none.
        sorted_groups, pair = groups.flatten().sort()  # [N·K]
        rows = hidden.index_select(0, pair // groups.shape[1])  # [N·K, d]
        opened, counts = sorted_groups.unique_consecutive(return_counts=True)
        pieces = zip(opened.tolist(), rows.split(counts.tolist()), strict=True)
        parts = [F.linear(part, self._weight_of(group)) for group, part in pieces]
        scores = torch.cat(parts or [rows.new_empty(0, self.partition.group_size)])
        return torch.zeros_like(scores).index_copy(0, pair, scores).unflatten(0, groups.shape)

    def _weight_of(self, group: int) -> Tensor:
        """[S, d] the weight rows of one group; the row after a group of S − 1 members is masked."""
        if not self.tied:
            return self.weight[group, : self.partition.group_size]
        start = self.num_classes * group // self.partition.num_groups
        rows = slice(start, start + self.partition.group_size)  # within V, for the last group has S members
        return self.weight[rows if self.partition.order is None else self.partition.order[rows]]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel={self.kernel}{', tied' if self.tied else ''}"


def _choose_kernel(head: GroupedLinearHead, _: object = None) -> None:
    """Note the dtypes that take ``F.grouped_mm``, which depend on the device."""
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    if head.kernel == "auto":
        device = head.weight.device
        if device.type == "cuda":
            # In other types, and before Ampere, torch loops over all groups itself, empty ones included.
            modern = torch.cuda.get_device_capability(device) >= (8, 0)
            dtypes = (torch.bfloat16,) if modern and head.partition.num_groups < 1024 else ()
        elif device.type not in ("cpu", "meta"):
            dtypes = ()
    head.grouped_mm_dtypes = () if head.kernel == "loop" else dtypes
