"""More classes in a head that is trained: the old ones keep the ratios of their probabilities."""

import math

import pytest
import torch
from torch import nn

from sqrtvocab import HEADS, Partition, make_head

D, V = 12, 47


def random_head(name, partition=None, tied=False, **options):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(V, D)) if tied else None
    head = make_head(name, D, V, {"partition": partition, "weight": weight}, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return head


@pytest.mark.parametrize("num_classes", [47, 48, 50, 53, 54, 61, 100, 300])
@pytest.mark.parametrize("num_groups", [1, 3, 6, 7, 46, 47])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_partition_that_grows(num_classes, num_groups, ordered):
    old = Partition.random(V, num_groups) if ordered else Partition(V, num_groups)
    new = old.grow(num_classes)
    assert (new.num_classes, new.num_groups) == (num_classes, num_groups)
    assert torch.equal(new.sizes(), Partition(num_classes, num_groups).sizes())
    before = old.split(torch.arange(V))[0]
    after = new.split(torch.arange(V))[0]
    together = before.unsqueeze(0) == before.unsqueeze(1)
    assert torch.equal(together, after.unsqueeze(0) == after.unsqueeze(1))


def test_a_partition_that_cannot_shrink():
    with pytest.raises(ValueError, match="47 classes cannot become 46"):
        Partition(V).grow(46)


@pytest.mark.parametrize("extra", [0, 1, 2, 30, 200])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("flat", {}),
        ("flat", {"bias": False, "chunk_size": 8}),
        ("grouped-linear", {}),
        ("grouped-linear", {"partition": Partition.random(V, 5), "kernel": "loop"}),
        ("grouped-linear", {"partition": Partition.random(V, 5), "centroids": 3}),
    ],
)
def test_old_classes_keep_their_ratios(name, options, tied, extra):
    head = random_head(name, tied=tied, **options)
    weight = nn.Parameter(torch.randn(V + extra, D)) if tied else None
    if tied:
        weight.data[:V] = head.weight.data
    grown = head.grow(V + extra, weight)
    assert (grown.num_classes, type(grown), grown.tied) == (V + extra, type(head), tied)
    hidden = 3 * torch.randn(200, D)
    before, after = head.log_prob(hidden), grown.log_prob(hidden)
    assert torch.allclose(after.exp().sum(-1), torch.ones(200), atol=1e-5)
    shift = after[:, :V] - before
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), rtol=0, atol=2e-4)
    assert (after[:, V:] <= after[:, :V].logsumexp(-1, keepdim=True) - math.log(V) + 1e-4).all()
    if tied:
        assert grown.weight is weight
    for name_of in ("chunk_size", "kernel", "validate"):
        assert getattr(grown, name_of, None) == getattr(head, name_of, None)


def test_what_growing_needs():
    tied = random_head("flat", tied=True)
    with pytest.raises(ValueError, match="such a head needs the new one"):
        tied.grow(V + 1)
    with pytest.raises(ValueError, match="weight is for a head that shares one"):
        random_head("grouped-linear").grow(V + 1, nn.Parameter(torch.zeros(V + 1, D)))
    with pytest.raises(ValueError, match="47 classes cannot become 40"):
        random_head("flat").grow(40)
    for name in HEADS:
        head = make_head(name, D, 24, {"radices": (4, 6)})
        if not head.can_grow:
            with pytest.raises(NotImplementedError, match="cannot grow from 24 classes"):
                head.grow(30)
        else:
            assert head.grow(30).num_classes == 30
