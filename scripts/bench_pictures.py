"""What it costs to train on pictures from files: decoding them once into the cache, and waiting for them.

    python scripts/bench_pictures.py                 # some minutes on two CPU cores
    python scripts/bench_pictures.py --json out.json

The cache is made from JPEGs as cameras write them, in turns with a bare loop of `torchvision.io` that reads
and decodes the same files on as many processes and throws the pixels away. Then the paper's CNN trains on the
cached pictures. What counts are the ratios within one run.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg, read_file

from classifier.cnn import Encoder
from classifier.config import EMBEDDING
from classifier.data import image_batches
from classifier.images.pictures import Opened, open_pictures
from classifier.model import Classifier
from scripts.common.command import json_problems, read_flags, run_script
from scripts.common.learner import Learner, Timing
from sqrtvocab import make_head
from sqrtvocab.atomic import write_json
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least
from sqrtvocab.training import BatchPlan, open_runtime

DISTINCT = 500  # pictures; drawing more would take longer than what is measured


@dataclass(frozen=True)
class Config:
    """What it costs to train on pictures from files."""

    pictures: int = 12_000
    """How many JPEGs to make. With fewer than 10,000 the cache is made by one process."""
    width: int = 320
    """Their width; three quarters of it is their height."""
    image_size: int = 100
    """Side of the squares in the cache."""
    rounds: int = 3
    """How often each side is timed."""
    steps: int = 10
    """Training steps of 64 pictures whose waiting is measured."""
    workers: int = 1
    """Processes that read ahead in training; the trainer's default on a CPU."""
    json: Path | None = None
    """Write the figures to this file."""

    def __post_init__(self) -> None:
        problems = at_least(self, 64, "pictures") + at_least(self, 16, "width", "image_size")
        problems += at_least(self, 1, "rounds", "steps") + at_least(self, 0, "workers")
        if problems := [*problems, *json_problems(self.json)]:
            raise UserError("; ".join(problems))


