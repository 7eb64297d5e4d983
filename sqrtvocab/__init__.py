"""Output heads over huge vocabularies that never build the logits."""

from sqrtvocab.heads import (
    HEADS,
    AdaptiveHead,
    FactoredHead,
    FlatHead,
    GroupedHead,
    GroupedLinearHead,
    GroupedLowRankHead,
    Head,
    HeadOutput,
    make_head,
)
from sqrtvocab.partition import Partition

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
