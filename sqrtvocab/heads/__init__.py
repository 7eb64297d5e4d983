"""Output heads over huge vocabularies, all under one contract: :class:`~sqrtvocab.heads.base.Head`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sqrtvocab.heads.registry import HEADS, head_class, make_head

if TYPE_CHECKING:
    from sqrtvocab.heads.adaptive import AdaptiveHead as AdaptiveHead
    from sqrtvocab.heads.base import Guesses as Guesses
    from sqrtvocab.heads.base import Head as Head
    from sqrtvocab.heads.base import HeadCost as HeadCost
    from sqrtvocab.heads.base import HeadOutput as HeadOutput
    from sqrtvocab.heads.factored import FactoredHead as FactoredHead
    from sqrtvocab.heads.flat import FlatHead as FlatHead
    from sqrtvocab.heads.grouped import GroupedHead as GroupedHead
    from sqrtvocab.heads.grouped_linear import GroupedLinearHead as GroupedLinearHead
    from sqrtvocab.heads.grouped_low_rank import GroupedLowRankHead as GroupedLowRankHead
    from sqrtvocab.heads.mach import MachHead as MachHead
    from sqrtvocab.heads.prototype import PrototypeHead as PrototypeHead
    from sqrtvocab.heads.sampled import SampledHead as SampledHead

# Loaded when first used: the names of the heads must not cost the import of torch.
_CONTRACT = ("Guesses", "Head", "HeadCost", "HeadOutput")
__all__ = ["HEADS", "Guesses", "Head", "HeadCost", "HeadOutput", "head_class", "make_head"]


def __getattr__(name: str) -> Any:
    if name in _CONTRACT:
        return getattr(importlib.import_module("sqrtvocab.heads.base"), name)
    if name.endswith("Head"):
        for kind in HEADS.values():
            if kind.__name__ == name:
                return kind
    raise AttributeError(f"module 'sqrtvocab.heads' has no attribute {name!r}")
