"""Where things that were made once, and can be made again, are kept."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """`$SQRTVOCAB_CACHE`, or `sqrtvocab` in the user's cache folder."""
    if folder := os.environ.get("SQRTVOCAB_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sqrtvocab"
