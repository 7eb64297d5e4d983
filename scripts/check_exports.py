"""Exports a short run of every head to ONNX and compares each file with its model on 1,000 validation images.

    python scripts/check_exports.py                      # some minutes on two CPU cores
    python scripts/check_exports.py --heads flat grouped
    python scripts/check_exports.py --json exports.json

The runs see 2,304 classes of shapes for a few steps, by the fast encoder: quick, and far from a tie.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from classifier.config import ExportConfig, TrainConfig
from classifier.export import Exported, export
from classifier.train import train
from scripts.common.command import json_problems, read_flags, run_script
from sqrtvocab.atomic import write_json
from sqrtvocab.errors import RunError, UserError
from sqrtvocab.flags import at_least
from sqrtvocab.heads.registry import HEADS

LARGER_BY = 0.05  # what a file may have beyond its weights


@dataclass(frozen=True)
class Config:
    """Exports a short run of every head to ONNX and compares each file with its model."""

    heads: tuple[str, ...] = tuple(HEADS)
    """Which heads."""
    images: int = 1000
    """Validation images to compare on, at most 2,304."""
    steps: int = 20
    """Training steps of each run."""
    backbone: str = "swift"
    """The encoder of all runs."""
    json: Path | None = None
    """Write the figures to this file."""

    def __post_init__(self) -> None:
        problems = at_least(self, 1, "images", "steps") + json_problems(self.json)
        problems += [f"--heads {name}: no head has this name" for name in self.heads if name not in HEADS]
        if problems:
            raise UserError("; ".join(problems))


def exported(head: str, config: Config, folder: Path) -> Exported:
    """A run of `head`, and its file."""
    run = folder / head
    train(
        TrainConfig(
            head=head,
            backbone=config.backbone,
            only=("size=medium", "texture=none", "opacity=1.0", "border=solid"),
            max_steps=config.steps,
            batch_size=64,
            accumulate=1,
            lr=3e-3,
            eval_images=64,
            workers=0,
            device="cpu",
            out=run,
        )
    )
    return export(ExportConfig(run=run, images=config.images))


def main(config: Config) -> None:
    """Train, export, tabulate."""
    with tempfile.TemporaryDirectory(prefix="check-exports-") as folder:
        rows = {head: exported(head, config, Path(folder)) for head in config.heads}
    print(f"\n{'':<18}{'same top 5':>12}{'of images':>12}{'MB':>8}{'weights':>9}{'more':>8}")
    for head, row in rows.items():
        sizes = f"{row.size / 1e6:>8.2f}{row.weights / 1e6:>9.2f}{row.size / row.weights - 1:>8.1%}"
        print(f"{head:<18}{row.same:>12,}{row.images:>12,}{sizes}")
    if config.json is not None:
        write_json(config.json, {head: row._asdict() | {"path": row.path.name} for head, row in rows.items()})
    wrong = [head for head, row in rows.items() if row.same < row.images]
    large = [head for head, row in rows.items() if row.size > (1 + LARGER_BY) * row.weights]
    if wrong or large:
        raise RunError(
            f"other classes: {wrong or 'none'}; more than {LARGER_BY:.0%} larger: {large or 'none'}"
        )


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
