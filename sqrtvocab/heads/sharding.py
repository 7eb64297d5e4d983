"""A head whose parameters are split over several GPUs by torch's FSDP2, in training and in decoding."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from sqrtvocab.heads.base import Head

# FSDP brings a module's parameters together for `forward` alone, unless it is told of other methods.
_METHODS = ("log_prob", "group_log_prob", "predict", "topk", "guesses", "sample")


def shard_head(head: Head, **options: Any) -> Head:
    """``fully_shard(head, **options)``, for all methods of a head: it trains and decodes as before.

    Every rank must call the same methods in the same order. Between calls the parameters are DTensors.
    """
    fully_shard(head, **options)
    for name in _METHODS:
        register_fsdp_forward_method(head, name)
    return head
