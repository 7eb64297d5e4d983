"""The README's promises, executed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_examples(page):
    """What the Python examples of a page print."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    command = [sys.executable, "-c"]
    return [subprocess.check_output([*command, block], cwd=ROOT, text=True) for block in blocks]


def test_the_python_example_runs():
    run_examples("README.md")


def test_the_example_of_measuring_runs():
    (printed,) = run_examples("docs/measure.md")
    flat, verdict, ours, our_verdict = printed.splitlines()
    assert (verdict, our_verdict) == ("out of memory on a T4", "fits on a T4")
    parts = ("parameters", "gradients", "optimiser", "activations", "logits")
    assert all(f"'{part}'" in line for part in parts for line in (flat, ours))


def test_every_make_target_it_names_exists():
    named = set()
    for page in ("README.md", "CONTRIBUTING.md"):
        named |= set(re.findall(r"^make ([a-z-]+)", (ROOT / page).read_text(), flags=re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "test"} <= named <= targets
