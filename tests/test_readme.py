"""The README's promises, executed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_python_example_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run([sys.executable, "-c", block], check=True, cwd=ROOT)


def test_every_make_target_it_names_exists():
    named = set()
    for page in ("README.md", "CONTRIBUTING.md"):
        named |= set(re.findall(r"^make ([a-z-]+)", (ROOT / page).read_text(), flags=re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "test"} <= named <= targets
