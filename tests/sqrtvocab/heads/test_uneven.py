"""Groups of any sizes: every head with groups against its dense reference."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sqrtvocab import Partition, make_head
from sqrtvocab.heads import buckets

D = 6
SIZES = {
    "super-classes": (1, 3, 50, 20, 26),
    "one-huge": (1, 1, 90, 1, 2, 1, 1, 1, 1, 1),
    "many": (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 18),
    "one": (30,),  # these two are ordinary partitions
    "single-classes": (1,) * 12,
}
HEADS = {
    "grouped": {},
    "grouped-film": {"modulation": "film"},
    "grouped-both": {"modulation": "both"},
    "grouped-linear": {},
    "grouped-linear-tied": {},
    "grouped-low-rank": {"rank": 3},
}


def labels_of(sizes, shuffled=True):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return (
        labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
        if shuffled
        else labels
    )


def groups_of(labels):
    return [(labels == group).nonzero().flatten().tolist() for group in range(int(labels.max()) + 1)]


def make_uneven(name, labels, randomise=lambda head: head, **options):
    options = {**HEADS[name], **options}
    if name.endswith("tied"):
        options["weight"] = nn.Parameter(torch.randn(len(labels), D))
    kind = name.removesuffix("-film").removesuffix("-both").removesuffix("-tied")
    return randomise(make_head(kind, D, len(labels), partition=Partition.from_groups(labels), **options))


def reference(dense, head, hidden, labels):
    """The dense distribution; ordinary partitions have tables of their own shape."""
    groups = groups_of(labels) if head.is_uneven else None
    found = dense(head, hidden, groups)
    assert found.groups == groups_of(labels)
    return found


@pytest.fixture(params=HEADS, scope="session")
def name(request):
    return request.param


@pytest.mark.parametrize("shuffled", [False, True], ids=["in-order", "shuffled"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_loss_gradient_and_decoding(name, sizes, shuffled, dense, randomise, assert_same_gradients):
    labels = labels_of(sizes, shuffled)
    head = make_uneven(name, labels, randomise)
    v = len(labels)
    hidden = torch.randn(40, D, requires_grad=True)
    target = torch.randint(v, (40,))
    target[3] = -100
    truth = reference(dense, head, hidden, labels)
    out = head(hidden, target, reduction="none")
    kept = target != -100
    want = torch.where(kept, F.nll_loss(truth.log_prob, target, reduction="none"), 0.0)
    torch.testing.assert_close(out.loss, want, atol=1e-4, rtol=1e-5)
    entry = -truth.entry.gather(1, target.clamp(min=0)[:, None]).squeeze(1)
    torch.testing.assert_close(out.group_loss, torch.where(kept, entry, 0.0), atol=1e-4, rtol=1e-5)
    assert_same_gradients(head, hidden, out.loss, want, tolerance=5e-4)

    hidden = hidden.detach()
    torch.testing.assert_close(head.log_prob(hidden), truth.log_prob.detach(), atol=1e-4, rtol=1e-5)
    for k in (1, 4, v):
        values, classes = head.topk(hidden, k)
        best = truth.log_prob.detach().topk(k, dim=-1)
        torch.testing.assert_close(values, best.values, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(truth.log_prob.detach().gather(1, classes), values, atol=1e-4, rtol=1e-5)
        assert all(len(set(row)) == k for row in classes.tolist())
    in_group = head.guesses(hidden, target.clamp(min=0)).in_group
    own = labels[target.clamp(min=0)].unsqueeze(1) == labels  # [N, V]
    assert torch.equal(in_group, truth.log_prob.masked_fill(~own, -torch.inf).argmax(-1))
    mass = torch.zeros(40, len(sizes)).index_add(1, labels, truth.log_prob.detach().exp())
    torch.testing.assert_close(head.group_log_prob(hidden).exp(), mass, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(1, 3, 50, 20, 26), (9, 40, 17)], ids=["some-wide", "all-wide"])
def test_wide_groups_are_scored_by_themselves(
    name, sizes, dense, randomise, assert_same_gradients, monkeypatch
):
    monkeypatch.setattr(buckets, "WIDE", 8)
    monkeypatch.setattr(buckets, "PASSES", 1000)
    labels = labels_of(sizes)
    head = make_uneven(name, labels, randomise)
    hidden, target = torch.randn(40, D, requires_grad=True), torch.randint(len(labels), (40,))
    loss = head(hidden, target).loss
    want = F.nll_loss(reference(dense, head, hidden, labels).log_prob, target)
    torch.testing.assert_close(loss, want, atol=1e-4, rtol=1e-5)
    assert_same_gradients(head, hidden, loss, want, tolerance=5e-4)


def test_a_super_class_that_was_cut_is_as_probable_as_its_parts(randomise):
    labels = labels_of((1, 3, 50, 20, 26))
    partition = Partition.from_groups(labels, largest=8)
    head = randomise(make_head("grouped-linear", D, len(labels), partition=partition))
    hidden, whose = torch.randn(9, D), labels[partition.join(torch.arange(partition.num_groups), 0)]
    by_parts = torch.zeros(9, 5).index_add(1, whose, head.group_log_prob(hidden).exp())
    by_classes = torch.zeros(9, 5).index_add(1, labels, head.log_prob(hidden).exp())
    torch.testing.assert_close(by_parts, by_classes)


@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 8, 9, 20, 40]), min_size=1, max_size=8),
    seed=st.integers(0, 5),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_smoothing_and_soft_targets(name, sizes, seed, smoothing, dense, randomise):
    torch.manual_seed(seed)
    labels = labels_of(sizes)
    head = make_uneven(name, labels, randomise)
    v, hidden = len(labels), torch.randn(5, D)
    truth = reference(dense, head, hidden, labels)
    member, group = truth.log_prob - truth.entry, head.group_log_prob(hidden)
    spread = -(group * labels.bincount() / v).sum(-1, keepdim=True)  # [N, 1]
    of_class = -truth.log_prob  # [N, V] the loss of each class as the target
    if smoothing:
        own = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()  # [V, V]
        within = -(member @ own) / v
        of_class = (1 - smoothing) * of_class + smoothing * (spread + within)
    target, weight = torch.randint(v, (5, 3)), torch.rand(5, 3)
    hard = head(hidden, target[:, 0], reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(hard.loss, of_class.gather(1, target[:, :1])[:, 0], atol=1e-4, rtol=1e-5)
    soft = head(hidden, target, reduction="none", label_smoothing=smoothing, target_weight=weight)
    torch.testing.assert_close(soft.loss, (weight * of_class.gather(1, target)).sum(1), atol=1e-4, rtol=1e-5)
    rest = head(hidden, target, reduction="none", target_weight=weight / 3, rest="spread")
    plain = head(hidden, target, reduction="none", target_weight=weight / 3)
    left = 1 - (weight / 3).sum(1)
    torch.testing.assert_close(rest.loss - plain.loss, left * spread[:, 0], atol=1e-4, rtol=1e-5)


def test_topk_opens_groups_of_any_size(name, dense, randomise, monkeypatch):
    """With 64 groups peaked rows are finished before the dense distribution is needed."""
    torch.manual_seed(0)
    labels = labels_of([2, 5, 9, 17, 40, 3, 6, 8] * 8)
    head = make_uneven(name, labels, randomise)
    hidden = 9 * torch.randn(50, D)
    truth = reference(dense, head, hidden, labels).log_prob.topk(5, dim=-1)
    dense_rows, log_prob = [], head._log_prob
    monkeypatch.setattr(head, "_log_prob", lambda rows: dense_rows.append(len(rows)) or log_prob(rows))
    values, classes = head.topk(hidden, 5)
    assert sum(dense_rows) < 25
    torch.testing.assert_close(values, truth.values, atol=1e-3, rtol=1e-4)
    certain = (truth.values.diff(dim=-1).abs() > 1e-2).all(-1)
    assert torch.equal(classes[certain], truth.indices[certain])


def test_prior_is_exact(name):
    labels = labels_of(SIZES["super-classes"])
    head = make_uneven(name, labels)
    counts = torch.randint(1000, (len(labels),))
    head.init_prior(counts)
    want = (counts + 1.0) / (counts + 1.0).sum()
    torch.testing.assert_close(head.log_prob(torch.zeros(D)), want.log(), atol=1e-5, rtol=1e-5)


def test_samples_follow_the_distribution(name, randomise):
    torch.manual_seed(0)
    labels = labels_of((1, 3, 20, 10))
    head = make_uneven(name, labels, randomise)
    hidden = torch.randn(D) / 2
    drawn = head.sample(hidden.expand(20_000, D), generator=torch.Generator().manual_seed(0))
    expected = 20_000 * head.log_prob(hidden).exp()
    seen = drawn.bincount(minlength=len(labels)).float()
    often = expected > 5
    chi2 = ((seen - expected)[often] ** 2 / expected[often]).sum()
    assert chi2 < 2 * often.sum() + 30
    assert torch.equal(head.sample(hidden, temperature=0.0), head.predict(hidden))


def test_state_dicts(name, randomise):
    labels = labels_of(SIZES["super-classes"])
    head = make_uneven(name, labels, randomise)
    hidden = torch.randn(4, D)
    with torch.device("meta"):
        loaded = make_uneven(name, labels)
    loaded.load_state_dict(head.state_dict(), assign=True)
    torch.testing.assert_close(loaded.log_prob(hidden), head.log_prob(hidden))
    loss = copy.deepcopy(loaded)(hidden, torch.arange(4)).loss
    torch.testing.assert_close(loss, head(hidden, torch.arange(4)).loss)

    other = make_uneven(name, labels_of((50, 3, 1, 20, 26)))
    kind = name.removesuffix("-film").removesuffix("-both").removesuffix("-tied")
    equal = make_head(kind, D, 100, num_groups=5)
    for model, state, says in (
        (head, other, "5 groups of 50, 3, 1, 20 … classes, this partition has 5 of 1, 3, 50, 20 …"),
        (head, equal, "groups of equal sizes, this one has groups of uneven sizes"),
        (equal, head, "groups of uneven sizes, this one has groups of equal sizes"),
    ):
        with pytest.raises(ValueError, match=says) as error:
            nn.Sequential(model).load_state_dict(nn.Sequential(state).state_dict())
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("tied", [False, True])
def test_growth_and_an_old_layer(tied):
    torch.manual_seed(0)
    labels = labels_of(SIZES["super-classes"])
    head = make_uneven("grouped-linear-tied" if tied else "grouped-linear", labels)
    old, bias, hidden = torch.randn(100, D) / 2, torch.randn(100), torch.randn(300, D)
    assert head.init_from_linear(old, bias, hidden)
    flat = (hidden @ old.T + bias).log_softmax(-1)
    within = head.log_prob(hidden) - head.group_log_prob(hidden)[:, labels]
    mass = torch.zeros(300, 5).index_add(1, labels, flat.exp()).log()
    torch.testing.assert_close(within, flat - mass[:, labels], atol=1e-4, rtol=1e-4)
    assert F.kl_div(head.group_log_prob(hidden), mass, log_target=True, reduction="batchmean") < 0.1

    weight = nn.Parameter(torch.cat([head.weight.data, torch.randn(7, D)])) if tied else None
    grown = head.grow(107, weight)
    assert torch.equal(grown.partition.split(torch.arange(100))[0], labels)
    shift = grown.log_prob(hidden)[:, :100] - head.log_prob(hidden)
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), rtol=0, atol=2e-4)
    grown(hidden[:9], torch.arange(98, 107)).loss.backward()


def test_half_precision_and_other_ways_to_fail(name, randomise):
    labels = labels_of(SIZES["super-classes"])
    head = make_uneven(name, labels, randomise)
    hidden, target = torch.randn(9, D), torch.randint(100, (9,))
    exact = head(hidden, target).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = head(hidden, target).loss
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, exact, atol=0.2, rtol=0.1)
        loss.backward()
    half = copy.deepcopy(head).to(torch.bfloat16)
    assert half.predict(hidden.bfloat16()).shape == (9,)
    empty = head(hidden[:0], target[:0], reduction="sum").loss
    assert empty.item() == 0.0
    if name == "grouped-linear":
        with pytest.raises(ValueError, match='kernel must be "auto" or "loop"'):
            make_uneven(name, labels, kernel="tiles")


def test_the_cost_is_that_of_the_targets_group():
    labels = labels_of((1, 3, 50, 20, 26))
    head = make_uneven("grouped", labels)
    assert head.cost().logits == 5 + (1 + 9 + 2500 + 400 + 676) / 100
    assert head.cost((labels == 1).float()).logits == 5 + 3
    assert sum(p.numel() for p in head.parameters()) == 5 * D + 5 + 2 * 100 + 50 * D
