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
            order of the groups at each call, V·d elements of copying.
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

    def member_weight(self, groups: Tensor | None = None) -> Tensor:
        """Groups [K] -> [K, ≥ S, d]: the weight row of each member; all groups for None."""
        if not self.tied:
            return self.weight if groups is None else self.weight.index_select(0, groups)
        if groups is None:
            groups = torch.arange(self.partition.num_groups, device=self.weight.device)
        return F.embedding(self.partition.slots(groups, self.width), self.weight)

    def _member_nll(self, hidden: Tensor, group: Tensor, member: Tensor, label_smoothing: float) -> Tensor:
        # Stay in sorted order up to the loss: putting [N] back in place is cheaper than [N, S].
        sorted_group, token = group.sort()  # [N], [N]
        ends = segment_ends(sorted_group, self.partition.num_groups)  # [G]
        # index_select, for the backward pass of hidden[token] is several times slower.
        scores = self._grouped_product(hidden.index_select(0, token), self.member_weight(), ends)
        logits = scores + self._shift_of(sorted_group, self.width)  # [N, width]
        nll = token_nll(logits, member[token], label_smoothing, 1 / self.num_classes)  # [N]
        return torch.zeros_like(nll).index_copy(0, token, nll)

    def _member_scores(self, hidden: Tensor, groups: Tensor | None) -> Tensor:
        if groups is None:
            weight = self.member_weight()  # [G, width, d]
            return F.linear(hidden, weight.flatten(0, 1)).unflatten(-1, weight.shape[:2])  # [N, G, width]
        sorted_groups, pair = groups.flatten().sort()  # [N·K]
        rows = hidden.index_select(0, pair // groups.shape[1])  # [N·K, d]
        # Decoding opens few groups: where the weight must be gathered, cast or padded, only theirs is.
        if self.tied or autocast_dtype(rows) is not None or self.in_features % ALIGNMENT:
            opened, counts = sorted_groups.unique_consecutive(return_counts=True)
            weight, ends = self.member_weight(opened), counts.cumsum(0).to(torch.int32)
        else:
            weight, ends = self.weight, segment_ends(sorted_groups, self.partition.num_groups)
        scores = self._grouped_product(rows, weight, ends)  # [N·K, width]
        return torch.zeros_like(scores).index_copy(0, pair, scores).view(*groups.shape, self.width)

    def _grouped_product(self, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """Rows [M, d] by group, weight [K, width, d], where each group's rows end [K] -> [M, width]."""
        dtype = autocast_dtype(rows)
        if dtype is not None:  # neither kernel is on autocast's list
            rows, weight = rows.to(dtype), weight.to(dtype)
        if rows.dtype not in self.grouped_mm_dtypes:
            return segment_mm(rows, weight, ends)
        if pad := -self.in_features % ALIGNMENT:
            rows, weight = F.pad(rows, (0, pad)), F.pad(weight, (0, pad))
        return F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)

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
