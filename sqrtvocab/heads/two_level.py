"""What the heads with groups share: P(class) = P(group)·P(member | group)."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling

from sqrtvocab.heads import buckets, place, soft
from sqrtvocab.heads.base import (
    Guesses,
    Head,
    HeadCost,
    block_rows,
    mean_frequency,
    rows_of,
    token_nll,
    weighted_sum,
    wide,
)
from sqrtvocab.heads.group_layer import GroupLayer
from sqrtvocab.heads.sampling import draw
from sqrtvocab.heads.segments import carries_tangent
from sqrtvocab.partition import Partition, check_counts, host_sees
from sqrtvocab.uneven import Bucket, UnevenPartition, check_same_groups

# The most probable group must be so many times as probable as the last that `topk` would open: with less, the
# best class would have to be a large part of its group for the search to end in time.
ALIKE = 8.0
DENSE_ROWS = 512  # rows that share the weights of a group where all groups are opened
# So many classes, squared, are few: all their logits take less time than the steps of a search (docs/LOG.md).
SMALL = 64
SMALL_OF_BEST = 3.0  # times k: the best k classes lie in about as many groups as they are
SMALL_AT_MOST = 150  # however large k is
SMALL_TO_DRAW = 90


class TwoLevelHead(Head):
    """Predicts the group, then the member inside a group; a subclass says how members are scored.

    In training the target's group is known, so only [N, G] and [N, S] logits are built. With groups of
    uneven sizes (:meth:`Partition.from_groups`) the tables of members are [V, ...] instead of [G, S, ...].

    Args:
        in_features, num_classes, validate, device, dtype: see :class:`~sqrtvocab.heads.base.Head`.
        num_groups: G; floor(√V) when neither this nor ``partition`` is given.
        partition: which class is in which group; consecutive indices by default.
    """

    has_groups = True
    sparse_topk = True
    partition: Partition

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_groups: int | None = None,
        partition: Partition | None = None,
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, validate)
        if partition is None:
            partition = Partition(num_classes, num_groups)
        if not isinstance(partition, Partition):
            raise TypeError(f"partition must be a Partition, got {type(partition).__name__}")
        if partition.num_classes != num_classes:
            raise ValueError(
                f"partition is over {partition.num_classes} classes, but num_classes is {num_classes}"
            )
        if num_groups not in (None, partition.num_groups):
            raise ValueError(f"num_groups is {num_groups}, but partition has {partition.num_groups} groups")
        buffers = partition.buffers()
        if device is not None and any(buffer.device != torch.device(device) for buffer in buffers):
            partition = copy.deepcopy(partition).to(device)  # the caller's stays where it is
        self.partition = partition
        self.group = GroupLayer(in_features, partition.num_groups, device=device, dtype=dtype)  # W_g
        if self.is_uneven and type(self)._pair_scores is TwoLevelHead._pair_scores:
            raise ValueError(f"{type(self).__name__} has equal groups only: see Partition.by_labels")
        self.shift = nn.Parameter(self._new_table(device=device, dtype=dtype))  # Q_g, [G, S]

    @property
    def is_uneven(self) -> bool:
        """Whether the groups are of uneven sizes."""
        return isinstance(self.partition, UnevenPartition)

    @property
    def uneven(self) -> UnevenPartition:
        """The partition, where ``is_uneven``."""
        return cast(UnevenPartition, self.partition)

    def _new_table(self, *columns: int, **like: Any) -> Tensor:
        """[G, S, ...]: something for every member; [V, ...] where groups are uneven."""
        groups = self.partition
        members = (groups.num_classes,) if self.is_uneven else (groups.num_groups, groups.group_size)
        return torch.empty(*members, *columns, **like)

    def reset_parameters(self) -> None:
        self.group.reset_parameters()
        nn.init.zeros_(self.group.bias)
        nn.init.zeros_(self.shift)

    @abstractmethod
    def _member_scores(self, hidden: Tensor, groups: Tensor | slice) -> Tensor:
        """Scores without the shift: hidden [N, d], groups [N, K] -> [N, K, ≥ S]; a slice is the same K groups
        for all rows."""

    # A head that knows groups of uneven sizes also says, for which `buckets` does all the rest:

    def _class_vectors(self) -> Tensor:
        """[·, d] the rows that members are scored by, of all groups."""
        raise NotImplementedError

    def _pair_scores(self, hidden: Tensor, pairs: list[buckets.Pairs], vectors: Tensor) -> list[Tensor]:
        """In training: scores without the shift, [n, width] for the pairs of each bucket."""
        raise NotImplementedError

    def _opened_scores(self, hidden: Tensor, pairs: buckets.Pairs) -> Tensor:
        """In decoding: scores without the shift of a few pairs, [n, width]."""
        return self._pair_scores(hidden, [pairs], self._class_vectors())[0]

    def _bucket_scores(self, hidden: Tensor) -> list[Tensor]:
        """Scores without the shift, [N, groups of the bucket, width] for each bucket."""
        raise NotImplementedError

    def _pair_width(self, bucket: Bucket) -> int:
        """Elements that decoding holds for each pair."""
        return max(bucket.width, self.in_features)

    def _soft_tables(self, hidden: Tensor, vectors: Tensor | None = None) -> soft.Tables | None:
        """What members are scored by where a row has several targets; None for a head that cannot say, which
        scores every target by itself. ``vectors`` are those of ``_class_vectors``, if they are known."""
        return None

    def _table_places(self) -> tuple[Tensor, Tensor]:
        """[G] where each group begins in a table of members that was made flat, and how many it has."""
        sizes = self.partition.sizes(self.shift.device)
        if self.is_uneven:
            return self.uneven.edges[:-1], sizes
        return self.partition.group_size * torch.arange(len(sizes), device=sizes.device), sizes

    def member_logits(self, hidden: Tensor, groups: Tensor | slice) -> Tensor:
        """hidden [N, d], groups [N, K] -> [N, K, ≥ S] with −inf at the slots that are no class; a slice is
        the same K groups for all rows."""
        scores = self._member_scores(hidden, groups)
        return scores + self._shift_of(groups, scores.shape[-1])

    def _shift_of(self, groups: Tensor | slice, width: int) -> Tensor:
        """Q_g of groups [...] -> [..., width], −inf at slots that are no class; float32 at least."""
        if width * self.partition.num_groups == self.num_classes:  # no such slots
            return wide(self.shift[groups]) if isinstance(groups, slice) else rows_of(self.shift, groups)
        spare = width - self.partition.group_size
        # Decoding opens a few groups; a graph being traced should not depend on how many.
        if isinstance(groups, Tensor) and not is_compiling() and groups.numel() < self.partition.num_groups:
            sizes = self.partition.starts(groups + 1) - self.partition.starts(groups)  # [...]
            empty = torch.arange(width, device=groups.device) >= sizes.unsqueeze(-1)  # [..., width]
            return F.pad(rows_of(self.shift, groups), (0, spare)).masked_fill(empty, -math.inf)
        shift = F.pad(self.shift, (0, spare))  # [G, width]
        # Masking the [G, width] table costs V elements where masking the logits would cost N·S.
        shift = shift.masked_fill(self.partition.padding(width, shift.device), -math.inf)
        return wide(shift[groups]) if isinstance(groups, slice) else rows_of(shift, groups)

    def _nll(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        group, member = self.partition.split(target)  # [N], [N]
        # Σ over all classes of ε/V: a group weighs its size, a member 1.
        group_spread = self.partition.sizes(target.device) / self.num_classes if label_smoothing else 0.0
        return (
            token_nll(self.group(hidden), group, label_smoothing, group_spread),
            self._member_nll(hidden, group, member, label_smoothing),
        )

    def _soft_nll(
        self, hidden: Tensor, target: Tensor, share: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        # The group's scores serve all K targets of a row; the members of each must be scored by itself.
        group, member = self.partition.split(target)  # [N, K] each
        log_probs = F.log_softmax(wide(self.group(hidden)), dim=-1)  # [N, G]
        group_nll = -log_probs.gather(1, group)  # [N, K]
        if label_smoothing:
            spread = self.partition.sizes(target.device) / self.num_classes
            uniform = -(spread * log_probs).sum(-1, keepdim=True)  # [N, 1]
            group_nll = (1 - label_smoothing) * group_nll + label_smoothing * uniform
        member_nll = self._member_nll_of_each(hidden, group, member, label_smoothing)  # [N, K]
        return weighted_sum(group_nll, share), weighted_sum(member_nll, share)

    def _member_nll_of_each(
        self, hidden: Tensor, group: Tensor, member: Tensor, label_smoothing: float
    ) -> Tensor:
        """−log P(member | group) for K classes of each row: hidden [N, d], the others [N, K] -> [N, K]."""
        if place.is_cpu(hidden.device):
            tables = self._soft_tables(hidden)
            if tables is not None and not carries_tangent(*(part for part in tables if part is not None)):
                return soft.nll(tables, group, member, label_smoothing, 1 / self.num_classes)
        return self._member_nll_without_waiting(hidden, group, member, label_smoothing)

    def _member_nll_without_waiting(
        self, hidden: Tensor, group: Tensor, member: Tensor, label_smoothing: float
    ) -> Tensor:
        """The same, every target scored by itself."""
        rows = hidden.repeat_interleave(group.shape[1], 0, output_size=group.numel())  # [N·K, d]
        return self._member_nll(rows, group.flatten(), member.flatten(), label_smoothing).view_as(group)

    def _spread_nll(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = F.log_softmax(wide(self.group(hidden)), dim=-1)  # [N, G]
        nll = -(self.partition.sizes(hidden.device) / self.num_classes * log_probs).sum(-1)
        return nll, torch.zeros_like(nll)

    def _member_nll(self, hidden: Tensor, group: Tensor, member: Tensor, label_smoothing: float) -> Tensor:
        """−log P(member | group) of each token, [N]."""
        if self.is_uneven:
            return buckets.nll(self, hidden, group, member, label_smoothing)
        logits = self.member_logits(hidden, group.unsqueeze(1)).squeeze(1)  # [N, ≥ S]
        return token_nll(logits, member, label_smoothing, 1 / self.num_classes)

    def _log_prob(self, hidden: Tensor) -> Tensor:
        if self.is_uneven:
            return buckets.log_prob(self, hidden)
        group = F.log_softmax(wide(self.group(hidden)), dim=-1)  # [N, G]
        member = F.log_softmax(wide(self.member_logits(hidden, slice(None))), dim=-1)  # [N, G, ≥ S]
        joint = (group.unsqueeze(-1) + member).flatten(1)  # [N, G·width]
        return joint.index_select(1, self.partition.columns(member.shape[-1], hidden.device))  # [N, V]

    def _topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Exact, opening groups from the most probable down.

        No class is more probable than its group, so a row is finished once its k-th best class so far is at
        least as probable as the next group: for a peaked distribution that is after a few groups. All groups
        are opened, many rows at a time, for a row that is still open after an eighth of them, and at once for
        one whose groups are too much alike to hope for more; and for all rows where the host cannot see which
        are open, or where the classes are few.
        """
        few = max(SMALL, min(SMALL_OF_BEST * k, SMALL_AT_MOST))
        if not host_sees(hidden) or self.num_classes <= few**2:
            return super()._topk(hidden, k)
        group = F.log_softmax(wide(self.group(hidden)), dim=-1)  # [N, G]
        ranked_log_probs, ranked = group.sort(dim=-1, descending=True)  # [N, G]
        best = group.new_full((len(hidden), k), -math.inf)
        classes = ranked.new_zeros((len(hidden), k))
        done, step, limit = 0, 1, self.partition.num_groups // 8
        is_alike = ranked_log_probs[:, 0] - ranked_log_probs[:, limit] < math.log(ALIKE)  # [N]
        rows = (~is_alike).nonzero().squeeze(1)  # the rows still searched
        size = -(-self.num_classes // self.partition.num_groups)
        while len(rows) and done < limit:
            room = block_rows(len(rows) * max(size, self.in_features))
            opened = slice(done, min(done + min(step, room), limit))
            groups = ranked[rows, opened]  # [R, K]
            found, found_classes = self._open(hidden[rows], groups, ranked_log_probs[rows, opened], k)
            best[rows], keep = torch.cat([best[rows], found], 1).topk(k, dim=-1)
            classes[rows] = torch.cat([classes[rows], found_classes], 1).gather(1, keep)
            done, step = opened.stop, step * 2
            rows = rows[best[rows, -1] < ranked_log_probs[rows, done]]
        left = torch.cat([rows, is_alike.nonzero().squeeze(1)])
        for block in self._dense_blocks(left) if len(left) else ():
            best[block], classes[block] = self._dense_topk(hidden[block], group[block], k)
        return best, classes

    def _dense_blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows [R] in blocks for which all groups are opened."""
        return rows.split(DENSE_ROWS)

    def _dense_topk(self, hidden: Tensor, log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """All groups opened, whose log-probabilities are [R, G], a block of groups at a time: the weights of
        each are read once for all rows."""
        if self.is_uneven:
            parts = [self._log_prob(rows).topk(k, dim=-1) for rows in self._blocks(hidden)]
            return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])
        best = log_probs.new_full((len(hidden), 0), -math.inf)
        classes = torch.zeros(best.shape, dtype=torch.int64, device=hidden.device)
        every = torch.arange(self.partition.num_groups, device=hidden.device)
        for block in every.split(block_rows(len(hidden) * max(self.partition.group_size, self.in_features))):
            span = slice(int(block[0]), int(block[-1]) + 1)
            found, found_classes = self._best_members(
                self.member_logits(hidden, span), block.expand(len(hidden), -1), log_probs[:, span], k
            )
            best, classes = torch.cat([best, found], 1), torch.cat([classes, found_classes], 1)
            best, keep = best.topk(min(k, best.shape[1]), dim=-1)
            classes = classes.gather(1, keep)
        return best, classes

    def _propose(
        self, hidden: Tensor, limit: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Draws the group, then the member. A group g holds fewer than P(g) / p classes more probable than p,
        which often proves enough; if not, groups are opened from the most probable down."""
        if self.is_uneven or not host_sees(hidden) or self.num_classes <= SMALL_TO_DRAW**2:
            return None
        group = F.log_softmax(wide(self.group(hidden)), dim=-1)  # [N, G]
        own = draw(group, generator).unsqueeze(1)  # [N, 1]
        logits = wide(self.member_logits(hidden, own).squeeze(1))  # [N, ≥ S]
        member = draw(logits, generator).unsqueeze(1)  # [N, 1]
        joint = group.gather(1, own) + F.log_softmax(logits, dim=-1)
        log_prob = joint.gather(1, member)  # [N, 1]
        rank = (joint > log_prob).sum(1)  # [N] more probable ones found so far
        group = group.scatter(1, own, -math.inf)  # which has been counted
        most = ((group - log_prob).exp() * (1 + 1e-4)).floor()  # [N, G]; rounding must not lose a class
        classes = self.partition.join(own, member).squeeze(1)
        rows = ((rank < limit) & (rank + most.sum(1) >= limit)).nonzero().squeeze(1)  # undecided
        done, step = 0, 2
        if len(rows):
            ranked_most, ranked = most.sort(dim=-1, descending=True)  # [N, G]: the order of the groups
            unopened = ranked_most.flip(1).cumsum(1).flip(1)  # [N, G] at most so many from the i-th group on
        while len(rows):
            room = block_rows(len(rows) * max(self.partition.group_size, self.in_features))
            opened = slice(done, min(done + min(step, room), self.partition.num_groups))
            groups = ranked[rows, opened]  # [R, K]
            joint = F.log_softmax(wide(self.member_logits(hidden[rows], groups)), dim=-1)
            joint = joint + group[rows].gather(1, groups).unsqueeze(-1)  # [R, K, ≥ S]
            rank[rows] += (joint > log_prob[rows].unsqueeze(-1)).sum((1, 2))
            done, step = opened.stop, step * 2
            if done == self.partition.num_groups:
                break
            rows = rows[(rank[rows] < limit) & (rank[rows] + unopened[rows, done] >= limit)]
        return classes, log_prob.squeeze(1), rank < limit

    def _open(self, hidden: Tensor, groups: Tensor, log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The best classes of groups [R, K] of the given log-probabilities: (theirs, classes), [R, ≤ k]."""
        if self.is_uneven:
            members, classes = buckets.best_members(self, hidden, groups, k)  # [R, K, ≤ k]
            joint = (log_probs.unsqueeze(-1) + members).flatten(1)
            found, place = joint.topk(min(k, joint.shape[1]), dim=-1)
            return found, classes.flatten(1).gather(1, place)
        return self._best_members(self.member_logits(hidden, groups), groups, log_probs, k)

    def _best_members(
        self, logits: Tensor, groups: Tensor, log_probs: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        """The same from the members' logits [R, K, ≥ S]."""
        member = F.log_softmax(wide(logits), dim=-1)  # [R, K, ≥ S]
        if k < groups.shape[1]:  # the k best classes lie in the k groups with the best ones
            chosen = (log_probs + member.amax(-1)).topk(k, dim=-1).indices  # [R, k]
            groups, log_probs = groups.gather(1, chosen), log_probs.gather(1, chosen)
            member = member.gather(1, chosen.unsqueeze(-1).expand(-1, -1, member.shape[-1]))
        joint = log_probs.unsqueeze(-1) + member
        found, slot = joint.flatten(1).topk(min(k, joint[0].numel()), dim=-1)  # [R, ≤ k]
        found_groups = groups.gather(1, slot // member.shape[-1])
        # A padding slot scores −inf and is replaced before the end, since k ≤ V classes score more;
        # until then, and if the hidden state is NaN, it must at least be a valid index.
        sizes = self.partition.starts(found_groups + 1) - self.partition.starts(found_groups)
        found_members = torch.minimum(slot % member.shape[-1], sizes - 1)
        return found, self.partition.join(found_groups, found_members)

    def _choose(self, hidden: Tensor, group: Tensor, choice: Callable[[Tensor], Tensor]) -> Tensor:
        """The class of each group [N] that ``choice`` takes of its members' logits [n, width], [N]."""
        if self.is_uneven:
            member = buckets.choose(self, hidden, group, choice)
        else:
            member = choice(wide(self.member_logits(hidden, group.unsqueeze(1)).squeeze(1)))
        return self.partition.join(group, member)

    def _sample(self, hidden: Tensor, generator: torch.Generator | None) -> Tensor:
        group = draw(wide(self.group(hidden)), generator)  # [N]
        return self._choose(hidden, group, lambda logits: draw(logits, generator))

    def _log_mass(self, hidden: Tensor) -> Tensor:
        return wide(self.group(hidden)).logsumexp(-1)

    def _set_prior(self, log_prior: Tensor) -> None:
        if self.is_uneven:
            group, members = buckets.prior(self, log_prior)
            self.group.set_bias(group)
            self.shift.copy_(members)
            return
        groups, members = self.partition.split(torch.arange(self.num_classes, device=self.shift.device))
        table = torch.full(self.shift.shape, -math.inf, dtype=log_prior.dtype)  # [G, S]
        table[groups.cpu(), members.cpu()] = log_prior
        group = table.logsumexp(-1)  # [G]
        self.group.set_bias(group)
        self.shift.copy_((table - group.unsqueeze(-1)).masked_fill(table == -math.inf, 0.0))

    def _guesses(self, hidden: Tensor, target: Tensor, partition: Partition, k: int) -> Guesses:
        if partition is not self.partition:
            return super()._guesses(hidden, target, partition, k)
        group = partition.split(target)[0]  # [N]
        in_group = self._choose(hidden, group, lambda logits: logits.argmax(-1))  # [N]
        log_probs, classes = self._topk(hidden, k)  # [N, k] each
        return Guesses(classes, self.group(hidden).argmax(-1), in_group, log_probs)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, *args: Any
    ) -> None:
        saved = state_dict.get(f"{prefix}shift")
        edges = state_dict.get(f"{prefix}partition.edges")
        if saved is not None and (edges is not None) != self.is_uneven:
            sizes = ("equal", "uneven") if self.is_uneven else ("uneven", "equal")
            raise ValueError(
                f"the state dict is of a head with groups of {sizes[0]} sizes, this one has groups of "
                f"{sizes[1]} sizes: make it with the same partition"
            )
        if edges is not None:
            check_same_groups(self.uneven, edges)
        elif saved is not None and saved.shape != self.shift.shape:
            raise ValueError(
                f"the state dict is of a head with {saved.shape[0]:,} groups of at most {saved.shape[1]:,} "
                f"classes, this one has {self.partition.num_groups:,} of at most "
                f"{self.partition.group_size:,}: make it with the same num_classes and num_groups"
            )
        order = state_dict.get(f"{prefix}partition.order")
        if order is not None and len(order) != self.num_classes:
            raise ValueError(
                f"the state dict is of a partition of {len(order):,} classes, "
                f"this one has {self.num_classes:,}"
            )
        if saved is not None and strict and order is None and self.partition.order is not None:
            raise ValueError(
                "the state dict has classes in the order of their indices, this head in an order of its own: "
                "make it without one"
            )
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *args)

    def group_log_prob(self, hidden: Tensor) -> Tensor:
        self._check_hidden(hidden)
        return F.log_softmax(wide(self.group(hidden)), dim=-1)

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        size: float = self.partition.group_size
        if self.is_uneven:  # that of the target's group, on average
            group = self.partition.split(torch.arange(self.num_classes, device=self.shift.device))[0]
            sizes = self.partition.sizes()[group].double()  # [V]
            weights = torch.ones_like(sizes) if counts is None else check_counts(counts).to(sizes)
            size = float((weights * sizes).sum() / weights.sum())
        outputs = self.group.out_features + size
        return HeadCost(self.in_features * outputs, outputs)

    def parameter_groups(
        self, lr: float, counts: Tensor | Sequence[float] | None = None
    ) -> list[dict[str, Any]]:
        """A group is more frequent than any of its classes, so at one rate the layer that scores groups would
        be pulled about while the others learn. It gets a rate at which a row moves the score of its group, on
        average, as far as a flat head would move that of its class (``base.mean_frequency``). The members
        are as frequent as the outputs of a flat head, and need its rate."""
        counts = torch.ones(self.num_classes) if counts is None else check_counts(counts, self.num_classes)
        if not counts.sum() > 0:
            raise ValueError("counts are all zero: without any, rates cannot follow how frequent groups are")
        shares = (counts / counts.sum()).double().cpu()  # [V]
        order = self.partition.order
        classes = torch.arange(self.num_classes, device=None if order is None else order.device)
        group = self.partition.split(classes)[0].cpu()
        of_groups = shares.new_zeros(self.partition.num_groups).index_add(0, group, shares)  # [G]
        of_layer = {id(parameter): parameter for parameter in self.group.parameters()}
        others = [parameter for parameter in self.parameters() if id(parameter) not in of_layer]
        slower = mean_frequency(shares) / mean_frequency(of_groups)
        return [{"params": others, "lr": lr}, {"params": list(of_layer.values()), "lr": lr * slower}]

    def describe(self) -> str:
        return f"{self.partition.num_groups:,} groups of at most {self.partition.group_size:,} classes"
