"""Where a run computes: device, number format, seeds and the other ranks of a torchrun job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from sqrtvocab.errors import RunError, UserError
from sqrtvocab.flags import Device, Precision
from sqrtvocab.training.memory import keep_freed_memory
from sqrtvocab.training.ranks import Heartbeat, is_lost_connection

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Runtime:
    """The resolved place and number format of a run. Made by `open_runtime`; the collectives are no-ops
    alone."""

    device: torch.device
    dtype: torch.dtype
    reason: str  # why this dtype
    seed: int
    rank: int  # of this process among all; `--rank` and `head.rank` are those of a matrix
    world_size: int

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def describe(self) -> str:
        """One line for the start of a run: device, dtype with the reason, ranks."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        ranks = f", {self.world_size} ranks" if self.world_size > 1 else ""
        return f"{name}{threads}{ranks}, {str(self.dtype).removeprefix('torch.')} ({self.reason})"

    def say(self, line: str) -> None:
        """Print a line on stderr, once for all ranks."""
        if self.is_main:
            print(line, file=sys.stderr, flush=True)

    def autocast(self) -> AbstractContextManager[object]:
        """The context for forward passes. Backward passes belong outside it."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not torch.float32)

    def scaler(self, is_split: bool = False) -> torch.amp.GradScaler:
        """A gradient scaler, which does nothing unless the dtype is float16.

        Args:
            is_split: whether ranks have different parameters, and must agree on which steps to skip.
        """
        kind = ShardedGradScaler if is_split else torch.amp.GradScaler
        return kind(self.device.type, enabled=self.dtype is torch.float16)

    def replicate(self, model: nn.Module, own: Iterable[Tensor] = ()) -> nn.Module:
        """`model`, wrapped so that all ranks train one and the same if there are several.

        Args:
            own: parameters and buffers that every rank has its own of.
        """
        if self.world_size == 1:
            return model
        apart = {id(tensor) for tensor in own}
        tensors = (*model.named_parameters(), *model.named_buffers())
        names = [name for name, tensor in tensors if id(tensor) in apart]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        return DistributedDataParallel(model, forward_sync_buffers=False, gradient_as_bucket_view=True)

    def seed_step(self, step: int) -> None:
        """Make all random draws of optimiser step `step` a function of (seed, step, rank).

        So dropout continues bit for bit after a resume, on every rank, without any generator state in the
        checkpoint, and evaluations in between change nothing.
        """
        entropy = np.random.SeedSequence([self.seed, step, self.rank]).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(entropy >> np.uint64(1)))  # 63 bits: manual_seed takes an int64

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over all ranks, on every rank."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def min(self, values: Tensor) -> Tensor:
        """The elementwise minimum over all ranks, on every rank."""
        return self._reduce(values, dist.ReduceOp.MIN)

    def max(self, values: Tensor) -> Tensor:
        """The elementwise maximum over all ranks, on every rank."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.world_size > 1:
            values = values.clone()
            dist.all_reduce(values, operation)
        return values

    def any(self, flag: bool) -> bool:
        """Whether `flag` holds on any rank. Through the CPU's own channel, so that no GPU is waited for."""
        if self.world_size == 1:
            return flag
        return bool(self.max(torch.tensor(int(flag))))

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, which may differ in number, on the CPU of every rank: rank 0's first."""
        if self.world_size == 1:
            return rows.cpu()
        parts: list[Tensor] = [rows] * self.world_size
        dist.all_gather_object(parts, rows.cpu())
        return torch.cat(parts)

    def share(self, buffers: Iterable[Tensor]) -> None:
        """Overwrite the floating-point ones among `buffers` with those of rank 0."""
        if self.world_size > 1:
            for buffer in buffers:
                if buffer.is_floating_point():
                    dist.broadcast(buffer, 0)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.any(False)

    def peak_memory(self) -> int:
        """Most bytes held so far: by tensors on the GPU, or by this process on the CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if self.device.type == "mps":
            return torch.mps.driver_allocated_memory()
        import resource  # not on Windows, where only a GPU's memory can be told

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def choose_device(device: Device, local_rank: int = 0) -> torch.device:
    """The device that the flag `--device` names; `auto` takes cuda before mps before cpu.

    Raises:
        UserError: if this machine (or this torch build) has no such device, or fewer GPUs than ranks.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    name = next(name for name, there in available.items() if there) if device == "auto" else device
    if not available[name]:
        others = " or ".join(f"--device {other}" for other, there in available.items() if there)
        raise UserError(
            f"--device {name}: torch {torch.__version__} finds no {name} device here; use {others}"
        )
    if name != "cuda":
        return torch.device(name)
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"--device cuda: local rank {local_rank} has no GPU of its own, there are "
            f"{torch.cuda.device_count()} here; start as many ranks (torchrun --nproc-per-node)"
        )
    return torch.device("cuda", local_rank)


def choose_dtype(precision: Precision, device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype of the forward passes that the flag `--precision` names, and the reason for it.

    Raises:
        UserError: if the device cannot train in that format.
    """
    if precision == "fp16" and device.type == "cpu":
        raise UserError("--precision fp16: not on the CPU, where it is slow and overflows; use fp32 or bf16")
    if precision != "auto":
        return _DTYPES[precision], f"--precision {precision}"
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, "this GPU computes in bfloat16"
    if device.type == "cuda":
        return torch.float16, "this GPU has no bfloat16; gradients are scaled"
    return torch.float32, f"the {device.type} default; try --precision bf16 on a CPU with AMX"


@contextmanager
def open_runtime(device: Device, precision: Precision, seed: int) -> Iterator[Runtime]:
    """Join the torchrun job (if this process is part of one), seed torch and settle device and dtype.

    Every rank starts from the same seed, so all build the same model; `Runtime.seed_step` tells them apart
    later.

    Raises:
        UserError: if the device or the number format cannot be had.
        RunError: if another rank has ended, or there is no more memory.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    place = choose_device(device, local_rank)
    dtype, reason = choose_dtype(precision, place)
    if place.type == "mps" and world_size > 1:
        raise UserError("--device mps: one process only; use --device cpu with torchrun")
    if place.type == "cuda":
        torch.cuda.set_device(place)
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
    if place.type == "cpu":
        keep_freed_memory()
    if world_size > 1:
        # Tensors on the CPU travel by gloo, those on a GPU by NCCL, so that flags and counts need no GPU
        # sync.
        dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
    torch.manual_seed(seed)
    with _memory_errors(), _several_ranks(rank, world_size) if world_size > 1 else nullcontext():
        yield Runtime(place, dtype, reason, seed, rank, world_size)


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Turn what torch says when there is no more memory into a `RunError`."""
    try:
        yield
    except RuntimeError as error:  # a GPU's OutOfMemoryError is one
        problem = str(error).partition("\n")[0].rpartition("] ")[2]  # the CPU's comes after a place in C++
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in problem:
            raise
        raise RunError(f"not enough memory: {problem[:300]}; try a smaller --batch-size") from error


@contextmanager
def _several_ranks(rank: int, world_size: int) -> Iterator[None]:
    """Watch the other ranks, and part from them at the end."""
    heartbeat = None
    if dist.is_initialized():
        heartbeat = Heartbeat(dist.distributed_c10d._get_default_store(), rank, world_size)
    try:
        yield
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise RunError(
            "the connection to another rank is lost: it has failed or was killed; continue with --resume auto"
        ) from error
    # Only after success: when a rank has failed the others may be gone, and a tidy goodbye could hang.
    if heartbeat is not None:
        heartbeat.close()
        dist.destroy_process_group()
