"""How fast the image set is, as ratios to a straightforward Pillow renderer timed in the same run.

    python scripts/bench_render.py               # everything, about two minutes on two free cores
    python scripts/bench_render.py --rounds 3 --images-per-class 1

The Pillow renderer draws the same attributes the way one would by hand: at four times the size, with
ImageDraw, then shrunk. Timings are interleaved and their medians taken, so that a busy moment of the machine
hits both sides. Nothing else should be running.
"""

from __future__ import annotations

import io
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image, ImageChops, ImageDraw
from torch.utils.data import DataLoader, RandomSampler

from shapesgen import AttributeSpace, ShapesDataset, ShapesParquet, render
from shapesgen.kernel import BORDER, BOTTOM, NOTCH_DEPTH, NOTCH_WIDTH, PALETTE, PERIOD, RADIUS
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, one_line_errors

FULL = AttributeSpace.full()
SCALE = 4


@dataclass
class Bench:
    images_per_class: int = 4
    """Of the 30,720 classes with one rotation, which `shapesgen render` writes to disk: 122,880 images."""
    rounds: int = 7
    """Rounds of the other timings."""
    scratch: Path | None = None
    """Folder for what is written; a temporary one by default. Deleted at the end."""

    def __post_init__(self) -> None:
        if problems := at_least(self, 1, "images_per_class", "rounds"):
            raise UserError("; ".join(problems))


# --- the straightforward renderer ---------------------------------------------------------------------------


def corners(shape: str, radius: float, rotation: float, centre: float) -> list[tuple[float, float]]:
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


# --- what is timed ------------------------------------------------------------------------------------------


def time_of(function: Callable[[], int]) -> float:
    """Images per second."""
    started = time.perf_counter()
    images = function()
    return images / (time.perf_counter() - started)


def memory_of_tree(pid: int) -> int:
    """Bytes of a process and its descendants, shared pages counted once (Linux)."""
    total, waiting = 0, [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            for line in (process / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # gone meanwhile
            continue
    return total


def write_set(out: Path, images_per_class: int) -> tuple[float, float, int, int]:
    """`shapesgen render` as a user runs it: seconds, processor seconds, bytes, peak memory in bytes."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "shapesgen.cli", "render", "--out", str(out)]
    command += ["--only", "rotation=60", "--images-per-class", str(images_per_class)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, memory_of_tree(process.pid))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    if process.wait() != 0:
        sys.exit("bench_render: `shapesgen render` failed")
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    watcher.join()
    size = sum(path.stat().st_size for path in (out / "data").iterdir())
    return seconds, cpu, size, peak


def main(bench: Bench) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    scratch = Path(tempfile.mkdtemp(dir=bench.scratch))
    try:
        run(bench, rng, scratch)
    finally:
        shutil.rmtree(scratch)


def run(bench: Bench, rng: np.random.Generator, scratch: Path) -> None:
    ids = rng.integers(0, FULL.num_classes, 10_240)
    train = ShapesDataset("train")
    render(FULL, ids[:1], 0)  # compile

    seconds, cpu, size, peak = write_set(scratch / "set", bench.images_per_class)
    stored = ShapesParquet(scratch / "set")
    images = stored.recipe.num_images

    def draw_with_pillow() -> int:
        for class_id in ids[:60]:
            pillow_render(int(class_id), rng)
        return 60

    def draw_and_save_with_pillow() -> int:
        for class_id in ids[:60]:
            pillow_render(int(class_id), rng).save(io.BytesIO(), "png")
        return 60

    def draw() -> int:
        for start in range(0, len(ids), 256):
            render(FULL, ids[start : start + 256], 0)
        return len(ids)

    def load() -> int:
        images = 0
        for batch, _ in loader:
            images += len(batch)
        return images

    def read() -> int:
        for start in range(0, len(rows), 256):
            stored.batch(rows[start : start + 256])
        return len(rows)

    sampler = RandomSampler(train, num_samples=32_768)
    loader: DataLoader[Any] = DataLoader(
        train, batch_size=256, sampler=sampler, num_workers=2, persistent_workers=True
    )
    rows = rng.permutation(len(stored))[:2_048]
    for function in (draw_with_pillow, draw, load, read):
        function()  # everything once before it counts: workers started, shards mapped
    rates: dict[str, list[float]] = {}
    for _ in range(bench.rounds):
        for function in (draw_with_pillow, draw_and_save_with_pillow, draw, load, read):
            rates.setdefault(function.__name__, []).append(time_of(function))
    rate = {name: statistics.median(values) for name, values in rates.items()}
    pillow, saved = rate["draw_with_pillow"], rate["draw_and_save_with_pillow"]

    def start_up(*arguments: str) -> float:
        command = [sys.executable, "-m", "shapesgen.cli", *arguments]
        times = []
        for _ in range(bench.rounds):
            started = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} (2 to 3 of it is this benchmark)")
    print(
        f"medians of {bench.rounds} rounds; {images:,} images written once, {cpu:.0f} s of processor time\n"
    )
    print("| | images/s | against Pillow | to reach |")
    print("|---|---:|---:|---:|")
    print(f"| Pillow, 4x supersampled, one core | {pillow:,.0f} | | |")
    print(f"| Pillow, the same and save as PNG | {saved:,.0f} | | |")
    written, per_image = images / seconds, size / images
    for name, value, base, target in (
        ("`render`, one core", rate["draw"], pillow, 150),
        ("`ShapesDataset`, DataLoader with 2 workers", rate["load"], pillow, 60),
        ("`ShapesParquet`, shuffled, one core", rate["read"], pillow, 25),
        ("`shapesgen render`, from start to end", written, saved, 15),
    ):
        print(f"| {name} | {value:,.0f} | {value / base:.0f}x | {target}x |")
    full = 1_843_200
    print(f"\nbytes an image on disk: {per_image:,.0f} (at most 3,300)")
    print(f"memory of `shapesgen render`, all processes: {peak / 2**20:,.0f} MiB (below 1,024)")
    print(f"the full set at this rate: {full * per_image / 1e9:.1f} GB, {full / written / 60:.1f} minutes")
    for arguments in (["--help"], ["describe", "5"]):
        print(f"`shapesgen {' '.join(arguments)}`: {start_up(*arguments):.2f} s (below 0.5)")


if __name__ == "__main__":
    with one_line_errors("bench_render"):
        arguments = tyro.cli(Bench, description=__doc__)
    main(arguments)
