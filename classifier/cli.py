"""The commands `train_classifier` and `eval_classifier`: read the flags first, import torch afterwards."""

from __future__ import annotations

import dataclasses

import tyro

from classifier.config import EvalConfig, TrainConfig
from classifier.presets import PRESETS
from sqrtvocab.flags import one_line_errors, saved_config, scout


def train_main() -> int:
    """`train_classifier`, also `python -m classifier.train`. Returns the exit code."""
    with one_line_errors("train_classifier"):
        given = scout("--preset", "--resume", "--only")
        preset = PRESETS.get(given["--preset"] or "paper", TrainConfig())  # a wrong name is tyro's to report
        if given["--resume"] not in (None, "auto"):
            preset = saved_config(given, "train_classifier", TrainConfig.from_json)
        if given["--only"]:
            preset = dataclasses.replace(preset, only=())  # tyro would add to the preset's
        config = tyro.cli(TrainConfig, prog="train_classifier", default=preset)

    from classifier.train import train
    from sqrtvocab.training import exit_code

    return exit_code("train_classifier", lambda: train(config))


def eval_main() -> int:
    """`eval_classifier`. Returns the exit code."""
    with one_line_errors("eval_classifier"):
        config = tyro.cli(EvalConfig, prog="eval_classifier")

    from classifier.evaluate import report
    from sqrtvocab.training import exit_code

    return exit_code("eval_classifier", lambda: report(config))
