"""What is peculiar to prototypes: losses among the rows of a batch, classes learnt from examples, probing."""

import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import run_ranks
from torch._subclasses import FakeTensorMode

from sqrtvocab import PrototypeHead, make_head
from sqrtvocab.heads import prototype

V, D = 40, 6


def known_head(v=V, d=D, **options):
    head = PrototypeHead(d, v, **options)
    head.learn_classes(torch.randn(v, d), torch.arange(v))
    return head


def batch(classes=5, each=2, v=V, d=D):
    target = torch.randperm(v)[:classes].repeat(each)
    return torch.randn(len(target), d, requires_grad=True), target


# ---- the training loss ----


def loss_row_by_row(hidden, target, log_scale):
    """As the text defines it, a row at a time."""
    units = [row / row.norm() for row in hidden]
    scale = 20 * (10 * log_scale).exp()
    losses = []
    for i, label in enumerate(target.tolist()):
        own = [units[j] for j, other in enumerate(target.tolist()) if other == label and j != i]
        positive = scale * units[i] @ (sum(own) / len(own))
        total = positive.exp()
        for rival in set(target.tolist()) - {label}:
            rows = [units[j] for j, other in enumerate(target.tolist()) if other == rival]
            total = total + sum((scale * units[i] @ row).exp() for row in rows) / len(rows)
        losses.append(total.log() - positive)
    return torch.stack(losses)


@pytest.mark.parametrize("target", [[3, 3, 9, 9], [3, 9, 3, 9, 1, 1, 1, 9], [4, 4]], ids=str)
def test_the_loss_is_among_the_classes_of_the_batch(target, assert_same_gradients):
    head = PrototypeHead(D, V).double()
    with torch.no_grad():
        head.log_scale.fill_(-0.07)
    target = torch.tensor(target)
    hidden = torch.randn(len(target), D, dtype=torch.float64, requires_grad=True)
    out = head(hidden, target, reduction="none")
    want = loss_row_by_row(hidden, target, head.log_scale)
    torch.testing.assert_close(out.loss, want)
    assert_same_gradients(head, hidden, out.loss, want, tolerance=1e-8)
    torch.testing.assert_close(head(hidden, target).loss, want.mean())


def test_rows_that_do_not_count_are_no_candidates_and_are_not_remembered():
    head, other = PrototypeHead(D, V), PrototypeHead(D, V)
    hidden, target = batch()
    more = torch.cat([torch.randn(3, D), hidden])
    ignored = torch.cat([torch.full((3,), -100), target])
    torch.testing.assert_close(head(more, ignored).loss, other(hidden, target).loss)
    torch.testing.assert_close(head.vectors, other.vectors)
    assert torch.equal(head.known, other.known)
    assert not head.known[0] or 0 in target.tolist()
    fresh = PrototypeHead(D, V)
    assert fresh(hidden, torch.full_like(target, -100)).loss.isnan()
    assert not fresh.known.any()


def test_a_class_with_one_row_is_named_with_the_way_out():
    message = (
        r"class 7 has a single row .* --images-of-a-class 2\); for the exact loss of any batch call eval"
    )
    with pytest.raises(ValueError, match=message):
        PrototypeHead(D, V)(torch.randn(3, D), torch.tensor([1, 1, 7]))


@pytest.mark.parametrize(
    "options", [{"label_smoothing": 0.1}, {"weight": torch.ones(V)}, {"target_weight": torch.ones(10, 1)}]
)
def test_what_training_does_not_take(options):
    hidden, target = batch()
    if "target_weight" in options:
        target = target.unsqueeze(1)
    with pytest.raises(ValueError, match="prototypes are trained without"):
        PrototypeHead(D, V)(hidden, target, **options)


