"""How a script begins and ends: its flags, its exit code, and the command that a page quotes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import tyro

from sqrtvocab.errors import UserError, exit_code
from sqrtvocab.flags import one_line_errors
from sqrtvocab.help import answer_help

RESULTS, QUICK = Path("docs/results"), Path("runs/quick")
Config = TypeVar("Config")


def read_flags(kind: type[Config], text: str | None) -> Config:
    """The flags of a script; `text`, its docstring, is what `--help` begins with."""
    answer_help(kind, f"python scripts/{Path(sys.argv[0]).name}", text=text or "")
    return tyro.cli(kind)


def run_script(main: Callable[[Config], None], parse: Callable[[], Config]) -> int:
    """Read the flags by `parse`, run `main` with them -> the exit code. What goes wrong is one line."""
    program = Path(sys.argv[0]).stem
    with one_line_errors(program):
        config = parse()
    return exit_code(program, lambda: main(config))


def say(line: str) -> None:
    """A line for the reader of the terminal."""
    print(line, file=sys.stderr, flush=True)


def make_folder(out: Path | None, quick: bool = False) -> Path:
    """The folder of `--out`, made if need be.

    Without `--out` it is docs/results, for `--quick` one that git ignores: a trial must not replace results.

    Raises:
        UserError: it cannot be made.
    """
    out = out or (QUICK if quick else RESULTS)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}; name a folder that can be made") from error
    return out


def require_device(device: str) -> None:
    """Raise `UserError` for `--device cuda` where there is none."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no CUDA device here; leave the flag out")


def json_problems(path: Path | None) -> list[str]:
    """What is wrong with `--json`."""
    if path is None or path.resolve().parent.is_dir():
        return []
    return [f"--json: no folder {path.resolve().parent}"]


# ---- commands as a page shows them ----


def shown_path(path: Path | str) -> str:
    """A path for a page: relative to the current folder, or its last name if it lies elsewhere.

    Where the folders of one machine lie is nobody's business. A folder's bare name ends in "/", because
    `--data tinystories` would be a download.
    """
    whole, here = Path(os.path.abspath(path)), Path.cwd()
    shown = whole.relative_to(here).as_posix() if whole.is_relative_to(here) else whole.name
    return f"{shown}/" if "/" not in shown and whole.is_dir() else shown


def command() -> str:
    """The command that is running, as one would type it, without the paths of this machine."""
    words = []
    for word in sys.argv[1:]:
        flag, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
        outside = Path(value).is_absolute() or ".." in Path(value).parts
        words.append(flag + equals + (shown_path(value) if outside else value))
    return shlex.join(["python", f"scripts/{Path(sys.argv[0]).name}", *words])


def command_line() -> str:
    """The same, in a code block."""
    return f"```bash\n{command()}\n```"


def command_with(script: str, flags: Mapping[str, Sequence[object]]) -> str:
    """The command that makes a part of a page again, in a code block."""
    words = [str(word) for flag, values in flags.items() for word in (flag, *values)]
    return f"```bash\n{shlex.join(['python', *script.split(), *words])}\n```"


def values_of(settings: str) -> dict[str, list[str]]:
    """Flags, as a record has them, and all values that each was given."""
    values: dict[str, list[str]] = {}
    for word in shlex.split(settings):
        if word.startswith("--"):
            given = values.setdefault(word, [])
        else:
            given.append(word)
    return values
