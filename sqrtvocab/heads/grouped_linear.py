"""A linear layer of its own for every group: the variant that the paper gave up as too slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads.base import reset_linear, token_nll
from sqrtvocab.heads.flat import own_or_tied
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
            "auto": whichever fits the dtype and device of the parameters, chosen when the head is made and
            again when it is moved. float64, MPS, GPUs before Ampere and more than 1,023 groups on CUDA need
            the loop.
    """

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
        if weight is not None:
            self.weight = own_or_tied(weight, num_classes, in_features)  # [V, d]
        else:
            self.weight = nn.Parameter(torch.empty(self.partition.num_groups, self.width, in_features))
            reset_linear(self.weight, in_features)
            with torch.no_grad():  # padding slots never receive a gradient; zero keeps them out of norms
                self.weight[self.partition.padding(self.width, self.weight.device)] = 0.0
        self._kernel = kernel
        self._choose_kernel()

    def _choose_kernel(self) -> None:
        self.kernel = self._kernel
        if self._kernel == "auto":
            fits = grouped_mm_fits(self.weight.dtype, self.weight.device, self.partition.num_groups)
            self.kernel = "grouped_mm" if fits else "loop"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        module = super()._apply(fn, recurse)  # what .to(), .cuda(), .half() … call
        self._choose_kernel()
        return module

    def member_weight(self) -> Tensor:
        """[G, ≥ S, d]: the weight row of every (group, member); padding slots hold any row."""
        if not self.tied:
            return self.weight
        return F.embedding(self.partition.slots(self.width, self.weight.device), self.weight)

    def _member_nll(self, hidden: Tensor, group: Tensor, member: Tensor, label_smoothing: float) -> Tensor:
        # Stay in sorted order up to the loss: putting [N] back in place is cheaper than [N, S].
        sorted_group, token = group.sort()  # [N], [N]
        scores = self._sorted_scores(hidden[token], sorted_group)  # [N, width]
        logits = scores + self._shift_of(sorted_group, self.width)
        nll = token_nll(logits, member[token], label_smoothing, 1 / self.num_classes)  # [N]
        return torch.zeros_like(nll).index_copy(0, token, nll)

    def _member_scores(self, hidden: Tensor, groups: Tensor | None) -> Tensor:
        if groups is None:
            weight = self.member_weight()  # [G, width, d]
            return F.linear(hidden, weight.flatten(0, 1)).unflatten(-1, weight.shape[:2])  # [N, G, width]
        sorted_groups, pair = groups.flatten().sort()  # [N·K]
        scores = self._sorted_scores(hidden[pair // groups.shape[1]], sorted_groups)  # [N·K, width]
        return torch.zeros_like(scores).index_copy(0, pair, scores).view(*groups.shape, self.width)

    def _sorted_scores(self, rows: Tensor, groups: Tensor) -> Tensor:
        """Rows [M, d] in the order of their groups [M] -> [M, width]."""
        weight = self.member_weight()  # [G, width, d]
        device = rows.device.type
        if torch.is_autocast_enabled(device):  # neither kernel is on autocast's list
            dtype = torch.get_autocast_dtype(device)
            rows, weight = rows.to(dtype), weight.to(dtype)
        ends = segment_ends(groups, self.partition.num_groups)  # [G]
        if self.kernel == "loop":
            return segment_mm(rows, weight, ends)
        if pad := -self.in_features % ALIGNMENT:
            rows, weight = F.pad(rows, (0, pad)), F.pad(weight, (0, pad))
        return F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel={self.kernel}{', tied' if self.tied else ''}"


def grouped_mm_fits(dtype: torch.dtype, device: torch.device, num_groups: int) -> bool:
    """Whether ``F.grouped_mm`` takes this dtype on this device with this many groups."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0) and num_groups < 1024
    return device.type in ("cpu", "meta")
