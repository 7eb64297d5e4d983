"""Peak memory of a computation without doing it: tensors that have a shape but no data.

A training step that needs 12 GB of a GPU is measured in seconds on a laptop. What an operator allocates and
frees inside itself is not seen; every tensor that one operator hands to another is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _LiveStorages(TorchDispatchMode):
    """Adds up the storages that operators return, until nobody holds them any more."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def simulated_peak(make_step: Callable[[], Callable[[], Any]]) -> int:
    """The most bytes held at one time by what `make_step` makes (a model, its optimiser) and by two steps.

    Args:
        make_step: builds everything and returns a step. It runs with fake tensors: it must not look at data.
    """
    with FakeTensorMode(), _LiveStorages() as storages:
        step = make_step()
        step()
        step()  # by now the optimiser has its moments
        return storages.peak
