"""What is special to the factored head: any radices, the prior of marginals, exact smoothing."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sqrtvocab import make_head


@st.composite
def attribute_spaces(draw):
    radices = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    while math.prod(radices) > 200:
        radices.pop()
    return tuple(radices)


@given(radices=attribute_spaces(), sharpness=st.sampled_from([0.0, 1.0, 30.0]), data=st.data())
def test_any_radices(dense, randomise, assert_same_gradients, radices, sharpness, data):
    """Loss with smoothing, top-k and their gradients against the product spelled out class by class."""
    v = math.prod(radices)
    torch.manual_seed(data.draw(st.integers(0, 9)))
    head = randomise(make_head("factored", 4, v, radices=radices))
    with torch.no_grad():
        head.options.weight.mul_(sharpness)
    hidden = torch.randn(5, 4, requires_grad=True)
    target = torch.randint(v, (5,))
    log_prob = dense(head, hidden).log_prob
    torch.testing.assert_close(head.log_prob(hidden), log_prob, atol=1e-4, rtol=1e-4)
    want = F.cross_entropy(log_prob, target, label_smoothing=0.1)
    out = head(hidden, target, label_smoothing=0.1)
    torch.testing.assert_close(out.loss, want, atol=1e-4, rtol=1e-4)
    assert_same_gradients(head, hidden, out.loss, want, tolerance=1e-3)
    k = data.draw(st.integers(1, v))
    found, classes = head.topk(hidden, k)
    torch.testing.assert_close(found, log_prob.topk(k).values, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(log_prob.gather(1, classes), found, atol=1e-4, rtol=1e-4)
    assert all(len(set(row)) == k for row in classes.tolist())


def test_the_first_attribute_is_the_most_significant():
    head = make_head("factored", 4, 24, radices=(2, 3, 4))
    with torch.no_grad():
        head.options.weight.zero_()
        head.options.bias.copy_(torch.tensor([0, 9, 0, 0, 9, 0, 9, 0, 0]).float())  # options 1, 2 and 1
    assert head.predict(torch.zeros(4)).item() == (1 * 3 + 2) * 4 + 1
    assert head.options.out_features == 9


def test_the_prior_is_the_product_of_the_marginals():
    head = make_head("factored", 4, 6, radices=(2, 3))
    counts = torch.tensor([5.0, 0, 1, 2, 2, 0])
    head.init_prior(counts)
    joint = ((counts + 1) / (counts + 1).sum()).view(2, 3)
    want = joint.sum(1).outer(joint.sum(0)).flatten()
    assert not torch.allclose(want, joint.flatten())  # the attributes are not independent here
    torch.testing.assert_close(head.log_prob(torch.zeros(4)).exp(), want)
    independent = torch.tensor([0.3, 0.7]).outer(torch.tensor([0.2, 0.2, 0.6])).flatten()
    head.init_prior(1000 * independent, smoothing=0.0)
    torch.testing.assert_close(head.log_prob(torch.zeros(4)).exp(), independent)


def test_samples_have_independent_attributes(randomise):
    head = randomise(make_head("factored", 4, 12, radices=(3, 4)))
    hidden = torch.randn(4)
    classes = head.sample(hidden.repeat(20_000, 1))
    share = torch.bincount(classes, minlength=12) / 20_000
    torch.testing.assert_close(share, head.log_prob(hidden).exp().detach(), atol=0.015, rtol=0)


def test_one_attribute_is_the_flat_head():
    head, flat = make_head("factored", 4, 10), make_head("flat", 4, 10)
    with torch.no_grad():
        flat.weight.copy_(head.options.weight)
    hidden, target = torch.randn(7, 4), torch.randint(10, (7,))
    torch.testing.assert_close(head(hidden, target).loss, flat(hidden, target).loss)


@pytest.mark.parametrize("option", ["partition", "num_groups"])
def test_it_has_no_groups(option):
    with pytest.raises(TypeError, match=f"'factored' has no option '{option}'; its options are radices"):
        make_head("factored", 4, 10, **{option: 2})
