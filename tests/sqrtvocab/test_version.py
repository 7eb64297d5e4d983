"""What a package tells about itself: its version, by every command, and that it has types."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sqrtvocab

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("command", PROJECT["project"]["scripts"])
def test_every_command_tells_its_version(command, monkeypatch, capsys):
    module, function = PROJECT["project"]["scripts"][command].split(":")
    monkeypatch.setattr(sys, "argv", [command, "--version"])
    try:
        code = getattr(importlib.import_module(module), function)()
    except SystemExit as ending:
        code = ending.code
    assert code == 0
    assert capsys.readouterr().out == f"{command} {sqrtvocab.__version__}\n"


def test_the_version_costs_no_torch():
    script = "import sqrtvocab, sys; print(sqrtvocab.__version__, 'torch' in sys.modules)"
    out = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert out.split() == [sqrtvocab.__version__, "False"]


def test_the_wheel_says_that_it_has_types():
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages
    assert all((ROOT / package / "py.typed").is_file() for package in packages)
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "sqrtvocab/__init__.py"
