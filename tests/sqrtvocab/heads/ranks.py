"""Several ranks, each in a process of its own."""

import os
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(worker: Callable[..., None], folder: Path, world_size: int, *arguments: object) -> None:
    """Call `worker(rank, folder, *arguments)` on every rank of a gloo group that meets in `folder`."""
    mp.spawn(_run, args=(worker, str(folder), world_size, *arguments), nprocs=world_size)


def _run(rank, worker, folder, world_size, *arguments):
    meeting = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    worker(rank, folder, *arguments)
    if dist.is_initialized():
        dist.barrier()
    # Not by the interpreter's own way out: a thread of gloo may still hold the tensors of the last reduction,
    # asks for the interpreter to let go of them, and on a busy machine finds it closing, which aborts.
    os._exit(0)
