"""Runs the tests on the pretended GPU in a process of their own.

Torch must know a device before its first backward pass, and a process that has passed gradients through one
can no longer be forked, as other tests are. `tests/conftest.py` leaves these files out everywhere else.
"""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("kind", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_nothing_waits_for_the_pretended_gpu(kind):
    files = sorted(str(path) for path in TESTS.rglob("test_waits.py"))
    assert len(files) >= 3
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", kind]
    result = subprocess.run([*command, *files], cwd=TESTS.parent, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
