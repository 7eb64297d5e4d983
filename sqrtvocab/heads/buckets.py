"""What the heads do with groups of uneven sizes: one bucket of similar groups at a time.

The tables of a head are then [V, ...], in the order of the partition's positions. Which rows belong to which
bucket is data, so the host reads it, once a call, and a compiled graph breaks here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sqrtvocab.heads import place, soft
from sqrtvocab.heads.base import block_rows, token_nll, wide
from sqrtvocab.heads.segments import refuse_forward_mode, segment_ends
from sqrtvocab.uneven import Bucket, UnevenPartition

if TYPE_CHECKING:
    from sqrtvocab.heads.two_level import TwoLevelHead


# Groups of more classes may be scored one by one, without padding: they are few, so that the loop is short.
# It passes over their logits less often, and sends back another gradient of all class vectors.
WIDE = 512  # a power of two, so that a bucket is wide or not
PASSES = 3  # over the logits that are saved, for one over the vectors


class Pairs(NamedTuple):
    """n pairs of a row and a group of one bucket, sorted by the rank of the group."""

    origin: Tensor
    """[n] where each stood before they were sorted."""
    row: Tensor
    """[n] of the hidden states."""
    rank: Tensor
    """[n] of the group: by size, over all buckets."""
    bucket: Bucket
    segments: list[tuple[int, slice]]
    """(rank, its pairs) of each group that has any."""

    @property
    def counts(self) -> list[int]:
        """The pairs of each segment."""
        return [span.stop - span.start for _, span in self.segments]


def by_bucket(partition: UnevenPartition, row: Tensor, group: Tensor) -> list[Pairs]:
    """Rows [n] and groups [n] -> the pairs of each bucket."""
    rank, index = partition.rank[group].sort()  # [n]
    row = row.index_select(0, index)
    ends = [0, *segment_ends(rank, partition.num_groups).tolist()]  # where the pairs of each group end
    found = []
    for bucket in partition.buckets:
        start, stop = ends[bucket.first], ends[bucket.stop]
        edges = enumerate(pairwise(ends[bucket.first : bucket.stop + 1]), bucket.first)
        segments = [(r, slice(a - start, b - start)) for r, (a, b) in edges if a < b]
        span = slice(start, stop)
        found.append(Pairs(index[span], row[span], rank[span], bucket, segments))
    return found


def in_blocks(pairs: Pairs, width: int) -> Iterator[Pairs]:
    """The same pairs, so many at a time that results of the given width make a block."""
    step = block_rows(width)
    for start in range(0, len(pairs.row), step):
        span = slice(start, start + step)
        segments = [
            (rank, slice(max(part.start - start, 0), min(part.stop - start, step)))
            for rank, part in pairs.segments
            if part.start < start + step and part.stop > start
        ]
        yield Pairs(pairs.origin[span], pairs.row[span], pairs.rank[span], pairs.bucket, segments)


# ---- tables [V, ...] of a bucket ----


def bucket_slots(partition: UnevenPartition, bucket: Bucket, width: int) -> Tensor:
    """[groups of the bucket, width] the position of each member; padding is any position."""
    first = partition.edges[partition.by_size[bucket.first : bucket.stop]].unsqueeze(1)  # [groups, 1]
    slots = first + torch.arange(width, device=first.device)
    return slots.clamp(max=partition.num_classes - 1)


def bucket_padding(partition: UnevenPartition, bucket: Bucket, width: int) -> Tensor:
    """[groups of the bucket, width] True at the slots that are no class."""
    sizes = partition.sizes()[partition.by_size[bucket.first : bucket.stop]]
    return torch.arange(width, device=sizes.device) >= sizes.unsqueeze(1)


def bucket_tables(partition: UnevenPartition, table: Tensor) -> list[Tensor]:
    """[V, ...] -> [groups of the bucket, its width, ...] for each bucket."""
    slots = [bucket_slots(partition, bucket, bucket.width) for bucket in partition.buckets]
    # One gather and one split for all: a gather for each would send back a gradient as long as the table.
    parts = table.index_select(0, torch.cat([slot.flatten() for slot in slots]))
    pieces = parts.split([slot.numel() for slot in slots])
    return [piece.unflatten(0, slot.shape) for piece, slot in zip(pieces, slots, strict=True)]


def pair_tables(partition: UnevenPartition, table: Tensor, pairs: list[Pairs]) -> list[Tensor]:
    """[V, ...] -> [n, width, ...], what the table says of the group of each pair; padding says anything.
    Widened, as by ``rows_of``."""
    if table.requires_grad and torch.is_grad_enabled():
        tables = bucket_tables(partition, wide(table))
        by_first = {bucket.first: part for bucket, part in zip(partition.buckets, tables, strict=True)}
        return [
            F.embedding(part.rank - part.bucket.first, by_first[part.bucket.first].flatten(1)).unflatten(
                1, by_first[part.bucket.first].shape[1:]
            )
            for part in pairs
        ]
    found = []
    for part in pairs:  # decoding opens few groups
        first = partition.edges[partition.by_size[part.rank]].unsqueeze(1)  # [n, 1]
        slots = first + torch.arange(part.bucket.width, device=first.device)
        found.append(wide(table[slots.clamp(max=partition.num_classes - 1)]))
    return found


# ---- products ----


class Factors(NamedTuple):
    """Which rows of a weight each segment of the pairs is multiplied with: the first of one of its pieces."""

    counts: list[list[int]]
    """The pairs of each segment, for each bucket."""
    lengths: list[int]
    """How many rows each segment takes."""
    pieces: list[int]
    """The piece that each segment takes them of."""
    sizes: list[int]
    """The rows of each piece."""

    def of(self, weight: Tensor) -> list[Tensor]:
        """The rows [·, d] of each segment."""
        pieces = weight.split(self.sizes)  # one call, for there may be thousands
        found = zip(self.pieces, self.lengths, strict=True)
        return [pieces[i] if length == self.sizes[i] else pieces[i][:length] for i, length in found]


class _Products(torch.autograd.Function):
    """Autograd's own slices would send back a gradient as long as the weight for each product."""

    @staticmethod
    def forward(ctx, rows, weight, factors, widths):  # type: ignore[no-untyped-def]
        results, places = [], []
        for counts, width in zip(factors.counts, widths, strict=True):
            results.append(rows.new_zeros(sum(counts), width))
            places += results[-1].split(counts)
        row_parts = rows.split([count for counts in factors.counts for count in counts])
        for part, factor, out in zip(row_parts, factors.of(weight), places, strict=True):
            torch.mm(part, factor.T, out=out if len(factor) == out.shape[1] else out[:, : len(factor)])
        ctx.save_for_backward(rows, weight)
        ctx.factors = factors
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        (rows, weight), factors = ctx.saved_tensors, ctx.factors
        grad_rows, grad_weight = torch.empty_like(rows), torch.zeros_like(weight)
        counts = [count for counts in factors.counts for count in counts]
        places = [p for grad, of in zip(grads, factors.counts, strict=True) for p in grad.split(of)]
        parts = zip(
            places,
            rows.split(counts),
            grad_rows.split(counts),
            factors.of(weight),
            factors.of(grad_weight),
            strict=True,
        )
        for grad_out, part, grad_part, factor, grad_factor in parts:
            grad = grad_out if len(factor) == grad_out.shape[1] else grad_out[:, : len(factor)]
            torch.mm(grad, factor, out=grad_part)
            grad_factor.addmm_(grad.T, part)  # pieces may overlap
        return grad_rows, grad_weight, None, None


