"""Characters drawn by FreeType through Pillow: centred, of like size in all faces, black on white, as PNG."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageFont

from scripts.characters.fonts import Face

FILLS = 0.875  # of the picture's side, by the largest of the characters that are measured
ALIKE = 8  # a picture that stands for so many characters of a face is the font's way to say that it has none
_MEASURED = 64  # characters
_ABSENT = "\U0010fffe"  # no character, so no font has it


class Pen:
    """A face at the size that fills pictures of `size` x `size`.

    Fonts differ in how much of their square a character fills. The sample decides for all characters of the
    face, so that a small character stays small.

    Raises:
        OSError: FreeType cannot read the face.
    """

    def __init__(self, face: Face, size: int) -> None:
        self.size = size
        sample = face.codes[:: max(1, len(face.codes) // _MEASURED)]
        self.font = _open(face, size)
        extent = max((self._extent(chr(code)) for code in sample), default=0) or size
        self.font = _open(face, max(1.0, FILLS * size * size / extent))
        self.missing = self.draw(_ABSENT)

    def draw(self, character: str) -> bytes | None:
        """Its pixels, size·size bytes, 255 for white; None if there is no ink."""
        mask, _ = self.font.getmask2(character, "L")
        box = mask.getbbox()  # of the ink: the mask is as wide as the line moves on
        if box is None:
            return None
        left, top, right, bottom = box
        if max(right - left, bottom - top) > self.size:
            mask, (right, bottom) = _shrunk(mask.crop(box), right - left, bottom - top, self.size)
            left = top = 0
        canvas = Image.new("L", (self.size, self.size), 255)
        left, top = (self.size - right - left) // 2, (self.size - bottom - top) // 2  # of the mask, which may
        width, height = mask.size  # be larger than the canvas: what is cut off is white
        canvas.im.paste(0, (left, top, left + width, top + height), mask)
        return np.asarray(canvas).tobytes()  # six times as fast as Pillow's own tobytes

    def _extent(self, character: str) -> int:
        """The longer side of its ink."""
        box = self.font.getmask2(character, "L")[0].getbbox()
        return 0 if box is None else max(box[2] - box[0], box[3] - box[1])


def _open(face: Face, size: float) -> ImageFont.FreeTypeFont:
    # The basic layout: one character needs none, and the other engine takes twice the time.
    return ImageFont.truetype(str(face.path), size, face.number, layout_engine=ImageFont.Layout.BASIC)


def _shrunk(mask: Any, width: int, height: int, size: int) -> tuple[Any, tuple[int, int]]:
    factor = size / max(width, height)
    to = (max(1, int(width * factor)), max(1, int(height * factor)))
    return mask.resize(to, Image.Resampling.BOX, (0, 0, width, height)), to


@dataclass(frozen=True)
class Drawn:
    """The characters that a face really draws."""

    codes: list[int]
    files: list[bytes]  # PNG
    blank: int  # characters that the face claims to have, and that are empty
    boxes: int  # or that are the picture of a missing one


def draw_face(face: Face, size: int, report: Callable[[int, int], None], every: int = 256) -> Drawn:
    """All characters of a face, without those that it has in name only.

    Raises:
        OSError: FreeType cannot read the face.
    """
    pen = Pen(face, size)
    pictures: dict[int, bytes] = {}
    blank = 0
    for start in range(0, len(face.codes), every):
        some = face.codes[start : start + every]
        for code in some:
            pixels = pen.draw(chr(code))
            if pixels is None:
                blank += 1
            else:
                pictures[code] = pixels
        report(len(some), 0)
    often = Counter(map(hash, pictures.values()))  # hashes are kept in the bytes: this costs next to nothing
    real = {
        code: pixels
        for code, pixels in pictures.items()
        if pixels != pen.missing and often[hash(pixels)] < ALIKE
    }
    encode = Encoder(size)
    return Drawn(list(real), list(map(encode, real.values())), blank, len(pictures) - len(real))


class Encoder:
    """PNG files of square grey pictures, not compressed: Parquet compresses a page of them at once, in an
    eighth of the time that zlib takes for one by one."""

    def __init__(self, size: int) -> None:
        self._lines = np.zeros((size, 1 + size), np.uint8)
        header = struct.pack(">2I5B", size, size, 8, 0, 0, 0, 0)  # 8 bits, grey
        self._head = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header)

    def __call__(self, pixels: bytes) -> bytes:
        self._lines[:, 1:] = np.frombuffer(pixels, np.uint8).reshape(self._lines.shape[0], -1)
        return self._head + _chunk(b"IDAT", zlib.compress(self._lines.data, 0)) + _TAIL


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


_TAIL = _chunk(b"IEND", b"")
