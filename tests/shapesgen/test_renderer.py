"""The renderer: a pure function with fixed bytes, true geometry, and attributes that can be seen."""

import hashlib
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageDraw

from shapesgen.attributes import OPTIONS, AttributeSpace
from shapesgen.kernel import RADIUS
from shapesgen.renderer import MAX_INSTANCES, render, render_centred

FULL = AttributeSpace.full()
RNG = np.random.default_rng(3)
SAMPLE = RNG.integers(0, FULL.num_classes, 600)

# The smallest change, in grey levels per covered pixel and channel, that one attribute may make.
VISIBLE = 0.9

# SHA-256 of the pixels. A change here changes every set ever written: it needs a new major version.
GOLDEN = {
    ("notch", 0): "dabb244bee0ec5e131ce9b27382e6121afc34b2b9291cf3ea7cd86d51b582e40",
    ("notch", 7): "e7d167b5525e8e638c94e8e8584f7691783583b3d2f70e09318073e079edb331",
    ("none", 0): "7eef3abc9975d0525a0b1c9a8d27a1dd0efb3df696e1f0d5f128756c889e56a4",
}


def pixel_hash(images: np.ndarray) -> str:
    return hashlib.sha256(images.tobytes()).hexdigest()


def changed(options: np.ndarray, attribute: int, by: int) -> np.ndarray:
    other = options.copy()
    other[:, attribute] = (other[:, attribute] + by) % FULL.radices[attribute]
    return other


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean absolute difference of images [N, 100, 100, 3] over the pixels that either of them covers."""
    covered = ((a < 255) | (b < 255)).any(-1).sum((1, 2))  # [N]
    return np.abs(a.astype(int) - b).sum((1, 2, 3)) / (3 * np.maximum(covered, 1))


@pytest.mark.parametrize(("rotation_cue", "seed"), GOLDEN)
def test_golden_hashes(rotation_cue, seed: int) -> None:
    ids = np.arange(0, FULL.num_classes, 307)  # 307 is prime: all options in all combinations of neighbours
    images = render(FULL, ids, np.arange(len(ids)) % 10, seed, rotation_cue)
    assert pixel_hash(images) == GOLDEN[rotation_cue, seed]


def test_an_image_depends_on_nothing_but_seed_class_and_instance() -> None:
    whole = render(FULL, SAMPLE, 3)
    order = RNG.permutation(len(SAMPLE))
    np.testing.assert_array_equal(render(FULL, SAMPLE[order], 3), whole[order])
    for i in range(0, len(SAMPLE), 50):
        np.testing.assert_array_equal(render(FULL, SAMPLE[i], [3])[0], whole[i])
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda ids: render(FULL, ids, 3), np.array_split(SAMPLE, 7)))
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    out = np.empty_like(whole)
    assert render(FULL, SAMPLE, 3, out=out) is out
    np.testing.assert_array_equal(out, whole)
    assert (render(FULL, SAMPLE, 3, seed=1) != whole).any()


def test_the_interpreted_kernel_draws_the_same_bytes_and_no_int32_overflows() -> None:
    """Plain Python, statement by statement, against what LLVM made of it."""
    code = """if True:
        import hashlib
        import numpy as np
        from shapesgen import AttributeSpace, kernel, render
        full = AttributeSpace.full()
        with np.errstate(over="ignore"):  # hashes wrap around
            images = render(full, np.arange(11, 184320, 184320 // 8), 5)
        print(hashlib.sha256(images.tobytes()).hexdigest())
        huge = AttributeSpace.only({"size": ["huge"], "texture": ["none"], "border": ["dashed"]})
        options = full.decode(huge.full_ids(np.arange(7, huge.num_classes, huge.num_classes // 5)))
        centres = np.full((len(options), 2), kernel.CENTRE - 64, np.int32)
        with np.errstate(over="raise"):  # drawing does not
            kernel.draw(np.empty((len(options), 100, 300), np.uint8), options, centres, None, True)
    """
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == pixel_hash(render(FULL, np.arange(11, 184320, 184320 // 8), 5))


def test_a_sub_space_draws_the_same_classes() -> None:
    space = AttributeSpace.only({"shape": ["star", "cross"], "size": ["tiny"], "opacity": [0.5, 1.0]})
    ids = np.arange(0, space.num_classes, 29)
    np.testing.assert_array_equal(render(space, ids, 2), render(FULL, space.full_ids(ids), 2))


@pytest.mark.parametrize("texture", OPTIONS["texture"])
def test_no_image_comes_twice_in_a_class(texture: str) -> None:
    space = AttributeSpace.only({"texture": [texture]})
    for class_id in RNG.integers(0, space.num_classes, 40):
        images = render(space, class_id, np.arange(100))
        assert len({image.tobytes() for image in images}) == 100


def test_all_instances_of_a_class_differ() -> None:
    space = AttributeSpace.only({"size": ["tiny"], "opacity": [0.25], "texture": ["none"]})
    images = render(space, 5, np.arange(MAX_INSTANCES))
    assert len({image.tobytes() for image in images}) == MAX_INSTANCES


def test_every_shape_stays_inside_the_canvas() -> None:
    space = AttributeSpace.only({"size": ["huge"], "pattern": ["solid"], "colour": ["blue"], "opacity": [1]})
    for instance in range(0, MAX_INSTANCES, 997):
        images = render(space, np.arange(space.num_classes), instance, rotation_cue="none")
        for side in (images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]):
            assert (side == 255).all()


def outline(shape: str, rotation: int, radius: float) -> list[tuple[float, float]]:
    """Textbook corners around the centre of the canvas, for the oracle; screen coordinates, clockwise."""

    def ring(n: int, first: float, radii: tuple[float, ...] = (1.0,)) -> list[tuple[float, float]]:
        return [(first + 360 * k / n, radii[k % len(radii)]) for k in range(n)]

    polar = {
        "circle": ring(720, 0),
        "square": ring(4, 45),
        "triangle": ring(3, -90),
        "pentagon": ring(5, -90),
        "hexagon": ring(6, 0),
        "octagon": ring(8, 22.5),
        "star": ring(10, -90, (1.0, (3 - math.sqrt(5)) / 2)),
        "cross": [
            (90 * quarter + angle, r)
            for quarter in range(4)
            for angle, r in ((-20, 1.0), (20, 1.0), (45, math.sqrt(2) * math.sin(math.radians(20))))
        ],
    }[shape]
    turned = [(math.radians(angle + rotation), r * radius) for angle, r in polar]
    return [(50 + r * math.cos(angle), 50 + r * math.sin(angle)) for angle, r in turned]


@pytest.mark.parametrize("shape", OPTIONS["shape"])
def test_geometry_agrees_with_pillow(shape: str) -> None:
    # Solid opaque cyan has no red at all, neither in fill nor border: 255 - red is the coverage.
    space = AttributeSpace.only(
        {"shape": [shape], "pattern": ["solid"], "colour": ["cyan"], "texture": ["none"], "opacity": [1],
         "border": ["solid"]}
    )  # fmt: skip
    images = render_centred(space, np.arange(space.num_classes), "none")
    for class_id, image in enumerate(images):
        options = space.describe(class_id)
        radius = RADIUS[OPTIONS["size"].index(options["size"])]
        scale = 16
        canvas = Image.new("L", (100 * scale, 100 * scale))
        corners = outline(shape, int(options["rotation"]), radius)
        # Pillow names pixels by their centres: half a pixel less.
        ImageDraw.Draw(canvas).polygon([(x * scale - 0.5, y * scale - 0.5) for x, y in corners], fill=255)
        expected = np.asarray(canvas.resize((100, 100), Image.Resampling.BOX)).astype(int)
        drawn = 255 - image[..., 0].astype(int)
        iou = np.minimum(drawn, expected).sum() / np.maximum(drawn, expected).sum()
        assert iou > 0.97, options


@pytest.mark.parametrize("size", OPTIONS["size"])
def test_every_attribute_is_visible_at_every_size(size: str) -> None:
    options = FULL.decode(RNG.integers(0, FULL.num_classes, 100))
    options[:, 4] = OPTIONS["size"].index(size)
    before = render_centred(FULL, FULL.encode(options))
    for attribute, name in enumerate(OPTIONS):
        for by in range(1, FULL.radices[attribute]):
            after = render_centred(FULL, FULL.encode(changed(options, attribute, by)))
            change = difference(before, after)
            weakest = FULL.describe(int(FULL.encode(options[change.argmin()])))
            assert change.min() >= VISIBLE, f"{name} of {weakest} moves the image by {change.min():.2f}"


def test_without_the_cue_rotations_of_a_circle_are_one_image_and_with_it_six() -> None:
    circle = {"shape": ["circle"], "pattern": ["solid"], "border": ["solid"], "texture": ["noise"]}
    space = AttributeSpace.only(circle | {"colour": ["red"], "size": ["tiny"], "opacity": [1]})
    ids = np.arange(6)
    assert len({i.tobytes() for i in render_centred(space, ids, "none")}) == 1
    assert len({i.tobytes() for i in render_centred(space, ids, "notch")}) == 6


def test_opacity_blends_on_white() -> None:
    kept = {"pattern": ["solid"], "texture": ["none"], "colour": ["blue"], "rotation": [0], "size": ["huge"]}
    space = AttributeSpace.only(kept | {"shape": ["circle"], "border": ["solid"]})
    middle = render_centred(space, np.arange(4))[:, 50, 50].astype(int)  # [4, 3]
    for quarter, colour in enumerate(middle, start=1):
        np.testing.assert_allclose(255 - colour, (255 - middle[3]) * quarter / 4, atol=1)


def test_noise_is_grain_around_the_colour_and_only_on_the_shape() -> None:
    kept = {"pattern": ["solid"], "opacity": [1], "colour": ["green"], "rotation": [0], "size": ["huge"]}
    space = AttributeSpace.only(kept | {"shape": ["square"], "border": ["solid"]})
    plain, noisy = render_centred(space, [0, 1]).astype(int)
    assert (noisy[plain == 255] == 255).all()
    grain = (noisy - plain)[40:60, 40:60, 1]
    assert set(np.unique(grain)) == {-48, -16, 16, 48}
    assert abs(grain.mean()) < 6


def test_no_images_is_no_error() -> None:
    assert render(FULL, np.empty(0, np.int64), 0).shape == (0, 100, 100, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: render(FULL, [184_320], 0), "class id must be 0..184319, got 184320"),
        (lambda: render(FULL, [0], [MAX_INSTANCES]), "instance must be 0..16383"),
        (lambda: render(FULL, [0], [-1]), "instance must be 0..16383"),
        (lambda: render(FULL, [0], 0, seed=-1), "seed must be"),
        (lambda: render(FULL, [0], 0, rotation_cue="arrow"), "one of notch, none, got 'arrow'"),
        (lambda: render(FULL, [[0]], 0), r"shape \[N\], got \[1, 1\]"),
        (lambda: render(FULL, [0], 0, out=np.empty((1, 3, 100, 100), np.uint8)), "out must be"),
    ],
)
def test_bad_input_names_what_is_wrong(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
