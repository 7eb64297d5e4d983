"""PNG bytes of 100 x 100 RGB images and back, several times faster than a general library.

Row filter 0 and zlib level 1: on flat colours this is smaller than Pillow's level 1 and encodes faster.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from shapesgen.kernel import SIDE
from shapesgen.renderer import Images


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


# Signature and header, the same for every image: 8 bits a channel, RGB, no interlace.
HEAD = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">2I5B", SIDE, SIDE, 8, 2, 0, 0, 0))
_TAIL = _chunk(b"IEND", b"")
_DATA = len(HEAD) + 8  # after the length and name of the one data chunk
_SCANLINE = 1 + 3 * SIDE  # the filter's number, then RGB


def encode(images: Images) -> list[bytes]:
    """Images [N, 100, 100, 3] -> N PNG files. Any PNG reader opens them."""
    lines = np.zeros((len(images), SIDE, _SCANLINE), np.uint8)
    lines[:, :, 1:] = images.reshape(-1, SIDE, 3 * SIDE)
    return [HEAD + _chunk(b"IDAT", zlib.compress(image.data, 1)) + _TAIL for image in lines]


def decode(png: bytes | memoryview) -> Images:
    """What `encode` made of one image -> [100, 100, 3].

    Raises ValueError if a bit has changed, or if the file is from elsewhere.
    """
    if png[: len(HEAD)] != HEAD or png[-len(_TAIL) :] != _TAIL:
        raise ValueError("damaged PNG, or one that shapesgen did not write")
    body = png[_DATA : -len(_TAIL) - 4]
    if png[len(HEAD) : _DATA] != struct.pack(">I", len(body)) + b"IDAT":
        raise ValueError("damaged PNG: the data chunk has another name or length")
    if zlib.crc32(body, zlib.crc32(b"IDAT")) != int.from_bytes(png[-len(_TAIL) - 4 : -len(_TAIL)], "big"):
        raise ValueError("damaged PNG: the checksum does not match")
    try:
        stream = zlib.decompressobj()
        pixels = stream.decompress(body, SIDE * _SCANLINE + 1)  # a few bytes can stand for gigabytes
        if not stream.eof or stream.unused_data:
            raise ValueError("the data are not those of one image")
        lines = np.frombuffer(pixels, np.uint8).reshape(SIDE, _SCANLINE)
    except (zlib.error, ValueError) as error:
        raise ValueError(f"damaged PNG: {error}") from None
    if lines[:, 0].any():
        raise ValueError("a PNG with row filters, which shapesgen does not write")
    return lines[:, 1:].reshape(SIDE, SIDE, 3)
