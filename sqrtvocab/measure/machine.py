"""One line about the machine that a figure was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def describe_machine(device: str = "cpu", threads: int | None = None) -> str:
    """Processor or GPU, cores, memory, threads and the version of torch."""
    parts = [f"{describe_processor()}, {_memory() / 2**30:.0f} GiB of memory"]
    if device == "cuda":
        parts.append(torch.cuda.get_device_name())
    threads = threads or torch.get_num_threads()
    parts.append(f"{threads} thread{'s' if threads > 1 else ''}")
    parts.append(f"torch {torch.__version__.partition('+')[0]}, Python {platform.python_version()}")
    return ", ".join(parts)


def describe_processor() -> str:
    """The processor and its cores."""
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    try:  # Linux tells the model nowhere else
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # Windows
        return 0
