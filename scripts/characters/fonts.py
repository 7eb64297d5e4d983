"""The fonts on the machine, and which characters each of their faces has."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fontTools.ttLib import TTFont

from shapesgen.workers import Report
from sqrtvocab.errors import UserError

SUFFIXES = (".ttf", ".otf", ".ttc", ".otc")
PACKAGES = (
    "fonts-noto-cjk fonts-noto-cjk-extra fonts-nanum fonts-nanum-extra fonts-unfonts-core "
    "fonts-unfonts-extra fonts-baekmuk fonts-arphic-ukai fonts-arphic-uming fonts-cns11643-kai "
    "fonts-cns11643-sung fonts-wqy-zenhei fonts-wqy-microhei fonts-babelstone-han fonts-hanazono "
    "fonts-ipamj-mincho"
)
INSTALL = f"on Debian: apt install {PACKAGES} (and unicode-data for the radicals)"

# What a name adds to that of its family: a weight, a country, a variant with the same letters.
_VARIANT = re.compile(
    r"[ _-](thin|hairline|ultralight|extralight|demilight|light|book|regular|normal|medium|demibold|semibold"
    r"|bold|extrabold|ultrabold|black|heavy|italic|oblique|condensed|mono|sharp|jp|kr|sc|tc|hk|cn|tw|mbe"
    r"|yethangul|eco|ac|ext-b|plus)$",
    re.IGNORECASE,
)
_MISSING = "0"  # the glyph for what a font does not have
_ONE_FAMILY = {"HanaMinA": "HanaMin", "HanaMinB": "HanaMin"}  # in two files, for want of room in one


@dataclass(frozen=True)
class Face:
    """One face of a font file, with those characters that no earlier face of the file draws alike."""

    path: Path
    number: int  # within a collection
    family: str
    name: str
    version: str
    licence: str
    licence_url: str
    codes: tuple[int, ...]  # ascending code points


def font_folders() -> list[Path]:
    """Where fontconfig looks, and the systems without it."""
    home = Path.home()
    shared = os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share").split(":")
    own = os.environ.get("XDG_DATA_HOME", str(home / ".local/share"))
    folders = [Path(own) / "fonts", home / ".fonts", *(Path(folder) / "fonts" for folder in shared if folder)]
    if sys.platform == "darwin":
        folders += [home / "Library/Fonts", Path("/Library/Fonts"), Path("/System/Library/Fonts")]
    if sys.platform == "win32":
        folders += [Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts"]
    return folders


def font_files(folders: Sequence[Path]) -> list[Path]:
    """The font files in and below the folders (or named themselves), each once, in the order of their names.

    Raises:
        UserError: a folder that was named is not there.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.exists():
            raise UserError(f"--fonts {folder}: no such folder")
        files = folder.rglob("*") if folder.is_dir() else [folder]
        for path in files:
            if path.suffix.lower() in SUFFIXES and path.is_file():
                found.setdefault(path.resolve(), path)
    return sorted(found, key=lambda path: (path.name, str(path)))


def survey(path: Path, report: Report, wanted: Sequence[int]) -> tuple[list[Face], str]:
    """The faces of a file that have any of the wanted characters; and why it cannot be read, if so.

    The faces of a collection share most of their outlines: what an earlier face draws with the same outline
    is left out of the later one.
    """
    logging.getLogger("fontTools").setLevel(logging.CRITICAL)  # fonts have faults that do not matter here
    faces, drawn = [], set()
    try:
        for number in range(_count(path)):
            with TTFont(path, fontNumber=number, lazy=True) as font:
                outlines = next(tag for tag in ("CFF ", "CFF2", "glyf") if tag in font)
                place = font.reader.tables[outlines].offset
                cmap = _cmap(font)
                codes = []
                for code in wanted:
                    glyph = cmap.get(code)
                    if glyph is not None and glyph != _MISSING and (place, glyph) not in drawn:
                        codes.append(code)
                # After the loop: two characters of one face may share an outline.
                drawn |= {(place, cmap[code]) for code in codes}
                if codes:
                    faces.append(_face(path, number, font, codes))
    except StopIteration:
        return [], "it has no outlines"
    except Exception as error:  # fontTools raises whatever it runs into
        return [], " ".join(str(error).split())[:100] or type(error).__name__
    finally:
        report(1, 0)
    return faces, ""


def _count(path: Path) -> int:
    with path.open("rb") as file:
        head = file.read(12)
    return int.from_bytes(head[8:12], "big") if head[:4] == b"ttcf" else 1


def _cmap(font: TTFont) -> dict[int, str]:
    """Code point -> glyph, by its number as a text: the glyphs' real names would have to be read first."""
    font.setGlyphOrder([str(glyph) for glyph in range(font["maxp"].numGlyphs)])
    cmap: dict[int, str] | None = font.getBestCmap()
    return cmap or {}


def _face(path: Path, number: int, font: TTFont, codes: Iterable[int]) -> Face:
    names = {key: (font["name"].getDebugName(key) or "").strip() for key in (0, 1, 4, 5, 13, 14, 16)}
    family = names[16] or names[1] or path.stem
    licence = names[13] or names[0]  # older fonts say it under copyright
    first_line = next((line.strip() for line in licence.splitlines() if line.strip()), "")
    return Face(
        path=path,
        number=number,
        family=family_of(family),
        name=names[4] or family,
        version=names[5],
        licence=first_line[:300],
        licence_url=names[14],
        codes=tuple(codes),
    )


def family_of(name: str) -> str:
    """ "Noto Sans Mono CJK KR Bold" -> "Noto Sans Mono CJK": without weights, countries and variants."""
    while (shorter := _VARIANT.sub("", name)) != name:
        name = shorter
    return _ONE_FAMILY.get(name, name)
