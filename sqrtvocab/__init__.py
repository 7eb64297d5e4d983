"""Output heads over huge vocabularies that never build the logits."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqrtvocab.heads import HEADS as HEADS
    from sqrtvocab.heads import AdaptiveHead as AdaptiveHead
    from sqrtvocab.heads import FactoredHead as FactoredHead
    from sqrtvocab.heads import FlatHead as FlatHead
    from sqrtvocab.heads import GroupedHead as GroupedHead
    from sqrtvocab.heads import GroupedLinearHead as GroupedLinearHead
    from sqrtvocab.heads import GroupedLowRankHead as GroupedLowRankHead
    from sqrtvocab.heads import Head as Head
    from sqrtvocab.heads import HeadOutput as HeadOutput
    from sqrtvocab.heads import make_head as make_head
    from sqrtvocab.partition import Partition as Partition

# Loaded when first used: the commands answer `--help` without importing torch.
_HEADS = (
    "HEADS", "AdaptiveHead", "FactoredHead", "FlatHead", "GroupedHead", "GroupedLinearHead",
    "GroupedLowRankHead", "Head", "HeadOutput", "make_head",
)  # fmt: skip
_HOMES = {**dict.fromkeys(_HEADS, "heads"), "Partition": "partition"}
__all__ = [
    "HEADS",
    "AdaptiveHead",
    "FactoredHead",
    "FlatHead",
    "GroupedHead",
    "GroupedLinearHead",
    "GroupedLowRankHead",
    "Head",
    "HeadOutput",
    "Partition",
    "make_head",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sqrtvocab' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sqrtvocab.{_HOMES[name]}"), name)
