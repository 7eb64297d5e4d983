"""How much memory a computation really allocates, read from torch's own allocators."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile


class Allocated(NamedTuple):
    """Bytes, over what was held before."""

    peak: int
    """The most that was held at one time."""
    largest: int
    """The largest single allocation; on CUDA unknown, and equal to the peak."""


def allocated_by(run: Callable[[], Any], device: str | torch.device = "cpu") -> Allocated:
    """Run ``run`` once and return what it allocated on ``device``, temporaries inside operators included.

    On the CPU every allocation goes through the profiler; on CUDA the caching allocator keeps the count.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
        return Allocated(peak, peak)
    # The tracing library prints its own start and stop, and an error where there is no GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    recorded = profiler.profiler.kineto_results.events()
    events = sorted((e.start_ns(), e.nbytes()) for e in recorded if e.name() == "[memory]")
    sizes = [size for _, size in events]
    return Allocated(peak=max(accumulate(sizes, initial=0)), largest=max(sizes, default=0))