def test_drawn_classes_estimate_the_sum_over_all_without_bias():
    """exp(loss) is Z / exp(own), linear in the estimate of Z: its mean over draws is the exact one."""
    head = known_head(samples=8)
    hidden, target = batch(classes=4)
    stored = head.vectors.clone()
    known = head.known
    known[torch.tensor([c for c in range(V) if c not in target.tolist()][:5])] = False  # not drawn
    ratios = []
    for _ in range(800):
        head.vectors.copy_(stored)  # a step overwrites those of the batch
        ratios.append(head(hidden, target, reduction="none").loss.detach().exp())
    units, scale = F.normalize(hidden, dim=1).detach(), 20.0
    exact = PrototypeHead(D, V)(hidden, target, reduction="none").loss.detach().exp()  # those of the batch
    partner = (units * units.roll(4, 0)).sum(1)
    others = torch.tensor([c for c in range(V) if c not in target.tolist() and known[c]])
    rest = (scale * units @ stored[others].T - scale * partner.unsqueeze(1)).exp().sum(1)
    means = torch.stack(ratios)
    error = means.std(0) / math.sqrt(len(ratios))
    assert bool(((means.mean(0) - exact - rest).abs() < 5 * error + 1e-4).all())
    assert bool((rest > 10 * error).any())


def test_no_more_samples_than_classes():
    with pytest.raises(ValueError, match="samples is 41, but there are only num_classes = 40"):
        PrototypeHead(D, V, samples=41)
    head = PrototypeHead(D, V, samples=V)  # and with nothing known there is nothing to draw
    hidden, target = batch()
    torch.testing.assert_close(head(hidden, target).loss, PrototypeHead(D, V)(hidden, target).loss)


def test_training_leaves_gradients_on_rows_only():
    head = PrototypeHead(D, V)
    hidden, target = batch()
    head(hidden, target).loss.backward()
    assert bool((hidden.grad != 0).any())
    assert [name for name, _ in head.named_parameters()] == ["log_scale"]
    assert head.log_scale.grad != 0


def test_a_training_step_without_data():
    """What the trainer asks before the first step: does it fit into memory?"""
    with FakeTensorMode():
        head = PrototypeHead(D, V, samples=3)
        hidden, target = torch.randn(12, D, requires_grad=True), torch.randint(V, (12,))
        head(hidden, target).loss.backward()
    assert hidden.grad.shape == hidden.shape


def test_a_training_step_is_one_graph():
    torch.compiler.reset()
    head, twin = PrototypeHead(D, V), PrototypeHead(D, V)
    hidden, target = batch()
    want = twin(hidden, target).loss
    got = torch.compile(head, fullgraph=True, backend="aot_eager")(hidden, target).loss
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(head.vectors, twin.vectors)


# ---- what is remembered ----


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_classes_become_the_means_of_their_rows(momentum):
    head = PrototypeHead(D, V, momentum=momentum)
    before = torch.randn(D)
    head.learn_classes(before[None], torch.tensor([9]))
    hidden, target = torch.randn(4, D), torch.tensor([9, 3, 9, 3])
    head(hidden, target)
    units = F.normalize(hidden, dim=1)
    new = F.normalize(units[0] + units[2], dim=0)
    want = F.normalize(momentum * F.normalize(before, dim=0) + (1 - momentum) * new, dim=0)
    torch.testing.assert_close(head.vectors[9], want)
    torch.testing.assert_close(head.vectors[3], F.normalize(units[1] + units[3], dim=0))
    assert head.known.nonzero().flatten().tolist() == [3, 9]


def test_unknown_classes_have_no_probability():
    head = PrototypeHead(D, V).eval()
    hidden = torch.randn(3, D)
    torch.testing.assert_close(head.log_prob(hidden).exp(), torch.full((3, V), 1 / V))  # none is known
    head.learn_classes(torch.randn(2, D), torch.tensor([4, 7]))
    probabilities = head.log_prob(hidden).exp()
    assert probabilities.nonzero()[:, 1].unique().tolist() == [4, 7]
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))
    assert set(head.sample(hidden.repeat(50, 1)).tolist()) <= {4, 7}
    assert head(hidden, torch.tensor([4, 7, 0]), reduction="none").loss.isinf().tolist() == [
        False,
        False,
        True,
    ]
    head.forget_classes()
    assert not head.known.any()


def test_the_temperature_is_the_one_of_least_loss():
    head = known_head().eval()
    target = torch.arange(V)
    hidden = head.vectors + 0.6 * torch.randn(V, D)
    learnt = head(hidden, target).loss
    head.fit_temperature(hidden, target)
    best = head(hidden, target).loss
    assert best < learnt
    for factor in (0.97, 1.03):
        scale = head.fitted_scale.clone()
        head.fitted_scale.mul_(factor)
        assert head(hidden, target).loss > best
        head.fitted_scale.copy_(scale)
    head.train()
    assert head._scale().item() == 20.0  # training goes on with its own


