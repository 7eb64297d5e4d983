"""`export_classifier`: a trained classifier as one file that needs nothing of this package.

The file takes pictures of any size as they were decoded and returns the k most probable classes. It is kept
only if it names validation images as the model itself does.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from classifier.config import ExportConfig
from classifier.data import image_errors, in_batches, open_images, sample_of
from classifier.images.protocol import IntArray
from classifier.model import Classifier
from classifier.trained import Trained, open_trained
from sqrtvocab.atomic import claimed, fsync, write_json
from sqrtvocab.errors import RunError, UserError

LABELS = "labels.json"
INPUT, OUTPUTS = "images", ("probabilities", "classes")
# Two programs add up the same numbers in another order. A probability may differ by this share of itself, and
# by what float32 no longer tells from 0.
TOLERANCE, SMALLEST = 1e-3, 1e-7
_LARGEST_ONNX = 2**31 - 2**20  # bytes of a protobuf, less what the graph itself takes
_BATCH = 32

Run = Callable[
    [Tensor], tuple[np.ndarray, np.ndarray]
]  # images [N, H, W, C] -> probabilities, classes [N, k]


class Deployed(nn.Module):
    """What is exported: uint8 pictures [N, height, width, C] of any one size -> probabilities and classes of
    the k most probable classes, [N, k] each, best first."""

    def __init__(self, model: Classifier, image_size: int, top_k: int) -> None:
        super().__init__()
        self.model, self.image_size, self.top_k = model, image_size, top_k

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = middle_square(images.permute(0, 3, 1, 2), self.image_size)  # [N, C, size, size]
        log_probs, classes = self.model.head.topk(self.model.encoder(x), self.top_k)
        return log_probs.exp(), classes


def middle_square(images: Tensor, size: int) -> Tensor:
    """uint8 [N, C, height, width] -> float [N, C, size, size] of whole numbers: the largest square in the
    middle, resized as `classifier.images.decode` does.

    torch resizes bytes in two passes, rows first, and rounds after each, half up; its weights are integers.
    Here they are floats, which no format must know more of, so that a byte may differ by one. A square of the
    right size is left as it is.
    """
    height, width = images.shape[2:]
    side = torch.sym_min(height, width)
    places = torch.arange(side, device=images.device)
    # Not a slice: whether that is contiguous depends on the size, and the program would then refuse others.
    x = images.index_select(2, places + (height - side) // 2).index_select(3, places + (width - side) // 2)
    x = x.float()
    for shape in ((side, size), (size, size)):
        x = F.interpolate(x, shape, mode="bilinear", antialias=True)  # type: ignore[arg-type]
        x = (x + 0.5).floor().clamp(0, 255)
    return x


class Exported(NamedTuple):
    """A file that was written and checked."""

    path: Path
    size: int
    """Bytes."""
    weights: int
    """Bytes of the model's weights."""
    images: int
    """Validation images that it was checked on."""
    same: int
    """Those of them for which it names the best classes in the model's order; others are as probable."""


def export(config: ExportConfig) -> Exported:
    """Run `export_classifier`.

    Raises:
        UserError: for input that cannot be used, or a missing package.
        RunError: if the file does not name validation images as the model does; it is then not kept.
    """
    if config.format == "onnx":
        require_onnx()
    out = config.out or config.run / f"model{config.suffix}"
    trained = open_trained(config.run, config.checkpoint)
    weights = sum(value.nbytes for value in trained.model.state_dict().values())
    if config.format == "onnx" and weights > _LARGEST_ONNX:
        raise UserError(
            f"--format onnx: one file holds at most 2 GB, the weights are {weights / 1e9:.1f} GB; "
            "--format torch has no such limit"
        )
    images = _validation_images(config, trained)
    deployed = Deployed(trained.model.eval(), trained.image_size, min(config.top_k, len(trained.classes)))
    draft = out.with_name(f".{out.name}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with claimed(draft):  # at once, or minutes later it would turn out that it cannot be written
            print(f"exporting {config.run} ({config.checkpoint}) ...")
            with _quiet():
                program = _traced(deployed, trained)
                write, read = (
                    (_write_onnx, _open_onnx) if config.format == "onnx" else (_write_torch, _open_torch)
                )
                write(program, draft)
            same, count = _compare(read(draft), trained, images, deployed.top_k)
            fsync(draft)
            os.replace(draft, out)
        write_json(out.parent / LABELS, list(trained.classes))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror or error})") from error
    size = out.stat().st_size
    print(
        f"{out}: {size / 1e6:.1f} MB, the weights {weights / 1e6:.1f}; checked on {count:,} "
        f"validation images: probabilities within {TOLERANCE:.1%} of the model's, the best "
        f"{deployed.top_k} classes the same and in the same order for {same:,} (others are as probable)\n"
        f"{out.parent / LABELS}: the names of {len(trained.classes):,} classes"
    )
    return Exported(out, size, weights, count, same)


