"""The promise of the whole library: no N·V tensor in training, evaluation loss, predict or topk."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sqrtvocab import Partition, make_head
from sqrtvocab.measure import allocated_by

N, D, V = 256, 8, 50_257  # N·V is three of decoding's blocks

LEAN = {
    "flat-chunked": lambda: make_head("flat", D, V, chunk_size=16),
    "grouped": lambda: make_head("grouped", D, V),
    "grouped-film": lambda: make_head("grouped", D, V, modulation="film"),
    "grouped-both": lambda: make_head("grouped", D, V, modulation="both"),
    "grouped-linear": lambda: make_head("grouped-linear", D, V, partition=Partition.random(V)),
    "grouped-linear-loop": lambda: make_head("grouped-linear", D, V, kernel="loop"),
    "grouped-linear-tiles": lambda: make_head("grouped-linear", D, V, kernel="tiles"),
    "grouped-linear-tied": lambda: make_head(
        "grouped-linear", D, V, weight=torch.nn.Parameter(torch.randn(V, D))
    ),
    "adaptive": lambda: make_head("adaptive", D, V),
    "factored": lambda: make_head("factored", D, V, radices=(29, 1733)),
}


class Largest(TorchDispatchMode):
    """The largest tensor that any operator returned."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


def evaluate(head, hidden, target):
    with torch.no_grad():
        head(hidden, target)


ACTIONS = {
    "train": lambda head, h, y: head(h, y).loss.backward(),
    "train-soft": lambda head, h, y: head(
        h, y.unsqueeze(1).expand(-1, 3), target_weight=torch.ones(N, 3), rest="spread"
    ).loss.backward(),
    "train-smoothed": lambda head, h, y: head(h, y, label_smoothing=0.1).loss.backward(),
    "evaluate": evaluate,
    "predict": lambda head, h, y: head.predict(h),
    "topk": lambda head, h, y: head.topk(h, 10),
    "sample": lambda head, h, y: head.sample(h),
    "sample-top-k": lambda head, h, y: head.sample(h, temperature=0.5, top_k=10),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", LEAN)
def test_no_tensor_of_all_logits(name, action):
    head = LEAN[name]()
    hidden = torch.randn(N, D, requires_grad=True)
    target = torch.randint(V, (N,))
    with Largest() as largest:
        ACTIONS[action](head, hidden, target)
    assert 0 < largest.elements < N * V
    # Operators allocate inside too, out of the mode's sight; the allocator sees all.
    for parameter in head.parameters():
        parameter.grad = None
    assert allocated_by(lambda: ACTIONS[action](head, hidden, target)).largest < N * V * 4


@pytest.mark.parametrize("name", LEAN)
def test_nor_when_every_class_ties_and_all_groups_are_opened(name):
    head = LEAN[name]()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
    hidden = torch.zeros(N, D)
    assert allocated_by(lambda: head.topk(hidden, 10)).largest < N * V * 4


def test_the_flat_head_does_build_them():
    """So the checks above can fail."""
    head = make_head("flat", D, V)
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    with Largest() as largest:
        head(hidden, target)
    assert largest.elements == N * V
    assert allocated_by(lambda: head(hidden, target)).largest == N * V * 4