def test_half_the_bytes():
    head, half = PrototypeHead(D, V), PrototypeHead(D, V, storage="float16")
    vectors, hidden = torch.randn(V, D), torch.randn(9, D)
    for one in (head, half):
        one.learn_classes(vectors, torch.arange(V))
        one.eval()
    assert half.vectors.nbytes * 2 == head.vectors.nbytes
    torch.testing.assert_close(half.log_prob(hidden), head.log_prob(hidden), atol=0.05, rtol=0.01)
    with pytest.raises(ValueError, match="storage must be a number format such as float16, got 'int8'"):
        PrototypeHead(D, V, storage="int8")


@pytest.mark.parametrize("k", [1, 5, 40])
def test_the_best_of_many_slices_are_the_best_of_all(k, monkeypatch):
    monkeypatch.setattr("sqrtvocab.heads.prototype.SLICE", 7)  # the last of 50 classes is alone in its own
    head = PrototypeHead(D, 50).eval()
    head.learn_classes(torch.randn(43, D), torch.arange(7, 50))  # of the first slice no class is known
    head.fitted_scale.fill_(500.0)  # so sharp that most classes are below the least float
    hidden = torch.randn(9, D)
    log_probs, classes = head.topk(hidden, k)
    expected = head.double().log_prob(hidden.double())
    torch.testing.assert_close(log_probs.double(), expected.topk(k).values, atol=1e-4, rtol=1e-6)
    torch.testing.assert_close(expected.gather(1, classes), expected.topk(k).values)


# ---- further classes ----


def test_classes_are_added_without_training():
    head = known_head().eval()
    vectors, hidden = torch.randn(3, D), torch.randn(5, D)
    more = head.add_classes(vectors, ["x", "y", "z"], [f"class {i}" for i in range(V)])
    assert more.num_classes == V + 3
    assert not more.training
    logits = 20 * F.normalize(hidden, dim=1) @ F.normalize(torch.cat([head.vectors, vectors]), dim=1).T
    torch.testing.assert_close(more.log_prob(hidden), logits.log_softmax(1), atol=1e-5, rtol=1e-5)
    assert more.predict(vectors).tolist() == [V, V + 1, V + 2]


def test_classes_that_cannot_be_added():
    head = known_head()
    with pytest.raises(ValueError, match=r"vectors must have shape \[M, 6\], .* got \[2, 7\]"):
        head.add_classes(torch.randn(2, 7))
    with pytest.raises(ValueError, match="there is a class 'b' already"):
        head.add_classes(torch.randn(2, D), ["c", "b"], ["a", "b"])
    with pytest.raises(ValueError, match="there is a class 'c' already"):
        head.add_classes(torch.randn(2, D), ["c", "c"])
    with pytest.raises(ValueError, match="2 vectors, but 1 names"):
        head.add_classes(torch.randn(2, D), ["c"])
    with pytest.raises(ValueError, match=r"vectors must have shape \[1, 6\]"):
        head.learn_classes(torch.randn(2, D), torch.tensor([1]))
    with pytest.raises(IndexError, match="observed values from 40 to 40"):
        head.learn_classes(torch.randn(1, D), torch.tensor([V]))


# ---- hard classes ----


def test_hard_classes_are_the_nearest(monkeypatch):
    monkeypatch.setattr(prototype, "HARD", 7)
    monkeypatch.setattr("sqrtvocab.heads.base.BLOCK_ELEMENTS", 60)
    head = PrototypeHead(D, V)
    classes, vectors = torch.randperm(V)[:25], torch.randn(25, D)
    head.find_hard_classes(vectors, classes)
    table = head.hard_classes
    used = table[table[:, 0] >= 0]
    assert len(used) == 7
    units = F.normalize(vectors, dim=1)
    where = {label: i for i, label in enumerate(classes.tolist())}
    for first, *near in used.tolist():
        order = (units @ units[where[first]]).argsort(descending=True).tolist()
        assert [where[first], *(where[c] for c in near)] == order[: 1 + prototype.NEAREST]
    head.find_hard_classes(vectors[:3], classes[:3])  # too few for a row
    assert bool((head.hard_classes == -1).all())


# ---- probing ----


