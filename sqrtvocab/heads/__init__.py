"""Output heads over huge vocabularies, all under one contract: :class:`~sqrtvocab.heads.base.Head`."""

from __future__ import annotations

import inspect
from typing import Any

from sqrtvocab.heads.adaptive import AdaptiveHead
from sqrtvocab.heads.base import Head, HeadOutput
from sqrtvocab.heads.factored import FactoredHead
from sqrtvocab.heads.flat import FlatHead
from sqrtvocab.heads.grouped import GroupedHead
from sqrtvocab.heads.grouped_linear import GroupedLinearHead
from sqrtvocab.heads.grouped_low_rank import GroupedLowRankHead

HEADS: dict[str, type[Head]] = {
    "flat": FlatHead,
    "grouped": GroupedHead,
    "grouped-linear": GroupedLinearHead,
    "grouped-low-rank": GroupedLowRankHead,
    "adaptive": AdaptiveHead,
    "factored": FactoredHead,
}


def make_head(name: str, in_features: int, num_classes: int, **options: Any) -> Head:
    """A head by name: "flat", "grouped", "grouped-linear", "grouped-low-rank", "adaptive" or "factored".

    Args:
        in_features: d, the width of the hidden state.
        num_classes: V.
        options: the keyword arguments of the head's class.

    Raises:
        ValueError: no head of this name, or a value that does not fit.
        TypeError: an option that this head does not have.
    """
    if name not in HEADS:
        raise ValueError(f"no head is called {name!r}; the heads are {', '.join(HEADS)}")
    known = [p for p in inspect.signature(HEADS[name]).parameters if p not in ("in_features", "num_classes")]
    if unknown := [option for option in options if option not in known]:
        raise TypeError(f"head {name!r} has no option {unknown[0]!r}; its options are {', '.join(known)}")
    return HEADS[name](in_features, num_classes, **options)


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
    "make_head",
]
