"""What the heads share in which every group has a matrix of its own: one grouped product for all tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sqrtvocab.heads.base import autocast_dtype, token_nll
from sqrtvocab.heads.segments import segment_ends, segment_mm
from sqrtvocab.heads.two_level import TwoLevelHead
from sqrtvocab.partition import Partition

# F.grouped_mm wants rows of whole 16-byte units: 8 elements serve every dtype it takes.
ALIGNMENT = 8


class PerGroupHead(TwoLevelHead):
    """P(member | group g) = softmax(M_g h + Q_g); a subclass says what the matrices M_g are.

    In training tokens are sorted by group and multiplied in one grouped matrix product: d·S multiply-adds a
    token, whatever the number of groups.

    Args:
        in_features, num_classes, num_groups, partition, validate, device, dtype: see
            :class:`~sqrtvocab.heads.two_level.TwoLevelHead`.
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
        kernel: str = "auto",
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, num_groups, partition, validate, device, dtype)
        if kernel not in ("auto", "grouped_mm", "loop"):
            raise ValueError(f"kernel must be one of auto, grouped_mm, loop; got {kernel!r}")
        self.width = -(-self.partition.group_size // ALIGNMENT) * ALIGNMENT  # S padded
        self.kernel = kernel
        _choose_kernel(self)
        self.register_load_state_dict_post_hook(_choose_kernel)

    @abstractmethod
    def member_weight(self) -> Tensor:
        """[G, width, d]: the weight row of every (group, member); padding slots hold any row."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        module = super()._apply(fn, recurse)  # what .to(), .cuda(), .half() … call
        _choose_kernel(self)
        return module

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

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel={self.kernel}"


def _choose_kernel(head: PerGroupHead, _: object = None) -> None:
    """Note the dtypes that take ``F.grouped_mm``, which depend on the device."""
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    if head.kernel == "auto":
        device = head.shift.device
        if device.type == "cuda":
            # In other types, and before Ampere, torch loops over all groups itself, empty ones included.
            modern = torch.cuda.get_device_capability(device) >= (8, 0)
            dtypes = (torch.bfloat16,) if modern and head.partition.num_groups < 1024 else ()
        elif device.type not in ("cpu", "meta"):
            dtypes = ()
    head.grouped_mm_dtypes = () if head.kernel == "loop" else dtypes