def products(rows: Tensor, weight: Tensor, pairs: list[Pairs], factors: Factors) -> list[Tensor]:
    """Rows [n of all pairs, d] times their factors -> [n, width] for each bucket, zero beyond them."""
    refuse_forward_mode(rows, weight)
    found: tuple[Tensor, ...] = _Products.apply(rows, weight, factors, [part.bucket.width for part in pairs])
    return list(found)


# ---- what a head with groups is asked ----


def _logits(head: TwoLevelHead, scores: list[Tensor], pairs: list[Pairs]) -> list[Tensor]:
    """Scores -> the logits of the members of each pair's group, [n, width], −inf at padding."""
    partition = head.uneven
    shifts = pair_tables(partition, head.shift, pairs)
    found = []
    for part, score, shift in zip(pairs, scores, shifts, strict=True):
        sizes = partition.sizes()[partition.by_size[part.rank]].unsqueeze(1)  # [n, 1]
        empty = torch.arange(part.bucket.width, device=sizes.device) >= sizes  # [n, width]
        found.append((score + shift).masked_fill(empty, -math.inf))
    return found


def nll(head: TwoLevelHead, hidden: Tensor, group: Tensor, member: Tensor, label_smoothing: float) -> Tensor:
    """−log P(member | group) of each row, [N]."""
    spread = 1 / head.num_classes
    pairs = by_bucket(head.uneven, torch.arange(len(group), device=group.device), group)
    vectors = head._class_vectors()
    found = torch.zeros_like(group, dtype=wide(hidden[:0]).dtype)
    narrow = [part for part in pairs if part.bucket.width <= WIDE]
    logits = sum(len(part.row) * part.bucket.width for part in pairs if part.bucket.width > WIDE)
    is_worth_it = place.is_cpu(hidden.device) and PASSES * logits > vectors.numel()
    if is_worth_it and (tables := head._soft_tables(hidden, vectors)) is not None:
        refuse_forward_mode(*(part for part in tables if part is not None))
        elsewhere = torch.where(head.uneven.sizes()[group] <= WIDE, head.uneven.num_groups, group)
        found = soft.nll(tables, elsewhere[:, None], member[:, None], label_smoothing, spread).squeeze(1)
        pairs = narrow
    if not pairs:
        return found
    scores = head._pair_scores(hidden, pairs, vectors)
    losses = [
        token_nll(logits, member[part.row], label_smoothing, spread)
        for part, logits in zip(pairs, _logits(head, scores, pairs), strict=True)
    ]
    return found.index_copy(0, torch.cat([part.origin for part in pairs]), torch.cat(losses))


