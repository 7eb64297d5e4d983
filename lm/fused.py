"""What TRL's trainers ask of a model: the log-probability of every label, and numbers to log about it.

TRL gives each model that it trains a `forward` of its own, which multiplies by `lm_head.weight`. A head is
more than a matrix, so `CompressedLM` keeps its forward and answers the same question, `fused_lm_head=True`,
itself.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from sqrtvocab import Head

KNOWN = ("log_probs", "entropy", "is_top1")


@dataclass
class FusedOutput(ModelOutput):
    """The fields that TRL reads, [B, L]; zero where there is no label, as at the last position."""

    loss: Tensor | None = None
    log_probs: Tensor | None = None
    """Of each label."""
    entropy: Tensor | None = None
    """Of each distribution, estimated by −log p of one class drawn from it: the mean over many tokens is that
    of the entropy, and no V-wide row is needed. Without a gradient."""
    is_top1: Tensor | None = None
    """Whether the label is the most probable class."""
    label_mask: Tensor | None = None
    """Where the label is not ignored."""
    aux_loss: None = None
    """Nothing: our models have no experts to balance."""


def requested(forward: object) -> tuple[str, ...] | None:
    """The fields that a `forward` of TRL's is to compute; None if this is no such function.

    Raises:
        ValueError: it is to compute what only all V logits tell.
    """
    function = getattr(forward, "__func__", None)
    if function is None or "fused_lm_head" not in function.__code__.co_varnames:
        return None
    asked = inspect.getclosurevars(function).nonlocals
    if asked["temperature"] != 1:
        raise ValueError(
            f"temperature {asked['temperature']}: a head gives log-probabilities at temperature 1, for at "
            "any other it would have to build all V logits"
        )
    if unknown := [name for name in asked["outputs"] if name not in KNOWN]:
        raise ValueError(f"{unknown[0]}: only all V logits tell; a head gives {', '.join(KNOWN)}")
    return tuple(asked["outputs"])


def fused_outputs(
    head: Head, hidden: Tensor, target: Tensor, ignored: int, divisor: Any, outputs: tuple[str, ...]
) -> FusedOutput:
    """hidden [B, L, d], target [B, L] -> what `outputs` names, of each token.

    Args:
        divisor: of the summed loss; None is the number of labels.
    """
    log_probs = -head(hidden, target, ignore_index=ignored, reduction="none").loss  # [B, L]
    mask = target != ignored  # [B, L]
    entropy = is_top1 = None
    with torch.no_grad():
        if "entropy" in outputs:
            drawn = head.sample(hidden)  # [B, L]
            entropy = torch.where(mask, head(hidden, drawn, reduction="none").loss, 0.0)
        if "is_top1" in outputs:
            is_top1 = (head.predict(hidden) == target) & mask
    count = mask.sum().clamp(min=1) if divisor is None else divisor
    return FusedOutput(
        loss=-log_probs.sum() / count,
        log_probs=log_probs,
        entropy=entropy,
        is_top1=is_top1,
        label_mask=mask,
    )
