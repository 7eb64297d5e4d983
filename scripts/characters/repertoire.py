"""Which characters a script has, and what is known of each: the letters of a syllable, the radical."""

from __future__ import annotations

import bz2
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sqrtvocab.errors import UserError, shortened

HANGUL = range(0xAC00, 0xD7A4)  # 19 x 21 x 28 syllables, the final letter fastest
HANGUL_SHAPE = (19, 21, 28)
_HAN_BASIC = range(0x4E00, 0xA000)
_HAN_OTHER = (
    range(0x3400, 0x4DC0), range(0x20000, 0x2A6E0), range(0x2A700, 0x2EE60), range(0x30000, 0x323B0),
)  # fmt: skip
_HAN_STRAY = (0xFA0E, 0xFA0F, 0xFA11, 0xFA13, 0xFA14, 0xFA1F, 0xFA21, 0xFA23, 0xFA24, 0xFA27, 0xFA28, 0xFA29)

# kRSUnicode ("85.5": radical 85 and five strokes) is in one file or the other, by the version of Unicode.
_UNIHAN = ("Unihan_IRGSources.txt", "Unihan_RadicalStrokeCounts.txt")
UNIHAN_FOLDERS = (Path("/usr/share/unicode"), Path("/usr/share/unicode/Unihan"))


@dataclass(frozen=True)
class Repertoire:
    """The characters that are asked for."""

    name: str  # hangul, han, han-all, or the name of a file
    codes: tuple[int, ...]  # ascending code points


def repertoire(script: str) -> Repertoire:
    """What `--script` stands for.

    Raises:
        UserError: no script of that name and no readable file in UTF-8, or one with fewer than two
            characters.
    """
    if script == "hangul":
        return Repertoire(script, tuple(HANGUL))
    if script == "han":
        return Repertoire(script, tuple(_HAN_BASIC))
    if script == "han-all":
        others = {code for block in _HAN_OTHER for code in block}
        return Repertoire(script, tuple(sorted({*_HAN_BASIC, *others, *_HAN_STRAY})))
    path = Path(script)
    name = shortened(script)
    if not path.is_file():
        raise UserError(f"--script {name}: expected hangul, han, han-all or a text file with the characters")
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--script {name}: not a readable text in UTF-8 ({error})") from error
    # A control character or a mark that sits on another one is no picture of its own.
    codes = sorted({ord(letter) for letter in text if unicodedata.category(letter)[0] not in "CMZ"})
    if len(codes) < 2:
        raise UserError(f"--script {name}: fewer than two characters in it")
    return Repertoire(path.name, tuple(codes))


def known_of(codes: Sequence[int], script: str) -> tuple[dict[str, list[str]], str]:
    """Further columns, each with a value for every character, and a line for the user, "" if all is known.

    Hangul: the three letters of the syllable ("" where it has no final one). Han: the number of the radical,
    1 to 214, "" where it is not known.
    """
    if script == "hangul":
        places = np.stack(np.unravel_index(np.array(codes) - HANGUL.start, HANGUL_SHAPE))  # [3, N]
        letters = [[chr(first + place) for place in row] for first, row in zip(_JAMO, places, strict=True)]
        finals = ["" if letter == chr(_JAMO[2]) else letter for letter in letters[2]]
        return {"initial": letters[0], "vowel": letters[1], "final": finals}, ""
    if not script.startswith("han"):
        return {}, ""
    radicals = radicals_of()
    missing = sum(code not in radicals for code in codes)
    line = ""
    if missing:
        line = f"the radicals of {missing:,} of {len(codes):,} characters are not known"
        line += "" if radicals else f": no {_UNIHAN[0]} here (Debian has it in unicode-data)"
    return {"radical": [radicals.get(code, "") for code in codes]}, line


_JAMO = (0x1100, 0x1161, 0x11A7)  # the first of each; of the final ones that stands for none


def radicals_of(folders: Sequence[Path] = UNIHAN_FOLDERS) -> dict[int, str]:
    """Code point -> the number of its radical, from Unihan's files, packed or not; {} without them."""
    for folder in folders:
        for name in _UNIHAN:
            plain, packed = folder / name, folder / f"{name}.bz2"
            if plain.is_file():
                text = plain.read_text("utf-8")
            elif packed.is_file():
                text = bz2.decompress(packed.read_bytes()).decode()
            else:
                continue
            if found := dict(map(_radical, (line for line in text.splitlines() if "\tkRSUnicode\t" in line))):
                return found
    return {}


def _radical(line: str) -> tuple[int, str]:
    """ "U+4E01\tkRSUnicode\t1.1 2.0" -> (0x4E01, "1"): the first is the usual one; 120' is a simple form."""
    code, _, places = line.split("\t")
    return int(code[2:], 16), places.split()[0].partition(".")[0].rstrip("'")
