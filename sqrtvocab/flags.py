"""What the commands do before they import torch: read flags and settings, refuse bad ones in one line.

Imports no torch: `--help` must not wait for it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from sqrtvocab import __version__
from sqrtvocab.errors import UserError, exit_code, open_streams, shortened

Device = Literal["auto", "cuda", "mps", "cpu"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Schedule = Literal["constant", "cosine"]
_MOST = 2**53


@dataclass(frozen=True)
class Flags:
    """A command's flags: a field is a flag, and all complaints about the values come at once."""

    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = ()
    """For `--help`: commands, each with what it is for."""
    SECTION: ClassVar[str] = "output"
    """Of `--help`, for the fields that the class itself declares; see `sqrtvocab.help`."""
    SECTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Where that is not enough: sections -> names of fields. A command without any has a single section."""

    @classmethod
    def section_of(cls, field: str) -> str:
        """The section of `--help` that a field belongs to."""
        for section, names in cls.SECTIONS.items():
            if field in names:
                return section
        declaring = [one for one in cls.__mro__ if field in vars(one).get("__annotations__", {})]
        return next(vars(one)["SECTION"] for one in declaring[-1].__mro__ if "SECTION" in vars(one))

    def __post_init__(self) -> None:
        # Numbers that nobody can mean first: to look at the rest may mean to compute with them.
        if problems := beyond_reason(self) or self.problems():
            raise UserError("; ".join(problems))

    def problems(self) -> list[str]:
        """What is wrong with the values, each complaint naming its flag."""
        return []


def flag(field: str) -> str:
    """The flag of a field."""
    return "--" + field.replace("_", "-")


def beyond_reason(config: Any) -> list[str]:
    """A complaint for each number larger than any that can be meant: 2^53, to which a float counts exactly.
    Seeds are names, not numbers; what is infinite is for `at_least` and `positive` to refuse."""
    numbers = {
        field.name: value
        for field in fields(config)
        if isinstance(value := getattr(config, field.name), int | float) and field.name != "seed"
    }
    return [
        f"{flag(name)} must be at most {_MOST}, got {shortened(value)}"
        for name, value in numbers.items()
        if abs(value) > _MOST and abs(value) != math.inf
    ]


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
    is_too_large = seed is not None and seed >= 2**63
    return [f"--seed must be below 2^63, got {shortened(seed)}"] if is_too_large else []


def to_plain(value: Any) -> Any:
    """A field's value as JSON has it; the inverse of `from_plain`."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def from_plain(value: Any, kind: Any) -> Any:
    """A value of JSON as a field of type `kind` holds it: a list as a tuple, a string as a path.

    Raises:
        TypeError: if it is no value of that type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return from_plain(value, arguments[0])
    if origin is Literal and any(value == choice and type(value) is type(choice) for choice in arguments):
        return value
    if origin in (Union, UnionType):
        for one in arguments:
            with contextlib.suppress(TypeError):
                return from_plain(value, one)
    if origin is tuple and isinstance(value, list):  # tuple[X, ...]
        return tuple(from_plain(item, arguments[0]) for item in value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) in (int, float):
        return value
    if origin is None and type(value) is kind:  # not isinstance: True is no number here
        return value
    raise TypeError(f"{value!r} is not of type {kind}")


def as_text(words: str) -> str:
    """What was typed. Bytes that the locale's encoding does not know, in that of C all that are not ASCII,
    reach Python as halves of surrogate pairs; together they may well be UTF-8.

    Raises:
        UnicodeDecodeError: they are not.
    """
    try:
        words.encode()
    except UnicodeEncodeError:
        return os.fsencode(words).decode("utf-8")
    return words


def peek_flags(*names: str) -> dict[str, str | None]:
    """The values of a few flags of the command line, on which the defaults of the others depend.

    Says nothing about mistakes: tyro reads everything once more.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(name, dest=name, nargs="?")
    return vars(parser.parse_known_args()[0])


@contextlib.contextmanager
def one_line_errors(program: str) -> Iterator[None]:
    """tyro's answer to bad flags is a box of many lines; say the same in one, and exit with code 2.

    Answers `--version`, too.
    """
    box = io.StringIO()
    problem: Exception | None = None
    open_streams()
    if sys.argv[1:] == ["--version"]:
        raise SystemExit(exit_code(program, lambda: print(f"{program} {__version__}")))
    try:
        with contextlib.redirect_stderr(box):
            yield
            return
    except (UserError, OSError) as error:
        problem = error
    except SystemExit as error:
        problem = UserError(one_line(box.getvalue())) if error.code else None  # None: --help
    raise SystemExit(exit_code(program, lambda: _raise(problem)))


def _raise(problem: Exception | None) -> None:
    if problem is not None:
        raise problem


def one_line(box: str) -> str:
    """The sections of tyro's box without title, frame and the help of the flag; drawn in ASCII or Unicode."""
    bare = re.sub(r"^╭.*$", "---", re.sub(r"[│╰╯]", " ", box), flags=re.MULTILINE)
    sections = re.split(r"^[ ─-]{3,}$", bare, flags=re.MULTILINE)[1:]
    lines = [" ".join(section.split()) for section in sections if "Argument helptext:" not in section]
    return "; ".join(filter(None, lines))
