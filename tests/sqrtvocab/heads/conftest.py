"""The heads under test, and dense references written without any of their code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sqrtvocab import (
    AdaptiveHead,
    FactoredHead,
    FlatHead,
    GroupedHead,
    GroupedLinearHead,
    GroupedLowRankHead,
    Head,
    MachHead,
    Partition,
    PrototypeHead,
    make_head,
)

MakeHead = Callable[..., Head]


def grouped(**options: Any) -> MakeHead:
    def make(d: int, v: int, partition: Partition | None = None) -> Head:
        return make_head("grouped", d, v, partition=partition, **options)

    return make


def grouped_linear(tied: bool = False, **options: Any) -> MakeHead:
    def make(d: int, v: int, partition: Partition | None = None) -> Head:
        weight = nn.Parameter(torch.randn(v, d)) if tied else None
        return make_head("grouped-linear", d, v, partition=partition, weight=weight, **options)

    return make


def grouped_low_rank(**options: Any) -> MakeHead:
    def make(d: int, v: int, partition: Partition | None = None) -> Head:
        return make_head("grouped-low-rank", d, v, partition=partition, rank=min(3, d), **options)

    return make


def flat(**options: Any) -> MakeHead:
    return lambda d, v, partition=None: make_head("flat", d, v, **options)


def adaptive(**options: Any) -> MakeHead:
    def make(d: int, v: int, partition: Partition | None = None) -> Head:
        return make_head("adaptive", d, v, order=partition.order if partition else None, **options)

    return make


def factored() -> MakeHead:
    """The attributes are the prime factors of V, and one with a single option."""

    def make(d: int, v: int, partition: Partition | None = None) -> Head:
        radices, rest = [1], v
        for prime in range(2, v + 1):
            while rest % prime == 0:
                radices.append(prime)
                rest //= prime
        return make_head("factored", d, v, radices=radices)

    return make


def prototype(**options: Any) -> MakeHead:
    """In evaluation mode, in which the loss is exact; all classes known."""

    def make(d: int, v: int, partition: Partition | None = None) -> Head:
        head = make_head("prototype", d, v, **options)
        head.learn_classes(torch.randn(v, d), torch.arange(v))
        return head.eval()

    return make


def sampled() -> MakeHead:
    """All classes drawn, where training is exact."""

    def make(d: int, v: int, partition: Partition | None = None) -> Head:
        return make_head("sampled", d, v, samples=v, order=partition.order if partition else None)

    return make


def in_evaluation(name: str, **options: Any) -> MakeHead:
    """A head whose loss is exact only there; what it trains on has tests of its own."""
    return lambda d, v, partition=None: make_head(name, d, v, **options).eval()


CASES: dict[str, MakeHead] = {
    "flat": flat(),
    "flat-without-bias": flat(bias=False),
    "flat-chunked": flat(chunk_size=3),
    "grouped": grouped(),
    "grouped-film": grouped(modulation="film"),
    "grouped-both": grouped(modulation="both"),
    "grouped-linear": grouped_linear(),
    "grouped-linear-loop": grouped_linear(kernel="loop"),
    "grouped-linear-tiles": grouped_linear(kernel="tiles"),
    "grouped-linear-tied": grouped_linear(tied=True),
    "grouped-linear-centroids": grouped_linear(centroids=3),
    "grouped-low-rank": grouped_low_rank(),
    "grouped-low-rank-tiles": grouped_low_rank(kernel="tiles"),
    "adaptive": adaptive(),
    "adaptive-rows": adaptive(kernel="rows"),
    "factored": factored(),
    "sampled": sampled(),
    "sampled-in-evaluation": in_evaluation("sampled"),
    "mach-in-evaluation": in_evaluation("mach", hashes=3),
    "prototype": prototype(),
    "prototype-float16": prototype(storage=torch.float16),
}


@pytest.fixture(params=CASES, scope="session")
def make(request: pytest.FixtureRequest) -> MakeHead:
    """A function (in_features, num_classes, partition=None) -> head, for each kind of head."""
    return CASES[request.param]


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name != "grouped-linear" else ()) for name in CASES],
    scope="session",
)
def make_rarely(request: pytest.FixtureRequest) -> MakeHead:
    """The same for what takes long: one head in the quick tests, all in the slow ones."""
    return CASES[request.param]


@pytest.fixture(params=[name for name in CASES if name.startswith("grouped")], scope="session")
def make_grouped(request: pytest.FixtureRequest) -> MakeHead:
    """The same, for the heads with groups only."""
    return CASES[request.param]


class Dense(NamedTuple):
    """A distribution spelled out: log P(class) = log P(entry) + log P(class | entry), [N, V]."""

    log_prob: Tensor  # [N, V]
    entry: Tensor  # [N, V] log P of the group that the class belongs to
    groups: list[list[int]]  # the classes of each group


def paper_groups(v: int, g: int, order: Tensor | None) -> list[list[int]]:
    """The paper's S_g and E_g, literally."""
    classes = list(range(v)) if order is None else order.tolist()
    return [classes[v * i // g : v * (i + 1) // g - 1 + 1] for i in range(g)]


def dense_distribution(head: Head, hidden: Tensor, groups: list[list[int]] | None = None) -> Dense:
    """The distribution a head must have, from a V x d matrix built class by class.

    Args:
        groups: the classes of each group, if they are of uneven sizes.
    """
    v, d = head.num_classes, head.in_features
    hidden = hidden.reshape(-1, d)
    if isinstance(head, FlatHead):
        bias = 0 if head.bias is None else head.bias
        log_prob = (hidden @ head.weight.T + bias).log_softmax(-1)
        return Dense(log_prob, torch.zeros_like(log_prob), [list(range(v))])
    if isinstance(head, AdaptiveHead):
        return dense_adaptive(head, hidden)
    if isinstance(head, PrototypeHead):
        scale = (20 * (10 * head.log_scale).exp()).clamp(max=200)
        rows = head.vectors.to(hidden.dtype)  # of length 1, but for the rounding of float16
        length = hidden.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        log_prob = (scale * (hidden / length) @ rows.T + head.bias).log_softmax(-1)
        return Dense(log_prob, torch.zeros_like(log_prob), [list(range(v))])
    if isinstance(head, MachHead):
        log_prob = dense_mach(head, hidden)
        return Dense(log_prob, torch.zeros_like(log_prob), [list(range(v))])
    if isinstance(head, FactoredHead):
        log_prob = torch.stack([factored_row(head, hidden, c) for c in range(v)], 1)
        return Dense(log_prob, torch.zeros_like(log_prob), [list(range(v))])
    assert isinstance(head, GroupedHead | GroupedLinearHead | GroupedLowRankHead)
    is_uneven = groups is not None
    groups = groups or paper_groups(v, head.partition.num_groups, head.partition.order)
    matrix, offset, position = [None] * v, [None] * v, 0
    for g, classes in enumerate(groups):
        for t, c in enumerate(classes):
            matrix[c], offset[c] = class_row(head, c, g, t, (position,) if is_uneven else (g, t))
            position += 1
    logits = hidden @ torch.stack(matrix).T + torch.stack(offset)  # [N, V]
    directions = hidden @ head.group.weight.T + head.group.bias  # [N, G·K]
    group_log_prob = directions.unflatten(1, (len(groups), -1)).logsumexp(-1).log_softmax(-1)  # [N, G]
    member, entry = torch.zeros_like(logits), torch.zeros_like(logits)
    for g, classes in enumerate(groups):
        member = member.index_copy(1, torch.tensor(classes), logits[:, classes].log_softmax(-1))
        column = group_log_prob[:, g : g + 1].expand(-1, len(classes))
        entry = entry.index_copy(1, torch.tensor(classes), column)
    return Dense(entry + member, entry, groups)


def class_row(
    head: GroupedHead | GroupedLinearHead | GroupedLowRankHead, c: int, g: int, t: int, at: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The weight row [d] and bias [] of class c, which is member t of group g and stands there in tables."""
    if isinstance(head, GroupedLinearHead):
        return (head.weight[c] if head.tied else head.weight[at]), head.shift[at]
    if isinstance(head, GroupedLowRankHead):
        place = head.shared[t % len(head.shared)]
        return sum(p * w for p, w in zip(head.scale[at], place, strict=True)), head.shift[at]
    row, bias = head.shared[t], torch.zeros(())
    if head.film_scale is not None:
        row, bias = row * head.film_scale[g], row @ head.film_shift[g]
    if head.scale is not None:
        row, bias = row * head.scale[at], bias * head.scale[at]
    return row, bias + head.shift[at]


def factored_row(head: FactoredHead, hidden: Tensor, c: int) -> Tensor:
    """[N] log P of class c: its digits, last attribute first, each under a softmax of its own."""
    logits = hidden @ head.options.weight.T + head.options.bias
    stop, log_prob = logits.shape[1], torch.zeros(len(hidden), dtype=logits.dtype)
    for radix in reversed(head.radices):
        log_prob = log_prob + logits[:, stop - radix : stop].log_softmax(-1)[:, c % radix]
        c, stop = c // radix, stop - radix
    return log_prob


def dense_mach(head: MachHead, hidden: Tensor) -> Tensor:
    """[N, V]: the product over the hashes, class by class, divided by its sum."""
    logits = hidden @ head.scores.weight.T + head.scores.bias
    hashes = [logits[:, r * head.buckets : (r + 1) * head.buckets].softmax(-1) for r in range(head.hashes)]
    columns = []
    for c in range(head.num_classes):
        product = head.offset[c].exp().expand(len(hidden))
        for r in range(head.hashes):
            product = product * hashes[r][:, int(head.bucket[r, c])]
        columns.append(product)
    table = torch.stack(columns, 1)
    return (table / table.sum(1, keepdim=True)).log()


def dense_adaptive(head: AdaptiveHead, hidden: Tensor) -> Dense:
    v = head.num_classes
    classes = torch.arange(v) if head.ranking.order is None else head.ranking.order
    first = head.first(hidden).log_softmax(-1)
    short = head.num_frequent
    entries, log_probs, groups = (
        [first[:, :short]],
        [first[:, :short]],
        [[c] for c in classes[:short].tolist()],
    )
    for i, tail in enumerate(head.tails):
        logits = hidden @ tail.project.weight.T @ tail.score.weight.T + tail.score.bias
        entry = first[:, short + i : short + i + 1].expand_as(logits)
        entries.append(entry)
        log_probs.append(entry + logits.log_softmax(-1))
        groups.append(classes[head.edges[i] : head.edges[i + 1]].tolist())
    by_class = torch.argsort(classes)
    return Dense(torch.cat(log_probs, 1)[:, by_class], torch.cat(entries, 1)[:, by_class], groups)


@pytest.fixture(scope="session")
def dense() -> Callable[..., Dense]:
    return dense_distribution


def randomised(head: Head) -> Head:
    """Parameters drawn at random, so that nothing holds only at the initial values."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape))
            if isinstance(head, PrototypeHead):  # a sharpness of about 5: neither flat nor a single peak
                parameter.mul_(0.05).sub_(0.15)
    return head


@pytest.fixture(scope="session")
def randomise() -> Callable[[Head], Head]:
    return randomised


@pytest.fixture(scope="session")
def assert_same_gradients() -> Callable[..., None]:
    def check(head: Head, hidden: Tensor, loss: Tensor, reference: Tensor, tolerance: float = 2e-4) -> None:
        inputs = [hidden, *head.parameters()]
        got = torch.autograd.grad(loss.sum(), inputs, retain_graph=True)
        # Padding slots are in no reference: their gradient must be zero.
        want = torch.autograd.grad(reference.sum(), inputs, retain_graph=True, allow_unused=True)
        for ours, theirs in zip(got, want, strict=True):
            theirs = torch.zeros_like(ours) if theirs is None else theirs
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)

    return check
