"""A linear layer of its own for every group: the variant that the paper gave up as too slow."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads import buckets
from sqrtvocab.heads.base import PartRows, block_rows, check_growth, check_tied, in_blocks, reset_linear
from sqrtvocab.heads.group_layer import GroupLayer
from sqrtvocab.heads.per_group import PerGroupHead
from sqrtvocab.partition import Partition, host_sees, positive

# What a new class has at most of the probability of an average class of its group, whatever the hidden state:
# so little that in float32 the others keep theirs. Seen as a target it learns as fast as any other.
NEWCOMER = 2.0**-20

EMPTY = 30.0  # how much less an empty cluster of members scores than its group
CLUSTERED = 4_096  # hidden states that tell which members are probable


class GroupedLinearHead(PerGroupHead):
    """P(group) = softmax(W_g h); P(member | group g) = softmax(W_g,members h + Q_g).

    The FLOPs of ``grouped``, but every class keeps a direction of its own, for the V·d parameters of a flat
    head.

    Args:
        in_features, num_classes, num_groups, partition, kernel, validate, device, dtype: see
            :class:`~sqrtvocab.heads.per_group.PerGroupHead`.
        weight: a [V, d] parameter to share, such as an embedding's (tied). Its rows are brought into the
            order of the groups at each training step, V·d elements of copying. The rest of the head is made
            on its device and in its dtype.
        centroids: by how many directions each group is scored; 1 is the paper's. More let the head start
            nearer to a linear layer whose place it takes.
    """

    can_grow = True
    split_tables: ClassVar[tuple[str, ...]] = ("group.weight", "group.bias", "shift", "weight")
    starts_from_linear = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_groups: int | None = None,
        partition: Partition | None = None,
        weight: nn.Parameter | None = None,
        centroids: int = 1,
        kernel: str = "auto",
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if weight is not None:
            check_tied(weight, in_features=in_features, num_classes=num_classes)
            device, dtype = weight.device, weight.dtype
        super().__init__(in_features, num_classes, num_groups, partition, kernel, validate, device, dtype)
        if positive("centroids", centroids) > 1 and self.is_uneven:
            raise ValueError(f"groups of uneven sizes have one centroid each, got centroids = {centroids}")
        if centroids > 1:
            groups = self.partition.num_groups
            self.group = GroupLayer(in_features, groups, centroids, device=device, dtype=dtype)
        self.tied = weight is not None
        if weight is None:
            rows = (num_classes,) if self.is_uneven else (self.partition.num_groups, self.width)
            weight = nn.Parameter(torch.empty(*rows, in_features, device=device, dtype=dtype))
        self.weight = weight  # [G, width, d], or tied [V, d]; uneven [V, d] in the order of the groups
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if not self.tied:
            reset_linear(self.weight, self.in_features)
            if self.is_uneven:  # no padding
                return
            with torch.no_grad():  # padding slots never receive a gradient; zero keeps them out of norms
                self.weight[self.partition.padding(self.width, self.weight.device)] = 0.0

    def member_weight(self) -> Tensor:
        return F.embedding(self._slots(), self.weight) if self.tied else self.weight

    def _class_vectors(self) -> Tensor:
        order = self.partition.order if self.tied else None
        return self.weight if order is None else self.weight.index_select(0, order)  # [V, d]

    def _vector_counts(self) -> list[int]:
        return self.uneven.group_sizes

    def _opened_scores(self, hidden: Tensor, pairs: buckets.Pairs) -> Tensor:
        if not self.tied or self.partition.order is None:
            return super()._opened_scores(hidden, pairs)
        scores = hidden.new_zeros(len(pairs.row), pairs.bucket.width)  # copies no more rows than it opens
        for rank, place in pairs.segments:
            weight = self.weight[self.partition.order[self.uneven.span(rank)]]
            scores[place, : len(weight)] = F.linear(hidden[pairs.row[place]], weight)
        return scores

    def _bucket_scores(self, hidden: Tensor) -> list[Tensor]:
        scores = F.linear(hidden, self.weight)  # [N, V]
        if self.tied and self.partition.order is not None:
            scores = scores.index_select(1, self.partition.order)
        tables = buckets.bucket_tables(self.uneven, scores.T)  # [groups, width, N]
        return [table.movedim(-1, 0) for table in tables]

    def _slots(self, groups: slice = slice(None)) -> Tensor:
        every = torch.arange(self.partition.num_groups, device=self.weight.device)
        return self.partition.slots(every[groups], self.width)  # [K, width]

    def _member_scores(self, hidden: Tensor, groups: Tensor | slice) -> Tensor:
        if isinstance(groups, slice):
            if not self.tied:
                scores = F.linear(hidden, self.weight[groups].flatten(0, 1))  # [N, K·width]
            elif groups == slice(None):  # to bring the scores into the order of the groups is less to copy
                scores = F.linear(hidden, self.weight).index_select(1, self._slots().flatten())
            else:
                scores = F.linear(hidden, F.embedding(self._slots(groups).flatten(), self.weight))
            return scores.unflatten(-1, (-1, self.width))
        if not host_sees(groups):
            widest = groups.shape[1] * self.width * self.in_features
            blocks = zip(in_blocks(hidden, widest), in_blocks(groups, widest), strict=True)
            return torch.cat([torch.einsum("nd,nksd->nks", rows, self._weights_of(g)) for rows, g in blocks])
        # Decoding opens few groups for few rows: a loop touches their weights alone, and copies none.
        sorted_groups, pair = groups.flatten().sort()  # [N·K]
        rows = hidden.index_select(0, pair // groups.shape[1])  # [N·K, d]
        opened, counts = sorted_groups.unique_consecutive(return_counts=True)
        pieces = zip(opened.tolist(), rows.split(counts.tolist()), strict=True)
        parts = [F.linear(part, self._weight_of(group)) for group, part in pieces]
        scores = torch.cat(parts or [rows.new_empty(0, self.partition.group_size)])
        return torch.zeros_like(scores).index_copy(0, pair, scores).unflatten(0, groups.shape)

    def _weights_of(self, groups: Tensor) -> Tensor:
        """Groups [N, K] -> [N, K, width, d] a copy of their weight rows."""
        if not self.tied:
            return F.embedding(groups, self.weight.flatten(1)).unflatten(-1, self.weight.shape[1:])
        slots = self.partition.slots(groups.flatten(), self.width)  # [N·K, width]
        return F.embedding(slots, self.weight).unflatten(0, groups.shape)

    def _weight_of(self, group: int) -> Tensor:
        """[S, d] the weight rows of one group; the row after a group of S − 1 members is masked."""
        if not self.tied:
            return self.weight[group, : self.partition.group_size]
        start = self.num_classes * group // self.partition.num_groups
        rows = slice(start, start + self.partition.group_size)  # within V, for the last group has S members
        return self.weight[rows if self.partition.order is None else self.partition.order[rows]]

    def why_whole(self) -> str | None:
        if self.is_uneven:
            return "its groups are of uneven sizes"
        if self.group.centroids > 1:
            return "its groups have several centroids"
        return "its weight is shared with an embedding" if self.tied else super().why_whole()

    def part_rows(self, number: int, parts: int) -> PartRows:
        """Whole groups, in the order in which a partition of their own has groups of these sizes."""
        groups = self.partition.num_groups
        if parts > groups:
            raise ValueError(f"{groups} groups cannot be split over {parts} ranks")
        mine = torch.arange(groups * number // parts, groups * (number + 1) // parts)
        sizes = self.partition.sizes()[mine]
        wanted = Partition(int(sizes.sum()), len(mine)).sizes()
        rows = torch.empty_like(mine)
        rows[wanted.argsort(stable=True)] = mine[sizes.argsort(stable=True)]
        starts = self.partition.starts(rows)
        positions = torch.cat([torch.arange(a, a + n) for a, n in zip(starts, wanted, strict=True)])
        order = self.partition.order
        return PartRows(rows, positions if order is None else order.cpu()[positions])

    @torch.no_grad()
    def make_part(self, rows: Tensor, classes: Tensor) -> GroupedLinearHead:
        partition = Partition(len(classes), len(rows))
        partition.group_size = self.partition.group_size  # tables as wide, were the groups here all smaller
        part = GroupedLinearHead(
            self.in_features,
            len(classes),
            partition=partition,
            kernel=self.kernel,
            validate=self.validate,
            device=self.shift.device,
            dtype=self.shift.dtype,
        )
        part.shift.copy_(self.shift[rows])
        part.weight.copy_(self.weight[rows])
        part.group.weight.copy_(self.group.weight[rows])
        part.group.bias.copy_(self.group.bias[rows])
        return part

    @torch.no_grad()
    def init_from_linear(self, weight: Tensor, bias: Tensor | None, hidden: Tensor | None = None) -> bool:
        """The members of a group take the rows of the old layer, so P(member | group) is exact. The group's
        score, which should be the log of the sum of its members' exponentials, becomes a linear layer, or the
        log-sum of ``centroids`` of them: fitted to ``hidden``, or without it expanded to first order around a
        zero hidden state."""
        if self.is_uneven:
            return self._init_uneven(weight, bias, hidden)
        slots = self._slots()  # [G, width]
        padding = self.partition.padding(self.width, slots.device)  # [G, width]
        if self.tied:
            self.weight.copy_(weight)
        else:
            self.weight.copy_(weight[slots].masked_fill(padding.unsqueeze(-1), 0.0))
        bias = weight.new_zeros(len(weight)) if bias is None else bias  # [V]
        self.shift.copy_(bias[slots].masked_fill(padding, 0.0)[:, : self.partition.group_size])
        group_weight, group_bias = self._group_layer(hidden)
        self.group.weight.copy_(group_weight)
        self.group.bias.copy_(group_bias)
        return True

    def _init_uneven(self, weight: Tensor, bias: Tensor | None, hidden: Tensor | None) -> bool:
        order = slice(None) if self.partition.order is None else self.partition.order
        self.weight.copy_(weight if self.tied else weight[order])
        self.shift.copy_(weight.new_zeros(len(weight)) if bias is None else bias[order])
        group_weight, group_bias = self._group_layer(hidden)
        self.group.weight.copy_(group_weight)
        self.group.bias.copy_(group_bias)
        return True

    def _group_layer(self, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """W [G·K, d] and b [G·K] such that the group layer is close to log Σ exp(member scores), up to a
        constant a row.

        Args:
            hidden: [N, d] hidden states to be close at; None expands around zero.
        """
        centre = self.shift.new_zeros(1, self.in_features) if hidden is None else hidden.mean(0, keepdim=True)
        if self.is_uneven:
            weight, bias = self._expanded_uneven(centre)
        else:
            weight, bias = self._expanded(centre, centre if hidden is None else hidden)
        if hidden is None:
            return weight, bias
        blocks = hidden.split(block_rows(self.num_classes))  # their logits are V wide
        scores = torch.cat([self._group_scores(rows) for rows in blocks])
        return _fit(self.group, hidden.float(), scores.softmax(-1), weight, bias)

    def _expanded(self, centre: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The score of each of a group's K clusters of members to first order around the centre [1, d]: the
        gradient of a log-sum-exp is the mean of the rows under its softmax."""
        rows = self.member_weight().float()  # [G, width, d]
        scores = self.member_logits(centre, slice(None))[0].float()  # [G, width], −inf where no class is
        cluster = self._clusters(rows, scores, hidden)  # [G, width]
        # A cluster may be empty: the group's own expansion, with a weight of next to nothing, stands for it.
        of_group = scores.logsumexp(-1, keepdim=True)  # [G, 1]
        parts = [scores.masked_fill(cluster != k, -math.inf) for k in range(self.group.centroids)]
        sums = [part.logsumexp(-1, keepdim=True) for part in parts]  # [G, 1] each
        parts = [torch.where(total.isinf(), scores, part) for total, part in zip(sums, parts, strict=True)]
        totals = torch.cat(
            [torch.where(total.isinf(), of_group - EMPTY, total) for total in sums], 1
        )  # [G, K]
        weight = torch.stack([torch.einsum("gs,gsd->gd", part.softmax(-1), rows) for part in parts], 1)
        return weight.flatten(0, 1), (totals - weight @ centre[0].float()).flatten()

    def _clusters(self, rows: Tensor, scores: Tensor, hidden: Tensor) -> Tensor:
        """Which of its group's K clusters of similar rows each member is in, [G, width]: k-means, in which a
        member weighs what the old layer gives it at ``hidden``."""
        count = min(self.group.centroids, self.partition.group_size)
        if count == 1:
            return torch.zeros_like(scores, dtype=torch.int64)
        mass = torch.zeros_like(scores)
        for block in hidden[:CLUSTERED].split(block_rows(self.num_classes)):
            joint = self.member_logits(block, slice(None)).float().flatten(1).softmax(-1)  # [n, G·width]
            mass += joint.sum(0).view_as(mass)
        chosen = mass.topk(count, dim=-1).indices  # [G, K] the most probable members are the first centres
        centres = rows.gather(1, chosen.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))  # [G, K, d]
        for _ in range(10):
            cluster = torch.cdist(rows, centres).argmin(-1)  # [G, width]
            share = F.one_hot(cluster, count) * mass.unsqueeze(-1)  # [G, width, K]
            total = share.sum(1).unsqueeze(-1)  # [G, K, 1]
            means = torch.einsum("gsk,gsd->gkd", share, rows) / total
            centres = torch.where(total > 0, means, centres)
        return cluster

    def _expanded_uneven(self, centre: Tensor) -> tuple[Tensor, Tensor]:
        """The same for groups of uneven sizes, which have one cluster."""
        scores = self._group_scores(centre)[0]  # [G]
        positions = torch.arange(self.num_classes, device=centre.device)
        group = self.partition.split(self.partition.classes_at(positions))[0]  # [V]
        rows = self._class_vectors().float()  # [V, d]
        share = (rows @ centre[0].float() + self.shift.float() - scores[group]).exp()  # [V]
        weight = rows.new_zeros(len(scores), self.in_features).index_add(0, group, share[:, None] * rows)
        return weight, scores - weight @ centre[0].float()

    def _group_scores(self, hidden: Tensor) -> Tensor:
        """[N, d] -> [N, G] log Σ exp(member scores) of each group."""
        if not self.is_uneven:
            return self.member_logits(hidden, slice(None)).float().logsumexp(-1)
        scores = [logits.float().logsumexp(-1) for logits in buckets.all_logits(self, hidden)]
        return torch.cat(scores, 1).index_select(1, self.uneven.rank)

    @torch.no_grad()
    def grow(self, num_classes: int, weight: nn.Parameter | None = None) -> GroupedLinearHead:
        """New classes join the smallest groups, with the mean row of the group and a very low bias."""
        check_growth(self, num_classes, weight)
        partition = self.partition.grow(num_classes)
        grown = GroupedLinearHead(
            self.in_features,
            num_classes,
            partition=partition,
            weight=weight,
            centroids=self.group.centroids,
            kernel=self.kernel,
            validate=self.validate,
            device=self.shift.device,
            dtype=self.shift.dtype,
        )
        old = torch.arange(self.num_classes, device=self.shift.device)
        new = torch.arange(self.num_classes, num_classes, device=self.shift.device)
        group, to_group, joined = (
            p.split(c)[0] for p, c in ((self.partition, old), (partition, old), (partition, new))
        )
        before, after, place = self._places(old), grown._places(old), grown._places(new)
        here, there = self.group.rows_of(group), grown.group.rows_of(to_group)
        grown.group.weight[there] = self.group.weight[here]
        grown.group.bias[there] = self.group.bias[here]
        rows = self.weight[before] if weight is None else weight[: self.num_classes]  # [V, d]
        shift = self.shift[before]  # [V]
        # The score of a mean row is the mean of the scores, whose exponential is at most the mean of the
        # exponentials: that bounds the new class's share for every hidden state.
        sizes = torch.bincount(to_group, minlength=partition.num_groups).to(rows)  # [G]
        mean_rows = rows.new_zeros(len(sizes), self.in_features).index_add(0, to_group, rows) / sizes[:, None]
        mean_shift = shift.new_zeros(len(sizes)).index_add(0, to_group, shift) / sizes
        grown.shift[after] = shift
        grown.shift[place] = mean_shift[joined] + math.log(NEWCOMER)
        if weight is not None:
            weight[new] = mean_rows[joined]
        else:
            grown.weight[after] = rows
            grown.weight[place] = mean_rows[joined]
        return grown

    def _places(self, classes: Tensor) -> tuple[Tensor, ...]:
        """Where classes [n] stand in the tables of members."""
        return (self.partition.positions_of(classes),) if self.is_uneven else self.partition.split(classes)

    def describe(self) -> str:
        return f"{super().describe()}{', tied' if self.tied else ''}"


def _fit(
    layer: GroupLayer, hidden: Tensor, wanted: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """From weight [G·K, d] and bias [G·K], minimise the cross entropy of the layer's softmax at ``hidden``
    [N, d] to ``wanted`` [N, G]: a convex problem if K is 1, else one with a good start."""
    parameters = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        with torch.enable_grad():  # the caller has switched it off
            optimizer.zero_grad()
            # The small penalty holds the directions that so few tokens do not determine.
            drift = (parameters[0] - weight).square().mean()
            loss = F.cross_entropy(layer.joined(F.linear(hidden, *parameters)), wanted) + 1e-2 * drift
            loss.backward()
        return loss.item()

    optimizer.step(closure)
    return parameters[0].detach(), parameters[1].detach()
