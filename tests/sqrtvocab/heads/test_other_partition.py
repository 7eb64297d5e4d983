"""A state dict that belongs to other groups is refused in one line."""

import pytest
import torch
from torch import nn

from sqrtvocab import Partition, make_head

D, V = 12, 47


def model(name, *args, **options) -> nn.Module:
    return nn.Sequential(nn.Linear(D, D), make_head(name, D, *args, **options))


@pytest.mark.parametrize("name", ["grouped", "grouped-linear", "grouped-low-rank"])
def test_the_groups_of_another_head(name):
    ordered = {"partition": Partition.random(V)}
    for saved, made, says in (
        (
            (V, {"num_groups": 5}),
            (V, {}),
            "of a head with 5 groups of at most 10 classes, this one has 6 of at most 8",
        ),
        ((60, {}), (V, {}), "of a head with 7 groups of at most 9 classes"),
        ((V, {}), (V, ordered), "classes in the order of their indices, this head in an order of its own"),
        (
            (46, {"partition": Partition.random(46, 6)}),
            (V, ordered),
            "of a partition of 46 classes, this one has 47",
        ),
    ):
        state = model(name, saved[0], **saved[1]).state_dict()
        with pytest.raises(ValueError, match=says) as error:
            model(name, made[0], **made[1]).load_state_dict(state)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["grouped", "grouped-linear", "grouped-low-rank"])
def test_what_is_not_refused(name):
    ordered = model(name, V, partition=Partition.random(V))
    plain, rows = model(name, V), torch.randn(5, D)
    plain.load_state_dict(ordered.state_dict())  # takes over the order
    assert torch.equal(plain[1].log_prob(rows), ordered[1].log_prob(rows))
    shuffled = model(name, V, partition=Partition.random(V, seed=1))
    shuffled.load_state_dict(ordered.state_dict())
    assert torch.equal(shuffled[1].log_prob(rows), ordered[1].log_prob(rows))
    part = {"0.bias": torch.ones(D)}  # somebody else's weights, as peft loads them
    assert ordered.load_state_dict(part, strict=False).unexpected_keys == []