def make_pictures(folder: Path, config: Config) -> list[Path]:
    """Ten classes of JPEGs with smooth shapes and some noise, about as large as photographs of that size; the
    first ones over and over again."""
    rng = np.random.default_rng(0)
    height, paths = config.width * 3 // 4, []
    for number in range(config.pictures):
        path = folder / f"class{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        paths.append(path)
        if number >= DISTINCT:
            shutil.copyfile(paths[number % DISTINCT], path)
            continue
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize((config.width, height))
        noise = rng.integers(-8, 8, (height, config.width, 3))
        pixels = np.clip(np.asarray(coarse).astype(np.int64) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(path, quality=85)
    return paths


def decode_bare(paths: list[str]) -> int:
    """Read and decode files; how many."""
    torch.set_num_threads(1)
    for path in paths:
        decode_jpeg(read_file(path), ImageReadMode.RGB)
    return len(paths)


class Clock:
    """Seconds, and seconds that processors work, in this process and in those that it ends."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add what a block takes."""
        began, before = time.perf_counter(), os.times()
        yield
        self.seconds.append(time.perf_counter() - began)
        self.cpu_seconds.append(sum(os.times()[:4]) - sum(before[:4]))


def ratio(bare: list[float], cached: list[float]) -> float:
    """How many times faster the second is: median over the rounds."""
    return statistics.median(one / other for one, other in zip(bare, cached, strict=True))


def open_set(config: Config, root: Path, workers: int) -> Opened:
    """The pictures, decoded now unless there is a cache."""
    return open_pictures(
        root / "pictures",
        size=config.image_size,
        grey=False,
        cache=root / "cache",
        cache_limit=20.0,
        workers=workers,
        say=lambda line: None,
    )


def bench_cache(config: Config, root: Path, paths: list[Path]) -> dict[str, float]:
    """The rate at which the cache is made, against the bare loop: by all processes, both sides paying for
    their start, and by one process, which tells what is left of the rate for very many pictures."""
    processes = os.cpu_count() or 1
    names = [str(path) for path in paths]
    parts = [names[start : start + 64] for start in range(0, len(names), 64)]
    bare, cached, bare_loop, cached_loop = Clock(), Clock(), Clock(), Clock()
    for _ in range(config.rounds):
        with bare.timed(), multiprocessing.get_context("spawn").Pool(processes) as pool:
            assert sum(pool.imap_unordered(decode_bare, parts)) == len(names)
            pool.close()
            pool.join()
        shutil.rmtree(root / "cache", ignore_errors=True)
        with cached.timed():
            open_set(config, root, processes)
    threads = torch.get_num_threads()
    with bare_loop.timed():
        decode_bare(names)  # by one thread, from here on
    shutil.rmtree(root / "cache", ignore_errors=True)
    with cached_loop.timed():
        open_set(config, root, 1)
    torch.set_num_threads(threads)
    figures = {
        "processes": processes,
        "bare_per_s": len(names) / statistics.median(bare.seconds),
        "cached_per_s": len(names) / statistics.median(cached.seconds),
        "ratio": ratio(bare.seconds, cached.seconds),
        "cpu_ratio": ratio(bare.cpu_seconds, cached.cpu_seconds),
        "cpu_ratio_of_loops": ratio(bare_loop.cpu_seconds, cached_loop.cpu_seconds),
    }
    print(f"{figures['bare_per_s']:8.0f} pictures/s by a bare loop of torchvision.io, {processes} processes")
    print(f"{figures['cached_per_s']:8.0f} pictures/s into the cache")
    print(f"{figures['ratio']:8.2f} of the bare loop's rate (goal: at least 0.8)")
    print(f"{figures['cpu_ratio']:8.2f} by CPU seconds, which other work on the machine disturbs less")
    print(
        f"{figures['cpu_ratio_of_loops']:8.2f} by CPU seconds of one process, without the start of others\n"
    )
    return figures


def bench_wait(config: Config, root: Path) -> dict[str, float]:
    """How long the paper's CNN waits for cached pictures."""
    size = config.image_size
    images = open_set(config, root, 1)["train"]
    plan = BatchPlan(len(images), 64, 1, seed=0)
    with open_runtime("auto", "auto", seed=0) as runtime:
        print(runtime.describe())
        model = Classifier(Encoder(size), make_head("flat", EMBEDDING, len(images.classes)))
        learner = Learner(model, runtime)
        warm_up = 2
        steps = config.steps + warm_up
        loader = iter(image_batches(images, plan.batches(0, steps), config.workers, runtime))
        for _ in range(warm_up):
            learner.step([next(loader)], 64)
        timings: list[Timing] = []
        for _ in range(config.steps):
            timings.append(learner.step((next(loader) for _ in range(1)), 64))
    figures = {
        "images_per_s": 64 * len(timings) / sum(timing.total for timing in timings),
        "data_wait_fraction": sum(timing.waited for timing in timings) / sum(t.total for t in timings),
    }
    print(f"{figures['images_per_s']:8.1f} images/s trained with the paper's CNN from the cache")
    print(f"{figures['data_wait_fraction']:8.2%} of the time spent waiting for them (goal: under 2 %)")
    return figures


def main(config: Config) -> None:
    """Make pictures, time, tabulate."""
    with tempfile.TemporaryDirectory(prefix="bench-pictures-") as place:
        root = Path(place)
        (root / "pictures").mkdir()
        paths = make_pictures(root / "pictures", config)
        size = sum(path.stat().st_size for path in paths) / len(paths)
        print(
            f"{len(paths):,} JPEGs of {config.width} x {config.width * 3 // 4} pixels, "
            f"{size / 1e3:.0f} kB each"
        )
        document = {"cache": bench_cache(config, root, paths), "training": bench_wait(config, root)}
    if config.json is not None:
        write_json(config.json, document)


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
