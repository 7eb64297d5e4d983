"""`--vocab-parallel`: the classes of a run's head are split over its ranks, and its checkpoints are whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sqrtvocab.errors import UserError
from sqrtvocab.heads import Head
from sqrtvocab.heads.parallel import SplitHead, split_head
from sqrtvocab.training.runtime import Runtime

T = TypeVar("T")


def split_over_ranks(head: Head, name: str, runtime: Runtime) -> Head:
    """This rank's part of the head called `name`; the head itself if there is one rank only.

    Raises:
        UserError: if it cannot be split.
    """
    try:
        return split_head(head) if runtime.world_size > 1 else head
    except ValueError as error:
        raise UserError(f"--vocab-parallel: not with --head {name}: {error}") from error


def in_step(batches: Iterable[T], head: Head, runtime: Runtime) -> Iterator[T | None]:
    """The batches of this rank; where the head needs all ranks at each call, also None while others go on."""
    if not head.is_split:
        yield from batches
        return
    waiting = iter(batches)
    batch = next(waiting, None)
    while runtime.any(batch is not None):
        yield batch
        batch = next(waiting, None)


def no_rows(head: Head) -> tuple[Tensor, Tensor]:
    """Hidden states [0, d] and classes [0], for a rank that has nothing to ask."""
    weight = next(head.parameters())
    return weight.new_empty(0, head.in_features), weight.new_empty(0, dtype=torch.int64)


def split_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those of which other ranks have other rows."""
    return [parameter for head in split_heads(model).values() for parameter in head.split_parameters()]


def own_tensors(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers that every rank has its own of."""
    heads = split_heads(model).values()
    return [*split_parameters(model), *(buffer for head in heads for buffer in head.buffers())]


@contextmanager
def whole_heads(model: nn.Module) -> Iterator[None]:
    """While this lasts, the model of rank 0 has whole heads, on the CPU. All ranks must enter."""
    parts = split_heads(model)
    try:
        for name, head in parts.items():
            if (whole := head.whole()) is not None:
                model.set_submodule(name, whole)
        yield
    finally:
        for name, head in parts.items():
            model.set_submodule(name, head)


def split_heads(model: nn.Module) -> dict[str, SplitHead]:
    """The heads of a model that are split, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, SplitHead)}


def whole_optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Its state dict as that of one process, on rank 0; all ranks must call it."""
    state = optimizer.state_dict()
    for number, head in _split_numbers(optimizer, model).items():
        entries = state["state"].get(number, {})
        tables = {name: head.whole_table(entry) for name, entry in _tables(entries)}
        state["state"][number] = {**entries, **tables}
    return state


def own_optimizer_state(state: dict[str, Any], optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Of the state dict of one process what this rank's parts need."""
    for number, head in _split_numbers(optimizer, model).items():
        entries = state["state"].get(number, {})
        entries.update({name: head.own_rows(entry) for name, entry in _tables(entries)})
    return state


def _tables(entries: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """Of what an optimiser keeps of a parameter, what has its rows: all but the number of steps."""
    return [(name, entry) for name, entry in entries.items() if isinstance(entry, Tensor) and entry.dim()]


def _split_numbers(optimizer: Optimizer, model: nn.Module) -> dict[int, SplitHead]:
    """Which parameters of an optimiser are split, as its state dict numbers them."""
    heads = {id(table): head for head in split_heads(model).values() for table in head.split_parameters()}
    if not heads:
        return {}
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return {number: heads[id(one)] for number, one in enumerate(parameters) if id(one) in heads}
