"""What `mach` trains on: the cross entropies of its hashes, a bound of the exact loss."""

import pytest
import torch
import torch.nn.functional as F

from sqrtvocab import make_head

D, V, N = 6, 50, 11


def make(**options):
    head = make_head("mach", D, V, **{"hashes": 4, "buckets": 7, **options})
    with torch.no_grad():
        head.scores.weight.normal_()
        head.scores.bias.normal_()
    return head


def by_hash(head, hidden):
    """[N, B] for each hash."""
    return F.linear(hidden, head.scores.weight, head.scores.bias).split(head.buckets, dim=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_training_is_the_sum_of_the_cross_entropies(smoothing, assert_same_gradients):
    head = make()
    hidden, target = torch.randn(N, D, requires_grad=True), torch.randint(V, (N,))
    out = head(hidden, target, reduction="none", label_smoothing=smoothing).loss
    want = 0
    for logits, bucket in zip(by_hash(head, hidden), head.bucket.long(), strict=True):
        of_target = F.one_hot(bucket[target], head.buckets).float()
        of_all = F.one_hot(bucket, head.buckets).float().mean(0)
        want = want + F.cross_entropy(
            logits, (1 - smoothing) * of_target + smoothing * of_all, reduction="none"
        )
    torch.testing.assert_close(out, want)
    assert_same_gradients(head, hidden, out, want)


def test_it_is_a_bound_by_what_the_product_must_be_divided_by():
    head = make(hashes=8)
    assert len(head.bucket.unique(dim=1).T) == V  # no two classes share all buckets
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    bound = head(hidden, target, reduction="none").loss
    exact = head.eval()(hidden, target, reduction="none").loss
    product = torch.ones(N, V)
    for logits, bucket in zip(by_hash(head, hidden), head.bucket.long(), strict=True):
        product *= logits.softmax(-1)[:, bucket]
    assert bool((product.sum(1) < 1).all())
    torch.testing.assert_close(exact, bound + product.sum(1).log())


def test_exact_losses_come_in_blocks_of_rows(monkeypatch):
    head = make().eval()
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    want = head(hidden, target).loss
    monkeypatch.setattr("sqrtvocab.heads.base.BLOCK_ELEMENTS", 2 * V)
    torch.testing.assert_close(head(hidden, target).loss, want)
    torch.testing.assert_close(want, F.nll_loss(head.log_prob(hidden), target))


def test_a_prior_starts_the_hashes_at_their_marginals():
    head, counts = make(), torch.arange(1, V + 1)
    head.init_prior(counts, smoothing=0.0)
    torch.testing.assert_close(head.log_prob(torch.zeros(D)).exp(), counts / counts.sum())
    for logits, bucket in zip(by_hash(head, torch.zeros(1, D)), head.bucket.long(), strict=True):
        want = torch.zeros(head.buckets).index_add(0, bucket, counts / counts.sum())
        torch.testing.assert_close(logits[0].softmax(-1), want)


def test_buckets_are_equally_full_and_others_for_another_seed():
    head = make()
    for bucket in head.bucket:
        sizes = torch.bincount(bucket, minlength=7)
        assert int(sizes.max() - sizes.min()) <= 1
    assert torch.equal(head.bucket, make().bucket)
    other = make(seed=1)
    assert not torch.equal(head.bucket, other.bucket)
    other.load_state_dict(head.state_dict())  # the hashes travel with the weights
    assert torch.equal(head.bucket, other.bucket)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="buckets must be at most num_classes = 50, got 51"):
        make(buckets=51)
    with pytest.raises(ValueError, match="hashes must be at least 1, got 0"):
        make(hashes=0)
    with pytest.raises(ValueError, match="hashes must be at most 4096, got 10000000000000000000000"):
        make(hashes=10**22)
