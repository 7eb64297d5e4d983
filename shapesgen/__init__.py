"""The procedural image set of 184,320 classes: an image is a pure function of (seed, class, instance)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shapesgen.attributes import AttributeSpace as AttributeSpace
    from shapesgen.dataset import ShapesDataset as ShapesDataset
    from shapesgen.reader import ShapesParquet as ShapesParquet
    from shapesgen.recipe import Recipe as Recipe
    from shapesgen.renderer import render as render

# Loaded when first used: the command line answers `--help` and `describe` without importing numba.
_HOMES = {
    "AttributeSpace": "attributes",
    "Recipe": "recipe",
    "ShapesDataset": "dataset",
    "ShapesParquet": "reader",
    "render": "renderer",
}
__all__ = ["AttributeSpace", "Recipe", "ShapesDataset", "ShapesParquet", "render"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shapesgen' has no attribute {name!r}")
    return getattr(importlib.import_module(f"shapesgen.{_HOMES[name]}"), name)
