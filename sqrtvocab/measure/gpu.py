"""What a training step does on a named GPU, for those who have none: kernels, autocast, capacity.

Fake CUDA tensors do not help: their forward pass works, but attention finds "no available kernel", autocast
switches itself off, and the backward pass asks for a real device. So the step runs on fake CPU tensors, and
`gpu_rules` replaces what CUDA does otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from sqrtvocab.heads import place

MIB, GIB = 2**20, 2**30
ROUNDING = 512
"""The caching allocator hands out multiples of so many bytes."""
ALLOWANCE = 768 * MIB
"""Of a GPU's memory for what is no tensor: driver, CUDA context, loaded kernels, cuBLAS workspaces."""


@dataclass(frozen=True)
class GPU:
    """A graphics card."""

    name: str
    total: int
    """Bytes, as nvidia-smi reports them with ECC on: less than the data sheet says."""
    capability: tuple[int, int]

    @property
    def usable(self) -> int:
        """Bytes left for tensors."""
        return self.total - ALLOWANCE

    def fits(self, peak: int) -> bool:
        """Whether a step with this peak can run. The allocator's fragmentation comes on top of the peak."""
        return peak <= self.usable

    def attention_kernel(self, dtype: torch.dtype, head_dim: int, dropout: float = 0.0) -> str:
        """Which kernel `F.scaled_dot_product_attention` takes for training without a mask: "flash" or
        "efficient".

        The rules of torch's `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`: flash wants half
        precision, Ampere or newer and at most 256 features a head, and on sm86 and sm89 has no backward pass
        for 193 to 224 features, nor for more with dropout; the memory-efficient one takes the rest. (On
        Hopper cuDNN's may come first; it keeps the same tensors as flash.)
        """
        if dtype == torch.float32 or self.capability < (8, 0) or head_dim > 256:
            return "efficient"
        consumer = (8, 6) <= self.capability <= (8, 9)
        if consumer and (192 < head_dim <= 224 or (head_dim > 224 and dropout > 0)):
            return "efficient"
        return "flash"


GPUS = {
    "t4": GPU("T4", 15360 * MIB, (7, 5)),
    "a10g": GPU("A10G", 23028 * MIB, (8, 6)),
    "l40s": GPU("L40S", 46068 * MIB, (8, 9)),
    "a100-40": GPU("A100 40 GB", 40960 * MIB, (8, 0)),
    "a100": GPU("A100 80 GB", 81920 * MIB, (8, 0)),
    "h100": GPU("H100 80 GB", 81559 * MIB, (9, 0)),
}

# What CUDA's autocast computes in float32 and the CPU's in half precision, of all that our models call.
_FLOAT32 = (
    (F, ("layer_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss")),
    (torch, ("layer_norm", "softmax", "log_softmax", "pow")),
    (Tensor, ("softmax", "log_softmax", "pow", "__pow__")),
)


@contextmanager
def gpu_rules(gpu: GPU) -> Iterator[None]:
    """CPU tensors are treated as on this GPU: its attention kernel, the kernels that heads take there, CUDA's
    dropout and rules for autocast.

    The functions themselves are replaced while this lasts: a TorchFunctionMode would not be heeded when
    checkpointed layers are computed again in the backward pass.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(place, "is_cpu", lambda device: False))
        stack.enter_context(patch.object(place, "major_capability", lambda device: gpu.capability[0]))
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", partial(_attention, gpu)))
        stack.enter_context(patch.object(F, "dropout", partial(_dropout, F.dropout)))
        for owner, names in _FLOAT32:
            for name in names:
                stack.enter_context(patch.object(owner, name, _in_float32(getattr(owner, name))))
        yield


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    def to_float(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return function(*map(to_float, args), **{key: to_float(value) for key, value in kwargs.items()})

    return call


def _dropout(
    on_cpu: Callable[..., Tensor],
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    """`F.dropout` by CUDA's fused kernel: it keeps a mask of a byte an element, the CPU one of a float.

    The rules of torch's `aten/src/ATen/native/Dropout.cpp`, by which other cases have no fused kernel.
    """
    if training and 0 < p < 1 and not inplace:
        return torch.native_dropout(input, p, training)[0]
    return on_cpu(input, p, training, inplace)


def _attention(
    gpu: GPU,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` by the GPU's kernel.

    Of the kernels only flash takes fewer heads of keys and values than of queries; without it torch falls
    back to the plain product, which keeps all [L, L] scores.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    kernel = gpu.attention_kernel(query.dtype, query.shape[-1], dropout_p)
    if kernel == "flash" and attn_mask is None:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        plain = torch.ops.aten._scaled_dot_product_attention_math
        return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True)[0]
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    needs_grad = torch.is_grad_enabled() and query.requires_grad
    return efficient(query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale)[0]
