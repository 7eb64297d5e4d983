"""The straightforward renderer of the image set: Pillow's ImageDraw at four times the size, then shrunk."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from shapesgen import AttributeSpace
from shapesgen.kernel import BORDER, BOTTOM, NOTCH_DEPTH, NOTCH_WIDTH, PALETTE, PERIOD, RADIUS

FULL = AttributeSpace.full()
SCALE = 4


def corners(shape: str, radius: float, rotation: float, centre: float) -> list[tuple[float, float]]:
    """The outline of a shape."""

    def ring(n: int, first: float, radii: tuple[float, ...] = (1.0,)) -> list[tuple[float, float]]:
        return [(first + 360 * k / n, radii[k % len(radii)]) for k in range(n)]

    inner = math.sqrt(2) * math.sin(math.radians(20))
    polar: dict[str, list[tuple[float, float]]] = {
        "circle": ring(90, 0),
        "square": ring(4, 45),
        "triangle": ring(3, -90),
        "pentagon": ring(5, -90),
        "hexagon": ring(6, 0),
        "octagon": ring(8, 22.5),
        "star": ring(10, -90, (1.0, 0.381966)),
        "cross": [(90 * q + a, r) for q in range(4) for a, r in ((-20, 1.0), (20, 1.0), (45, inner))],
    }
    turned = [(math.radians(angle + rotation), r * radius) for angle, r in polar[shape]]
    return [(centre + r * math.cos(angle), centre + r * math.sin(angle)) for angle, r in turned]


def pattern_mask(pattern: str, side: int, period: float, rotation: float) -> Image.Image:
    """Where the lighter tint goes."""
    mask = Image.new("L", (side, side))
    draw = ImageDraw.Draw(mask)
    steps = range(-int(side / period / 2) - 1, int(side / period / 2) + 2)
    middle = side / 2
    for i in steps:
        y = middle + i * period
        if pattern == "striped":
            draw.rectangle((0, y, side, y + period / 2), fill=255)
            continue
        for j in steps:
            x = middle + j * period
            if pattern == "dotted":
                r = 0.3 * period
                draw.ellipse((x - r, y - r, x + r, y + r), fill=255)
            elif pattern == "checkered":
                half = period / 2
                draw.rectangle((x, y, x + half, y + half), fill=255)
                draw.rectangle((x + half, y + half, x + period, y + period), fill=255)
    return mask.rotate(-rotation)


def pillow_render(class_id: int, rng: np.random.Generator) -> Image.Image:
    """One image of a class, drawn with Pillow at four times the size."""
    options = FULL.describe(class_id)
    size = FULL.options["size"].index(options["size"])
    rotation = float(options["rotation"])
    radius, border = RADIUS[size] * SCALE, BORDER[size] * SCALE
    side = 100 * SCALE
    middle = side / 2 + SCALE * rng.uniform(-4, 4)
    colour = PALETTE[options["colour"]]
    tint = tuple(255 - (255 - c) // 4 for c in colour)
    shade = tuple(c * 5 // 16 for c in colour)

    outline = corners(options["shape"], radius, rotation, middle)
    mask = Image.new("L", (side, side))
    ImageDraw.Draw(mask).polygon(outline, fill=255)
    picture = Image.new("RGB", (side, side), colour)
    if options["pattern"] != "solid":
        picture.paste(tint, mask=pattern_mask(options["pattern"], side, PERIOD[size] * SCALE, rotation))
    draw = ImageDraw.Draw(picture)
    edges = list(zip(outline, outline[1:] + outline[:1], strict=True))
    for a, b in edges:
        if options["border"] == "solid":
            draw.line((a, b), fill=shade, width=round(2 * border))
            continue
        length = math.dist(a, b)
        dashes = max(round(length / (3 * border)), 1)
        for k in range(dashes):
            start, end = (k + 0.25) / dashes, (k + 0.75) / dashes
            dash = [(a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t) for t in (start, end)]
            draw.line(dash, fill=shade, width=round(2 * border))
    bottom = BOTTOM[FULL.options["shape"].index(options["shape"])] * radius
    half, depth = NOTCH_WIDTH[size] * SCALE / 2, NOTCH_DEPTH[size] * SCALE
    c, s = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    box = [
        (x, y) for x, y in ((-half, bottom - depth), (half, bottom - depth), (half, radius), (-half, radius))
    ]
    ImageDraw.Draw(mask).polygon([(middle + x * c - y * s, middle + x * s + y * c) for x, y in box], fill=0)

    picture = picture.resize((100, 100), Image.Resampling.BOX)
    mask = mask.resize((100, 100), Image.Resampling.BOX)
    if options["texture"] == "noise":
        grain = rng.integers(0, 4, (100, 100, 1)) * 32 - 48
        picture = Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8))
    mask = ImageChops.multiply(mask, Image.new("L", mask.size, round(255 * float(options["opacity"]))))
    canvas = Image.new("RGB", (100, 100), "white")
    canvas.paste(picture, mask=mask)
    return canvas
