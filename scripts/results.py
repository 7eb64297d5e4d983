"""How every script here writes what it found: Markdown, CSV and pictures, whole or not at all. No command."""

from __future__ import annotations

import csv
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

RESULTS, QUICK = Path("docs/results"), Path("runs/quick")
SURFACE, INK, MUTED, GRID = "#fcfcfb", "#0b0b0b", "#52514e", "#e1e0d9"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A Markdown table; all but the first `left` columns are numbers."""
    marks = ["---"] * left + ["---:"] * (len(header) - left)
    lines = [header, marks, *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows, with all columns that any of them has; "" where a row has none."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, lambda draft: draft.write_text(text.getvalue(), "utf-8"))


def read_csv(path: Path, columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """The rows of a file that `write_csv` wrote; none if there is no such file.

    A file that is no text, lacks one of `columns`, or whose last line is cut short, is the end of the script.
    """
    if not path.is_file():
        return []
    way_out = "move it away, or name another --out"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        refuse(f"{path}: not a record of this script: {error}; {way_out}")
    for row in rows:
        if missing := [name for name in columns if row.get(name) is None]:
            refuse(f"{path}: not a record of this script, it lacks {missing[0]}; {way_out}")
    return rows


def write_page(path: Path, *parts: str) -> None:
    """Paragraphs, tables and code blocks, an empty line between them."""
    write_file(path, lambda draft: draft.write_text("\n\n".join(parts) + "\n", "utf-8"))


def write_figure(path: Path, figure: Any) -> None:
    """A PNG of at most 256 colours: a third of the bytes, and nobody sees it."""
    from PIL import Image

    def write(draft: Path) -> None:
        figure.savefig(draft, format="png", dpi=130, facecolor=SURFACE)
        with Image.open(draft) as image:
            image.convert("RGB").quantize(256).save(draft, "PNG", optimize=True)

    write_file(path, write)


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a draft, then put it in place: whole or not at all.

    The draft's name is this process's own: two parts of a comparison may write at the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".draft-{os.getpid()}-{path.name}")
    write(draft)
    draft.replace(path)


def shown_path(path: Path | str) -> str:
    """A path for a page: from the current folder on, or its last name if it lies elsewhere. Where the folders
    of one machine lie is nobody's business. A folder's bare name ends in "/": `--data tinystories` is a
    download."""
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


def values_of(settings: str) -> dict[str, list[str]]:
    """Flags, as a record has them, and all values that each was given."""
    values: dict[str, list[str]] = {}
    for word in shlex.split(settings):
        if word.startswith("--"):
            given = values.setdefault(word, [])
        else:
            given.append(word)
    return values


def command_with(script: str, flags: Mapping[str, Sequence[object]]) -> str:
    """The command that makes a part of a page again, in a code block."""
    words = [str(word) for flag, values in flags.items() for word in (flag, *values)]
    return f"```bash\n{shlex.join(['python', *script.split(), *words])}\n```"


def refuse(message: str) -> NoReturn:
    """End the script for bad input: one line, exit code 2, and no need to import torch first."""
    print(f"{Path(sys.argv[0]).stem}: {message}", file=sys.stderr)
    raise SystemExit(2)


def folder(out: Path | None, quick: bool = False) -> Path:
    """The folder of `--out`, made if need be, or the end of the script.

    Without `--out` it is docs/results, for `--quick` one that git does not look at: a trial must not replace
    results.
    """
    out = out or (QUICK if quick else RESULTS)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"--out {out}: {error.strerror}; name a folder that can be made")
    return out
