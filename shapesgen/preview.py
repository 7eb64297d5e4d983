"""`shapesgen preview`: contact sheets, to see what is drawn."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from shapesgen import png
from shapesgen.attributes import AttributeSpace
from shapesgen.errors import DamagedShardError, naming_out
from shapesgen.kernel import SIDE
from shapesgen.layout import read_manifest, shards_of
from shapesgen.recipe import Recipe
from shapesgen.renderer import Images
from shapesgen.shards import read_shard
from sqrtvocab.atomic import write_bytes
from sqrtvocab.errors import UserError, shortened

_COLUMNS = 10
_GAP, _MARGIN, _NAME, _LINE = 14, 18, 22, 12  # px
_INK, _PALE = (40, 44, 52), (120, 126, 136)


@dataclass(frozen=True)
class Row:
    """A line of the sheet: its name, the images [N, 100, 100, 3] and the lines of a caption for each."""

    name: str
    images: Images
    captions: Sequence[Sequence[str]]


def overview(recipe: Recipe) -> list[Row]:
    """A row for each shape; along it all other attributes change in steps of their own."""
    space = recipe.space
    rows = []
    for r, name in enumerate(space.options["shape"]):
        k = np.arange(_COLUMNS)
        wanted = {
            "shape": np.full(_COLUMNS, r),
            "pattern": k,
            "rotation": k + r,
            "colour": 5 * k + 3 * r,
            "size": 4 - k % 5 + (k // 5) * r,
            "texture": (k + r) % 3 == 2,
            "opacity": 3 - (k // 2 + r) % 4 * (k % 2),
            "border": (k // 4 + r + k) % 2,
        }
        digits = [
            wanted[name].astype(np.int64) % radix
            for name, radix in zip(space.names, space.radices, strict=True)
        ]
        ids = space.encode(np.stack(digits, axis=1))  # [COLUMNS]
        rows.append(Row(name, recipe.render(ids, np.zeros_like(ids)), [_caption(space, i) for i in ids]))
    return rows


def instances(recipe: Recipe, class_ids: Sequence[int]) -> list[Row]:
    """A row for each class: its first instances."""
    rows = []
    for class_id in recipe.space.check_ids(class_ids).tolist():
        numbers = np.arange(min(_COLUMNS, recipe.images_per_class))
        images = recipe.render(np.full_like(numbers, class_id), numbers)
        name = f"class {class_id}: {recipe.space.class_name(class_id)}"
        rows.append(Row(name, images, [[f"instance {i}"] for i in numbers]))
    return rows


def from_folder(folder: Path) -> tuple[Recipe, list[Row]]:
    """The first images of each split of a set on disk.

    Raises UserError if there is no finished set, DamagedShardError if its images cannot be read.
    """
    recipe, form, _ = read_manifest(folder)
    rows = []
    for split in dict.fromkeys(shard.split for shard in shards_of(recipe)):
        shard = next(shard for shard in shards_of(recipe) if shard.split == split)
        stored = read_shard(shard.path(folder, form), form, recipe.space)
        pairs = ((file, label) for files, labels in stored for file, label in zip(files, labels, strict=True))
        found = list(islice(pairs, 3 * _COLUMNS))
        for start in range(0, len(found), _COLUMNS):
            some = found[start : start + _COLUMNS]
            try:
                images = np.stack([png.decode(file) for file, _ in some])
            except ValueError as error:
                raise DamagedShardError(f"{shard.file(form)}: {error}") from None
            captions = [_caption(recipe.space, label, shape=True) for _, label in some]
            rows.append(Row(split if start == 0 else "", images, captions))
    return recipe, rows


def _caption(space: AttributeSpace, class_id: int, shape: bool = False) -> list[str]:
    of = space.describe(class_id)
    lines = [
        f"{of['colour']} {of['pattern']}",
        f"{of['size']} {of['rotation']}°" + (" noise" if of["texture"] == "noise" else ""),
        f"opacity {of['opacity']}" + (" dashed" if of["border"] == "dashed" else ""),
    ]
    return [of["shape"], *lines] if shape else lines


def sheet(title: str, rows: Sequence[Row]) -> Image.Image:
    """The rows as one picture."""
    font, small = ImageFont.load_default(13), ImageFont.load_default(10)
    columns = max(len(row.images) for row in rows)
    width = 2 * _MARGIN + columns * (SIDE + _GAP) - _GAP
    lines = max(len(caption) for row in rows for caption in row.captions)
    row_height = _NAME + SIDE + 4 + lines * _LINE + _GAP
    canvas = Image.new("RGB", (max(width, 420), 46 + len(rows) * row_height), "white")
    draw = ImageDraw.Draw(canvas)
    draw.text((_MARGIN, 14), title, fill=_INK, font=ImageFont.load_default(17))
    for r, row in enumerate(rows):
        top = 46 + r * row_height
        draw.line((_MARGIN, top, canvas.width - _MARGIN, top), fill=(225, 228, 232))
        draw.text((_MARGIN, top + 3), row.name, fill=_INK, font=font)
        for c, (image, caption) in enumerate(zip(row.images, row.captions, strict=True)):
            left = _MARGIN + c * (SIDE + _GAP)
            canvas.paste(Image.fromarray(image), (left, top + _NAME))
            for k, line in enumerate(caption):
                at = (left + SIDE // 2, top + _NAME + SIDE + 2 + _LINE * k)
                draw.text(at, line, fill=_PALE, font=small, anchor="ma")
    return canvas


def save(picture: Image.Image, out: Path) -> None:
    """Write a sheet in the format that the file's name ends in.

    Raises UserError if that is none that Pillow writes, or if the system refuses the path.
    """
    Image.init()
    kind = Image.registered_extensions().get(out.suffix.lower(), "")
    if kind not in Image.SAVE:
        raise UserError(f"--out {shortened(str(out))}: not a kind of picture that can be written; use .png")
    data = io.BytesIO()
    picture.save(data, kind)
    with naming_out(out):
        target = Path(os.path.realpath(out))  # the file that a link leads to
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        write_bytes(target, data.getvalue())
