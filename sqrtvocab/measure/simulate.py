"""Peak memory of a training step without doing it: tensors that have a shape but no data.

A step that needs 40 GB of a GPU is measured in seconds on a laptop. Every tensor that one operator hands to
another is seen, with the moment it is made and the moment nobody holds it any more; what an operator
allocates and frees inside itself is not, except in the adaptive head's, where it is most of the work.
`sqrtvocab.measure.gpu` makes the step choose the operators that a GPU would.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sqrtvocab.heads.segments  # noqa: F401  defines the operators of `_INSIDE`
from sqrtvocab.heads.base import block_rows

AGREES_WITHIN = 0.005
"""Of what a step really allocates on a CPU; the tests hold `simulate` to it."""
PARTS = ("parameters", "gradients", "optimiser", "activations", "logits")


class Memory(NamedTuple):
    """Bytes held at the moment of the peak, by what they are for."""

    parameters: int
    """Parameters and buffers."""
    gradients: int
    """What is, or is about to be, the `.grad` of a parameter."""
    optimiser: int
    """The optimiser's state, and what it makes while it steps."""
    activations: int
    """All else: the batch, what the backward pass needs, and what it works on."""
    logits: int
    """What is made from the moment the output layer begins until the gradient of its input is there."""

    @property
    def peak(self) -> int:
        """All together."""
        return sum(self)


class Training(NamedTuple):
    """A model and how it is trained: what `simulate` needs to know, and what a benchmark can really run."""

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[], Tensor]
    """The forward pass; may use autocast."""
    output_layer: nn.Module | None = None
    """The module from hidden states (its first argument) to logits or loss."""

    def step(self) -> None:
        """One optimiser step."""
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class _Ledger(TorchDispatchMode):
    """Writes down when each storage comes and goes, and which part it belongs to, as far as is known."""

    def __init__(self, round_to: int = 1) -> None:
        super().__init__()
        self.round_to = round_to
        self.events: list[tuple[int, int]] = []  # (number of the storage, bytes; negative when it goes)
        self.part = "activations"  # of the storages made now
        self.parts: list[str] = []  # by number; a gradient is only known as such once it has been accumulated
        self._numbers: dict[int, int] = {}  # storages alive, by address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        on_rows = _ON_ROWS.get(func) if any(_is_sparse(arg) for arg in args) else None
        result = func(*args, **(kwargs or {})) if on_rows is None else on_rows(*args)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                for part in _stored(leaf):
                    self.number(part)
        if inside := _INSIDE.get(func):
            self._pass(inside(*args))
        return result

    def _pass(self, size: int) -> None:
        """Bytes that were held while an operator worked."""
        number, size = len(self.parts), -(-size // self.round_to) * self.round_to
        self.parts.append(self.part)
        self.events += [(number, size), (number, -size)]

    def number(self, tensor: Tensor) -> int:
        """The number of a dense tensor's storage, a new one if it was not known."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._numbers:
            number = self._numbers[address] = len(self.parts)
            size = -(-storage.nbytes() // self.round_to) * self.round_to
            self.parts.append(self.part)
            self.events.append((number, size))
            weakref.finalize(storage, self._forget, address, number, size)
        return self._numbers[address]

    def _forget(self, address: int, number: int, size: int) -> None:
        self._numbers.pop(address, None)
        self.events.append((number, -size))

    def label(self, tensor: Tensor, part: str) -> None:
        for stored in _stored(tensor):
            self.parts[self.number(stored)] = part

    @contextmanager
    def making(self, part: str) -> Iterator[None]:
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before

    def at_peak(self) -> Memory:
        """Replay the events: what was held when most was held."""
        held, best = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
        now = most = 0
        for number, size in self.events:
            now += size
            held[self.parts[number]] += size
            if now > most:
                most, best = now, dict(held)
        return Memory(**best)


def simulate(make: Callable[[], Training], round_to: int = 1) -> Memory:
    """What a training step holds when it holds most, from shapes alone.

    The step is taken twice, for in the second one the optimiser has its state. "Logits" is everything made
    from the moment `output_layer` begins its forward pass until the gradient of its input is ready, except
    the gradients of parameters: logits, their softmax, the gradients of both, for any kind of output layer.
    If its input needs no gradient (a frozen backbone), they last until the end of the backward pass.

    What the adaptive head holds depends on the data; it is counted as if every tail had a full block of rows
    to score, which is the most it can take; and what sparse gradients take, as if no two rows were of the
    same class. A model of `transformers` is taken to see one text in each row,
    not several packed into one.

    Args:
        make: builds model and optimiser. It runs with fake tensors: it must not look at data.
        round_to: every storage takes a multiple of so many bytes; 512 on CUDA.
    """
    with FakeTensorMode(), _Ledger(round_to) as ledger:
        training = make()
        parameters = list(training.model.parameters())
        for tensor in (*parameters, *training.model.buffers()):
            ledger.label(tensor, "parameters")
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p: ledger.label(p.grad, "gradients"))
        if training.output_layer is not None:
            training.output_layer.register_forward_pre_hook(_logits_begin(ledger), with_kwargs=True)
        with _one_text_a_row():
            for _ in range(2):
                training.loss().backward()
                ledger.part = "activations"
                with ledger.making("optimiser"):
                    training.optimizer.step()
                training.optimizer.zero_grad(set_to_none=True)
        return ledger.at_peak()


def _logits_begin(ledger: _Ledger) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def ended(gradient: Tensor) -> None:
        ledger.part = "activations"
        ledger.label(gradient, "activations")

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ledger.part = "logits"
        inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        hidden = next((tensor for tensor in inputs if tensor.requires_grad), None)
        if hidden is not None:
            hidden.register_hook(ended)

    return begin


def _one_text_a_row() -> AbstractContextManager[Any]:
    """Keeps `transformers`, where it is in use, from building a [B, 1, L, L] mask that no real step has.

    It looks at the positions for several texts in one row. It cannot see those of fake tensors, and builds
    the mask to be safe. "None" is what it would find.
    """
    masking = sys.modules.get("transformers.masking_utils")
    if masking is None:
        return nullcontext()
    return patch.object(masking, "find_packed_sequence_indices", lambda position_ids: None)


def _inside_segment_nll(rows: Tensor, weight: Tensor, *_: Any) -> int:
    """A block's logits, widened if they are in half precision, and their log-softmax."""
    block = _blocks(rows, weight)[0]
    return block * (8 if rows.itemsize == 4 else rows.itemsize + 8)


def _inside_segment_nll_backward(grad: Tensor, rows: Tensor, weight: Tensor, *_: Any) -> int:
    """A block's logits and softmax, beside the gradient of the logits of the block before; and the rest."""
    first, second = _blocks(rows, weight)
    half = rows.itemsize < 4
    kept = (4 + rows.itemsize if half else 4) * first  # a block's gradient, until the next one's is there
    product = weight.numel() * weight.itemsize  # what a block adds to the gradient of the weight
    sums = 4 * (weight.numel() + weight.shape[0]) if half else 0  # of gradients, in float32
    return sums + max(8 * first, kept + 8 * second, kept + product)


def _blocks(rows: Tensor, weight: Tensor) -> tuple[int, int]:
    """The elements [B, C] of the first and the second block, if all rows belong to the segment."""
    step = block_rows(weight.shape[0], weight.device)
    first = min(rows.shape[0], step)
    return first * weight.shape[0], min(rows.shape[0] - first, step) * weight.shape[0]


# ---- sparse tensors: some rows of a matrix, and their numbers


def _is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_sparse


def _stored(tensor: Tensor) -> tuple[Tensor, ...]:
    """The dense tensors that hold its data."""
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)


