"""What `sampled` trains on: an estimate of the flat head's loss whose parts have the right expectations."""

import pytest
import torch
import torch.nn.functional as F

from sqrtvocab import make_head
from sqrtvocab.heads import sampled

D, V, N, GRID = 6, 53, 11, 200


@pytest.fixture(params=["uniform", "log-uniform"])
def order(request):
    return None if request.param == "uniform" else torch.randperm(V)


def make(samples, order):
    head = make_head("sampled", D, V, samples=samples, order=order)
    with torch.no_grad():
        head.rows.weight.normal_()
        head.shifts.weight.normal_()
    return head


@pytest.fixture
def through_all_draws(monkeypatch):
    """Every stratum draws its middle, GRID times, each time of another GRID-th."""

    def values(call):
        for i in range(GRID):
            u = (i + 0.5) / GRID
            monkeypatch.setattr(torch, "rand", lambda count, u=u, **_: torch.full((count,), u))
            yield call()

    return values


@pytest.mark.parametrize("samples", [1, 8, 30, V])
def test_a_class_is_drawn_as_often_as_expected(order, samples, through_all_draws):
    head = make(samples, order)
    times, expected = torch.zeros(V, dtype=torch.float64), torch.zeros(V, dtype=torch.float64)
    for drawn, log_expected in through_all_draws(lambda: head._draw(torch.device("cpu"))):
        assert len(drawn) == samples
        times += torch.bincount(drawn, minlength=V)
        expected[drawn] = log_expected.exp()
    times /= GRID
    torch.testing.assert_close(times, expected, atol=2.5 / GRID * max(1, 8 / samples), rtol=0)
    assert expected.sum() == pytest.approx(samples, rel=0.02)
    assert expected.max() <= 1 + 1e-9
    if order is not None:  # frequent classes are drawn no less often than rarer ones
        assert bool((expected[order].diff() <= 1e-9).all())


@pytest.mark.parametrize(("num_classes", "samples"), [(53, 1), (53, 52), (1000, 30), (1000, 700), (1, 1)])
def test_how_many_ranks_are_always_drawn(num_classes, samples):
    """Against the definition: capped shares, scaled until they sum up to M."""
    share = [torch.tensor((r + 2) / (r + 1), dtype=torch.float64).log() for r in range(num_classes)]
    share = torch.stack(share)
    capped = 0
    while capped < samples - 1 and (samples - capped) * share[capped] > share[capped:].sum():
        capped += 1
    assert sampled.always_drawn(num_classes, samples) == capped


def test_the_estimated_sum_has_no_bias(order, through_all_draws):
    head = make(9, order)
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    ratios = list(
        through_all_draws(lambda: head(hidden, target, reduction="none").loss.detach().exp().double())
    )
    # exp(loss) is the estimate of Z over exp(logit of the target), which is exact
    want = F.cross_entropy(F.linear(hidden, head.weight, head.bias), target, reduction="none").exp()
    torch.testing.assert_close(torch.stack(ratios).mean(0).float(), want, rtol=0.03, atol=0)
    assert len({round(float(ratio[0]), 6) for ratio in ratios}) > 5  # they do differ


def test_the_gradient_comes_near_the_exact_one(order):
    head = make(1, order)
    hidden, target = torch.randn(N, D) / 3, torch.randint(V, (N,))
    exact = torch.autograd.grad(head.eval()(hidden, target).loss, head.rows.weight)[0]
    head.train()

    def error(samples):
        head.samples = samples
        mean = torch.zeros_like(exact)
        for _ in range(150):
            mean += torch.autograd.grad(head(hidden, target).loss, head.rows.weight)[0] / 150
        return float((mean - exact).norm() / exact.norm())

    few, many, all_of_them = error(2), error(40), error(V)
    assert many < few / 2
    assert many < 0.15  # most of it noise of the 150 draws
    assert all_of_them < 1e-5


def test_the_loss_of_too_few_is_low_not_high(order):
    """log is concave: the estimate lies below the loss on average."""
    head = make(4, order)
    hidden, target = torch.randn(64, D), torch.randint(V, (64,))
    losses = [float(head(hidden, target).loss.detach()) for _ in range(100)]
    assert sum(losses) / 100 < float(head.eval()(hidden, target).loss.detach())


def test_smoothing_estimates_the_mean_logit(order, through_all_draws):
    head = make(9, order)
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    gaps = [
        head(hidden, target, reduction="none", label_smoothing=0.5).loss
        - head(hidden, target, reduction="none").loss
        for _ in through_all_draws(lambda: None)
    ]
    logits = F.linear(hidden, head.weight, head.bias)
    want = 0.5 * (logits.gather(1, target[:, None]).squeeze(1) - logits.mean(1))
    torch.testing.assert_close(torch.stack(gaps).mean(0), want, atol=0.05, rtol=0.05)


def test_shapes_that_do_not_depend_on_data_give_the_same_loss(order, monkeypatch):
    head = make(20, order)
    hidden, target = torch.randn(N, D), torch.randint(5, (N,))  # classes repeat
    out = []
    for is_compiling in (False, True):
        torch.manual_seed(3)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda answer=is_compiling: answer)
        loss = head(hidden, target, label_smoothing=0.1).loss
        out.append((loss, *torch.autograd.grad(loss, list(head.parameters()))))
    torch.testing.assert_close(*out)


def test_soft_targets_and_the_rest_are_exact_where_all_classes_are_drawn(order):
    head = make(V, order)
    hidden, target, share = torch.randn(N, D), torch.randint(V, (N, 3)), torch.rand(N, 3) / 3
    trained = head(hidden, target, target_weight=share, rest="spread").loss
    torch.testing.assert_close(trained, head.eval()(hidden, target, target_weight=share, rest="spread").loss)


def test_only_the_rows_that_took_part_have_a_gradient(order):
    head = make(4, order)
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    gradients = []
    for _ in range(2):  # dense, then sparse
        torch.manual_seed(5)
        head.zero_grad()
        head(hidden, target).loss.backward()
        gradients.append([parameter.grad for parameter in head.parameters()])
        assert head.give_sparse_gradients() == list(head.parameters())
    dense, sparse = gradients
    for one, other in zip(dense, sparse, strict=True):
        assert other.is_sparse
        torch.testing.assert_close(other.to_dense(), one)
        met = set(other.coalesce().indices()[0].tolist())
        assert set(target.tolist()) <= met
        assert len(met) <= len(target.unique()) + 4


def test_evaluation_draws_nothing():
    head = make(4, None).eval()
    before = torch.get_rng_state()
    head(torch.randn(0, D), torch.zeros(0, dtype=torch.long))
    head(torch.ones(N, D), torch.zeros(N, dtype=torch.long), label_smoothing=0.1)
    assert torch.equal(before, torch.get_rng_state())


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="samples must be at most num_classes = 53, got 54"):
        make_head("sampled", D, V, samples=54)
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        make_head("sampled", D, V, samples=0)
    with pytest.raises(NotImplementedError, match="SampledHead cannot grow"):
        make_head("sampled", D, V).grow(60)
