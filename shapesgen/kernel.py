"""The drawing kernel: integer arithmetic only, so that every machine and compiler draws the same bytes.

Positions are in 1/16 px and directions have 10 fractional bits; distances are kept in 1/256 px and weights
(coverage, opacity, mixing) run from 0 to 256. Every intermediate fits an int32.

What keeps it fast: an image touches only the pixels that the shape can reach, which a table tells for every
row; each step is a short loop over the `count` pixels of one row that LLVM can vectorise; the rows between
the steps are allocated once, for a slice costs as much as a vector of pixels; `int32(...)` around the
expressions undoes numba's promotion to 64 bits, which would halve the vector width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from shapesgen.attributes import OPTIONS

SIDE = 100  # px
CENTRE = 8 * SIDE  # the middle of the canvas, in 1/16 px
ROWS = 96  # around the centre: all that a shape can touch

# Per size, in px. A huge shape moved by 4 px of jitter stays inside the canvas.
RADIUS = (14, 21, 28, 36, 44)  # of the circumscribed circle
PERIOD = (7, 9, 11, 13, 15)  # of the patterns: wide enough to be seen on tiny shapes
BORDER = (1.5, 2.5, 3, 4, 5)
NOTCH_WIDTH = (4, 5, 7, 8, 10)
NOTCH_DEPTH = (4, 6, 8, 10, 12)

PALETTE = {
    "red": (226, 30, 40),
    "green": (25, 155, 40),
    "blue": (35, 80, 225),
    "yellow": (255, 222, 20),
    "purple": (115, 40, 175),
    "orange": (248, 118, 0),
    "pink": (255, 125, 180),
    "brown": (125, 70, 25),
    "cyan": (0, 190, 240),
    "magenta": (220, 0, 190),
    "lime": (140, 225, 0),
    "teal": (0, 112, 130),
}

CIRCLE, SQUARE, TRIANGLE, PENTAGON, HEXAGON, OCTAGON, STAR, CROSS = range(8)
SOLID, STRIPED, DOTTED, CHECKERED = range(4)

# Shapes bounded by straight edges: the directions of their outward normals at rotation 0, in degrees
# clockwise from the right, and the distance of the edges from the centre as a share of the circumradius.
# Where edges come in parallel pairs one of each pair is listed. A star is the five lines of a pentagram.
EDGES: dict[int, tuple[tuple[int, ...], float]] = {
    SQUARE: ((0, 90), math.cos(math.pi / 4)),
    TRIANGLE: ((90, 210, 330), math.cos(math.pi / 3)),
    PENTAGON: ((90, 162, 234, 306, 18), math.cos(math.pi / 5)),
    HEXAGON: ((90, 150, 30), math.cos(math.pi / 6)),
    OCTAGON: ((0, 90, 45, 135), math.cos(math.pi / 8)),
    STAR: ((270, 342, 54, 126, 198), math.cos(2 * math.pi / 5)),
}
# As a share of the circumradius; the corners lie on the circle.
CROSS_REACH, CROSS_HALF_WIDTH = math.cos(math.radians(20)), math.sin(math.radians(20))

# The corners, in degrees at rotation 0.
CORNERS: dict[int, tuple[float, ...]] = {
    SQUARE: (45, 135, 225, 315),
    TRIANGLE: (30, 150, 270),
    PENTAGON: (54, 126, 198, 270, 342),
    HEXAGON: (0, 60, 120, 180, 240, 300),
    OCTAGON: (22.5, 67.5, 112.5, 157.5, 202.5, 247.5, 292.5, 337.5),
    STAR: (54, 126, 198, 270, 342),
    CROSS: (20, 70, 110, 160, 200, 250, 290, 340),
}

# How far down the outline reaches straight below the centre, where the notch is cut. At rotation 0 every
# shape has an edge there, and the star a concave corner.
BOTTOM = {shape: distance for shape, (_, distance) in EDGES.items()} | {
    CIRCLE: 1.0,
    STAR: math.cos(2 * math.pi / 5) / math.cos(math.pi / 5),
    CROSS: CROSS_REACH,
}


def _direction(degrees: float, scale: float = 1024) -> tuple[int, int]:
    """The direction as integers. Rounding is odd-symmetric, so a regular polygon turned onto itself keeps
    exactly its normals, and classes that look the same are the same to the byte."""
    angle = math.radians(degrees)
    return round(scale * math.cos(angle)), round(scale * math.sin(angle))


def _normals() -> npt.NDArray[np.int32]:
    table = np.zeros((8, 6, 5, 2), np.int32)
    for shape, (degrees, _) in EDGES.items():
        for rotation in range(6):
            directions = [_direction(d + 60 * rotation) for d in degrees]
            table[shape, rotation] = (directions + 5 * directions[-1:])[:5]  # repeating one changes nothing
    return table


def _spans() -> npt.NDArray[np.int32]:
    """The pixels that each row of an image may touch: first and end, relative to the centre's pixel."""
    bounds = np.full((2, 8, 6, 5, ROWS), -2 * SIDE)  # of -x and x, in px; rows that stay so are empty
    turn = np.radians(60 * np.arange(6))[:, None]
    for shape in range(8):
        corners = np.radians(CORNERS.get(shape, range(0, 360, 5))) + turn  # [rotation, corner]
        ends = np.stack([np.cos(corners), np.sin(corners)])  # [xy, rotation, corner]
        # Lines between corners that bound the shape in every row, with points on them less than 1 px apart.
        at = np.arange(corners.shape[1])
        skip = np.where(at % 2, 1, 3) if shape == CROSS else np.array(2 if shape == STAR else 1)
        others = np.take(ends, (at + skip) % at.size, axis=2)
        t = np.linspace(0, 1, 5 if shape == CIRCLE else 97)
        points = (ends[..., None] * (1 - t) + others[..., None] * t).reshape(2, 6, 1, -1)
        x, y = points * np.array(RADIUS)[:, None]  # [rotation, size, point], in px
        where = (np.arange(6)[:, None, None], np.arange(5)[:, None], np.rint(y).astype(int) + ROWS // 2)
        np.maximum.at(bounds[0, shape], where, np.ceil(-x).astype(int))
        np.maximum.at(bounds[1, shape], where, np.ceil(x).astype(int))
    # Anti-aliasing reaches half a pixel beyond an edge and 1.6 px beyond a tip of the star, in any direction.
    first, end = np.max([np.roll(bounds, shift, axis=-1) for shift in range(-2, 3)], axis=0)
    return np.stack([-first - 3, end + 4], axis=-1).astype(np.int32)


def _per_size(shares: list[float], unit: int) -> npt.NDArray[np.int32]:
    return np.array([[round(unit * share * radius) for radius in RADIUS] for share in shares], np.int32)


_NORMALS = _normals()  # [shape, rotation, edge, xy]
_SPANS = _spans()  # [shape, rotation, size, row, (first, end)]
_EDGE_DISTANCE = _per_size([EDGES[s][1] if s in EDGES else 0 for s in range(8)], 16384)  # [shape, size]
_CROSS = _per_size([CROSS_REACH, CROSS_HALF_WIDTH], 256)  # [2, size]
_BOTTOM = _per_size([BOTTOM[s] for s in range(8)], 256)  # [shape, size]
_RADIUS = np.array(RADIUS, np.int32)
_PERIOD = np.array(PERIOD, np.int32)
_BORDER = np.array([round(256 * width) for width in BORDER], np.int32)
_NOTCH_WIDTH = np.array(NOTCH_WIDTH, np.int32)
_NOTCH_DEPTH = np.array(NOTCH_DEPTH, np.int32)
_AXIS = np.array([_direction(60 * r) for r in range(6)], np.int32)  # [rotation, xy], the local x axis
# The same scaled so that one period of the pattern counts 65536.
_PATTERN_AXIS = np.array([[_direction(60 * r, 4096 / p) for r in range(6)] for p in PERIOD], np.int32)
_OPACITY = np.array([round(256 * float(o)) for o in OPTIONS["opacity"]], np.int32)
# Of each colour: the fill; its tint for stripes, dots and checks; its shade for the border. Being darker than
# the fill, the border is what tells a low opacity from a pale colour.
_FILL = np.array([PALETTE[name] for name in OPTIONS["colour"]], np.int32)
_COLOURS = np.stack([_FILL, 255 - (255 - _FILL) // 4, _FILL * 5 // 16], axis=1)  # [colour, 3, rgb]
# Where dashes begin and end within an eighth of a turn. The coarse ones have no middle dash.
_DASH_ANGLES = np.array(
    [_direction(a) for a in (5.625, 16.875, 28.125, 39.375, 11.25, 33.75, 11.25, 33.75)], np.int32
)

int32 = np.int32
uint32 = np.uint32


def compiled(function: Callable[..., Any]) -> Any:
    """`numba.njit`, cached on disk if there is any folder to write it to."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package nor the home is writable: compile once per process
        return numba.njit(nogil=True)(function)


@compiled
def _weight(value):
    return int32(min(max(value, int32(0)), int32(256)))


@compiled
def _circle(count, dist, left, dy, radius):
    # sqrt(r^2 + e) - r = t - t^2 / 2r + ... with t = e / 2r: no square root, and exact where it is seen.
    square = int32(int32(dy * dy) - int32(256 * radius * radius))
    limit = int32(4096 * radius)
    inverse = int32(32768 // radius)
    for i in range(count):
        dx = int32(left + 16 * i)
        excess = int32(min(max(int32(int32(dx * dx) + square), int32(-limit)), limit))
        t = int32(int32(excess * inverse) >> 16)
        dist[i] = int32(t - int32(int32(int32(int32(t * t) >> 8) * inverse) >> 16))


@compiled
def _edge(normals, e, left, dy):
    # The distance beyond edge e's parallel through the centre: at the first pixel, and its step to the next.
    return int32(int32(normals[e, 0] * left) + int32(normals[e, 1] * dy)), int32(16 * normals[e, 0])


@compiled
def _paired_polygon(count, dist, normals, left, dy, distance):
    start0, step0 = _edge(normals, 0, left, dy)
    start1, step1 = _edge(normals, 1, left, dy)
    start2, step2 = _edge(normals, 2, left, dy)
    start3, step3 = _edge(normals, 3, left, dy)
    for i in range(count):
        d0 = int32(abs(int32(start0 + int32(step0 * int32(i)))))
        d1 = int32(abs(int32(start1 + int32(step1 * int32(i)))))
        d2 = int32(abs(int32(start2 + int32(step2 * int32(i)))))
        d3 = int32(abs(int32(start3 + int32(step3 * int32(i)))))
        dist[i] = int32(int32(max(max(d0, d1), max(d2, d3)) - distance) >> int32(6))


@compiled
def _polygon(count, dist, normals, left, dy, distance):
    start0, step0 = _edge(normals, 0, left, dy)
    start1, step1 = _edge(normals, 1, left, dy)
    start2, step2 = _edge(normals, 2, left, dy)
    start3, step3 = _edge(normals, 3, left, dy)
    start4, step4 = _edge(normals, 4, left, dy)
    for i in range(count):
        d0 = int32(start0 + int32(step0 * int32(i)))
        d1 = int32(start1 + int32(step1 * int32(i)))
        d2 = int32(start2 + int32(step2 * int32(i)))
        d3 = int32(start3 + int32(step3 * int32(i)))
        d4 = int32(start4 + int32(step4 * int32(i)))
        dist[i] = int32(int32(max(max(max(d0, d1), max(d2, d3)), d4) - distance) >> int32(6))


@compiled
def _star(count, dist, normals, left, dy, distance):
    # A point of the star is inside at least four of the five lines: the second largest distance decides.
    start0, step0 = _edge(normals, 0, left, dy)
    start1, step1 = _edge(normals, 1, left, dy)
    start2, step2 = _edge(normals, 2, left, dy)
    start3, step3 = _edge(normals, 3, left, dy)
    start4, step4 = _edge(normals, 4, left, dy)
    for i in range(count):
        d0 = int32(start0 + int32(step0 * int32(i)))
        d1 = int32(start1 + int32(step1 * int32(i)))
        d2 = int32(start2 + int32(step2 * int32(i)))
        d3 = int32(start3 + int32(step3 * int32(i)))
        d4 = int32(start4 + int32(step4 * int32(i)))
        first, second = max(d0, d1), min(d0, d1)
        second = max(second, min(first, d2))
        first = max(first, d2)
        second = max(second, min(first, d3))
        first = max(first, d3)
        second = max(second, min(first, d4))
        dist[i] = int32(int32(second - distance) >> int32(6))


@compiled
def _cross(count, dist, axis_x, axis_y, left, dy, reach, half_width):
    u0 = int32(int32(axis_x * left) + int32(axis_y * dy))
    v0 = int32(int32(axis_x * dy) - int32(axis_y * left))
    for i in range(count):
        u = int32(int32(abs(int32(u0 + int32(16 * axis_x * int32(i))))) >> 6)
        v = int32(int32(abs(int32(v0 - int32(16 * axis_y * int32(i))))) >> 6)
        dist[i] = max(int32(max(u, v) - reach), int32(min(u, v) - half_width))


@compiled
def _outline(count, dist, border, width):
    # Turns the distance into the coverage of the shape, in place, and finds the border inside it.
    for i in range(count):
        d = dist[i]
        border[i] = _weight(int32(d + int32(width + 128)))
        dist[i] = _weight(int32(128 - d))


@compiled
def _sector_dashes(count, border, axis_x, axis_y, left, dy, fine):
    # Dashes are sectors around the centre, alike in all quadrants and mirrored at the diagonals: 16 or 8.
    u0 = int32(int32(axis_x * left) + int32(axis_y * dy))
    v0 = int32(int32(axis_x * dy) - int32(axis_y * left))
    first = 0 if fine else 4
    c0, s0 = _DASH_ANGLES[first, 0], _DASH_ANGLES[first, 1]
    c1, s1 = _DASH_ANGLES[first + 1, 0], _DASH_ANGLES[first + 1, 1]
    c2, s2 = _DASH_ANGLES[first + 2, 0], _DASH_ANGLES[first + 2, 1]
    c3, s3 = _DASH_ANGLES[first + 3, 0], _DASH_ANGLES[first + 3, 1]
    for i in range(count):
        u = int32(int32(abs(int32(u0 + int32(16 * axis_x * int32(i))))) >> 6)
        v = int32(int32(abs(int32(v0 - int32(16 * axis_y * int32(i))))) >> 6)
        far = max(u, v)
        near = min(u, v)
        low = int32(int32(s0 * far) - int32(c0 * near))
        middle = min(int32(int32(c1 * near) - int32(s1 * far)), int32(int32(s2 * far) - int32(c2 * near)))
        high = int32(int32(c3 * near) - int32(s3 * far))
        on = _weight(int32(128 + int32(max(max(low, middle), high) >> 10)))
        border[i] = int32(int32(border[i] * on) >> 8)


@compiled
def _ring_dashes(count, border, axis_x, axis_y, left, dy, period, bulge, phase):
    # Edges that run towards the centre are cut by rings, not by sectors: squares (bulge 0) or octagons (3).
    u0 = int32(int32(axis_x * left) + int32(axis_y * dy))
    v0 = int32(int32(axis_x * dy) - int32(axis_y * left))
    for i in range(count):
        u = int32(abs(int32(u0 + int32(16 * axis_x * int32(i)))))
        v = int32(abs(int32(v0 - int32(16 * axis_y * int32(i)))))
        wave = _wave(int32(int32(max(u, v) + int32(int32(min(u, v) * bulge) >> int32(3))) - phase))
        on = _weight(int32(128 + int32(int32(wave * period) >> int32(8))))
        border[i] = int32(int32(border[i] * on) >> int32(8))


@compiled
def _wave(phase):
    # An even triangle wave of period 65536: 16384 at 0, -16384 at half a period.
    sawtooth = int32(int32(phase << int32(16)) >> int32(16))
    return int32(int32(0x4000) - int32(abs(sawtooth)))


@compiled
def _stripes(count, mark, axis_x, axis_y, left, dy, period):
    v0 = int32(int32(axis_x * dy) - int32(axis_y * left))
    for i in range(count):
        wave = _wave(int32(v0 - int32(16 * axis_y * int32(i))))
        mark[i] = _weight(int32(128 - int32(int32(wave * period) >> 8)))


@compiled
def _dots(count, mark, axis_x, axis_y, left, dy, period):
    # (radius^2 - distance^2) / 2 radius is the distance from the rim; the radius is 1229 / 4096 periods.
    u0 = int32(int32(axis_x * left) + int32(axis_y * dy))
    v0 = int32(int32(axis_x * dy) - int32(axis_y * left))
    slope = int32(period * 427)  # 427 / 65536 = 256 / (16 * 2 * 1229)
    for i in range(count):
        u = int32(int32(int32(0x4000) - _wave(int32(u0 + int32(16 * axis_x * int32(i))))) >> int32(4))
        v = int32(int32(int32(0x4000) - _wave(int32(v0 - int32(16 * axis_y * int32(i))))) >> int32(4))
        inside = int32(int32(1229 * 1229) - int32(int32(u * u) + int32(v * v)))
        mark[i] = _weight(int32(128 + int32(int32(int32(inside >> int32(8)) * slope) >> int32(16))))


@compiled
def _checks(count, mark, axis_x, axis_y, left, dy, period):
    u0 = int32(int32(axis_x * left) + int32(axis_y * dy))
    v0 = int32(int32(axis_x * dy) - int32(axis_y * left))
    for i in range(count):
        u = _wave(int32(u0 + int32(16 * axis_x * int32(i))))
        v = _wave(int32(v0 - int32(16 * axis_y * int32(i))))
        sign = int32(int32(u ^ v) >> int32(31))  # -1 where exactly one is negative, else 0
        edge = min(int32(abs(u)), int32(abs(v)))
        inside = int32(sign - int32(edge ^ sign))
        mark[i] = _weight(int32(128 + int32(int32(inside * period) >> int32(8))))


@compiled
def _noise(count, grain, x, y, key):
    row = uint32(key + uint32(y) * uint32(0x9E3779B1))
    for i in range(count):
        h = uint32(row + uint32(uint32(x + i) * uint32(0x85EBCA77)))
        h = uint32(uint32(h ^ uint32(h >> uint32(16))) * uint32(0x7FEB352D))
        h = uint32(uint32(h ^ uint32(h >> uint32(15))) * uint32(0x846CA68B))
        grain[i] = int32(int32(int32(h >> uint32(30)) * 32) - 48)


@compiled
def _cut_notch(count, cover, axis_x, axis_y, left, dy, half_width, top):
    u0 = int32(int32(axis_x * left) + int32(axis_y * dy))
    v0 = int32(int32(axis_x * dy) - int32(axis_y * left))
    for i in range(count):
        u = int32(int32(abs(int32(u0 + int32(16 * axis_x * int32(i))))) >> 6)
        v = int32(int32(v0 - int32(16 * axis_y * int32(i))) >> 6)
        inside = min(int32(half_width - u), int32(v - top))
        kept = _weight(int32(128 - inside))
        cover[i] = int32(int32(cover[i] * kept) >> 8)


@compiled
def _paint(count, row, cover, border, mark, grain, colours, opacity):
    fill_r, fill_g, fill_b = colours[0, 0], colours[0, 1], colours[0, 2]
    tint_r = int32(colours[1, 0] - fill_r)
    tint_g = int32(colours[1, 1] - fill_g)
    tint_b = int32(colours[1, 2] - fill_b)
    shade_r = int32(colours[2, 0] - fill_r)
    shade_g = int32(colours[2, 1] - fill_g)
    shade_b = int32(colours[2, 2] - fill_b)
    for i in range(count):
        alpha = int32(int32(cover[i] * opacity) >> 8)
        on_border = border[i]
        on_mark = int32(int32(int32(256 - on_border) * mark[i]) >> 8)
        red = int32(fill_r + int32(int32(int32(tint_r * on_mark) + int32(shade_r * on_border)) >> int32(8)))
        green = int32(fill_g + int32(int32(int32(tint_g * on_mark) + int32(shade_g * on_border)) >> int32(8)))
        blue = int32(fill_b + int32(int32(int32(tint_b * on_mark) + int32(shade_b * on_border)) >> int32(8)))
        if grain is not None:  # decided when compiled
            red = min(max(int32(red + grain[i]), int32(0)), int32(255))
            green = min(max(int32(green + grain[i]), int32(0)), int32(255))
            blue = min(max(int32(blue + grain[i]), int32(0)), int32(255))
        row[3 * i] = np.uint8(255 - int32(int32(int32(255 - red) * alpha + 128) >> 8))
        row[3 * i + 1] = np.uint8(255 - int32(int32(int32(255 - green) * alpha + 128) >> 8))
        row[3 * i + 2] = np.uint8(255 - int32(int32(int32(255 - blue) * alpha + 128) >> 8))


@compiled
def draw(out, options, centres, noise_keys, notch):
    """Draw N images.

    out [N, 100, 300] uint8, overwritten; options [N, 8] int64, indices into OPTIONS; centres [N, 2] int32,
    x and y in 1/16 px; noise_keys [N] uint32; notch: whether to cut it.
    """
    dist = np.empty(SIDE, np.int32)
    border = np.empty(SIDE, np.int32)
    mark = np.empty(SIDE, np.int32)
    grain = np.empty(SIDE, np.int32)
    for n in range(out.shape[0]):
        image = out[n]
        image[:] = 255
        shape, pattern, rotation, colour = options[n, 0], options[n, 1], options[n, 2], options[n, 3]
        size, noisy, opacity, dashed = options[n, 4], options[n, 5] == 1, options[n, 6], options[n, 7] == 1
        centre_x, centre_y = centres[n, 0], centres[n, 1]
        spans = _SPANS[shape, rotation, size]
        normals, colours = _NORMALS[shape, rotation], _COLOURS[colour]
        first_row = (centre_y >> 4) - ROWS // 2
        axis_x, axis_y = _AXIS[rotation, 0], _AXIS[rotation, 1]
        wave_x, wave_y = _PATTERN_AXIS[size, rotation, 0], _PATTERN_AXIS[size, rotation, 1]
        period = _PERIOD[size]
        # The notch, in 1/256 px, and the rows that it reaches with a pixel to spare.
        half_width = int32(_NOTCH_WIDTH[size] << 7)
        top = int32(_BOTTOM[shape, size] - (_NOTCH_DEPTH[size] << 8))
        near, far = (top * axis_x) >> 10, (_RADIUS[size] * 256 * axis_x) >> 10
        aside = ((half_width * abs(axis_y)) >> 10) + 512
        notch_low, notch_high = min(near, far) - aside, max(near, far) + aside
        if pattern == SOLID:
            mark[:] = 0
        for y in range(max(first_row, 0), min(first_row + ROWS, SIDE)):
            x0 = max((centre_x >> 4) + spans[y - first_row, 0], 0)
            x1 = min((centre_x >> 4) + spans[y - first_row, 1], SIDE)
            if x0 >= x1:
                continue
            # Whole vectors: the odd pixels at the end of a row would cost more than a few white ones.
            x1 = min(x0 + ((x1 - x0 + 15) & ~15), SIDE)
            x0 = max(x1 - ((x1 - x0 + 15) & ~15), 0)
            count = x1 - x0
            left = int32(16 * x0 + 8 - centre_x)
            dy = int32(16 * y + 8 - centre_y)
            if shape == CIRCLE:
                _circle(count, dist, left, dy, _RADIUS[size])
            elif shape == STAR:
                _star(count, dist, normals, left, dy, _EDGE_DISTANCE[shape, size])
            elif shape == CROSS:
                _cross(count, dist, axis_x, axis_y, left, dy, _CROSS[0, size], _CROSS[1, size])
            elif shape in (TRIANGLE, PENTAGON):
                _polygon(count, dist, normals, left, dy, _EDGE_DISTANCE[shape, size])
            else:
                _paired_polygon(count, dist, normals, left, dy, _EDGE_DISTANCE[shape, size])
            _outline(count, dist, border, _BORDER[size])
            cover = dist
            if dashed and shape == STAR:
                _ring_dashes(count, border, wave_x, wave_y, left, dy, period, int32(3), int32(0))
            elif dashed and shape == CROSS:  # with a dash on the ends of the arms
                phase = int32((_CROSS[0, size] - (_BORDER[size] >> 1)) * 256 // period)
                _ring_dashes(count, border, wave_x, wave_y, left, dy, period, int32(0), phase)
            elif dashed:
                _sector_dashes(count, border, axis_x, axis_y, left, dy, size >= 2)
            if pattern == STRIPED:
                _stripes(count, mark, wave_x, wave_y, left, dy, period)
            elif pattern == DOTTED:
                _dots(count, mark, wave_x, wave_y, left, dy, period)
            elif pattern == CHECKERED:
                _checks(count, mark, wave_x, wave_y, left, dy, period)
            if notch and notch_low <= 16 * dy <= notch_high:
                _cut_notch(count, cover, axis_x, axis_y, left, dy, half_width, top)
            row = image[y, 3 * x0 : 3 * x1]
            if noisy:
                _noise(count, grain, x0, y, noise_keys[n])
                _paint(count, row, cover, border, mark, grain, colours, _OPACITY[opacity])
            else:
                _paint(count, row, cover, border, mark, None, colours, _OPACITY[opacity])
