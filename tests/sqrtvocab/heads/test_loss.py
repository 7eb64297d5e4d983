"""Every head's loss and gradients against the dense distribution it must be equal to."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sqrtvocab import Partition, make_head

V, D = 103, 6  # uneven groups: 10 groups of 10 or 11; d is not a multiple of the kernels' alignment


def random_batch(*shape, v=V, d=D, ignored=True):
    hidden = torch.randn(*shape, d, requires_grad=True)
    target = torch.randint(v, shape)
    if ignored and target.dim():
        target.view(-1)[::5] = -100
    return hidden, target


@pytest.mark.parametrize("ordered", [False, True], ids=["index", "ordered"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(17,), (3, 7), (2, 3, 4)], ids=str)
def test_equals_nll_of_the_dense_distribution(
    make, dense, randomise, assert_same_gradients, shape, reduction, ordered
):
    head = randomise(make(D, V, Partition.random(V) if ordered else None))
    hidden, target = random_batch(*shape)
    out = head(hidden, target, reduction=reduction)
    want = F.nll_loss(dense(head, hidden).log_prob, target.view(-1), reduction=reduction)
    torch.testing.assert_close(out.loss, want.view(out.loss.shape), atol=1e-4, rtol=1e-5)
    assert_same_gradients(head, hidden, out.loss, want)


def test_a_single_hidden_state(make, dense, randomise):
    head = randomise(make(D, V))
    hidden, target = torch.randn(D), torch.tensor(5)
    torch.testing.assert_close(head(hidden, target).loss, -dense(head, hidden).log_prob[0, 5])
    assert head.predict(hidden).shape == ()
    assert head.log_prob(hidden).shape == (V,)


def test_group_and_member_losses_are_the_two_factors(make, dense, randomise):
    head = randomise(make(D, V))
    hidden, target = random_batch(20, ignored=False)
    out = head(hidden, target, reduction="none")
    entry = dense(head, hidden).entry.gather(1, target.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(out.group_loss, -entry, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.loss, out.group_loss + out.member_loss)


@st.composite
def problems(draw):
    v = draw(st.integers(1, 40))
    g = draw(st.sampled_from([1, v]) | st.integers(1, v))
    seed = draw(st.none() | st.integers(0, 3))
    partition = Partition.identity(v, g) if seed is None else Partition.random(v, g, seed)
    shape = draw(st.sampled_from([(0,), (1,), (7,), (2, 3), (2, 0)]))
    target = torch.tensor(
        draw(st.lists(st.integers(-1, v - 1), min_size=6, max_size=7)), dtype=torch.int64
    )  # -1 is ignored
    count = torch.Size(shape).numel()
    return partition, draw(st.integers(1, 9)), torch.cat([target, target])[:count].reshape(shape)


@given(problem=problems(), reduction=st.sampled_from(["mean", "sum", "none"]))
def test_any_problem(make, dense, randomise, assert_same_gradients, problem, reduction):
    partition, d, target = problem
    head = randomise(make(d, partition.num_classes, partition))
    hidden = torch.randn(*target.shape, d, requires_grad=True)
    out = head(hidden, target, ignore_index=-1, reduction=reduction)
    log_prob = dense(head, hidden).log_prob
    want = F.nll_loss(log_prob, target.view(-1), ignore_index=-1, reduction=reduction)
    torch.testing.assert_close(out.loss, want.view(out.loss.shape), atol=1e-4, rtol=1e-4, equal_nan=True)
    if not out.loss.isnan().any():
        assert_same_gradients(head, hidden, out.loss, want, tolerance=1e-3)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("size", [0, 4], ids=["empty", "all-ignored"])
def test_without_a_target_it_behaves_as_cross_entropy(make, size, reduction):
    head = make(D, V)
    hidden = torch.randn(size, D, requires_grad=True)
    target = torch.full((size,), -100)
    out = head(hidden, target, reduction=reduction)
    want = F.cross_entropy(torch.randn(size, V), target, reduction=reduction)
    torch.testing.assert_close(out.loss, want, equal_nan=True)
    out.loss.sum().backward()
    for tensor in (hidden, *head.parameters()):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


# ---- label smoothing ----


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("bias", [True, False])
def test_flat_smoothing_is_torchs(randomise, assert_same_gradients, chunk_size, reduction, bias):
    head = randomise(make_head("flat", D, V, chunk_size=chunk_size, bias=bias))
    hidden, target = random_batch(11)
    out = head(hidden, target, label_smoothing=0.3, reduction=reduction)
    logits = F.linear(hidden, head.weight, head.bias)
    want = F.cross_entropy(logits, target, label_smoothing=0.3, reduction=reduction)
    torch.testing.assert_close(out.loss, want, atol=1e-4, rtol=1e-4)
    assert_same_gradients(head, hidden, out.loss, want)


def test_smoothing_is_the_documented_definition(make, dense, randomise, assert_same_gradients):
    head = randomise(make(D, V, Partition.random(V)))
    hidden, target = random_batch(11, ignored=False)
    epsilon = 0.3
    out = head(hidden, target, label_smoothing=epsilon, reduction="none")
    distribution = dense(head, hidden)
    want = []
    for n, y in enumerate(target.tolist()):
        log_prob, entry = distribution.log_prob[n], distribution.entry[n]
        own = next(group for group in distribution.groups if y in group)
        groups = sum(len(group) * entry[group[0]] for group in distribution.groups)
        members = sum(log_prob[c] - entry[c] for c in own)
        want.append(-(1 - epsilon) * log_prob[y] - epsilon / V * (groups + members))
    torch.testing.assert_close(out.loss, torch.stack(want), atol=1e-4, rtol=1e-4)
    assert_same_gradients(head, hidden, out.loss, torch.stack(want))


@pytest.mark.parametrize("g", [1, V])
def test_smoothing_of_one_level_is_exact(make_grouped, dense, randomise, g):
    head = randomise(make_grouped(D, V, Partition(V, g)))
    hidden, target = random_batch(11)
    out = head(hidden, target, label_smoothing=0.2)
    want = F.cross_entropy(dense(head, hidden).log_prob, target, label_smoothing=0.2)
    torch.testing.assert_close(out.loss, want, atol=1e-4, rtol=1e-4)


# ---- against torch's own implementations ----


@pytest.mark.parametrize("cutoffs", [[10], [4, 20, 60]])
def test_adaptive_is_torchs_adaptive_softmax(cutoffs):
    d = 64
    torchs = torch.nn.AdaptiveLogSoftmaxWithLoss(d, V, cutoffs, head_bias=True)
    head = make_head("adaptive", d, V, cutoffs=cutoffs)
    with torch.no_grad():
        head.first.weight.copy_(torchs.head.weight)
        head.first.bias.copy_(torchs.head.bias)
        for ours, theirs in zip(head.tails, torchs.tail, strict=True):
            ours.project.weight.copy_(theirs[0].weight)
            ours.score.weight.copy_(theirs[1].weight)
    hidden, target = random_batch(50, d=d, ignored=False)
    assert bool((target < cutoffs[0]).any())
    torch.testing.assert_close(head(hidden, target).loss, torchs(hidden, target).loss)
    torch.testing.assert_close(head.log_prob(hidden), torchs.log_prob(hidden))
    assert torch.equal(head.predict(hidden), torchs.predict(hidden))


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradcheck(make, randomise, fast):
    """Numerical gradients in float64, for which grouped-linear chooses the loop by itself."""
    head = randomise(make(4, 11)).double()
    hidden = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 10, -100, 5, 7])
    names, parameters = zip(*head.named_parameters(), strict=True)

    def loss(hidden, *parameters):
        state = dict(zip(names, parameters, strict=True))
        # Unreduced: reducing, torch's chunked op allows one backward pass, and gradcheck makes several.
        options = {"label_smoothing": 0.1, "reduction": "none"}
        out = torch.func.functional_call(head, state, (hidden, target), options)
        return out.group_loss, out.member_loss

    assert torch.autograd.gradcheck(loss, (hidden, *parameters), fast_mode=fast)


# ---- precision ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters(make, device, dtype):
    head = make(16, V).to(device)
    hidden, target = torch.randn(9, 16, device=device), torch.randint(V, (9,), device=device)
    want = head(hidden, target).loss
    head = head.to(dtype)
    out = head(hidden.to(dtype), target)
    assert out.loss.dtype == torch.float32
    torch.testing.assert_close(out.loss, want, atol=0.05, rtol=0.02)
    out.loss.backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in head.parameters())
    assert head.log_prob(hidden.to(dtype)).dtype == torch.float32
    assert head.predict(hidden.to(dtype)).shape == (9,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_are_summed_wide(make_grouped, dense, device, dtype):
    """Most of 600 rows are of few classes, so that a group's tables have gradients of hundreds of terms."""
    head = make_grouped(16, V)
    assert_gradients_of_half(head, lambda head, hidden: dense(head, hidden).log_prob, device, dtype)


