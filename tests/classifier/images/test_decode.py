"""Pictures of any format, size and mode become what Pillow, step by step, makes of them."""

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from classifier.images import decode as module
from classifier.images.decode import PictureError, decode


def reference(image, size, mode="RGB"):
    """Pillow's own conversion, crop and resizing of a picture that has no alpha."""
    image = image.convert(mode)
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    image = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(size, size, -1).astype(int)


@pytest.mark.parametrize("form", ["png", "jpeg", "bmp", "webp", "gif", "tiff", "ppm"])
@pytest.mark.parametrize("size", [(40, 30), (30, 41), (16, 16), (9, 9), (300, 200)])
def test_formats_and_sizes(picture, encoded, form, size):
    options = {"lossless": True} if form == "webp" else {"quality": 95} if form == "jpeg" else {}
    file = encoded(picture(1, size), form, **options)
    expected = reference(Image.open(io.BytesIO(file)), 16)
    found = decode(file, 16)
    assert found.shape == (16, 16, 3)
    assert found.dtype == np.uint8
    # A large JPEG is decoded at a fraction of its size, the others only differ in the rounding.
    tolerance = 12 if form == "jpeg" and min(size) >= 2.4 * 16 else 3
    assert np.abs(found - expected).max() <= tolerance


@pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "RGBA", "LA"])
def test_modes(picture, encoded, mode):
    image = picture(2, (20, 20))
    form = "tiff" if mode == "CMYK" else "png"
    expected = image.convert(mode).convert("RGB")
    found = decode(encoded(image.convert(mode), form), 20)
    assert np.abs(found - np.asarray(expected).astype(int)).max() <= 1


@pytest.mark.parametrize("form", ["png", "jpeg", "tiff"])
@pytest.mark.parametrize("side", [20, 90])
def test_grey_on_request(picture, encoded, form, side):
    file = encoded(picture(3, (side, side)), form)
    found = decode(file, 20, channels=1)
    assert found.shape == (20, 20, 1)
    # A JPEG has its grey as it is, unclipped; a large one is decoded at a fraction of its size.
    tolerance = 12 if form == "jpeg" and side >= 2.4 * 20 else 4
    assert np.abs(found - reference(Image.open(io.BytesIO(file)), 20, "L")).max() <= tolerance


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_becomes_white(encoded, mode):
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 4, 8))
    found = decode(encoded(image.convert(mode), "png"), 8)
    assert (found[:, :4] == 0).all()
    assert (found[:, 4:] == 255).all()


def test_half_transparent_is_mixed_with_white(encoded):
    found = decode(encoded(Image.new("RGBA", (4, 4), (0, 100, 200, 128)), "png"), 4)
    assert np.abs(found[0, 0].astype(int) - [127, 177, 227]).max() <= 1


def test_a_transparent_colour_of_a_png_behind_long_metadata(encoded):
    """The chunk tRNS may stand far behind the header."""
    file = encoded(
        Image.new("RGB", (4, 4), (9, 9, 9)), "png", transparency=(9, 9, 9), icc_profile=bytes(range(256)) * 50
    )
    assert file.find(b"tRNS") > 40
    assert (decode(file, 4) == 255).all()


def test_sixteen_bits(encoded):
    values = np.linspace(0, 65_535, 64).astype(np.uint16).reshape(8, 8)
    for form in ("png", "tiff"):
        found = decode(encoded(Image.fromarray(values), form), 8)
        assert np.abs(found[..., 0] - values / 257).max() <= 1
        assert (found[..., 0] == found[..., 2]).all()


def test_exif_rotation(encoded):
    image = Image.new("RGB", (16, 8), "black")
    image.paste("red", (0, 0, 8, 8))  # left half
    for orientation, red in ((1, "left"), (3, "right"), (6, "top"), (8, "bottom")):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for form in ("jpeg", "png", "tiff"):
            found = decode(encoded(image, form, exif=exif), 8)
            # The middle square holds the border between the halves.
            half = {"left": found[:, :3], "right": found[:, 5:], "top": found[:3], "bottom": found[5:]}[red]
            rest = {"left": found[:, 5:], "right": found[:, :3], "top": found[5:], "bottom": found[:3]}[red]
            assert half[..., 0].min() > 150, (orientation, form)
            assert rest[..., 0].max() < 100, (orientation, form)


