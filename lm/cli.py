"""The commands `train_lm`, `eval_lm`, `sample_lm`, `judge_lm`: read the flags first, import torch after."""

from __future__ import annotations

import argparse
import sys
from typing import Any, TypeVar

import tyro

from lm.config import ConfigError, EvalConfig, JudgeConfig, SampleConfig, TrainConfig
from lm.presets import PRESETS

Config = TypeVar("Config")


def train_main() -> int:
    """`train_lm`, also `python -m lm.train`. Returns the exit code."""
    scout = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scout.add_argument("--preset", default="default")
    preset = PRESETS.get(
        scout.parse_known_args()[0].preset, TrainConfig()
    )  # a wrong name is tyro's to report
    config = _parse(TrainConfig, "train_lm", default=preset)

    from lm.train import train
    from sqrtvocab.training import exit_code

    return exit_code("train_lm", lambda: train(config))


def eval_main() -> int:
    """`eval_lm`. Returns the exit code."""
    config = _parse(EvalConfig, "eval_lm")

    from lm.evaluate import report
    from sqrtvocab.training import exit_code

    return exit_code("eval_lm", lambda: report(config))


def sample_main() -> int:
    """`sample_lm`. Returns the exit code."""
    config = _parse(SampleConfig, "sample_lm")

    from lm.sample import tell
    from sqrtvocab.training import exit_code

    return exit_code("sample_lm", lambda: tell(config))


def judge_main() -> int:
    """`judge_lm`. Returns the exit code."""
    config = _parse(JudgeConfig, "judge_lm")

    from lm.judge_run import judge
    from sqrtvocab.training import exit_code

    return exit_code("judge_lm", lambda: judge(config))


def _parse(kind: type[Config], program: str, **options: Any) -> Config:
    try:
        return tyro.cli(kind, prog=program, **options)
    except ConfigError as error:  # what tyro itself finds wrong, it reports, also with exit code 2
        print(f"{program}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
