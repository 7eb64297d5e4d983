"""Write docs/api.md, the reference of heads and Partition, from their docstrings.

    python scripts/write_api.py

To be run after a public docstring has changed; a test compares.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.command import read_flags, run_script
from sqrtvocab.atomic import write_text

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
INTRODUCTION = """\
# Reference

Written by `python scripts/write_api.py` from the docstrings. Which head to choose: [heads.md](heads.md).
"""


@dataclass(frozen=True)
class Config:
    """Write docs/api.md, the reference of heads and Partition, from their docstrings."""


def page() -> str:
    """The whole page."""
    from sqrtvocab.heads import HEADS, Guesses, Head, HeadCost, HeadOutput, make_head
    from sqrtvocab.partition import Partition

    parts = [INTRODUCTION, "## Making a head\n", entry("make_head", make_head)]
    bases: dict[type, None] = {}  # what several heads share, in order
    for name, kind in HEADS.items():
        parts.append(f"### `{name}`: {kind.__name__}\n\n{prose(inspect.getdoc(kind) or '')}")
        between = kind.__mro__[1 : kind.__mro__.index(Head)]
        bases |= dict.fromkeys(base for base in reversed(between) if base not in HEADS.values())
    for base in bases:
        parts.append(f"### {base.__name__}\n\n{prose(inspect.getdoc(base) or '')}")
    parts.append(f"## What every head does\n\n{prose(inspect.getdoc(Head) or '')}")
    parts += [entry(name, method) for name, method in public(Head)]
    parts.append("## What it answers with\n")
    for answer in (HeadOutput, Guesses, HeadCost):
        parts.append(f"### {answer.__name__}\n\n{prose(inspect.getdoc(answer) or '')}\n{fields(answer)}")
    parts.append(f"## Partition\n\n{prose(inspect.getdoc(Partition) or '')}")
    parts += [entry(f"Partition.{name}", method) for name, method in public(Partition)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def public(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods that a class itself defines, in its order, and those of its base among ours."""
    for base in (kind, *kind.__mro__[1:]):
        if not base.__module__.startswith("sqrtvocab"):
            continue
        for name, value in vars(base).items():
            function = getattr(value, "__func__", value)
            if name.startswith("_") or not inspect.isfunction(function) or name == "extra_repr":
                continue
            if base is kind or name not in vars(kind):
                yield name, function


def entry(name: str, function: Callable[..., Any]) -> str:
    """A function or method: its signature and its docstring."""
    parameters = inspect.signature(function).parameters.values()
    shown = [
        str(parameter.replace(annotation=parameter.empty))
        for parameter in parameters
        if parameter.name not in ("self", "cls")
    ]
    called = "head" if name == "forward" else name
    return f"#### `{called}({', '.join(shown)})`\n\n{prose(inspect.getdoc(function) or '')}"


def fields(kind: Any) -> str:
    """The attributes of a tuple or dataclass and the strings that stand below them."""
    body = inspect.getsource(kind)
    found = re.findall(r'^    (\w+): [^\n]+\n(?:    """(.*?)"""\n)?', body, flags=re.MULTILINE | re.DOTALL)
    return "".join(f"- `{name}`{': ' if text else ''}{plain(text)}\n" for name, text in found)


def prose(docstring: str) -> str:
    """A docstring as Markdown: arguments and errors become lists."""
    lines, in_list = [], False
    for line in docstring.splitlines():
        if line in ("Args:", "Raises:", "Returns:"):
            lines += [f"{line[:-1]}:" if line != "Args:" else "Arguments:", ""]
            in_list = True
        elif in_list and (item := re.match(r"    (\S[^:]*): (.*)", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif in_list and line.startswith("    "):
            lines[-1] += f" {line.strip()}" if lines[-1] else line.strip()
        else:
            in_list = in_list and not line
            lines.append(line)
    return plain("\n".join(lines)) + "\n"


def plain(text: str) -> str:
    """Without the marks of reStructuredText."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


def main(config: Config) -> None:
    """Write the page."""
    write_text(PAGE, page())
    print(f"written to {PAGE}")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