def test_the_first_frame_of_an_animation(encoded):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for form in ("gif", "webp"):
        file = encoded(frames[0], form, save_all=True, append_images=frames[1:])
        assert np.abs(decode(file, 8)[0, 0].astype(int) - [255, 0, 0]).max() < 10


# ---- what cannot be used


@pytest.mark.parametrize("form", ["png", "jpeg", "bmp", "webp", "gif", "tiff"])
def test_a_file_cut_short_is_damaged(picture, encoded, form):
    file = encoded(picture(4, (64, 64)), form)
    for share in (0.1, 0.5, 0.8):
        with pytest.raises(PictureError) as error:
            decode(file[: int(share * len(file))], 48)
        assert ".cpp" not in str(error.value)


@pytest.mark.parametrize(
    "file", [b"", b"hello", b"\xff\xd8", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", bytes(1000)]
)
def test_what_is_no_picture_is_said(file):
    with pytest.raises(PictureError) as error:
        decode(file, 16)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 200
    assert " at 0x" not in str(error.value)


def test_a_flipped_bit_in_a_png_is_noticed(picture, encoded):
    file = bytearray(encoded(picture(5), "png"))
    file[len(file) // 2] ^= 1
    with pytest.raises(PictureError):
        decode(bytes(file), 16)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_that_claims(width: int, height: int, more: bytes = b"", pixels: bytes = b"") -> bytes:
    head = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)) + more
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def test_decompression_bombs_are_refused_by_their_size(picture, encoded, monkeypatch):
    with pytest.raises(PictureError, match=r"more than 80,000,000 pixels: not decoded"):
        decode(png_that_claims(50_000, 40_000), 16)
    with pytest.raises(PictureError, match=r"10,000 x 10,000 pixels, more than 80,000,000: not decoded"):
        decode(png_that_claims(10_000, 10_000), 16)
    jpeg = bytearray(encoded(picture(6), "jpeg"))
    at = jpeg.find(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">2H", 65_000, 60_000)
    with pytest.raises(PictureError, match=r"60,000 x 65,000 pixels"):
        decode(bytes(jpeg), 20_000)  # would be decoded at full size
    monkeypatch.setattr(module, "MAX_PIXELS", 24 * 20 - 1)
    for form in ("png", "jpeg", "bmp", "webp", "tiff", "gif"):
        with pytest.raises(PictureError, match=r"24 x 20 pixels, more than 479"):
            decode(encoded(picture(6), form), 16)


def test_text_bombs_are_refused():
    """Megabytes of text in some kilobytes beside four pixels."""
    bomb, large = (zlib.compress(bytes(size)) for size in (1 << 27, 1_000_000))
    pixels = 2 * (b"\0" + 6 * b"\xff")
    for text, says in (
        (chunk(b"zTXt", b"Comment\0\0" + bomb), "too large"),
        (chunk(b"iTXt", b"Comment\0\1\0\0\0" + bomb), "too large"),
        (chunk(b"iCCP", b"Profile\0\0" + bomb), "too large"),
        (chunk(b"zTXt", b"Comment\0\0" + large) * 70, "too much memory"),
    ):
        file = png_that_claims(2, 2, text, pixels)
        assert len(file) < 200_000
        tracemalloc.start()
        with pytest.raises(PictureError) as caught:
            decode(file, 2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert says in str(caught.value).lower()
        assert "\n" not in str(caught.value)
        assert peak < 100 << 20
    assert decode(png_that_claims(2, 2, pixels=pixels), 2).shape == (2, 2, 3)  # without, it is a picture


def test_pixels_without_a_scale_are_refused(encoded):
    with pytest.raises(PictureError, match="32 bits"):
        decode(encoded(Image.fromarray(np.ones((4, 4), np.float32)), "tiff"), 4)
