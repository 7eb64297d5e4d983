"""Heads split over ranks by FSDP2 compute what one process computes."""

import pytest
import torch
from ranks import run_ranks

from sqrtvocab import HEADS, make_head
from sqrtvocab.heads.sharding import shard_head

D, V, N = 8, 103, 10


def make(name):
    """In evaluation mode where the loss in training is another one, of classes drawn or of pairs of rows."""
    torch.manual_seed(0)
    head = make_head(name, D, V)
    head.learn_classes(torch.randn(V, D), torch.arange(V))
    return head.eval() if head.surrogate else head


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, D, generator=generator), torch.randint(V, (N,), generator=generator)


def worker(rank, folder, world_size):
    for name in HEADS:
        head = shard_head(make(name))
        hidden, target = batch()
        mine = slice(rank * N // world_size, (rank + 1) * N // world_size)
        share = (mine.stop - mine.start) * world_size / N  # FSDP averages over ranks
        for _ in range(2):
            head.zero_grad()
            (head(hidden[mine], target[mine]).loss * share).backward()
        gradients = [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in head.parameters()]
        decoded = [head.log_prob(hidden), head.predict(hidden), *head.topk(hidden, 5)]
        assert head.sample(hidden).shape == (N,)
        if rank == 0:
            torch.save([gradients, decoded], f"{folder}/{name}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_sharded_head_trains_and_decodes_as_a_whole_one(tmp_path, world_size):
    run_ranks(worker, tmp_path, world_size, world_size)
    for name in HEADS:
        head = make(name)
        hidden, target = batch()
        head(hidden, target).loss.backward()
        with torch.no_grad():
            decoded = [head.log_prob(hidden), head.predict(hidden), *head.topk(hidden, 5)]
        gradients, found = torch.load(tmp_path / f"{name}.pt")
        want = [parameter.grad for parameter in head.parameters()]
        torch.testing.assert_close(gradients, want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found, decoded, atol=1e-5, rtol=1e-5)
