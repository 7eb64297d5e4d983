"""Gradient accumulation that equals one big batch: micro-batches of any size, on any number of ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sqrtvocab.training.runtime import Runtime


def exchange_gradients(model: nn.Module, *, now: bool) -> AbstractContextManager[None]:
    """The context of one micro-batch's forward and backward; ranks exchange gradients only where `now` is
    true.

    `now` belongs to the last micro-batch of a step. Both passes must be inside: DDP decides in the forward
    pass.
    """
    if isinstance(model, DistributedDataParallel) and not now:
        return model.no_sync()
    return nullcontext()


def share_of_mean(loss_sum: Tensor, items: int, runtime: Runtime) -> Tensor:
    """What one micro-batch adds to the mean loss of its step.

    The mean of micro-batch means would weigh the items of a short batch more. So every micro-batch gives its
    *sum*, divided by the items of the whole step over all ranks; DDP averages over ranks, which the factor
    undoes.
    """
    return loss_sum * (runtime.world_size / items)