@pytest.mark.parametrize("name", ["grouped", "grouped-linear", "grouped-low-rank"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_same_with_uneven_groups(name, dense, device, dtype):
    group = torch.arange(V).square() * 7 // V**2  # the first are the largest
    options = {"modulation": "both"} if name == "grouped" else {}
    head = make_head(name, 16, V, partition=Partition.from_groups(group), **options)
    groups = [(group == g).nonzero().flatten().tolist() for g in range(7)]
    assert_gradients_of_half(head, lambda head, hidden: dense(head, hidden, groups).log_prob, device, dtype)


def assert_gradients_of_half(head, log_prob, device, dtype):
    head = head.to(device, dtype)
    hidden = torch.randn(600, 16, device=device).to(dtype).requires_grad_()
    target = (V * torch.rand(600, device=device) ** 4).long()
    wide = copy.deepcopy(head).float()
    rows = hidden.detach().float().requires_grad_()
    head(hidden, target).loss.backward()
    F.nll_loss(log_prob(wide, rows), target).backward()
    pairs = {"hidden": (hidden, rows)}
    named = zip(head.named_parameters(), wide.parameters(), strict=True)
    pairs |= {name: (ours, theirs) for (name, ours), theirs in named}
    for name, (ours, theirs) in pairs.items():
        error = (ours.grad.float() - theirs.grad).norm() / theirs.grad.norm()
        assert error < {torch.bfloat16: 0.01, torch.float16: 0.002}[dtype], (name, error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_a_float32_loss(make, device, dtype):
    head = make(16, V).to(device)
    hidden = torch.randn(9, 16, device=device, requires_grad=True)
    target = torch.randint(V, (9,), device=device)
    want = head(hidden, target).loss
    with torch.autocast(device, dtype=dtype):
        out = head(hidden * 1, target)
        halved = head(hidden.to(dtype), target)
        decoded = head.topk(hidden, 3)
    for result in (out, halved):
        assert result.loss.dtype == torch.float32
        torch.testing.assert_close(result.loss, want, atol=0.05, rtol=0.02)
    assert decoded[0].dtype == torch.float32
    out.loss.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in head.parameters())


def test_float16_logits_beyond_its_range_do_not_overflow_the_loss(device):
    head = make_head("grouped", 4, 100).to(device).half()
    hidden = torch.full((3, 4), 1000.0, device=device).half()
    assert bool(head(hidden, torch.tensor([1, 50, 99], device=device)).loss.isfinite())


# ---- devices and kernels ----


def test_every_device_agrees_with_the_cpu(make, device, randomise):
    head = randomise(make(D, V, Partition.random(V)))
    hidden, target = random_batch(12)
    want = head(hidden, target).loss
    got = head.to(device)(hidden.to(device), target.to(device)).loss
    torch.testing.assert_close(got.cpu(), want, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("d", [8, 13])
def test_loop_and_grouped_mm_agree(randomise, assert_same_gradients, tied, d):
    weight = torch.nn.Parameter(torch.randn(V, d)) if tied else None
    fast = randomise(make_head("grouped-linear", d, V, weight=weight, kernel="grouped_mm"))
    loop = make_head("grouped-linear", d, V, weight=weight, kernel="loop")
    loop.load_state_dict(fast.state_dict())
    hidden, target = random_batch(30, d=d)
    out = []
    for head in (fast, loop):
        loss = head(hidden, target).loss
        out.append((loss, torch.autograd.grad(loss, [hidden, *head.parameters()])))
        torch.testing.assert_close(head.topk(hidden, 5)[0], fast.topk(hidden, 5)[0])
    torch.testing.assert_close(*out, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "loops"), [(torch.float32, 0), (torch.bfloat16, 0), (torch.float64, 1)])
def test_the_kernel_follows_the_dtype(monkeypatch, dtype, loops):
    from sqrtvocab.heads import per_group

    calls = []
    loop = per_group.segment_mm
    monkeypatch.setattr(per_group, "segment_mm", lambda *args: calls.append(1) or loop(*args))
    make_head("grouped-linear", 8, 100).to(dtype)(torch.randn(3, 8).to(dtype), torch.tensor([1, 2, 99]))
    assert len(calls) == loops


def test_autocast_leaves_float64_alone(make, randomise):
    head = randomise(make(8, V)).double()
    hidden, target = torch.randn(5, 8, dtype=torch.float64), torch.randint(V, (5,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = head(hidden, target).loss
    torch.testing.assert_close(cast, head(hidden, target).loss, atol=1e-12, rtol=1e-12)


# ---- the family: one shared layer is the paper's head, d of them are a layer for every group ----


def test_one_shared_layer_is_the_papers_head():
    paper, ours = make_head("grouped", D, V), make_head("grouped-low-rank", D, V, rank=1)
    with torch.no_grad():
        for name, parameter in paper.named_parameters():
            ours.get_parameter(name).copy_(torch.randn_like(parameter).view_as(ours.get_parameter(name)))
            parameter.copy_(ours.get_parameter(name).view_as(parameter))
    hidden, target = random_batch(20)
    torch.testing.assert_close(ours(hidden, target).loss, paper(hidden, target).loss)


def test_as_many_shared_layers_as_dimensions_are_any_matrix():
    """With the unit vectors for layers, the mixture of a class is its vector."""
    linear, ours = make_head("grouped-linear", D, V), make_head("grouped-low-rank", D, V, rank=D)
    with torch.no_grad():
        ours.shared.copy_(torch.eye(D))
        ours.scale.copy_(linear.weight[:, : linear.partition.group_size])
        for name in ("group.weight", "group.bias", "shift"):
            ours.get_parameter(name).copy_(linear.get_parameter(name))
    hidden, target = random_batch(20)
    torch.testing.assert_close(ours(hidden, target).loss, linear(hidden, target).loss)
    torch.testing.assert_close(ours.log_prob(hidden), linear.log_prob(hidden))


# ---- blocks ----


def test_loss_does_not_depend_on_the_block_size(make, dense, randomise, assert_same_gradients, monkeypatch):
    """Adaptive's tails take many blocks of rows where V is large; here a block is smaller than a row."""
    monkeypatch.setattr("sqrtvocab.heads.base.BLOCK_ELEMENTS", 200)
    head = randomise(make(D, V))
    hidden, target = random_batch(60)
    out = head(hidden, target, reduction="sum")
    want = F.nll_loss(dense(head, hidden).log_prob, target, reduction="sum")
    torch.testing.assert_close(out.loss, want, atol=1e-3, rtol=1e-5)
    assert_same_gradients(head, hidden, out.loss, want, tolerance=1e-3)


def test_half_precision_gradients_survive_many_blocks(monkeypatch):
    head = make_head("adaptive", 64, 500, cutoffs=[5])
    hidden, target = torch.randn(2000, 64), torch.randint(5, 500, (2000,))

    def tail_gradients(block):
        monkeypatch.setattr("sqrtvocab.heads.base.BLOCK_ELEMENTS", block)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = head(hidden, target).loss
        return torch.autograd.grad(loss, list(head.tails[0].score.parameters()))

    one, many = tail_gradients(2**22), tail_gradients(2**12)
    for a, b in zip(one, many, strict=True):
        assert float((a - b).norm() / a.norm()) < 0.005


@pytest.mark.parametrize("chunk_size", [None, 512])
def test_the_sum_over_many_rows_in_float16(chunk_size):
    """8,192 rows of log 5,000 nats each are more than float16 can hold."""
    head = make_head("flat", 8, 5000, chunk_size=chunk_size).half()
    hidden, target = torch.randn(8192, 8).half(), torch.randint(5000, (8192,))
    loss = head(hidden, target).loss
    torch.testing.assert_close(loss, head.float()(hidden.float(), target).loss, rtol=1e-2, atol=0)
