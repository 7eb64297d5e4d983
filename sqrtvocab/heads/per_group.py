"""What the heads share in which every group has a matrix of its own: one grouped product for all tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sqrtvocab.heads import buckets, place, soft
from sqrtvocab.heads.base import token_nll
from sqrtvocab.heads.place import ALIGNMENT, autocast_dtype
from sqrtvocab.heads.segments import refuse_forward_mode, segment_ends, segment_mm
from sqrtvocab.heads.tiles import cut_into_tiles, tile_size
from sqrtvocab.heads.two_level import TwoLevelHead
from sqrtvocab.partition import Partition

KERNELS = ("auto", "grouped_mm", "loop", "tiles")
GROUPED_MM_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class PerGroupHead(TwoLevelHead):
    """P(member | group g) = softmax(M_g h + Q_g); a subclass says what the matrices M_g are.

    In training tokens are sorted by group and multiplied in one grouped matrix product: d·S multiply-adds a
    token, whatever the number of groups.

    Args:
        in_features, num_classes, num_groups, partition, validate, device, dtype: see
            :class:`~sqrtvocab.heads.two_level.TwoLevelHead`.
        kernel: how the members are scored in training. "grouped_mm": torch's grouped matrix product.
            "loop": a loop over the groups present, which the host must know. "tiles": one batched product of
            rows in tiles, in which nothing waits for the device. "auto" chooses when the head is made, moved
            or loaded: on a CPU grouped_mm, and the loop in float64; on a GPU grouped_mm where torch has one
            kernel for it, which is bfloat16 on compute capability 9 and 10 with up to 1,023 groups (elsewhere
            torch itself loops, with a copy to the host), else tiles; on other devices tiles. Groups of uneven
            sizes are always looped over.
    """

    kernels: Mapping[torch.dtype, str]
    """dtype of the product -> its kernel; what is not here takes ``other_kernel``."""
    other_kernel: str

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
        if kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}; got {kernel!r}")
        if self.is_uneven and kernel not in ("auto", "loop"):
            raise ValueError(f'kernel must be "auto" or "loop" for groups of uneven sizes; got {kernel!r}')
        self.width = -(-self.partition.group_size // ALIGNMENT) * ALIGNMENT  # S padded
        self.kernel = kernel
        _choose_kernel(self)
        self.register_load_state_dict_post_hook(_choose_kernel)

    @abstractmethod
    def member_weight(self) -> Tensor:
        """[G, width, d]: the weight row of every (group, member); padding slots hold any row."""

    @abstractmethod
    def _vector_counts(self) -> list[int]:
        """Groups of uneven sizes: how many rows of ``_class_vectors`` each group has, with padding."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        module = super()._apply(fn, recurse)  # what .to(), .cuda(), .half() … call
        _choose_kernel(self)
        return module

    def _member_nll(self, hidden: Tensor, group: Tensor, member: Tensor, label_smoothing: float) -> Tensor:
        if self.is_uneven:
            return super()._member_nll(hidden, group, member, label_smoothing)
        # Stay in sorted order up to the loss: putting [N] back in place is cheaper than [N, S].
        sorted_group, token = group.sort()  # [N], [N]
        weight = self.member_weight()  # [G, width, d]
        if (dtype := autocast_dtype(hidden)) is not None:  # no kernel is on autocast's list
            hidden, weight = hidden.to(dtype), weight.to(dtype)
        kernel = self.kernel_for(hidden.dtype)
        if kernel == "tiles":
            nll = self._tiled_nll(hidden, weight, sorted_group, token, member, label_smoothing)  # [N]
        else:
            # index_select, for the backward pass of hidden[token] is several times slower.
            scores = self._grouped_product(hidden.index_select(0, token), weight, sorted_group, kernel)
            logits = scores + self._shift_of(sorted_group, self.width)  # [N, width]
            nll = token_nll(logits, member[token], label_smoothing, 1 / self.num_classes)  # [N]
        return torch.zeros_like(nll).index_copy(0, token, nll)

    def _soft_tables(self, hidden: Tensor, vectors: Tensor | None = None) -> soft.Tables | None:
        if self.kernel == "tiles":
            return None
        first, sizes = self._table_places()
        if self.is_uneven:
            weight = self._class_vectors() if vectors is None else vectors
            ends = torch.tensor(self._vector_counts(), device=sizes.device).cumsum(0)  # [G]
            weight_first = F.pad(ends[:-1], (1, 0))
        else:
            weight = self.member_weight().flatten(0, 1)  # [G·width, d]
            weight_first = self.width * torch.arange(len(sizes), device=sizes.device)
        if (dtype := autocast_dtype(hidden)) is not None:
            hidden, weight = hidden.to(dtype), weight.to(dtype)
        return soft.Tables(hidden, self.shift.flatten(), first, sizes, weight, weight_first)

    def kernel_for(self, dtype: torch.dtype) -> str:
        return self.kernels.get(dtype, self.other_kernel)

    def _pair_scores(self, hidden: Tensor, pairs: list[buckets.Pairs], vectors: Tensor) -> list[Tensor]:
        if (dtype := autocast_dtype(hidden)) is not None:
            hidden, vectors = hidden.to(dtype), vectors.to(dtype)
        rows = hidden.index_select(0, torch.cat([part.row for part in pairs]))  # [n, d]
        groups = [self.uneven.ranked[rank] for part in pairs for rank, _ in part.segments]
        lengths = [self.uneven.group_sizes[group] for group in groups]
        factors = buckets.Factors([part.counts for part in pairs], lengths, groups, self._vector_counts())
        return buckets.products(rows, vectors, pairs, factors)

    def _grouped_product(self, rows: Tensor, weight: Tensor, groups: Tensor, kernel: str) -> Tensor:
        """Rows [N, d] in the order of their groups [N] -> [N, width]."""
        ends = segment_ends(groups, self.partition.num_groups)  # [G]
        if kernel == "loop":
            refuse_forward_mode(rows, weight)
            return segment_mm(rows, weight, ends)
        if pad := -self.in_features % ALIGNMENT:
            rows, weight = F.pad(rows, (0, pad)), F.pad(weight, (0, pad))
        return F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)

    def _tiled_nll(
        self,
        hidden: Tensor,
        weight: Tensor,
        groups: Tensor,
        token: Tensor,
        member: Tensor,
        label_smoothing: float,
    ) -> Tensor:
        """−log P(member | group) in the order of ``groups``, [N]."""
        size = tile_size(hidden.shape[0], self.partition.num_groups)
        tiles = cut_into_tiles(groups, self.partition.num_groups, size)
        source = token[tiles.row].flatten()  # [T·B]
        rows = hidden.index_select(0, source).unflatten(0, tiles.row.shape)  # [T, B, d]
        matrices = F.embedding(tiles.group, weight.flatten(1)).unflatten(1, weight.shape[1:])  # [T, width, d]
        scores = torch.bmm(rows, matrices.transpose(1, 2))  # [T, B, width]
        logits = scores + self._shift_of(tiles.group, self.width).unsqueeze(1)
        nll = token_nll(logits.flatten(0, 1), member[source], label_smoothing, 1 / self.num_classes)  # [T·B]
        return nll.index_select(0, tiles.place)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel={self.kernel}"


def _choose_kernel(head: PerGroupHead, _: object = None) -> None:
    """Note which kernel serves which dtype, which depends on the device."""
    head.kernels, head.other_kernel = {}, head.kernel
    if head.kernel == "grouped_mm":
        head.kernels, head.other_kernel = dict.fromkeys(GROUPED_MM_DTYPES, "grouped_mm"), "loop"
    elif head.kernel == "auto":
        if place.is_cpu(head.shift.device):
            head.kernels, head.other_kernel = dict.fromkeys(GROUPED_MM_DTYPES, "grouped_mm"), "loop"
        else:
            head.other_kernel = "tiles"
            if place.major_capability(head.shift.device) in (9, 10) and head.partition.num_groups < 1024:
                head.kernels = {torch.bfloat16: "grouped_mm"}
