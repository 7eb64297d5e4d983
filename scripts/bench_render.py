"""How fast the image set is, as ratios to a straightforward Pillow renderer timed in the same run.

    python scripts/bench_render.py               # everything, about two minutes on two free cores
    python scripts/bench_render.py --rounds 3 --images-per-class 1

The Pillow renderer draws the same attributes the way one would by hand: at four times the size, with
ImageDraw, then shrunk. Timings are interleaved and their medians taken, so that a busy moment of the machine
hits both sides. Nothing else should be running.
"""

from __future__ import annotations

import io
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
from torch.utils.data import DataLoader, RandomSampler

from scripts.common.command import read_flags, run_script
from scripts.common.pillow_renderer import FULL, pillow_render
from shapesgen import ShapesDataset, ShapesParquet, render
from sqrtvocab.errors import RunError, UserError
from sqrtvocab.flags import at_least


@dataclass(frozen=True)
class Config:
    """Images per second of the renderer, the datasets and the writer, against Pillow."""

    images_per_class: int = 4
    """Of the 30,720 classes with one rotation, which `shapesgen render` writes to disk: 122,880 images."""
    rounds: int = 7
    """Rounds of the other timings."""
    scratch: Path | None = None
    """Folder for what is written; a temporary one by default. Deleted at the end."""

    def __post_init__(self) -> None:
        if problems := at_least(self, 1, "images_per_class", "rounds"):
            raise UserError("; ".join(problems))


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
        raise RunError("`shapesgen render` failed: see above")
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    watcher.join()
    size = sum(path.stat().st_size for path in (out / "data").iterdir())
    return seconds, cpu, size, peak


def main(config: Config) -> None:
    """Time everything in a scratch folder."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    scratch = Path(tempfile.mkdtemp(dir=config.scratch))
    try:
        run(config, rng, scratch)
    finally:
        shutil.rmtree(scratch)


def run(config: Config, rng: np.random.Generator, scratch: Path) -> None:
    """Time, tabulate."""
    ids = rng.integers(0, FULL.num_classes, 10_240)
    train = ShapesDataset("train")
    render(FULL, ids[:1], 0)  # compile

    seconds, cpu, size, peak = write_set(scratch / "set", config.images_per_class)
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
    for _ in range(config.rounds):
        for function in (draw_with_pillow, draw_and_save_with_pillow, draw, load, read):
            rates.setdefault(function.__name__, []).append(time_of(function))
    rate = {name: statistics.median(values) for name, values in rates.items()}
    pillow, saved = rate["draw_with_pillow"], rate["draw_and_save_with_pillow"]

    def start_up(*arguments: str) -> float:
        command = [sys.executable, "-m", "shapesgen.cli", *arguments]
        times = []
        for _ in range(config.rounds):
            started = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} (2 to 3 of it is this benchmark)")
    print(
        f"medians of {config.rounds} rounds; {images:,} images written once, {cpu:.0f} s of processor time\n"
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
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