def require_onnx() -> None:
    """Refuse if a package is missing that writes or runs ONNX."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise UserError(
                f"--format onnx needs {package}: pip install 'sqrtvocab[export]'; --format torch does not"
            ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters speak of their own progress and of what they are about to change."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _traced(deployed: Deployed, trained: Trained) -> torch.export.ExportedProgram:
    size = trained.image_size
    # Any number of pictures, height and width: of those traced none may be 0 or 1, nor one like another.
    example = torch.zeros(2, size + 3, size + 5, trained.channels, dtype=torch.uint8)
    free = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        return torch.export.export(deployed, (example,), dynamic_shapes=({0: free, 1: free, 2: free},))


def _write_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    axes = {0: "pictures", 1: "height", 2: "width"}
    model: Any = torch.onnx.export(
        program, dynamo=True, input_names=[INPUT], output_names=list(OUTPUTS), dynamic_shapes=(axes,)
    )
    model.save(str(path), external_data=False)


def _write_torch(program: torch.export.ExportedProgram, path: Path) -> None:
    whole = io.BytesIO()  # not to the disk: if that is full, torch's own writer aborts the process
    torch.export.save(program, whole)
    with path.open("wb") as file:
        file.write(whole.getbuffer())


def _open_onnx(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> tuple[np.ndarray, np.ndarray]:
        shares, classes = session.run(list(OUTPUTS), {INPUT: images.numpy()})
        return shares, classes

    return run


def _open_torch(path: Path) -> Run:
    module = torch.export.load(path).module()

    def run(images: Tensor) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            shares, classes = module(images)
        return shares.numpy(), classes.numpy()

    return run


def _validation_images(config: ExportConfig, trained: Trained) -> Iterator[Tensor]:
    """Validation images as the model was trained on them, in batches [N, C, size, size]."""
    settings = replace(trained.config, data=config.data or trained.config.data)
    source = open_images(settings, classes=trained.own_classes)
    images = source["validation"]
    if not len(images):
        raise UserError(f"--data {settings.data}: no validation images to check the exported file with")
    chosen = in_batches(sample_of(images, config.images, settings.seed), _BATCH)

    def batches() -> Iterator[Tensor]:
        with image_errors(settings.data):
            for indices in chosen:
                yield torch.from_numpy(images.batch(indices)[0]).permute(0, 3, 1, 2)

    return batches()


def _compare(run: Run, trained: Trained, batches: Iterator[Tensor], top_k: int) -> tuple[int, int]:
    """How many images the exported file names in exactly the model's words, of how many.

    Raises:
        RunError: if a probability differs, or a class that it names is less probable than one it leaves out.
    """
    same = count = 0
    for images in tqdm(batches, desc="checking", unit="batch", leave=False, disable=None):
        with torch.inference_mode():
            dense = trained.model.head.log_prob(trained.model.encoder(images)).exp()  # [N, V]
        best, classes = (part.numpy() for part in dense.topk(top_k))  # [N, k] each
        shares, named = run(images.permute(0, 2, 3, 1).contiguous())
        problem = difference(dense.numpy(), best, shares, named)
        if problem is not None:
            raise RunError(f"the exported file is not the model: {problem}; it is not kept")
        same += int(np.sum((named == classes).all(1)))
        count += len(images)
    return same, count


def difference(dense: np.ndarray, best: np.ndarray, shares: np.ndarray, named: IntArray) -> str | None:
    """What is wrong with the classes `named` [N, k] and their probabilities `shares` [N, k], where the model
    has the distributions `dense` [N, V] and in them the highest values `best` [N, k]; None if nothing is.

    Classes that are equally probable within the tolerance may be in any order.
    """
    if named.shape != best.shape or any(len(set(row)) < len(row) for row in named.tolist()):
        return f"it names {named.shape[1]} classes, not {best.shape[1]} different ones"
    allowed = TOLERANCE * best + SMALLEST
    of_named = np.take_along_axis(dense, named, 1)  # [N, k] what the model thinks of them
    for which, expected in (("probability", best), ("class", of_named)):
        gap = np.abs(shares - expected)
        if not (gap <= allowed).all():  # NaN is not
            row, rank = (int(i) for i in np.argwhere(~(gap <= allowed))[0])
            return (
                f"the {which} at place {rank + 1} has probability {shares[row, rank]:.6g} there and "
                f"{expected[row, rank]:.6g} here"
            )
    return None