def _with_rows_of(sparse: Tensor, is_coalesced: bool) -> Tensor:
    """A sparse tensor with rows of its own in the same places."""
    rows, values = torch.empty_like(sparse._indices()), torch.empty_like(sparse._values())
    make = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors
    kind: dict[str, Any] = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": values.device}
    dims = (sparse.sparse_dim(), sparse.dense_dim())
    return make(*dims, sparse.shape, rows, values, **kind, is_coalesced=is_coalesced)


# Operators whose fake results would have no rows at all: how many there are depends on data.
_ON_ROWS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.clone.default: lambda sparse: _with_rows_of(sparse, sparse.is_coalesced()),
    torch.ops.aten._coalesce.default: lambda sparse: _with_rows_of(sparse, True),
    torch.ops.aten.sparse_mask.default: lambda dense, sparse: _with_rows_of(sparse, True),
}


# The most bytes that an operator holds beside its results while it works.
_INSIDE: dict[Any, Callable[..., int]] = {
    torch.ops.sqrtvocab.segment_nll.default: _inside_segment_nll,
    torch.ops.sqrtvocab.segment_nll_backward.default: _inside_segment_nll_backward,
    torch.ops.sqrtvocab.rows_nll.default: _inside_segment_nll,
    torch.ops.sqrtvocab.rows_nll_backward.default: _inside_segment_nll_backward,
}
