"""Adam and SparseAdam as one: the same training as Adam where every row is met, resumed to the bit."""

import copy

import pytest
import torch
from torch import nn

from sqrtvocab import make_head
from sqrtvocab.errors import UserError
from sqrtvocab.settings import StepFlags
from sqrtvocab.training.optimizer import Together, make_adam, make_sgd, require_sparse_support
from sqrtvocab.training.runtime import Runtime
from sqrtvocab.training.schedule import set_learning_rate

D, V = 4, 20


class Model(nn.Module):
    def __init__(self, name="sampled", **options):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, D)
        self.head = make_head(name, D, V, **options)


def optimizer_of(model, kind=torch.optim.Adam, **options):
    return make_adam([{"params": model.parameters()}], model.head, kind, lr=0.1, **options)


def train(model, optimizer, steps):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for step in steps:
        torch.manual_seed(step)
        loss = model.head(model.body(torch.randn(5, 3)), torch.randint(V, (5,))).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_where_every_row_is_met_it_is_adam():
    sparse, dense = Model(samples=V), Model(samples=V)
    got = train(sparse, optimizer_of(sparse), range(6))
    want = train(dense, torch.optim.Adam(dense.parameters(), lr=0.1), range(6))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3)


def test_rows_that_no_step_meets_stay():
    model = Model(samples=2)
    before = model.head.rows.weight.detach().clone()
    train(model, optimizer_of(model), range(1))
    changed = (model.head.rows.weight != before).any(1)
    assert 2 <= int(changed.sum()) <= 7


def test_resumed_it_goes_on_to_the_bit():
    whole, half = Model(samples=3), Model(samples=3)
    want = train(whole, optimizer_of(whole), range(8))
    optimizer = optimizer_of(half)
    train(half, optimizer, range(4))
    weights, state = copy.deepcopy(half.state_dict()), copy.deepcopy(optimizer.state_dict())
    other = Model(samples=3)
    other.load_state_dict(weights)
    resumed = optimizer_of(other)
    resumed.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(train(other, resumed, range(4, 8)), want, strict=True))


def test_learning_rates_reach_all_parts_after_loading_too():
    model = Model(samples=3)
    optimizer = optimizer_of(model, torch.optim.AdamW, betas=(0.9, 0.95))
    assert isinstance(optimizer, Together)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    assert [part.param_groups[0]["lr"] for part in optimizer.parts] == [0.5, 0.5]
    assert all(group["betas"] == (0.9, 0.95) for group in optimizer.param_groups)
    with pytest.raises(ValueError, match="closure must be None"):
        optimizer.step(lambda: 0.0)


def test_sgd_gives_each_parameter_the_rate_that_the_head_asks_for():
    model, counts = Model("grouped-linear"), torch.arange(V, 0, -1)
    groups = [{"params": model.body.parameters(), "weight_decay": 0.5}, {"params": model.head.parameters()}]
    optimizer = make_sgd(groups, model.head, 2.0, counts)
    before = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert set_learning_rate(optimizer, StepFlags(lr=3.0), 0, 9) == 3.0
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {key: 1.5 * rate for key, rate in before.items()} == pytest.approx(rates)
    asked = {
        id(p): group["lr"] for group in model.head.parameter_groups(3.0, counts) for p in group["params"]
    }
    assert rates == pytest.approx({**{id(p): 3.0 for p in model.body.parameters()}, **asked})
    assert asked[id(model.head.group.weight)] < 3.0
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0, 0]


def test_sgd_leaves_rows_alone_that_no_step_meets():
    sparse, dense = Model(samples=2), Model(samples=2)
    before = sparse.head.rows.weight.detach().clone()
    optimizer = make_sgd([{"params": sparse.parameters()}], sparse.head, 0.1, torch.ones(V))
    got = train(sparse, optimizer, range(1))
    assert 2 <= int((sparse.head.rows.weight != before).any(1).sum()) <= 7
    want = train(dense, torch.optim.SGD(dense.parameters(), lr=0.1), range(1))
    torch.testing.assert_close(got, want)


def test_a_head_with_dense_gradients_has_plain_adam():
    model = Model("flat")
    assert type(optimizer_of(model)) is torch.optim.Adam


def test_where_sparse_gradients_cannot_be_had():
    alone = Runtime(torch.device("cpu"), torch.float32, "", 0, 0, 1)
    several = Runtime(torch.device("cuda"), torch.float32, "", 0, 0, 2)
    sampled, flat = Model().head, Model("flat").head
    with pytest.raises(UserError, match="--compile: not with --head sampled"):
        require_sparse_support(sampled, "sampled", alone, compiled=True)
    with pytest.raises(UserError, match="--head sampled: several GPUs cannot exchange"):
        require_sparse_support(sampled, "sampled", several, compiled=False)
    require_sparse_support(sampled, "sampled", alone, compiled=False)
    require_sparse_support(flat, "flat", several, compiled=True)
