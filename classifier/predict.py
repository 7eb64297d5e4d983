"""`predict_classifier`: names pictures of any size, a line for each, thousands of them if need be."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from classifier.config import PredictConfig
from classifier.data import in_batches, leave_signals_to_the_trainer
from classifier.images.decode import PictureError, decode
from classifier.images.folders import SUFFIXES
from classifier.trained import Trained, open_trained
from sqrtvocab.errors import UserError
from sqrtvocab.training import Runtime, open_runtime

_Decoded = tuple[
    list[int], Tensor, list[tuple[int, str]]
]  # pictures read, their pixels, those damaged and why


def predict(config: PredictConfig) -> None:
    """Run `predict_classifier`: names on stdout, what cannot be read and how far it is on stderr.

    Raises:
        UserError: for input that cannot be used, such as pictures of which none can be read.
    """
    paths = find_pictures(config.pictures)
    trained = open_trained(config.run, config.checkpoint)
    top_k = min(config.top_k, len(trained.classes))
    damaged = 0
    with open_runtime(config.device, config.precision, seed=0) as runtime:
        model = trained.model.to(runtime.device).eval()
        trained.partition.to(runtime.device)
        # On a terminal the lines themselves tell how far it is.
        is_quiet = True if sys.stdout.isatty() else None
        with tqdm(total=len(paths), unit="picture", leave=False, disable=is_quiet) as progress:
            for read, images, errors in _decoded(paths, trained, config, runtime):
                for number, reason in errors:
                    damaged += 1
                    _tell_damaged(paths[number], reason, config.json, progress)
                if read:
                    with torch.inference_mode(), runtime.autocast():
                        hidden = model.encoder(images.to(runtime.device, non_blocking=True))  # [N, d]
                        log_probs, classes = model.head.topk(hidden, top_k)  # [N, k] each
                    rows = zip(read, log_probs.exp().tolist(), classes.tolist(), strict=True)
                    for number, shares, found in rows:
                        print(_line(paths[number], shares, found, trained.classes, config.json))
                progress.update(len(read) + len(errors))
    if damaged == len(paths):
        raise UserError(f"none of the {len(paths):,} pictures can be read")
    if damaged:
        print(f"{damaged:,} of {len(paths):,} pictures cannot be read", file=sys.stderr)


def find_pictures(places: Sequence[Path]) -> list[Path]:
    """The files named, and the pictures at any depth in the folders named, each once, in order.

    Raises:
        UserError: a path that does not exist, or a folder without pictures.
    """
    found: dict[Path, None] = {}
    for place in places:
        if place.is_dir():
            pictures = sorted(_pictures_below(place))
            if not pictures:
                raise UserError(f"{place}: no pictures in it ({', '.join(SUFFIXES)})")
            found |= dict.fromkeys(pictures)
        elif place.exists():
            found[place] = None
        else:
            raise UserError(f"{place}: no such file or folder")
    return list(found)


def _pictures_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (
            Path(parent, name)
            for name in files
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        )


class _Pictures(Dataset[_Decoded]):
    """An "index" is a list of numbers of pictures: a batch."""

    def __init__(self, paths: Sequence[Path], size: int, channels: int) -> None:
        self.paths, self.size, self.channels = paths, size, channels

    def __getitem__(self, batch: Any) -> _Decoded:
        read, pixels, errors = [], [], []
        for number in batch:
            try:
                pixels.append(decode(_contents(self.paths[number]), self.size, self.channels))
                read.append(number)
            except PictureError as error:
                errors.append((number, str(error)))
            except OSError as error:
                errors.append((number, error.strerror or str(error)))
        shape = (0, self.size, self.size, self.channels)
        images = np.stack(pixels) if pixels else np.empty(shape, np.uint8)  # [N, size, size, C]
        return read, torch.from_numpy(images).permute(0, 3, 1, 2), errors


def _contents(path: Path) -> bytes:
    if not path.is_file():  # a device might never end
        raise PictureError("not a regular file")
    return path.read_bytes()


def _decoded(
    paths: Sequence[Path], trained: Trained, config: PredictConfig, runtime: Runtime
) -> Iterator[_Decoded]:
    batches = in_batches(list(range(len(paths))), config.batch_size)
    workers = min(config.workers, len(batches) - 1)  # one batch is not worth a process
    yield from DataLoader(
        _Pictures(paths, trained.image_size, trained.channels),
        batch_size=None,  # nothing is collated
        sampler=batches,
        num_workers=workers,
        pin_memory=runtime.device.type == "cuda",
        worker_init_fn=leave_signals_to_the_trainer,
    )


def _line(path: Path, shares: list[float], found: list[int], names: Sequence[str], as_json: bool) -> str:
    if not as_json:
        return f"{path}\t" + "\t".join(
            f"{names[number]} {share:.2%}" for number, share in zip(found, shares, strict=True)
        )
    classes = [
        {"class": number, "name": names[number], "probability": share}
        for number, share in zip(found, shares, strict=True)
    ]
    return json.dumps({"file": str(path), "classes": classes})


def _tell_damaged(path: Path, reason: str, as_json: bool, progress: tqdm) -> None:
    if as_json:
        print(json.dumps({"file": str(path), "error": reason}))
    else:
        progress.write(f"{path}: not a readable picture ({reason})", file=sys.stderr)
