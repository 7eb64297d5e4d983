"""The heads by name. Imports no torch: the commands name the heads in their help."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqrtvocab.heads.base import Head


class Registry(MutableMapping[str, "type[Head]"]):
    """Name -> class. A class may be given as "module:Class", which is imported when it is first asked for."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._entries: dict[str, str | type[Head]] = dict(homes)

    def __getitem__(self, name: str) -> type[Head]:
        entry = self._entries[name]
        if isinstance(entry, str):
            module, class_name = entry.split(":")
            entry = self._entries[name] = getattr(importlib.import_module(module), class_name)
        return entry

    def __setitem__(self, name: str, head: type[Head]) -> None:
        self._entries[name] = head

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __contains__(self, name: object) -> bool:  # the inherited one would import the class
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


HEADS = Registry({
    "flat": "sqrtvocab.heads.flat:FlatHead",
    "grouped": "sqrtvocab.heads.grouped:GroupedHead",
    "grouped-linear": "sqrtvocab.heads.grouped_linear:GroupedLinearHead",
    "grouped-low-rank": "sqrtvocab.heads.grouped_low_rank:GroupedLowRankHead",
    "adaptive": "sqrtvocab.heads.adaptive:AdaptiveHead",
    "factored": "sqrtvocab.heads.factored:FactoredHead",
    "sampled": "sqrtvocab.heads.sampled:SampledHead",
    "mach": "sqrtvocab.heads.mach:MachHead",
    "prototype": "sqrtvocab.heads.prototype:PrototypeHead",
})  # fmt: skip


def head_class(name: str) -> type[Head]:
    """The class of a head.

    Raises:
        ValueError: no head of this name.
    """
    if name not in HEADS:
        raise ValueError(f"no head is called {name!r}; the heads are {', '.join(HEADS)}")
    return HEADS[name]


def make_head(
    name: str, in_features: int, num_classes: int, offered: Mapping[str, Any] | None = None, **options: Any
) -> Head:
    """A head by name, see :data:`HEADS`.

    Args:
        in_features: d, the width of the hidden state.
        num_classes: V.
        offered: what the caller has, whatever the head: of these options the head takes those that it knows,
            unless they are None.
        options: keyword arguments of the head's class.

    Raises:
        ValueError: no head of this name, or a value that does not fit.
        TypeError: one of ``options`` that this head does not have.
    """
    kind = head_class(name)
    if unknown := [option for option in options if not kind.takes(option)]:
        known = ", ".join(kind.option_names())
        raise TypeError(f"head {name!r} has no option {unknown[0]!r}; its options are {known}")
    taken = {key: value for key, value in (offered or {}).items() if value is not None and kind.takes(key)}
    return kind(in_features, num_classes, **{**taken, **options})
