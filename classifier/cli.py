"""The commands `train_classifier` and `eval_classifier`: read the flags first, import torch afterwards."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import tyro

from classifier.config import ConfigError, EvalConfig, TrainConfig
from classifier.presets import PRESETS
from shapesgen.cli import one_line


def train_main() -> int:
    """`train_classifier`, also `python -m classifier.train`. Returns the exit code."""
    scout = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scout.add_argument("--preset", default="paper")
    scout.add_argument("--only", action="append")
    scout.add_argument("--resume")
    given = scout.parse_known_args()[0]
    with _one_line_errors("train_classifier"):
        if given.resume not in (None, "auto") and (Path(given.resume) / "config.json").is_file():
            preset = _saved(Path(given.resume))
        else:
            preset = PRESETS.get(given.preset, TrainConfig())  # a wrong name is tyro's to report
        if given.only:
            preset = dataclasses.replace(preset, only=())  # tyro would add to the preset's
        config = tyro.cli(TrainConfig, prog="train_classifier", default=preset)

    from classifier.train import train
    from sqrtvocab.training import exit_code

    return exit_code("train_classifier", lambda: train(config))


def eval_main() -> int:
    """`eval_classifier`. Returns the exit code."""
    with _one_line_errors("eval_classifier"):
        config = tyro.cli(EvalConfig, prog="eval_classifier")

    from classifier.evaluate import report
    from sqrtvocab.training import exit_code

    return exit_code("eval_classifier", lambda: report(config))


def _saved(run: Path) -> TrainConfig:
    try:
        settings = json.loads((run / "config.json").read_text("utf-8"))
        return TrainConfig.from_json(settings, resume=str(run), out=None)
    except (ConfigError, OSError, TypeError, ValueError) as error:
        raise ConfigError(f"--resume {run}: not a run of train_classifier: {error}") from error


@contextlib.contextmanager
def _one_line_errors(program: str) -> Iterator[None]:
    """tyro's answer to bad flags is a box of many lines; say the same in one."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            yield
    except (ConfigError, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:  # --help
            raise
        message = error if isinstance(error, ConfigError) else one_line(box.getvalue())
        print(f"{program}: {message}", file=sys.stderr)
        raise SystemExit(2) from None
