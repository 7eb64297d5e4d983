"""Vectors of classes for TensorBoard's projector: a table, names and, where there are pictures, a sheet of
them."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sqrtvocab.atomic import write_bytes, write_text
from sqrtvocab.errors import RunError

MOST = 10_000  # points: more make a browser slow
_DIMENSIONS = 64  # the projector itself begins t-SNE and UMAP with its principal components
_SHEET_SIDE = 4096  # pixels; browsers take twice as many
_SPRITE_SIDE = 48
_FOLDER = "projector"
_CONFIG = "projector_config.pbtxt"  # where TensorBoard looks


def write_projection(
    folder: Path,
    title: str,
    vectors: npt.NDArray[np.floating],
    names: Sequence[str],
    pictures: npt.NDArray[np.uint8] | None = None,
) -> None:
    """Show vectors in the projector of the run in `folder`, in place of what it showed before.

    Args:
        title: what the vectors are.
        vectors: [N, d], at most `MOST`; kept as their 64 principal components if d is larger.
        names: [N]
        pictures: [N, side, side, 3], one for each, as `sprites` makes them.

    Raises:
        RunError: it cannot be written, such as on a full disk.
    """
    try:
        _write(folder, title, vectors, names, pictures)
    except OSError as error:
        raise RunError(f"cannot write {folder / _FOLDER}: {error.strerror or error}") from error


def _write(
    folder: Path,
    title: str,
    vectors: npt.NDArray[np.floating],
    names: Sequence[str],
    pictures: npt.NDArray[np.uint8] | None,
) -> None:
    place = folder / _FOLDER
    place.mkdir(exist_ok=True)
    (folder / _CONFIG).unlink(missing_ok=True)  # until all is there; a kill must not leave half of it
    table = io.StringIO()
    np.savetxt(table, principal_components(vectors, _DIMENSIONS), fmt="%.4g", delimiter="\t")
    write_text(place / "vectors.tsv", table.getvalue())
    # A line for each name: the projector knows no quotes.
    write_text(place / "names.tsv", "".join(f"{' '.join(name.split()) or repr(name)}\n" for name in names))
    lines = [f'tensor_name: "{title}"', f'tensor_path: "{_FOLDER}/vectors.tsv"']
    lines.append(f'metadata_path: "{_FOLDER}/names.tsv"')
    if pictures is not None:
        sheet, side = sprite_sheet(pictures)
        write_bytes(place / "sprites.png", _png(sheet))
        size = f"single_image_dim: {side} single_image_dim: {side}"
        lines.append(f'sprite {{ image_path: "{_FOLDER}/sprites.png" {size} }}')
    write_text(folder / _CONFIG, "embeddings {\n" + "".join(f"  {line}\n" for line in lines) + "}\n")


def principal_components(vectors: npt.NDArray[np.floating], most: int) -> npt.NDArray[np.float64]:
    """[N, d] -> [N, at most `most`]: the directions in which the vectors differ most, first ones first."""
    centred = np.asarray(vectors, np.float64)
    centred = centred - centred.mean(0)
    if centred.shape[1] <= most:
        return centred
    _, directions = np.linalg.eigh(centred.T @ centred)  # [d, d], the smallest first
    return centred @ directions[:, ::-1][:, :most]


def sprites(pictures: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint8]:
    """Some of `count` pictures in all, [n, height, width, 1 or 3], as small as they are in the sheet."""
    from PIL import Image

    side = min(_SPRITE_SIDE, _SHEET_SIDE // _across(count), pictures.shape[1])
    coloured = np.ascontiguousarray(np.broadcast_to(pictures, (*pictures.shape[:3], 3)))
    small = [Image.fromarray(picture).resize((side, side), Image.Resampling.BOX) for picture in coloured]
    return np.stack([np.asarray(picture) for picture in small])


def sprite_sheet(pictures: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], int]:
    """Pictures [N, side, side, 3] row by row in a square sheet, and the side of one in it."""
    across, side = _across(len(pictures)), pictures.shape[1]
    sheet = np.full((across * side, across * side, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = side * (number // across), side * (number % across)
        sheet[top : top + side, left : left + side] = picture
    return sheet, side


def _across(count: int) -> int:
    return max(1, math.isqrt(count - 1) + 1)


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
