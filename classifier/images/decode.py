"""A picture file of any format, size and mode -> uint8 pixels of one size, or the reason why not.

What is transparent becomes white; EXIF rotation is applied; 16 bits become 8; of an animation the first frame
counts. The largest square in the middle is taken and resized with antialiasing.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn.functional import interpolate

from classifier.images.protocol import Pixels

MAX_PIXELS = 80_000_000  # a file of a few kB can claim more than any memory holds; Pillow warns soon above
_MODES = {1: "L", 3: "RGB"}
# A JPEG is decoded faster at 1/2, 1/4 or 1/8 of its size. That is rounded up to whole pixels, so what is left
# must be so many times the size asked for that half a pixel at the far edge does not matter.
_LEFT = 1.2


class PictureError(Exception):
    """A picture that cannot be used. The message is a few words: the reason."""


def decode(file: bytes, size: int, channels: int = 3) -> Pixels:
    """An encoded picture -> [size, size, channels] with 3 channels (RGB) or 1 (grey).

    Raises PictureError for a file that is damaged, no picture, or too large to be decoded safely.
    """
    if not file:
        raise PictureError("the file is empty")
    try:
        picture = _quick(file, size, channels)
        if picture is None:
            picture = _by_pillow(file, size, channels)
    except PictureError:
        raise
    except Image.DecompressionBombError as error:  # before we could look at the size ourselves
        raise PictureError(f"more than {MAX_PIXELS:,} pixels: not decoded") from error
    except UnidentifiedImageError as error:
        raise PictureError("not a picture, or of an unknown format") from error
    except Exception as error:  # decoders raise whatever they please: OSError, SyntaxError, RuntimeError, ...
        reason = " ".join(str(error).split()).split(" Exception raised from")[0]
        reason = re.sub(r"^\w+, \S+:\d+, ", "", reason)  # torchvision begins with the line of its source
        raise PictureError(reason[:100] or type(error).__name__) from error
    return _square(picture, size)


def _square(picture: Tensor, size: int) -> Pixels:
    """[C, H, W] -> the middle [size, size, C]."""
    _, height, width = picture.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    picture = picture[None, :, top : top + side, left : left + side]
    if side != size:
        # torch resizes bytes of this memory format faster, and its result need not be turned round.
        picture = picture.contiguous(memory_format=torch.channels_last)
        picture = interpolate(picture, (size, size), mode="bilinear", antialias=True)
    return picture[0].permute(1, 2, 0).numpy()


# ---- ordinary JPEGs, by torchvision. (Not PNGs: its decoder ends the whole process when a file is damaged.)


def _quick(file: bytes, size: int, channels: int) -> Tensor | None:
    """[C, H, W], or None if Pillow must see to it."""
    if not file.startswith(b"\xff\xd8"):
        return None
    height, width, colours = _jpeg_header(file)
    _check_size(width, height)
    if colours not in (1, 3) or min(height, width) >= 2 * _LEFT * size:
        return None
    from torchvision.io import ImageReadMode, decode_jpeg  # slow to import, and drawn shapes need none

    data = torch.frombuffer(bytearray(file), dtype=torch.uint8)
    mode = ImageReadMode.GRAY if channels == 1 else ImageReadMode.RGB
    return decode_jpeg(data, mode, apply_exif_orientation=True)


def _jpeg_header(file: bytes) -> tuple[int, int, int]:
    """Height, width and number of colours of a JPEG."""
    for marker, start in _jpeg_segments(file):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of a frame
            height, width, colours = struct.unpack(">2HB", file[start + 1 : start + 6])
            return height, width, colours
    raise PictureError("a JPEG without a frame")


def _jpeg_segments(file: bytes) -> Iterator[tuple[int, int]]:
    """The marker of each segment, and where its content begins."""
    at = 2
    while at + 9 < len(file):
        if file[at] != 0xFF:
            raise PictureError("a JPEG with a damaged header")
        marker = file[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        yield marker, at + 4
        at += 2 + int.from_bytes(file[at + 2 : at + 4], "big")
    raise PictureError("a JPEG cut short")


# ---- everything else, by Pillow


def _by_pillow(file: bytes, size: int, channels: int) -> Tensor:
    """[C, H, W]."""
    mode = _MODES[channels]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata, and of sizes that are checked below
        with Image.open(io.BytesIO(file)) as opened:
            _check_size(*opened.size)
            opened.draft(mode, (int(_LEFT * size),) * 2)  # of a JPEG only: a fraction, at least so large
            ImageOps.exif_transpose(opened, in_place=True)
            picture = _without_alpha(_eight_bit(opened))
            pixels = np.array(picture if picture.mode == mode else picture.convert(mode))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)


def _eight_bit(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):  # nothing says which value is white
        raise PictureError("pixels of 32 bits; convert it to 8 or 16 bits")
    return picture


def _without_alpha(picture: Image.Image) -> Image.Image:
    if not picture.has_transparency_data:
        return picture
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise PictureError(f"{width} x {height} pixels")
    if width * height > MAX_PIXELS:
        raise PictureError(f"{width:,} x {height:,} pixels, more than {MAX_PIXELS:,}: not decoded")
