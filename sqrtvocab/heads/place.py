"""Which kind of device a head computes on: what the choice of its kernels goes by."""

from __future__ import annotations

import torch


def place_of(device: torch.device) -> tuple[str, int | None]:
    """The type of a device and, of a GPU, the major number of its compute capability.

    Called through this module, for `sqrtvocab.measure.gpu` puts another answer in its place.
    """
    return device.type, torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else None
