"""Adam or SGD for a model with any head: what the head knows about its rows and rates is followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sqrtvocab.errors import UserError
from sqrtvocab.heads import Head
from sqrtvocab.training.runtime import Runtime

ParameterGroup = dict[str, Any]


def make_adam(
    groups: Iterable[ParameterGroup], head: Head, kind: type[Optimizer] = torch.optim.Adam, **options: Any
) -> Optimizer:
    """An optimiser for `groups` of parameters, those of `head` among them.

    Parameters that the head gives sparse gradients for go to `torch.optim.SparseAdam`: the moments of a row
    change only in the steps that meet it. It knows no weight decay.

    Args:
        kind: `Adam` or `AdamW`, for all other parameters.
        options: `lr`, `betas`.
    """
    sparse = {id(parameter): parameter for parameter in head.give_sparse_gradients()}
    dense = [{**group, "params": _without(sparse, group["params"])} for group in groups]
    optimizer = kind(dense, **options, fused=True)  # type: ignore[call-arg]
    if not sparse:
        return optimizer
    return Together(optimizer, torch.optim.SparseAdam(list(sparse.values()), **options))


def make_sgd(groups: Iterable[ParameterGroup], head: Head, lr: float, counts: Tensor) -> Optimizer:
    """Plain SGD for `groups` of parameters; those of `head` get the rates that it asks for.

    Each group has its rate relative to `lr` as `lr_scale`, by which `set_learning_rate` goes; it is saved
    with the optimiser, so that a resumed run keeps it.

    Args:
        counts: [V] how often each class is a target.
    """
    head.give_sparse_gradients()  # which SGD takes as they are: a row that no step meets costs nothing
    asked = {
        id(parameter): group["lr"] / lr
        for group in head.parameter_groups(lr, counts)
        for parameter in group["params"]
    }
    split: list[ParameterGroup] = []
    for group in groups:
        parameters = list(group["params"])
        for scale in sorted({asked.get(id(parameter), 1.0) for parameter in parameters}, reverse=True):
            some = [parameter for parameter in parameters if asked.get(id(parameter), 1.0) == scale]
            split.append({**group, "params": some, "lr": lr * scale, "lr_scale": scale})
    return torch.optim.SGD(split, lr=lr)


def _without(some: dict[int, nn.Parameter], parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if id(parameter) not in some]


def require_sparse_support(head: Head, name: str, runtime: Runtime, compiled: bool) -> None:
    """Raise `UserError` where sparse gradients cannot be had: in a compiled graph, and over NCCL."""
    if not head.give_sparse_gradients():
        return
    if compiled:
        raise UserError(f"--compile: not with --head {name}, whose gradients are sparse; drop the flag")
    if runtime.world_size > 1 and runtime.device.type == "cuda":
        raise UserError(
            f"--head {name}: several GPUs cannot exchange its sparse gradients; leave torchrun out"
        )


class Together(Optimizer):
    """Several optimisers that are one to whoever steps, saves and resumes them."""

    def __init__(self, *parts: Optimizer) -> None:  # nothing of the inherited one: the parts have it all
        self.parts = parts

    @property
    def param_groups(self) -> list[ParameterGroup]:  # type: ignore[override]
        """Those of all parts, as they are now: loading a state replaces them."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("closure must be None: it would be called by each part")
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Together{self.parts!r}"
