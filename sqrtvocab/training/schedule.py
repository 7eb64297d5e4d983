"""The learning rate as a pure function of the step, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math

import torch

from sqrtvocab.flags import Schedule
from sqrtvocab.settings import StepFlags


def learning_rate(
    step: int, *, peak: float, total_steps: int, warmup_steps: int = 0, schedule: Schedule = "constant"
) -> float:
    """The learning rate of optimiser step `step` (the first is 0) of `total_steps`.

    Rises linearly to `peak` over `warmup_steps`, then stays (`constant`, the paper's) or falls along half a
    cosine towards zero (`cosine`).
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return peak
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)  # [0, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_learning_rate(
    optimizer: torch.optim.Optimizer, config: StepFlags, step: int, total_steps: int
) -> float:
    """Give `optimizer` the learning rate of step `step` by the flags, and return it; a group of parameters
    with an `lr_scale` gets so many times as much."""
    rate = learning_rate(
        step,
        peak=config.lr,
        total_steps=total_steps,
        warmup_steps=config.warmup_steps,
        schedule=config.schedule,
    )
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = rate * parameter_group.get("lr_scale", 1.0)
    return rate