def clustered_head(v=400, d=8, spread=0.15):
    centres = F.normalize(torch.randn(20, d), dim=1)
    head = PrototypeHead(d, v)
    head.learn_classes(centres[torch.arange(v) % 20] + spread * torch.randn(v, d), torch.arange(v))
    return head.eval()


def test_probing_all_groups_is_exact():
    head = clustered_head()
    hidden = torch.randn(2, 5, 8)
    found = head.topk(hidden, 4, probe=20)
    log_probs, classes = head.topk(hidden, 4)
    assert torch.equal(found.classes, classes)
    torch.testing.assert_close(found.log_probs, log_probs, atol=1e-4, rtol=1e-4)
    assert bool(found.certain.all())


@pytest.mark.parametrize("spread", [0.02, 0.15, 1.0])
def test_what_is_certain_is_right(spread):
    head = clustered_head(spread=spread)
    head.init_prior(torch.randint(1, 9, (400,)))
    hidden = F.normalize(head.vectors[::3] + 0.1 * torch.randn(134, 8), dim=1)
    found = head.topk(hidden, 3, probe=2)
    _, classes = head.topk(hidden, 3)
    right = (found.classes == classes).all(1)
    assert bool(right[found.certain].all())
    if spread == 0.02:
        assert found.certain.float().mean() > 0.5  # it does prove something
    if spread == 1.0:
        assert not found.certain.all()


def test_probing_follows_the_classes():
    head = clustered_head()
    before = head.probes()
    assert head.probes() is before
    head.learn_classes(torch.randn(1, 8), torch.tensor([3]))
    assert head.probes() is not before
    unknown = PrototypeHead(8, 400).eval()
    unknown.learn_classes(head.vectors[:30], torch.arange(30))
    assert set(unknown.topk(torch.randn(9, 8), 2, probe=3).classes.flatten().tolist()) <= set(range(30))


def test_probing_in_other_number_formats():
    head = clustered_head()
    hidden = torch.randn(9, 8)
    expected = head.topk(hidden, 4, probe=3)
    found = head.double().topk(hidden.double(), 4, probe=3)  # the groups are made anew
    assert torch.equal(found.classes, expected.classes)
    assert found.log_probs.dtype == torch.float64
    torch.testing.assert_close(found.log_probs.float(), expected.log_probs, atol=1e-4, rtol=1e-4)


def test_probing_too_little_or_too_much():
    head = clustered_head()
    for options, message in (
        ({"k": 1, "probe": 0}, "probe must be between 1 and the number of groups, 20"),
        ({"k": 1, "probe": 21}, "got 21"),
        ({"k": 41, "probe": 2}, "k must be between 1 and 40, what 2 groups hold; got 41"),
    ):
        with pytest.raises(ValueError, match=message):
            head.topk(torch.randn(1, 8), **options)


# ---- ranks ----


def rank_worker(rank, folder):
    torch.manual_seed(0)
    layer, head, rows, target = ranks_problem()
    mine = slice(0, 5) if rank == 0 else slice(5, 12)  # of different length
    out = head(layer(rows[mine]), target[mine], reduction="sum")
    out.loss.backward()
    gradients = [p.grad.clone() for p in (*layer.parameters(), *head.parameters())]
    for gradient in gradients:
        dist.all_reduce(gradient)
    losses = out.loss.detach().clone()
    dist.all_reduce(losses)
    if rank == 0:
        torch.save((losses, gradients, head.vectors, head.known), f"{folder}/ranks.pt")


def ranks_problem():
    layer, head = torch.nn.Linear(4, D), make_head("prototype", D, V)
    return layer, head, torch.randn(12, 4), torch.tensor([1, 2, 3, 1, -100, 5, 2, 3, 5, 8, 8, 8])


def test_two_ranks_have_the_loss_and_gradients_of_one_process(tmp_path):
    run_ranks(rank_worker, tmp_path, 2)
    losses, gradients, vectors, known = torch.load(tmp_path / "ranks.pt")
    torch.manual_seed(0)
    layer, head, rows, target = ranks_problem()
    loss = head(layer(rows), target, reduction="sum").loss
    loss.backward()
    torch.testing.assert_close(losses, loss.detach())
    torch.testing.assert_close(gradients, [p.grad for p in (*layer.parameters(), *head.parameters())])
    torch.testing.assert_close(vectors, head.vectors)
    assert torch.equal(known, head.known)
