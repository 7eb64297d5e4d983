"""The memory of a training step: whether it fits, asked before the first one, for on a CPU the system kills
the process that takes too much, without a word; and that it stays with the process from step to step."""

from __future__ import annotations

import copy
import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sqrtvocab.errors import UserError

if TYPE_CHECKING:
    from sqrtvocab.heads import Head
    from sqrtvocab.measure.simulate import Memory, Training

_BYTES_OF_STATE = {"adam": 4 * 4, "sgd": 2 * 4}  # for a parameter: its value and gradient, and two moments


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next step.

    By default it gives large blocks back to the system, which must map them and clear every page anew in
    each step: a fifth of the classifier's time on the CPU, for 4 % less memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # other C libraries have none
        m_trim_threshold, m_mmap_threshold, never, most = -1, -3, 2**31 - 1, 32 << 20
        # Older ones refuse more than 32 MiB. Not to trim, which is -1, is of use only to what is not mapped
        # by itself; 2**31 - 1 would still give back the 2.5 GB of a flat head's step.
        if mallopt(m_mmap_threshold, never) or mallopt(m_mmap_threshold, most):
            mallopt(m_trim_threshold, -1)


def free_memory() -> int | None:
    """Bytes that a process may still take, swap included; None where that is not known."""
    free = None
    with suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
        kilobytes = {name.rstrip(":"): int(count) for name, count, *_ in lines}
        free = 1024 * (kilobytes["MemAvailable"] + kilobytes["SwapFree"])
    with suppress(OSError, ValueError, KeyError):  # in a container; else no such file, or the word "max"
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text("utf-8")) for name in ("max", "current"))
        facts = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
        left = limit - used + int(facts["file"])  # what is cached of files is given back
        free = left if free is None else min(free, left)
    return free


def bytes_of_state(model: nn.Module, head: Head, optimizer: str) -> int:
    """Bytes of the parameters and their gradients, and of what the optimiser keeps; sparse gradients of the
    model's `head`, which it is told to give here, are next to nothing."""
    count = sum(parameter.numel() for parameter in model.parameters())
    without_gradient = sum(parameter.numel() for parameter in head.give_sparse_gradients())
    return _BYTES_OF_STATE[optimizer] * count - 4 * without_gradient


def require_memory(
    model: nn.Module,
    make_optimizer: Callable[[nn.Module], Optimizer],
    loss: Callable[[nn.Module], Tensor],
    least: int,
    flags: str,
) -> None:
    """Raise `UserError` unless a training step of `model`, on the CPU, fits into memory.

    Args:
        make_optimizer: for a model like this one.
        loss: the forward pass of a micro-batch, which it must make itself.
        least: bytes that a step takes at the very least. Only if they are not few is the step simulated,
            which takes seconds.
        flags: what to lower, as in "--batch-size 64".
    """
    free = free_memory()
    if free is None or least < free / 8:
        return
    require_free(least, flags)
    require_free(simulate_step(model, make_optimizer, loss).peak, flags)


def require_free(needed: int, flags: str) -> None:
    """Raise `UserError` if so many bytes are certainly too many; `flags` is what to lower."""
    free = free_memory()
    if free is not None and needed > free:
        size = f"{needed / 1e9:,.1f} GB" if needed < 1e15 else f"{needed:.0e} bytes"
        raise UserError(f"{flags}: training takes {size} of memory, {free / 1e9:,.1f} GB are free")


def simulate_step(
    model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer], loss: Callable[[nn.Module], Tensor]
) -> Memory:
    """What a training step of a model like this one takes, from shapes alone."""
    from sqrtvocab.measure.simulate import Training, simulate

    def make() -> Training:
        # A copy whose weights have no data: a memo tells what the copies of the real ones are to be.
        twins = {id(tensor): _without_data(tensor) for tensor in (*model.parameters(), *model.buffers())}
        twin = copy.deepcopy(model, twins).train()
        return Training(twin, make_optimizer(twin), lambda: loss(twin))

    return simulate(make)


def _without_data(tensor: Tensor) -> Tensor:
    """A tensor like this one, made while `simulate` is at work."""
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
