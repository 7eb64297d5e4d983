"""Heads whose classes are split over ranks compute what the whole head computes."""

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from sqrtvocab import HEADS, Partition, make_head
from sqrtvocab.heads.parallel import split_head

D, V, N, KNOWN = 8, 103, 11, 90
CASES = {
    "flat": ("flat", {}),
    "flat-without-bias": ("flat", {"bias": False}),
    "flat-chunked": ("flat", {"chunk_size": 4}),
    "grouped-linear": ("grouped-linear", {"partition": Partition.random(V)}),
    "prototype": ("prototype", {}),
}
EDGES = {2: [0, 4, N], 3: [0, 0, 9, N]}  # of the ranks' rows; the first of three has none


def make(case):
    """A head with random weights; of prototypes not all classes are known."""
    torch.manual_seed(0)
    name, options = CASES[case]
    head = make_head(name, D, V, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape) if parameter.dim() else torch.tensor(-0.1))
    head.learn_classes(torch.randn(KNOWN, D), torch.arange(KNOWN))
    return head.eval() if head.surrogate else head


def batch():
    dice = torch.Generator().manual_seed(1)
    target = torch.randint(KNOWN, (N,), generator=dice)
    target[5] = -100
    return torch.randn(N, D, generator=dice), target


def close(got, want, scale=1.0):
    torch.testing.assert_close(got, want, atol=2e-5 * scale, rtol=1e-4)


def check_training(case, rank, world_size):
    mine, (hidden, target) = slice(*EDGES[world_size][rank : rank + 2]), batch()
    for smoothing in (0.0, 0.1) if case != "prototype" else (0.0,):
        whole = make(case)
        head, rows, all_rows = (
            split_head(whole),
            hidden[mine].clone().requires_grad_(),
            hidden.clone().requires_grad_(),
        )
        out = head(rows, target[mine], reduction="none", label_smoothing=smoothing)
        (world_size * out.loss.sum()).backward()  # as whoever averages over ranks must
        want = whole(all_rows, target, reduction="none", label_smoothing=smoothing)
        want.loss.sum().backward()
        close(tuple(out), tuple(part[mine] for part in want))
        close(rows.grad, world_size * all_rows.grad[mine], 10)
        parts = dict(head.part.named_parameters())
        split = [name for name in parts if name in whole.split_tables]
        assert len(head.split_parameters()) == len(split)
        for name in split:
            close(parts[name].grad, head.own_rows(whole.get_parameter(name).grad))
    share = torch.rand(N, 2, generator=torch.Generator().manual_seed(2))
    both = torch.stack([target.clamp(min=0), target.clamp(min=0).flip(0)], 1)
    for rest in ("drop", "spread") if case != "prototype" else ("drop",):
        soft = (
            head(rows, both[mine], reduction="none", target_weight=share[mine] / 2, rest=rest).loss
        ).detach()
        close(
            soft,
            whole(hidden, both, reduction="none", target_weight=share / 2, rest=rest).loss.detach()[mine],
        )


@torch.no_grad()
def check_decoding(case, rank, world_size):
    mine, (hidden, target) = slice(*EDGES[world_size][rank : rank + 2]), batch()
    whole = make(case)
    head, rows, truth = split_head(whole), hidden[mine], target[mine].clamp(min=0)
    close(head.log_prob(rows), whole.log_prob(rows))
    for k in (1, 5, KNOWN):  # the last is more than a rank has
        close(head.topk(rows, k)[0], whole.topk(rows, k)[0])
    assert torch.equal(head.topk(rows, 5)[1], whole.topk(rows, 5)[1])
    for partition in filter(None, (whole.partition, Partition.random(V, seed=3))):
        got, want = (one.guesses(rows, truth, partition, 3) for one in (head, whole))
        close(tuple(got), tuple(want))
    if whole.has_groups:
        close(head.group_log_prob(rows), whole.group_log_prob(rows))
    for options in ({}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 5}, {"top_p": 0.9}):
        assert head.sample(rows, **options).shape == rows.shape[:1]
    with head.common_rows():
        torch.manual_seed(rank)
        drawn = head.sample(hidden[:1].expand(4000, D), generator=torch.Generator().manual_seed(4))
    seen = [torch.empty_like(drawn) for _ in range(world_size)]
    dist.all_gather(seen, drawn)
    assert all(torch.equal(drawn, other) for other in seen)
    share = drawn.bincount(minlength=V) / 4000
    torch.testing.assert_close(share, whole.log_prob(hidden[0]).exp(), atol=0.05, rtol=0)


