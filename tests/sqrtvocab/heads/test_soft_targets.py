"""Class weights, and targets that are distributions on a few classes, against the dense F.cross_entropy."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sqrtvocab import Partition, make_head

V, D = 103, 6


def soft_batch(n, k, v=V, total=None):
    """Hidden states, K targets a row (some twice) and their weights, which sum to `total` or to anything."""
    hidden = torch.randn(n, D, requires_grad=True)
    target, weight = torch.randint(v, (n, k)), torch.rand(n, k)
    return hidden, target, weight if total is None else total * weight / weight.sum(1, keepdim=True)


def spelled_out(target, weight, v=V):
    """[N, K] -> the distribution [N, V]."""
    return torch.zeros(len(target), v).scatter_add(1, target, weight)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_class_weights(make, dense, randomise, assert_same_gradients, reduction):
    head = randomise(make(D, V, Partition.random(V)))
    hidden, target, weight = torch.randn(17, D, requires_grad=True), torch.randint(V, (17,)), torch.rand(V)
    target[3] = -100
    out = head(hidden, target, reduction=reduction, weight=weight)
    want = F.nll_loss(dense(head, hidden).log_prob, target, weight, reduction=reduction)
    torch.testing.assert_close(out.loss, want, atol=1e-4, rtol=1e-5)
    assert_same_gradients(head, hidden, out.loss, want)


@pytest.mark.parametrize("weighted", [False, True], ids=["", "class-weights"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_soft_targets(make, dense, randomise, assert_same_gradients, reduction, weighted):
    head = randomise(make(D, V, Partition.random(V)))
    hidden, target, target_weight = soft_batch(19, 4)
    weight = torch.rand(V) if weighted else None
    out = head(hidden, target, reduction=reduction, target_weight=target_weight, weight=weight)
    # F.cross_entropy takes logits; log-probabilities are such.
    probabilities = spelled_out(target, target_weight)
    want = F.cross_entropy(dense(head, hidden).log_prob, probabilities, weight, reduction=reduction)
    torch.testing.assert_close(out.loss, want, atol=1e-4, rtol=1e-5)
    assert_same_gradients(head, hidden, out.loss, want)


@given(v=st.integers(1, 30), k=st.integers(1, 6), seed=st.integers(0, 5), data=st.data())
def test_soft_targets_of_any_shape(make, dense, randomise, v, k, seed, data):
    torch.manual_seed(seed)
    groups = data.draw(st.integers(1, v))
    head = randomise(make(D, v, Partition.random(v, groups, seed)))
    hidden, target, weight = soft_batch(6, k, v)
    out = head(
        hidden.view(2, 3, D), target.view(2, 3, k), target_weight=weight.view(2, 3, k), reduction="none"
    )
    want = F.cross_entropy(dense(head, hidden).log_prob, spelled_out(target, weight, v), reduction="none")
    torch.testing.assert_close(out.loss.flatten(), want, atol=1e-4, rtol=1e-5)


def test_one_class_of_weight_one_is_the_hard_target(make, randomise):
    head = randomise(make(D, V))
    hidden, target, _ = soft_batch(9, 1)
    for smoothing in (0.0, 0.2):
        hard = head(hidden, target[:, 0], label_smoothing=smoothing)
        soft = head(hidden, target, target_weight=torch.ones(9, 1), label_smoothing=smoothing)
        for one, other in zip(hard, soft, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_smoothed_soft_targets_are_the_mean_of_smoothed_hard_ones(make, randomise):
    head = randomise(make(D, V))
    hidden, target, weight = soft_batch(9, 3, total=1.0)
    soft = head(hidden, target, target_weight=weight, label_smoothing=0.1, reduction="none").loss
    hard = [head(hidden, one, label_smoothing=0.1, reduction="none").loss for one in target.unbind(1)]
    torch.testing.assert_close(soft, (torch.stack(hard, 1) * weight).sum(1), atol=1e-5, rtol=1e-5)


def test_ignored_classes_and_rows_take_no_part(make, dense, randomise):
    head = randomise(make(D, V))
    hidden, target, weight = soft_batch(8, 3)
    target[2, 1] = -100
    target[5] = -100
    out = head(hidden, target, target_weight=weight, rest="spread")
    left = torch.where(target == -100, 0.0, weight)
    rows = [row for row in range(8) if row != 5]
    alone = head(
        hidden[rows], target.clamp(min=0)[rows], target_weight=left[rows], rest="spread", reduction="sum"
    )
    torch.testing.assert_close(out.loss, alone.loss / 7, atol=1e-5, rtol=1e-5)


def test_the_rest_of_a_teacher_is_spread(make, dense, randomise, assert_same_gradients):
    """Evenly over all classes; with groups, only what that says about the groups counts."""
    head = randomise(make(D, V, Partition.random(V)))
    hidden, target, weight = soft_batch(11, 3, total=0.7)
    full = dense(head, hidden)
    spread = full.entry if len(full.groups) > 1 else full.log_prob
    out = head(hidden, target, target_weight=weight, rest="spread")
    kept = F.cross_entropy(full.log_prob, spelled_out(target, weight))
    # each class's entry is log P(group), so the mean over the classes weighs a group by its size
    want = kept - 0.3 * spread.mean(1).mean()
    torch.testing.assert_close(out.loss, want, atol=1e-4, rtol=1e-5)
    assert_same_gradients(head, hidden, out.loss, want)
    dropped = head(hidden, target, target_weight=weight).loss
    torch.testing.assert_close(dropped, kept, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": torch.ones(V - 1)}, r"weight must have shape \[103\], got \[102\]"),
        ({"weight": torch.ones(V), "label_smoothing": 0.1}, "weight and label_smoothing do not go together"),
        (
            {"target_weight": torch.ones(4, 2)},
            r"target_weight must have the shape of target, \[4, 3\]; got \[4, 2\]",
        ),
        ({"target_weight": torch.ones(4, 3), "rest": "keep"}, "rest must be one of drop, spread; got 'keep'"),
        ({}, r"target must have the shape of hidden less its last dimension, \[4\]; got \[4, 3\]"),
    ],
)
def test_bad_weights_are_named(options, message):
    hard = "target_weight" not in options and options
    target = torch.zeros(4, dtype=torch.long) if hard else torch.zeros(4, 3, dtype=torch.long)
    with pytest.raises(ValueError, match=message):
        make_head("grouped", D, V)(torch.randn(4, D), target, **options)


def test_a_row_has_a_target(make):
    with pytest.raises(ValueError, match=r"at least one class a row, got shape \[4, 0\]"):
        make(D, V)(torch.randn(4, D), torch.zeros(4, 0, dtype=torch.long), target_weight=torch.zeros(4, 0))
    empty = torch.zeros(0, D, requires_grad=True)
    out = make(D, V)(
        empty, torch.zeros(0, 3, dtype=torch.long), target_weight=torch.ones(0, 3), reduction="sum"
    )
    out.loss.backward()
    assert out.loss.item() == 0


def test_half_precision_and_autocast(make, randomise):
    head = randomise(make(D, V))
    hidden, target, weight = soft_batch(9, 3)
    want = head(hidden, target, target_weight=weight).loss
    with torch.autocast("cpu", torch.bfloat16):
        out = head(hidden, target, target_weight=weight)
    assert out.loss.dtype == torch.float32
    torch.testing.assert_close(out.loss, want, atol=0.1, rtol=0.05)


def test_many_rows_are_scored_in_blocks(make, dense, randomise, assert_same_gradients, monkeypatch):
    monkeypatch.setattr("sqrtvocab.heads.base.BLOCK_ELEMENTS", 60)
    head = randomise(make(D, V, Partition.random(V)))
    hidden, target, weight = soft_batch(31, 5)
    loss = head(hidden, target, target_weight=weight).loss
    want = F.cross_entropy(dense(head, hidden).log_prob, spelled_out(target, weight))
    torch.testing.assert_close(loss, want, atol=1e-4, rtol=1e-5)
    assert_same_gradients(head, hidden, loss, want)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grouped", {"modulation": "both"}),
        ("grouped-linear", {}),
        ("adaptive", {}),
        ("sampled", {"samples": V}),
        ("mach", {}),
    ],
)
def test_one_graph(name, options):
    """Which classes share a group is data, but no shape depends on it."""
    torch._dynamo.reset()
    head = make_head(name, D, V, **options)
    hidden, target, weight = soft_batch(9, 3)
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    grads = []
    for module in (head, compiled):
        loss = module(hidden, target, target_weight=weight, label_smoothing=0.1).loss
        grads.append([loss, *torch.autograd.grad(loss, [hidden, *head.parameters()])])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_forward_mode_is_right_or_refused(randomise):
    """Also where the tangent is a parameter's."""
    head = randomise(make_head("grouped", D, V).double())
    hidden, target, weight = soft_batch(5, 3)
    states = dict(head.named_parameters())

    def loss(scale):
        moved = states | {"scale": states["scale"] + scale * torch.ones_like(states["scale"])}
        return torch.func.functional_call(
            head, moved, (hidden.detach().double(), target), {"target_weight": weight.double()}
        ).loss

    zero, one = torch.zeros((), dtype=torch.double), torch.ones((), dtype=torch.double)
    at, slope = torch.func.jvp(loss, (zero,), (one,))
    torch.testing.assert_close(slope, (loss(zero + 1e-6) - at) / 1e-6, atol=1e-4, rtol=1e-4)
    adaptive = make_head("adaptive", D, V)
    with pytest.raises(NotImplementedError, match="cannot be differentiated in forward mode"):
        torch.func.jvp(
            lambda h: adaptive(h, target, target_weight=weight).loss, (hidden,), (torch.ones_like(hidden),)
        )
