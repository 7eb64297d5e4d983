"""A head whose parameters are split over several GPUs by torch's FSDP2, in training and in decoding."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from sqrtvocab.heads.base import Head

# FSDP brings a module's parameters together for `forward` alone, unless it is told of other methods.
_METHODS = ("log_prob", "group_log_prob", "predict", "topk", "guesses", "sample")


def shard_head(head: Head, **options: Any) -> Head:
    """``fully_shard(head, **options)``, for all methods of a head: it trains and decodes as before.

    Every rank must call the same methods in the same order. Between calls the parameters are DTensors, but
    for single numbers, which every rank has whole.
    """
    group = options["mesh"].get_group() if options.get("mesh") is not None else dist.group.WORLD

    def mean(gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total, group=group)
        return total / dist.get_world_size(group)

    numbers = {parameter for parameter in head.parameters() if parameter.dim() == 0}  # FSDP refuses them
    for parameter in numbers:
        parameter.register_hook(mean)
    fully_shard(head, **{**options, "ignored_params": numbers | set(options.get("ignored_params") or ())})
    for name in _METHODS:
        register_fsdp_forward_method(head, name)
    return head
