"""A GPU pretended in Python: tensors on the device "pretend" hold CPU data, and what would make the host wait
for a real one, or mixes devices, raises.

What waits is what torch itself says of its operators (their results have a shape, or are numbers, that depend
on data), and copies between the devices that are not told to be asynchronous. How long anything takes, and
what CUDA's kernels ask of strides, this cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
# Operators that torch says depend on data, but only where an index is a mask, or a size is not given.
_INDEXING = ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put", "_index_put_impl_")
_TELLTALES = (
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.cudagraph_unsafe,  # our own operators that read bounds on the host
)


class WaitError(AssertionError):
    """The host would have waited for the device."""


class _Module:
    """What torch asks of a device's module."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None: ...

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class PretendTensor(Tensor):
    """A tensor on the device, with its data."""

    data_here: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> PretendTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            data.shape,
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=torch.device(NAME, 0),
        )
        made.data_here = data
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PretendTensor({list(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        _waits("tolist")
        return self.data_here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Watch:
    """Counts the waits; `forbid` makes them errors."""

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.forbidden = False

    @contextmanager
    def forbid(self) -> Iterator[None]:
        was, self.forbidden = self.forbidden, True
        try:
            yield
        finally:
            self.forbidden = was


_watch = Watch()
_autocast = torch.library.Library("_", "IMPL")


def _waits(what: str) -> None:
    _watch.waits.append(what)
    if _watch.forbidden:
        raise WaitError(f"{what} waits for the device")


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """`torch.tensor` asks its device for memory behind the back of all modes: here it copies, and waits."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is not None:
            return func(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        if func is Tensor.__getitem__ and isinstance(args[1], slice) and args[1] == slice(None):
            return args[0]  # an alias, which torch cannot make of such tensors in inference mode
        return func(*args, **kwargs)


@contextmanager
def pretended_gpu() -> Iterator[tuple[torch.device, Watch]]:
    """The device and the watch over it."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
        # Autocast is on, but casts nothing.
        _autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # moved parameters stay tied
    _watch.__init__()  # type: ignore[misc]
    try:
        with _Mode(), _Functions():
            yield torch.device(NAME, 0), _watch
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.partition("::")[2]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    named = kwargs.get("device")
    goes_here = torch.device(named).type == NAME if named is not None else bool(ours)
    if not ours and not goes_here:
        return func(*args, **kwargs)
    if name in ("_to_copy", "copy_"):
        _check_copy(name, args, kwargs, goes_here)
    elif ours:
        if any(not isinstance(tensor, PretendTensor) and tensor.dim() for tensor in tensors):
            raise AssertionError(f"{name}: tensors on the device and on the CPU")
        if any(tag in func.tags for tag in _TELLTALES) and _depends_on_data(name, args, kwargs):
            _waits(name)
    inner = {**kwargs, **({"device": torch.device("cpu")} if named is not None else {})}
    result = func(*tree_map(_open, args), **tree_map(_open, inner))
    if "out" in kwargs:
        return kwargs["out"]
    if not func._schema.returns:
        return None
    if func._schema.is_mutable and name.endswith("_"):
        return args[0]
    close: Callable[[Any], Any] = lambda leaf: PretendTensor(leaf) if isinstance(leaf, Tensor) else leaf  # noqa: E731
    return tree_map(close, result) if goes_here else result


def _open(leaf: Any) -> Any:
    return leaf.data_here if isinstance(leaf, PretendTensor) else leaf


def _check_copy(name: str, args: Any, kwargs: dict[str, Any], goes_here: bool) -> None:
    if name == "_to_copy":
        crosses, at_once = isinstance(args[0], PretendTensor) != goes_here, not kwargs.get("non_blocking")
    else:
        crosses = isinstance(args[0], PretendTensor) != isinstance(args[1], PretendTensor)
        at_once = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
    if crosses and at_once:
        _waits("copying between the devices")


def _depends_on_data(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name in _INDEXING:
        masks = [index for index in args[1] if isinstance(index, Tensor) and index.dtype == torch.bool]
        fills = name.startswith(("index_put", "_index_put")) and args[2].numel() == 1  # masked_fill, then
        return bool(masks) and not fills
    return True


@contextmanager
def trainers_on_it() -> Iterator[Watch]:
    """Both trainers compute there, whatever --device says. From the beginning of a step to its report nothing
    may wait. Nothing is saved: files are written from memory that these tensors do not have."""
    from sqrtvocab.training import runtime
    from sqrtvocab.training.run import Run
    from sqrtvocab.training.tally import Tally

    seed_step, fetch = runtime.Runtime.seed_step, Tally.fetch

    def begin(self: Any, step: int) -> None:
        _watch.forbidden = True
        seed_step(self, step)

    def report(self: Any) -> dict[str, float]:
        _watch.forbidden = False
        return fetch(self)

    with (
        pretended_gpu() as (device, watch),
        patch.object(runtime, "choose_device", lambda *_: device),
        patch.object(runtime.Runtime, "seed_step", begin),
        patch.object(Tally, "fetch", report),
        patch.object(Run, "save_best"),
        patch.object(Run, "save_last"),
    ):
        yield watch
