"""predict, topk and sample against the dense distribution: exact, whatever the shape of the distribution."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sqrtvocab import Partition

V, D = 103, 6


def assert_exact_topk(head, hidden, k):
    """The k values are the dense ones, and the classes are distinct and carry them (ties may swap)."""
    dense = head.log_prob(hidden)
    log_probs, classes = head.topk(hidden, k)
    torch.testing.assert_close(log_probs, dense.topk(k, dim=-1).values, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(dense.gather(-1, classes), log_probs, atol=1e-4, rtol=1e-4)
    assert all(len(set(row)) == k for row in classes.reshape(-1, k).tolist())


def test_log_prob_is_the_dense_distribution(make, dense, randomise):
    head = randomise(make(D, V, Partition.random(V)))
    hidden = torch.randn(2, 7, D)
    log_prob = head.log_prob(hidden)
    assert log_prob.shape == (2, 7, V)
    torch.testing.assert_close(log_prob.view(-1, V), dense(head, hidden).log_prob, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(2, 7))


@pytest.mark.parametrize("k", [1, 5, 30, V])
def test_topk(make, device, randomise, k):
    head = randomise(make(D, V, Partition.random(V))).to(device)
    assert_exact_topk(head, torch.randn(3, 4, D, device=device), k)


@given(
    v=st.integers(1, 60),
    data=st.data(),
    sharpness=st.sampled_from([0.0, 0.01, 1.0, 30.0]),
    seed=st.integers(0, 9),
)
def test_topk_of_any_distribution(make, randomise, v, data, sharpness, seed):
    """Peaked rows stop at one group, flat ones (sharpness 0: all classes tie) must open every group."""
    torch.manual_seed(seed)
    g = data.draw(st.integers(1, v))
    k = data.draw(st.integers(1, v))
    head = randomise(make(4, v, Partition.random(v, g, seed)))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(sharpness)
    hidden = torch.randn(6, 4)
    assert_exact_topk(head, hidden, k)
    best = head.log_prob(hidden).max(-1).values
    got = head.log_prob(hidden).gather(-1, head.predict(hidden).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(got, best, atol=1e-4, rtol=1e-4)


def test_topk_looks_past_the_most_probable_group(make_grouped):
    """Group 0 leads, but shares its probability among many; the best class is the lone peak of group 1."""
    head = make_grouped(D, 100, Partition(100, 10))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        each = head.group.centroids
        head.group.bias[:each], head.group.bias[each : 2 * each] = 5.0, 4.9
        head.shift[1, 3] = 50.0
    hidden = torch.zeros(1, D)
    assert head.predict(hidden).item() == 13
    assert_exact_topk(head, hidden, 12)


@pytest.mark.parametrize("block", [1, 300])
def test_decoding_does_not_depend_on_the_block_size(make, randomise, monkeypatch, block):
    monkeypatch.setattr("sqrtvocab.heads.base.BLOCK_ELEMENTS", block)
    head = randomise(make(D, V, Partition.random(V)))
    assert_exact_topk(head, 0.1 * torch.randn(7, D), 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_heads_decode_under_autocast(make_grouped, dtype):
    head = make_grouped(D, V, Partition.random(V))
    hidden = torch.randn(7, D)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        log_probs, classes = head.topk(hidden, 3)
        dense = head.log_prob(hidden)
    torch.testing.assert_close(log_probs, dense.gather(1, classes), atol=0.02, rtol=0.02)
    torch.testing.assert_close(log_probs, dense.topk(3).values, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("ordered", [False, True])
def test_nan_gives_some_class_not_an_index_error(make, ordered):
    """A diverged model must fail in its loss, not in an index (on CUDA that would end the process)."""
    head = make(D, 501, Partition.random(501, 100) if ordered else Partition(501, 100))
    log_probs, classes = head.topk(torch.full((4, D), torch.nan), 8)
    assert bool(log_probs.isnan().any())
    assert bool(((classes >= 0) & (classes < 501)).all())


def test_a_tiny_temperature_is_predict(make, randomise):
    head = randomise(make(D, V))
    hidden = torch.randn(8, D)
    for options in ({}, {"top_k": 5}):
        assert torch.equal(head.sample(hidden, temperature=1e-39, **options), head.predict(hidden))


def test_an_empty_batch(make):
    head = make(D, V)
    hidden = torch.zeros(0, 3, D)
    assert head.predict(hidden).shape == (0, 3)
    assert head.topk(hidden, 4)[1].shape == (0, 3, 4)
    assert head.sample(hidden).shape == (0, 3)
    assert head.sample(hidden, temperature=0.5).shape == (0, 3)
    assert head.log_prob(hidden).shape == (0, 3, V)


def assert_drawn_from(samples, probabilities):
    """Chi-square of the counts, within five standard deviations of what chance gives."""
    expected = probabilities.double() * len(samples)
    counts = torch.bincount(samples, minlength=len(probabilities)).double()
    assert counts[expected == 0].sum() == 0
    frequent = expected >= 5
    rest = (expected[~frequent].sum(), counts[~frequent].sum())
    cells = [(e, c) for e, c in [*zip(expected[frequent], counts[frequent], strict=True), rest] if e >= 5]
    statistic = sum((c - e) ** 2 / e for e, c in cells)
    freedom = len(cells) - 1
    assert freedom > 3
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("temperature", "top_k"), [(1.0, None), (0.6, None), (2.0, None), (1.0, 10), (0.7, 10)]
)
def test_sampling_frequencies(make, randomise, monkeypatch, temperature, top_k):
    """Two hidden states in turn, in many blocks: rows must not be mixed up."""
    monkeypatch.setattr("sqrtvocab.heads.base.BLOCK_ELEMENTS", 50_000)
    assert_samples(randomise(make(D, 41, Partition.random(41))), temperature, top_k)


@pytest.mark.parametrize(("temperature", "top_k"), [(0.6, None), (1.0, 10), (0.7, 10)])
def test_sampling_frequencies_of_few_classes(
    make_grouped, randomise, few_are_not_searched, temperature, top_k
):
    assert_samples(randomise(make_grouped(D, 41, Partition.random(41))), temperature, top_k)


def assert_samples(head, temperature, top_k):
    hidden = 0.3 * torch.randn(2, D)
    logits = head.log_prob(hidden) / temperature
    if top_k is not None:
        logits = torch.where(logits >= logits.topk(top_k).values[:, -1:], logits, -torch.inf)
    samples = head.sample(hidden.repeat(15_000, 1), temperature=temperature, top_k=top_k)
    for row in (0, 1):
        assert_drawn_from(samples[row::2], logits[row].softmax(-1).detach())


def test_sampling_follows_the_generator_alone(make, device):
    head = make(D, V).to(device)
    hidden = torch.randn(50, D, device=device)
    for options in ({}, {"temperature": 0.5}, {"top_k": 7}):
        draws = []
        for _ in range(2):
            torch.manual_seed(len(draws))
            generator = torch.Generator(device).manual_seed(4)
            draws.append(head.sample(hidden, generator=generator, **options))
        assert torch.equal(*draws)
        assert len(set(draws[0].tolist())) > 1


def test_temperature_zero_is_predict(make, randomise):
    head = randomise(make(D, V))
    hidden = torch.randn(8, D)
    assert torch.equal(head.sample(hidden, temperature=0), head.predict(hidden))


def test_decoding_keeps_no_graph(make):
    head = make(D, V)
    hidden = torch.randn(4, D, requires_grad=True)
    assert not head.topk(hidden, 3)[0].requires_grad
    assert head.log_prob(hidden).requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda head, h: head.topk(h, 0), "k must be between 1 and num_classes = 103, got 0"),
        (lambda head, h: head.topk(h, 104), "got 104"),
        (lambda head, h: head.sample(h, temperature=-1), "temperature"),
        (lambda head, h: head.sample(h, temperature=float("nan")), "temperature"),
        (lambda head, h: head.sample(h, top_k=0), "top_k must be between 1"),
        (lambda head, h: head.topk(h, 2.5), r"k must be an integer, got 2\.5"),
        (lambda head, h: head.log_prob(h.double()), "hidden is torch.float64, the head's parameters are"),
        (lambda head, h: head.predict([1.0] * D), "hidden must be a tensor, got list"),
    ],
)
def test_bad_input(make, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(make(D, V), torch.randn(2, D))


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("limit", [1, 3, 40])
def test_a_proposal_tells_whether_few_classes_are_more_probable(make_grouped, sharpness, limit):
    torch.manual_seed(0)
    head = make_grouped(5, 101)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, sharpness)
    hidden = torch.randn(200, 5)
    classes, log_prob, is_among = head._propose(hidden, limit, torch.Generator().manual_seed(1))
    dense = head.log_prob(hidden)
    torch.testing.assert_close(log_prob, dense.gather(1, classes[:, None]).squeeze(1))
    # A class within rounding of the drawn one may count or not.
    near = 1e-5 * (1 + log_prob.abs())[:, None]
    fewest, most = ((dense > log_prob[:, None] + sign * near).sum(1) for sign in (1, -1))
    assert bool((is_among | (most >= limit)).all())
    assert bool((~is_among | (fewest < limit)).all())
    assert 0 < int(is_among.sum()) <= 200


@pytest.mark.parametrize("k", [1, 7])
def test_rows_whose_groups_are_alike_are_not_searched(make_grouped, k, monkeypatch):
    torch.manual_seed(0)
    head, hidden = make_grouped(5, 1000), torch.randn(30, 5)
    with torch.no_grad():
        head.group.weight.normal_(0, 0.01)
    opened = []
    monkeypatch.setattr(head, "_open", lambda *args: opened.append(args))
    monkeypatch.setattr("sqrtvocab.heads.base.BLOCK_ELEMENTS", 30 * 40 * 3)  # several blocks of groups
    log_probs, classes = head.topk(hidden, k)
    want = head.log_prob(hidden).topk(k)
    assert not opened
    torch.testing.assert_close(log_probs, want.values)
    torch.testing.assert_close(head.log_prob(hidden).gather(1, classes), want.values)


@pytest.mark.parametrize(("v", "k", "is_searched"), [(1000, 1, False), (5000, 1, True), (5000, 50, False)])
def test_few_classes_are_not_searched(make_grouped, few_are_not_searched, monkeypatch, v, k, is_searched):
    """All their logits take less time than the steps of a search for the best ones."""
    head, hidden = make_grouped(5, v), 30 * torch.randn(3, 5)
    opened, open_groups = [], head._open
    monkeypatch.setattr(head, "_open", lambda *args: opened.append(args) or open_groups(*args))
    assert_exact_topk(head, hidden, k)
    assert bool(opened) == is_searched


def test_few_classes_are_drawn_from_all_their_logits(make_grouped, few_are_not_searched):
    assert make_grouped(5, 1000)._propose(torch.randn(3, 5), 50, None) is None
    assert make_grouped(5, 9000)._propose(torch.randn(3, 5), 50, None) is not None
