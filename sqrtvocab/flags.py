"""What the commands do before they import torch: read flags, and refuse bad ones in one line.

Imports no torch: `--help` must not wait for it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqrtvocab import __version__
from sqrtvocab.errors import UserError

Config = TypeVar("Config")


def flag(field: str) -> str:
    """The flag of a field."""
    return "--" + field.replace("_", "-")


def at_least(config: object, least: int, *names: str) -> list[str]:
    """A complaint for each of these fields that is set and smaller, or no finite number."""
    values = {name: getattr(config, name) for name in names}
    phrase = "must not be negative" if least == 0 else f"must be at least {least}"
    return [
        f"{flag(name)} {phrase if value < least else 'must be a finite number'}, got {value}"
        for name, value in values.items()
        if value is not None and not least <= value < float("inf")
    ]


def positive(config: object, *names: str) -> list[str]:
    """A complaint for each of these fields that is set and not positive, or no finite number."""
    values = {name: getattr(config, name) for name in names}
    return [
        f"{flag(name)} must be a positive number, got {value}"
        for name, value in values.items()
        if value is not None and not 0 < value < float("inf")
    ]


def seed_fits(config: Any) -> list[str]:
    """A complaint if the field `seed` is set to more than torch takes."""
    seed = config.seed
    return [f"--seed must be below 2^63, got {seed}"] if seed is not None and seed >= 2**63 else []


def scout(*names: str) -> dict[str, str | None]:
    """The values of a few flags of the command line, which decide about the defaults of the others.

    Says nothing about mistakes: tyro reads everything once more.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(name, dest=name, nargs="?")
    return vars(parser.parse_known_args()[0])


def saved_config(given: Mapping[str, str | None], program: str, from_json: Callable[..., Config]) -> Config:
    """The settings of the run that `--resume RUN` continues.

    Args:
        given: what `scout` found of --resume and --preset.

    Raises:
        UserError: there is no run in that folder, or one of something else; or a preset, too.
    """
    run = str(given["--resume"])
    if given["--preset"] is not None:
        raise UserError(f"--preset: {run} has its own settings; leave the flag away")
    path = Path(run) / "config.json"
    if not path.is_file():
        raise UserError(f"--resume {run}: no run in that folder (it has no config.json)")
    try:
        return from_json(json.loads(path.read_text("utf-8")), resume=run, out=None)
    except (UserError, OSError, TypeError, ValueError) as error:
        raise UserError(f"--resume {run}: not a run of {program}: {error}") from error


def answer_version(program: str, arguments: Sequence[str]) -> None:
    """If that is all that was asked, print the version and exit."""
    if list(arguments) == ["--version"]:
        print(f"{program} {__version__}")
        raise SystemExit(0)


@contextlib.contextmanager
def one_line_errors(program: str) -> Iterator[None]:
    """tyro's answer to bad flags is a box of many lines; say the same in one, and exit with code 2.

    Answers `--version`, too.
    """
    answer_version(program, sys.argv[1:])
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            yield
    except (UserError, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:  # --help
            raise
        message: Any = error if isinstance(error, UserError) else one_line(box.getvalue())
        print(f"{program}: {message}", file=sys.stderr)
        raise SystemExit(2) from None


def one_line(box: str) -> str:
    """The sections of tyro's box without title, frame and the help of the flag; drawn in ASCII or Unicode."""
    bare = re.sub(r"^╭.*$", "---", re.sub(r"[│╰╯]", " ", box), flags=re.MULTILINE)
    sections = re.split(r"^[ ─-]{3,}$", bare, flags=re.MULTILINE)[1:]
    lines = [" ".join(section.split()) for section in sections if "Argument helptext:" not in section]
    return "; ".join(filter(None, lines))
