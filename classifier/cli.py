"""The commands `train_classifier` and `eval_classifier`: read the flags first, import torch afterwards."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any, TypeVar

import tyro

from classifier.config import ConfigError, EvalConfig, TrainConfig
from classifier.presets import PRESETS

Config = TypeVar("Config")


def train_main() -> int:
    """`train_classifier`, also `python -m classifier.train`. Returns the exit code."""
    scout = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scout.add_argument("--preset", default="paper")
    scout.add_argument("--only", action="append")
    given = scout.parse_known_args()[0]
    preset = PRESETS.get(given.preset, TrainConfig())  # a wrong name is tyro's to report
    if given.only:
        preset = dataclasses.replace(preset, only=())  # tyro would add to the preset's
    config = _parse(TrainConfig, "train_classifier", default=preset)

    from classifier.train import train
    from sqrtvocab.training import exit_code

    return exit_code("train_classifier", lambda: train(config))


def eval_main() -> int:
    """`eval_classifier`. Returns the exit code."""
    config = _parse(EvalConfig, "eval_classifier")

    from classifier.evaluate import report
    from sqrtvocab.training import exit_code

    return exit_code("eval_classifier", lambda: report(config))


def _parse(kind: type[Config], program: str, **options: Any) -> Config:
    try:
        return tyro.cli(kind, prog=program, **options)
    except ConfigError as error:  # what tyro itself finds wrong, it reports, also with exit code 2
        print(f"{program}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
