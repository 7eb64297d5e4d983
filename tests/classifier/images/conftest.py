"""File trees of pictures, made for real."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from classifier.images.pictures import open_pictures


def _picture(seed: int, size: tuple[int, int] = (24, 20), mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).convert(mode)


def _encoded(image: Image.Image, form: str = "png", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


@pytest.fixture(scope="session")
def picture():
    """`picture(seed, (width, height), mode)`: smooth, and other for every seed."""
    return _picture


@pytest.fixture(scope="session")
def encoded():
    """`encoded(image, "jpeg", quality=95)`: the bytes of its file."""
    return _encoded


@pytest.fixture(scope="session")
def write_tree():
    """`write_tree(root, {"cat/1.png": image or bytes})`."""

    def write(root: Path, files: dict[str, Image.Image | bytes]) -> Path:
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            form = path.suffix[1:].lower().replace("jpg", "jpeg")
            path.write_bytes(content if isinstance(content, bytes) else _encoded(content, form))
        return root

    return write


@pytest.fixture
def open_at(tmp_path):
    """`open_at(PATH, ...)` opens pictures at 16 x 16 with a cache of the test's own."""

    def open_it(path: Path, **options: object):
        defaults = {"size": 16, "grey": False, "cache": tmp_path / "cache", "cache_limit": 1.0}
        return open_pictures(path, **{**defaults, **options})

    return open_it
