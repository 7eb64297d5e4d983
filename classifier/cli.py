"""The commands of the classifier: read the flags first, import torch afterwards."""

from __future__ import annotations

from pathlib import Path

import tyro

from classifier.config import AddConfig, EvalConfig, ExportConfig, PredictConfig, TrainConfig, holds_shapes
from classifier.presets import PRESETS
from shapesgen.attributes import AttributeSpace
from sqrtvocab.errors import exit_code
from sqrtvocab.flags import one_line_errors, peek_flags
from sqrtvocab.help import answer_help
from sqrtvocab.settings import parse_run_flags


def train_main() -> int:
    """`train_classifier`, also `python -m classifier.train`. Returns the exit code."""
    with one_line_errors("train_classifier"):  # for paths that the system refuses
        data = peek_flags("--data")["--data"]
        has_pictures = data is not None and Path(data).exists() and not holds_shapes(Path(data))
    default = PRESETS["pictures" if has_pictures else "paper"]
    config = parse_run_flags(TrainConfig, PRESETS, merge={"only": AttributeSpace.merge_only}, default=default)

    from classifier.train import train

    return exit_code("train_classifier", lambda: train(config))


def eval_main() -> int:
    """`eval_classifier`. Returns the exit code."""
    with one_line_errors("eval_classifier"):
        answer_help(EvalConfig, "eval_classifier")
        config = tyro.cli(EvalConfig, prog="eval_classifier")

    from classifier.evaluate import report

    return exit_code("eval_classifier", lambda: report(config))


def predict_main() -> int:
    """`predict_classifier`. Returns the exit code."""
    with one_line_errors("predict_classifier"):
        answer_help(PredictConfig, "predict_classifier")
        config = tyro.cli(PredictConfig, prog="predict_classifier")

    from classifier.predict import predict

    return exit_code("predict_classifier", lambda: predict(config))


def export_main() -> int:
    """`export_classifier`. Returns the exit code."""
    with one_line_errors("export_classifier"):
        answer_help(ExportConfig, "export_classifier")
        config = tyro.cli(ExportConfig, prog="export_classifier")

    from classifier.export import export

    return exit_code("export_classifier", lambda: export(config))


def add_main() -> int:
    """`add_classes`. Returns the exit code."""
    with one_line_errors("add_classes"):
        answer_help(AddConfig, "add_classes")
        config = tyro.cli(AddConfig, prog="add_classes")

    from classifier.adding import add

    return exit_code("add_classes", lambda: add(config))
