"""Temperature, top-k, top-p and min-p: draws have the distribution that `transformers` would draw from."""

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from sqrtvocab import HEADS, Partition, make_head
from sqrtvocab.heads import sampling

V, D, DRAWS = 700, 5, 4000  # V: enough for the first look at 8 classes to be worth it
SETTINGS = [
    {"temperature": 0.5},
    {"temperature": 1.5},
    {"top_p": 0.7},
    {"top_p": 0.9, "temperature": 0.6},
    {"top_p": 0.8, "temperature": 1.4},
    {"min_p": 0.2},
    {"min_p": 0.05, "temperature": 0.7},
    {"top_p": 0.6, "min_p": 0.1},
    {"top_p": 0.99, "min_p": 0.3},
    {"top_k": 7, "top_p": 0.8, "min_p": 0.1, "temperature": 0.8},
    {"top_p": 1.0},
    {"top_p": 1e-9},
    {"min_p": 1.0},
    {"min_p": 0.0, "temperature": 0.9},
]


def reference(log_prob, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """[V] the distribution left, by the warpers of `transformers` in the order of `generate()`."""
    warpers = [TemperatureLogitsWarper(float(temperature))]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p is not None else []
    warpers += [MinPLogitsWarper(min_p)] if min_p is not None else []
    scores = log_prob[None].double()
    for warper in warpers:
        scores = warper(None, scores)
    return scores[0].softmax(-1)


def make(name, sharpness, v=V):
    torch.manual_seed(3)
    head = make_head(name, D, v, {"partition": Partition.random(v), "radices": (7, v // 7)})
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, sharpness)
        if head.from_examples:  # or all classes would tie
            head.learn_classes(torch.randn(v, D), torch.arange(v))
            head.log_scale.fill_(-0.15)
    return head.eval()


@pytest.mark.parametrize(("name", "sharpness"), [*((name, 1.2) for name in HEADS), ("grouped-linear", 0.3)])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_follow_the_distribution(name, settings, sharpness):
    head, hidden = make(name, sharpness), torch.randn(D, generator=torch.Generator().manual_seed(1))
    want = reference(head.log_prob(hidden), **settings)
    drawn = head.sample(hidden.expand(DRAWS, D), generator=torch.Generator().manual_seed(2), **settings)
    counts = torch.bincount(drawn, minlength=V).double()
    assert not counts[want == 0].any()  # nothing that was left out
    # Chi-square over the classes expected often enough, the others in one bin.
    often = want * DRAWS >= 5
    seen = torch.cat([counts[often], counts[~often].sum()[None]])
    expected = DRAWS * torch.cat([want[often], want[~often].sum()[None]])
    present = expected > 0
    statistic = ((seen - expected)[present] ** 2 / expected[present]).sum()
    freedom = max(1, int(present.sum()) - 1)
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 5  # five standard deviations


NARROW = [
    {"temperature": 0.5},
    {"min_p": 0.2},
    {"min_p": 0.05, "temperature": 0.7},
    {"top_p": 0.3, "temperature": 0.5},
    {"top_p": 0.99, "min_p": 0.3},
    {"top_k": 7, "top_p": 0.8},
]


@pytest.mark.parametrize("settings", NARROW, ids=str)
def test_few_rows_of_a_peaked_distribution_are_wide(settings, monkeypatch):
    head = make_head("grouped-linear", 64, 20_000)
    with torch.no_grad():
        head.group.weight.normal_(0, 0.6)
        head.weight.normal_(0, 0.6)
    wide = []
    dense = head._log_prob
    monkeypatch.setattr(head, "_log_prob", lambda rows: wide.append(len(rows)) or dense(rows))
    monkeypatch.setattr(sampling, "ROUNDS", 200)
    head.sample(torch.randn(200, 64), **settings)
    assert sum(wide) < 20


def test_bounds():
    head, hidden = make_head("grouped", D, V), torch.randn(2, D)
    for settings, message in (
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\], got 0.0"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, r"min_p must lie in \[0, 1\], got -0.1"),
        ({"min_p": float("nan")}, "min_p"),
    ):
        with pytest.raises(ValueError, match=message):
            head.sample(hidden, **settings)
