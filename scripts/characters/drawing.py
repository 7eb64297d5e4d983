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
        sizes = [ink.size for code in sample if (ink := self._ink(chr(code))) is not None]
        extent = max((max(width, height) for width, height in sizes), default=size)
        self.font = _open(face, max(1.0, FILLS * size * size / extent))
        self.missing = self.draw(_ABSENT)

    def draw(self, character: str) -> bytes | None:
        """Its pixels, size·size bytes, 255 for white; None if there is no ink."""
        ink = self._ink(character)
        if ink is None:
            return None
        width, height = ink.size
        if max(width, height) > self.size:
            ink, (width, height) = _shrunk(ink, width, height, self.size)
        canvas = Image.new("L", (self.size, self.size))
        left, top = (self.size - width) // 2, (self.size - height) // 2
        canvas.im.paste(ink, (left, top, left + width, top + height))
        return canvas.tobytes().translate(_INVERSE)

    def _ink(self, character: str) -> Any:
        """FreeType's picture of it, without the white around it; None if there is nothing else."""
        mask, _ = self.font.getmask2(character, "L")
        box = mask.getbbox()  # of the ink: the mask is as wide as the line moves on
        return None if box is None else mask.crop(box)


_INVERSE = bytes(255 - value for value in range(256))


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
    """PNG files of square grey pictures: no row filter and zlib's level 1, half the time of a library's."""

    def __init__(self, size: int) -> None:
        self._lines = np.zeros((size, 1 + size), np.uint8)
        header = struct.pack(">2I5B", size, size, 8, 0, 0, 0, 0)  # 8 bits, grey
        self._head = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header)

    def __call__(self, pixels: bytes) -> bytes:
        self._lines[:, 1:] = np.frombuffer(pixels, np.uint8).reshape(self._lines.shape[0], -1)
        return self._head + _chunk(b"IDAT", zlib.compress(self._lines.data, 1)) + _TAIL


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


_TAIL = _chunk(b"IEND", b"")