def log_prob(head: TwoLevelHead, hidden: Tensor) -> Tensor:
    """[N, d] -> [N, V]."""
    partition = head.uneven
    group = F.log_softmax(wide(head.group(hidden)), dim=-1)  # [N, G]
    parts = []
    for bucket, logits in zip(partition.buckets, all_logits(head, hidden), strict=True):
        of_group = group.index_select(1, partition.by_size[bucket.first : bucket.stop]).unsqueeze(-1)
        parts.append((of_group + F.log_softmax(wide(logits), dim=-1)).flatten(1))
    return torch.cat(parts, 1).index_select(1, _columns(partition))


def all_logits(head: TwoLevelHead, hidden: Tensor) -> list[Tensor]:
    """[N, d] -> [N, groups of the bucket, width] for each bucket, −inf at padding."""
    partition = head.uneven
    shifts = bucket_tables(partition, head.shift)
    found = []
    for bucket, scores, shift in zip(partition.buckets, head._bucket_scores(hidden), shifts, strict=True):
        padding = bucket_padding(partition, bucket, bucket.width)
        found.append(scores + shift.masked_fill(padding, -math.inf))
    return found


def _columns(partition: UnevenPartition) -> Tensor:
    """[V] where each class stands in the buckets' tables, made flat and joined."""
    device, offset, starts = partition.edges.device, 0, []
    for first, stop, width in partition.buckets:
        starts.append(offset + width * torch.arange(stop - first, device=device))
        offset += width * (stop - first)
    before = torch.cat(starts)[partition.rank] - partition.edges[:-1]  # [G]
    skipped = before.repeat_interleave(partition.sizes(), output_size=partition.num_classes)
    columns = torch.arange(partition.num_classes, device=device) + skipped
    return columns if partition.position is None else columns.index_select(0, partition.position)


def best_members(head: TwoLevelHead, hidden: Tensor, groups: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """hidden [R, d], groups [R, K] -> (log P(member | group), class) of the k best of each, [R, K, ≤ k].

    A group of fewer than k classes fills up with −inf.
    """
    partition = head.uneven
    flat = groups.flatten()  # [n]
    row = torch.arange(len(flat), device=flat.device) // groups.shape[1]
    k = min(k, partition.group_size)
    best = wide(hidden[:0]).new_full((len(flat), k), -math.inf)
    classes = flat.new_zeros((len(flat), k))
    for part, logits in _decode(head, hidden, row, flat):
        group = partition.by_size[part.rank].unsqueeze(1)  # [n, 1]
        found, slot = F.log_softmax(wide(logits), dim=-1).topk(min(k, logits.shape[1]), dim=-1)
        sizes = partition.starts(group + 1) - partition.starts(group)
        best[part.origin, : found.shape[1]] = found.to(best.dtype)
        classes[part.origin, : found.shape[1]] = partition.join(group, torch.minimum(slot, sizes - 1))
    return best.unflatten(0, groups.shape), classes.unflatten(0, groups.shape)


def choose(head: TwoLevelHead, hidden: Tensor, group: Tensor, choice: Callable[[Tensor], Tensor]) -> Tensor:
    """hidden [N, d], groups [N] -> [N] the member that ``choice`` takes of its group's logits [n, width]."""
    member = torch.zeros_like(group)
    for part, logits in _decode(head, hidden, torch.arange(len(group), device=group.device), group):
        member[part.origin] = choice(wide(logits))
    return member


def _decode(head: TwoLevelHead, hidden: Tensor, row: Tensor, group: Tensor) -> Iterator[tuple[Pairs, Tensor]]:
    """Pairs and their logits [n, width], a block at a time."""
    for pairs in by_bucket(head.uneven, row, group):
        for part in in_blocks(pairs, head._pair_width(pairs.bucket)):
            yield part, _logits(head, [head._opened_scores(hidden, part)], [part])[0]


def prior(head: TwoLevelHead, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """log P(class) [V] -> log P(group) [G] and log P(class | group) [V] in the order of the positions."""
    partition = head.uneven
    group = partition.split(torch.arange(partition.num_classes, device=partition.edges.device))[0].cpu()
    of_group = log_prior.new_zeros(partition.num_groups).index_add(0, group, log_prior.exp()).log()
    within = log_prior - of_group[group]
    return of_group, within if partition.order is None else within[partition.order.cpu()]
