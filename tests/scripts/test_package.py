"""The scripts are a package: they share by common and reports, and each runs as a file and as a module."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scripts").rglob("*.py"))
COMMANDS = sorted(path.stem for path in (ROOT / "scripts").glob("[!_]*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_script_imports_another(path):
    tree = ast.parse(path.read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    ours = [module for module in modules if module.split(".")[0] in ("scripts", *COMMANDS)]
    assert all(
        f"{module}.".startswith(
            ("scripts.common.", "scripts.reports.", "scripts.characters.", "scripts.corpus.")
        )
        for module in ours
    )
    if path.parent.name == "common":
        assert not [module for module in ours if module.startswith("scripts.reports")]
    assert "sys.path" not in path.read_text()


@pytest.mark.parametrize("name", [["scripts/compare_heads.py"], ["-m", "scripts.compare_heads"]])
def test_as_a_file_and_as_a_module(name):
    command = [sys.executable, "-X", "importtime", *name, "lm", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert "--contenders" in result.stdout
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert not imported & {"torch", "matplotlib", "transformers"}


QUICK = ("demo", "bench_heads")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_help_fits_the_terminal(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    command = [sys.executable, f"scripts/{name}.py", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"usage: python scripts/{name}.py")
    assert "examples" in lines
    assert max(map(len, lines)) <= 60
