"""Output heads over huge vocabularies that never build the logits."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sqrtvocab.heads.registry import HEADS, make_head

if TYPE_CHECKING:
    from sqrtvocab.heads import AdaptiveHead as AdaptiveHead
    from sqrtvocab.heads import FactoredHead as FactoredHead
    from sqrtvocab.heads import FlatHead as FlatHead
    from sqrtvocab.heads import GroupedHead as GroupedHead
    from sqrtvocab.heads import GroupedLinearHead as GroupedLinearHead
    from sqrtvocab.heads import GroupedLowRankHead as GroupedLowRankHead
    from sqrtvocab.heads import Guesses as Guesses
    from sqrtvocab.heads import Head as Head
    from sqrtvocab.heads import HeadCost as HeadCost
    from sqrtvocab.heads import HeadOutput as HeadOutput
    from sqrtvocab.heads import MachHead as MachHead
    from sqrtvocab.heads import PrototypeHead as PrototypeHead
    from sqrtvocab.heads import SampledHead as SampledHead
    from sqrtvocab.partition import Partition as Partition

__version__ = "0.1.0"
__all__ = ["HEADS", "Guesses", "Head", "HeadCost", "HeadOutput", "Partition", "make_head"]


def __getattr__(name: str) -> Any:  # loaded when first used: the commands answer `--help` without torch
    if name == "Partition":
        return importlib.import_module("sqrtvocab.partition").Partition
    if name in __all__ or name.endswith("Head"):
        return getattr(importlib.import_module("sqrtvocab.heads"), name)
    raise AttributeError(f"module 'sqrtvocab' has no attribute {name!r}")
