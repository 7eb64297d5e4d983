"""Trainers under faults: flags for a run of a moment, and what it has come to, to be compared bit for bit."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Some are imported here only so that the forked processes, of which there are thousands, need not.
import matplotlib.figure  # noqa: F401
import numpy as np
import sklearn.metrics  # noqa: F401
import torch
import transformers.models.gpt2.modeling_gpt2  # noqa: F401
import typeguard  # noqa: F401
from PIL import Image
from safetensors.torch import load_file

import classifier.cli
import classifier.evaluate
import classifier.train
import lm.cli
import lm.evaluate
import lm.train
from sqrtvocab.heads.registry import HEADS
from sqrtvocab.training import load_checkpoint, read_metrics

list(HEADS.values())  # imports them

# A process's first backward pass decides whether torch starts threads for devices. Were it that of a
# simulated step, which speaks of a GPU, nothing forked afterwards could train.
torch.zeros(1, requires_grad=True).sum().backward()

SECONDS = 120  # what takes longer is a hang
MEASURED = ("minutes", "memory/peak", "speed/tokens_per_s", "speed/images_per_s", "speed/data_wait_fraction")
TWELVE = [
    "--only", "shape=circle", "--only", "pattern=solid", "--only", "rotation=0", "--only", "size=huge",
    "--only", "texture=none", "--only", "opacity=1.0", "--only", "border=solid", "--images-per-class", "5",
]  # fmt: skip


@dataclasses.dataclass
class Trainer:
    """A command, and flags for a run of a moment that goes on if it has begun."""

    program: str
    main: Callable[[], int]
    score: Callable[[], int]
    scores: str
    """The file that `score` writes."""
    flags: list[Any]
    cache: Path | None = None
    has_pictures: bool = False

    def argv(self, out: Path, steps: int = 2) -> list[Any]:
        return [*self.flags, "--eval-every", 1, "--max-steps", steps, "--resume", "auto", "--out", out]


def train_classifier() -> Trainer:
    flags = [
        *TWELVE, "--batch-size", 4, "--accumulate", 1, "--eval-images", 8, "--workers", 0, "--device", "cpu",
    ]  # fmt: skip
    main, score = classifier.cli.train_main, classifier.cli.eval_main
    return Trainer("train_classifier", main, score, "eval-test.json", flags)


def train_lm(text: Path, cache: Path) -> Trainer:
    flags = [
        "--data", text, "--valid-fraction", 0.2, "--tokenizer", "train:260", "--cache", cache,
        "--head", "flat", "--hidden-size", 8, "--num-layers", 1, "--num-attention-heads", 2, "--seq-len", 16,
        "--batch-size", 2, "--schedule", "constant", "--eval-tokens", 64, "--sample-every", 0,
        "--device", "cpu",
    ]  # fmt: skip
    return Trainer("train_lm", lm.cli.train_main, lm.cli.eval_main, "eval.json", flags, cache)


def paint(folder: Path, names: Sequence[str], each: int) -> Path:
    """Pictures of noise, a folder for each class."""
    draw = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def train_pictures(folder: Path, cache: Path) -> Trainer:
    """`train_classifier` on pictures, which are painted into `folder`."""
    flags = [
        "--data", paint(folder, ("ant", "bee"), 10), "--cache", cache, "--image-size", 8, "--batch-size", 4,
        "--workers", 0, "--schedule", "constant", "--device", "cpu",
    ]  # fmt: skip
    return dataclasses.replace(train_classifier(), flags=flags, cache=cache, has_pictures=True)


def outcome(run: Path, names: tuple[str, ...] = ("last", "best")) -> dict[str, Any]:
    """All that a run has learnt and recorded, in a form that can be compared bit for bit."""
    found: dict[str, Any] = {}
    for name in names:
        checkpoint = load_checkpoint(run, name)
        assert checkpoint is not None
        found[name] = checkpoint.state["step"], checkpoint.state["best"]
        for key, value in load_file(checkpoint.folder / "model.safetensors").items():
            found[f"{name} {key}"] = value.numpy().tobytes()
    moments = load_checkpoint(run, "last").load_training()["optimizer"]["state"]
    found["moments"] = [
        [(key, torch.as_tensor(one).tolist()) for key, one in row.items()] for row in moments.values()
    ]
    return found | {"metrics": metrics(run)}


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in MEASURED} for row in rows]


def drafts(folder: Path) -> list[str]:
    """What is left of unfinished files. A lock is taken again, whoever has left it."""
    return [path.name for path in folder.rglob(".*") if path.suffix != ".lock" and path.name != ".lock"]


def last_line(result: Any, program: str) -> str:
    """Of a run that has failed: what it says at its end, and nothing else that is no progress."""
    assert "Traceback" not in result.err, result.err
    line = result.err.splitlines()[-1]
    assert line.startswith(f"{program}: "), result.err
    return line


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
