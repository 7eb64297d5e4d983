"""The scripts as modules, and as commands."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    """`script("records")`: the module of that name in scripts/."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module


@pytest.fixture
def call(tmp_path):
    """`call("compare_heads.py", "lm", ...)` runs a script to its end, with a cache of its own."""

    def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SQRTVOCAB_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, SCRIPTS / name, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path.cwd())

    return run
