"""`--help` of a command: its flags in sections, examples, and no line longer than the terminal.

tyro's own has one section for all flags of a dataclass. Imports no torch.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from sqrtvocab.flags import Flags, flag

ORDER = ("", "model", "data", "training", "machine", "output")  # of the sections; others follow
_WIDEST = 100
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


def answer_help(
    kind: type,
    program: str,
    default: Flags | None = None,
    text: str = "",
    arguments: Sequence[str] | None = None,
) -> None:
    """Print the help of a command and end it, if it was asked for.

    Args:
        kind: the dataclass of its flags.
        default: what the flags are if they are not given; None for those of the class.
        text: what the command is for, instead of the docstring of the class; such as that of a module. An
            indented paragraph of it is examples, in lines such as `command  # comment`.
        arguments: instead of those of the process.

    Raises:
        SystemExit: with code 0, if so.
    """
    if _is_asked(arguments):
        _print_and_end(help_lines(kind, program, _width(), default, text))


def answer_help_of(
    commands: Mapping[str, Any], program: str, text: str, arguments: Sequence[str] | None = None
) -> None:
    """The same for a program of several commands, each a dataclass: of one, or which there are.

    Raises:
        SystemExit: with code 0, if help was asked for.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if not _is_asked(given):
        return
    if given[0] in commands:
        _print_and_end(help_lines(commands[given[0]], f"{program} {given[0]}", _width()))
    lines = [f"usage: {program} COMMAND [flags]", "", *_paragraphs(text, _width()), "commands"]
    for name, kind in commands.items():
        first = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]
        lines += [f"  {name}", *_wrap(first, _width(), 6, 6)]
    _print_and_end([*lines, "", *_wrap(f"{program} COMMAND --help: the flags of one", _width())])


def help_lines(
    kind: type, program: str, width: int, default: Flags | None = None, text: str = ""
) -> list[str]:
    """The help of a command, in lines of at most `width` characters, or 40 if that is less."""
    width = max(width, 40)
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    types = get_type_hints(kind, include_extras=True)
    positional = [field.name for field in fields if _is_positional(types[field.name])]
    usage = " ".join([program, *(name.upper() for name in positional), "[flags]"])
    lines = [
        *_wrap(f"usage: {usage}", width, 7),
        "",
        *_paragraphs(text or inspect.cleandoc(kind.__doc__ or ""), width),
    ]
    if examples := getattr(kind, "EXAMPLES", ()):
        lines += ["examples", *(line for example in examples for line in _example(example, width)), ""]
    sections: dict[str, list[str]] = {name: [] for name in ORDER}
    for field in fields:
        value = field.default if default is None else getattr(default, field.name)
        is_argument = field.name in positional
        entry = _entry(field.name, types[field.name], _docstring(kind, field.name), value, is_argument, width)
        section = kind.section_of(field.name) if issubclass(kind, Flags) and kind.SECTIONS else "flags"
        sections.setdefault(section, []).extend(entry)
    for name, entries in sections.items():
        if entries:
            lines += [name or "first of all", *entries, ""]
    return [*lines, *_wrap("-h, --help, --version: show this, or the version, and exit", width)]


def _is_asked(arguments: Sequence[str] | None) -> bool:
    return bool({"-h", "--help"} & set(sys.argv[1:] if arguments is None else arguments))


def _width() -> int:
    return max(40, min(shutil.get_terminal_size().columns, _WIDEST))


def _print_and_end(lines: Sequence[str]) -> NoReturn:
    print("\n".join(lines))
    raise SystemExit(0)


def _paragraphs(text: str, width: int) -> list[str]:
    """A text within the width; indented paragraphs are examples."""
    lines: list[str] = []
    for paragraph in text.rstrip().split("\n\n"):
        if paragraph.startswith("    "):
            examples = [re.split(r"\s+# ", line.strip(), maxsplit=1) for line in paragraph.splitlines()]
            lines += ["examples"]
            lines += [line for one in examples for line in _example((one[0], "".join(one[1:])), width)]
        else:
            lines += _wrap(paragraph.replace("`", ""), width)
        lines += [""]
    return lines


def _entry(name: str, kind: Any, text: str, value: Any, is_argument: bool, width: int) -> list[str]:
    """A flag, and below it what it does."""
    choices = _choices(kind)
    if is_argument:
        head = name.upper()
    elif _bare(kind) is bool:
        head = f"{flag(name)}, {flag('no_' + name)}"
    else:
        head = f"{flag(name)} {_metavar(kind)}"
    if len(head) + 2 > width and choices:
        head, text = f"{flag(name)} CHOICE", f"{text} Choices: {', '.join(choices)}."
    is_required = value is dataclasses.MISSING and not is_argument
    shown = "required" if is_required else f"default: {default}" if (default := _shown(value)) else ""
    return [
        *_wrap(head, width, 6, 2),
        *_wrap(f"{text.replace('`', '')}{f' ({shown})' if shown else ''}", width, 6, 6),
    ]


def _shown(value: Any) -> str:
    """A default as one would type it; empty if there is none to show."""
    if value is None or value is dataclasses.MISSING or value == ():
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _example(example: tuple[str, str], width: int) -> list[str]:
    command, comment = example
    lines = _wrap(command, width, 6, 2)
    if not comment:
        return lines
    if len(lines) == 1 and len(lines[0]) + len(comment) + 4 <= width and len(lines[0]) <= 50:
        return [f"{lines[0]:<50}  # {comment}" if 54 + len(comment) <= width else f"{lines[0]}  # {comment}"]
    return [*lines, *_wrap(f"# {comment}", width, 6, 6)]


def _wrap(text: str, width: int, hanging: int = 0, first: int = 0) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), width, initial_indent=" " * first, subsequent_indent=" " * hanging,
        break_on_hyphens=False,
    )  # fmt: skip


def _is_positional(kind: Any) -> bool:
    return any(str(note) == "Positional" for note in getattr(kind, "__metadata__", ()))


def _bare(kind: Any) -> Any:
    """A type without its annotations and without None."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        some = [one for one in get_args(kind) if one is not NoneType]
        return _bare(some[0]) if len(some) == 1 else kind
    return kind


def _choices(kind: Any) -> list[str]:
    """What a flag may be, if only a few things."""
    bare = _bare(kind)
    if get_origin(bare) is Literal:
        return [str(choice) for choice in get_args(bare)]
    named = _named(kind)
    return named.strip("{}").split(",") if named.startswith("{") else []


def _named(kind: Any) -> str:
    """The metavar that a type was given by `tyro.conf.arg`."""
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note.metavar for note in notes if getattr(note, "metavar", None)), "")


def _metavar(kind: Any) -> str:
    bare = _bare(kind)
    if named := _named(kind):
        return named
    if get_origin(bare) is Literal:
        return "{" + ",".join(map(str, get_args(bare))) + "}"
    if get_origin(bare) is tuple:
        return f"{_metavar(get_args(bare)[0])} ..."
    return _METAVARS.get(bare, "VALUE")


def _docstring(kind: type, name: str) -> str:
    """The string below a field, in the class or the nearest of its bases that has one."""
    return next((found for one in kind.__mro__ if (found := _docstrings(one).get(name))), "")


@cache
def _docstrings(kind: type) -> dict[str, str]:
    if not dataclasses.is_dataclass(kind):
        return {}
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, SyntaxError):  # made in an interpreter
        return {}
    found: dict[str, str] = {}
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for above, below in pairwise(statements):
        target = above.target if isinstance(above, ast.AnnAssign) else None
        value = below.value if isinstance(below, ast.Expr) else None
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            found[target.id] = str(value.value)
    return found
