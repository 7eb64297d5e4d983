"""Random targets for the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

# torch is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from torch import Tensor


def make_targets(kind: str, n: int, num_classes: int, device: str) -> Tensor:
    """[N] classes, "uniform" or "zipf": as frequent as words are, class 0 the most frequent."""
    import torch

    if kind == "uniform":
        return torch.randint(num_classes, (n,), device=device)
    weights = 1.0 / torch.arange(1, num_classes + 1, dtype=torch.float64)
    return torch.multinomial(weights, n, replacement=True).to(device)
