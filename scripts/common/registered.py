"""The registered heads as the benchmarks see them: what joins the registry is measured, too."""

from __future__ import annotations

from typing import Any

from sqrtvocab.heads.registry import HEADS


def plain_heads() -> list[str]:
    """The heads that need to know nothing of the classes but their number, and learn from any batch."""
    return [name for name, head in HEADS.items() if not head.needs and head.rows_per_class == 1]


def heads_with_variants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Title -> name and options of each head as it is by default, and of those variants that cost otherwise.

    `tied` is an option of `head_steps.bench_head`.
    """
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in plain_heads():
        head = HEADS[name]
        found[name] = (name, {})
        if head.takes("modulation"):
            found |= {f"{name}, {kind}": (name, {"modulation": kind}) for kind in ("film", "both")}
        if head.has_groups and head.takes("weight"):  # without groups the weight is used as it is
            found[f"{name}, tied"] = (name, {"tied": True})
    return found
