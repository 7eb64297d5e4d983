"""A sheet of what was drawn: a line for each family, the same characters in all of them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

COLUMNS = 14
_GAP, _MARGIN, _NAME, _TITLE = 4, 14, 230, 34  # px
_INK, _PALE = (40, 44, 52), (120, 126, 136)


def sheet(
    title: str, rows: Sequence[tuple[str, str, Mapping[int, bytes]]], codes: Sequence[int], size: int
) -> bytes:
    """A PNG file.

    Args:
        rows: family, its split, and its pictures by code point; where it has none the place stays empty.
        codes: the characters.
    """
    font, small = ImageFont.load_default(13), ImageFont.load_default(11)
    step = size + _GAP
    canvas = Image.new(
        "L", (2 * _MARGIN + _NAME + len(codes) * step, _TITLE + len(rows) * step + _MARGIN), "white"
    )
    draw = ImageDraw.Draw(canvas)
    draw.text((_MARGIN, 8), title, fill=0, font=font)
    for r, (family, split, pictures) in enumerate(rows):
        top = _TITLE + r * step
        draw.text((_MARGIN, top + size // 2 - 14), _fitting(family, small), fill=_INK[0], font=small)
        draw.text((_MARGIN, top + size // 2 + 2), split, fill=_PALE[0], font=small)
        for c, code in enumerate(codes):
            if code in pictures:
                with Image.open(io.BytesIO(pictures[code])) as picture:
                    canvas.paste(picture, (_MARGIN + _NAME + c * step, top))
    data = io.BytesIO()
    canvas.save(data, "PNG", optimize=True)
    return data.getvalue()


def hardest(pairs: Sequence[tuple[str, str]], folder: Path) -> bytes:
    """A PNG file: pairs of characters side by side, in the test families of the set in `folder`."""
    import pyarrow.parquet as pq

    characters = [character for pair in pairs for character in pair]
    rows: dict[str, dict[int, bytes]] = {}
    size = 0
    for path in sorted((folder / "data").glob("test-*.parquet")):
        table = pq.read_table(
            path, columns=["image", "character", "family"], filters=[("character", "in", characters)]
        )
        for line in table.to_pylist():
            rows.setdefault(line["family"], {}).setdefault(ord(line["character"]), line["image"]["bytes"])
            with Image.open(io.BytesIO(line["image"]["bytes"])) as picture:
                size = picture.width
    lines = [(family, "", pictures) for family, pictures in sorted(rows.items())]
    return sheet("taken for each other, two and two", lines, [ord(each) for each in characters], size)


def _fitting(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    name = name.encode("ascii", "replace").decode()  # all that the built-in font has
    while font.getlength(name) > _NAME - 8:
        name = name[:-2].rstrip(".") + "."
    return name
