"""The commands `train_lm`, `eval_lm`, `sample_lm`, `judge_lm`: read the flags first, import torch after."""

from __future__ import annotations

from typing import TypeVar

import tyro

from lm.config import EvalConfig, JudgeConfig, SampleConfig, TrainConfig
from lm.presets import PRESETS
from sqrtvocab.errors import exit_code
from sqrtvocab.flags import Flags, one_line_errors
from sqrtvocab.help import answer_help
from sqrtvocab.settings import parse_run_flags

Config = TypeVar("Config", bound=Flags)


def train_main() -> int:
    """`train_lm`, also `python -m lm.train`. Returns the exit code."""
    config = parse_run_flags(TrainConfig, PRESETS)

    from lm.train import train

    return exit_code("train_lm", lambda: train(config))


def eval_main() -> int:
    """`eval_lm`. Returns the exit code."""
    config = _parse(EvalConfig, "eval_lm")

    from lm.evaluate import report

    return exit_code("eval_lm", lambda: report(config))


def sample_main() -> int:
    """`sample_lm`. Returns the exit code."""
    config = _parse(SampleConfig, "sample_lm")

    from lm.sample import sample

    return exit_code("sample_lm", lambda: sample(config))


def judge_main() -> int:
    """`judge_lm`. Returns the exit code."""
    config = _parse(JudgeConfig, "judge_lm")

    from lm.judge.command import judge_run

    return exit_code("judge_lm", lambda: judge_run(config))


def _parse(kind: type[Config], program: str) -> Config:
    with one_line_errors(program):
        answer_help(kind, program)
        return tyro.cli(kind, prog=program)
