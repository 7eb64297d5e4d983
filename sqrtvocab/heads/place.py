"""Which kind of device a head computes on: what the choice of its kernels goes by.

Called through this module, for `sqrtvocab.measure.gpu` puts other answers in their place.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Tensor cores load 16 bytes at a time: rows of half precision that do not begin at such a place take a kernel
# of a fraction of the speed. F.grouped_mm refuses them.
ALIGNMENT = 8


def is_cpu(device: torch.device) -> bool:
    """Whether kernels are those for a CPU; the meta device has none, and stands for one."""
    return device.type in ("cpu", "meta")


def major_capability(device: torch.device) -> int | None:
    """The major number of the compute capability of an Nvidia GPU; None elsewhere."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else None


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """What autocast makes of matrix products with this tensor; None where it is off or leaves them alone."""
    device = tensor.device.type
    if tensor.dtype == torch.float64 or not torch.amp.is_autocast_available(device):
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def spare_columns(columns: int, rows: Tensor) -> int:
    """How many columns to add to a product of ``rows`` so that it is aligned: none but in half precision on a
    GPU."""
    dtype = autocast_dtype(rows) or rows.dtype
    return -columns % ALIGNMENT if dtype.itemsize == 2 and not is_cpu(rows.device) else 0