def check_state(case, rank, world_size):
    whole = make(case)
    head = split_head(whole)
    gathered = head.whole()
    assert (gathered is None) == (rank > 0)
    if gathered is not None:
        assert type(gathered) is type(whole)
        torch.testing.assert_close(gathered.state_dict(), whole.state_dict(), atol=0, rtol=0)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.mul_(0.5)
    head.load_state_dict(whole.state_dict())
    hidden, _ = batch()
    close(head.log_prob(hidden).detach(), whole.log_prob(hidden).detach())
    assert sum(len(rows) for rows in head._classes_of) == V
    held = sum(parameter.numel() for parameter in head.split_parameters())
    total = sum(
        whole.get_parameter(name).numel()
        for name, _ in whole.named_parameters()
        if name in whole.split_tables
    )
    assert (
        held
        <= total / world_size
        + max(p.numel() // len(p) for p in [torch.zeros(1), *head.split_parameters()]) * 2
    )


def check_examples(rank, world_size):
    """Prototypes learn, forget and fit as one process does."""
    whole = make("prototype")
    head = split_head(whole)
    dice = torch.Generator().manual_seed(7)
    vectors, hidden = torch.randn(40, D, generator=dice), torch.randn(30, D, generator=dice)
    target = torch.randint(V, (30,), generator=dice)
    for one in (head, whole):
        one.forget_classes()
        one.learn_classes(vectors, torch.arange(10, 50))
        one.fit_temperature(hidden, target)
        one.find_hard_classes(vectors, torch.arange(10, 50))
    close(head.part.fitted_scale, whole.fitted_scale)
    assert torch.equal(head.hard_classes, whole.hard_classes)
    pairs = torch.tensor([1, 1, 60, 60, 99, 99, 1, 60, 99])
    rows = torch.randn(9, D, generator=dice)
    mine = slice(*[0, 4, 9, 9][rank : rank + 2])
    head.train()(rows[mine], pairs[mine])
    ours = head.whole()
    dist.barrier()
    dist.destroy_process_group()
    if ours is not None:
        whole.train()(rows, pairs)  # alone, without a group
        close(ours.vectors, whole.vectors)
        assert torch.equal(ours.known, whole.known)


def worker(rank, folder, world_size):
    for case in CASES:
        for check in (check_training, check_decoding, check_state):
            check(case, rank, world_size)
    check_examples(rank, world_size)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_split_head_is_the_whole_one(tmp_path, world_size):
    run_ranks(worker, tmp_path, world_size, world_size)


def test_which_heads_can_be_split():
    can = {name for name, kind in HEADS.items() if kind.split_tables}
    assert can == {"flat", "grouped-linear", "prototype"}
    weight = torch.nn.Parameter(torch.randn(V, D))
    for head, reason in (
        (make_head("grouped", D, V), "GroupedHead must be whole"),
        (make_head("sampled", D, V), "SampledHead must be whole"),
        (make_head("flat", D, V, weight=weight), "its weight is shared with an embedding"),
        (make_head("grouped-linear", D, V, weight=weight), "its weight is shared with an embedding"),
        (
            make_head("grouped-linear", D, 4, partition=Partition.from_groups([0, 0, 0, 1])),
            "its groups are of uneven sizes",
        ),
        (make_head("grouped-linear", D, V, centroids=2), "its groups have several centroids"),
        (make_head("prototype", D, V, samples=3), "it draws from all stored classes"),
    ):
        with pytest.raises(ValueError, match=f"the classes cannot be split over ranks: {reason}"):
            split_head(head)
    for name in can:
        assert make_head(name, D, V).why_whole() is None


@pytest.mark.parametrize("name", ["flat", "grouped-linear", "prototype"])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_hold_every_class_once(name, parts):
    head = make_head(name, D, V)
    found = [head.part_rows(number, parts) for number in range(parts)]
    assert torch.equal(torch.cat([part.classes for part in found]).sort().values, torch.arange(V))
    rows = torch.cat([part.rows for part in found]).sort().values
    assert torch.equal(rows, torch.arange(len(rows)))
    for part in found:
        made = head.make_part(*part)
        assert made.num_classes == len(part.classes)
        for table in head.split_tables:
            whole = dict(head.state_dict())[table]
            torch.testing.assert_close(made.state_dict()[table], whole[part.rows], atol=0, rtol=0)
    with pytest.raises(ValueError, match=r"cannot be split over 104 ranks"):
        head.part_rows(0, 104)
