"""The model card beside the weights of a run: what the model knows, from which data, how well, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from classifier.presets import PRESETS
from sqrtvocab.settings import command_line, public

CARD = "README.md"
# What says where to compute, to save or to keep decoded pictures.
_NOT_FOR_OTHERS = ("out", "resume", "device", "workers", "cache", "max_minutes", "preset")


def model_card(settings: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """Markdown.

    Args:
        settings: of the run, its config.json.
        state: of the checkpoint.
    """
    data = "shapes drawn on the fly" if settings["data"] is None else f"`{public(settings['data'])}`"
    identity = {
        name.removeprefix("data_"): value for name, value in settings.items() if name.startswith("data_")
    }
    told = ", ".join(f"{name} {value}" for name, value in identity.items())
    scores = [f"| {name} | {value:.4g} |" for name, value in (state.get("metrics") or {}).items()]
    lines = [
        "---",
        "library_name: sqrtvocab",
        "pipeline_tag: image-classification",
        "---",
        "",
        f"# {settings['num_classes']:,} classes: `{settings['backbone']}`, head `{settings['head']}`",
        "",
        f"{settings['parameters']:,} parameters, {settings['head_parameters']:,} of them in the head; "
        f"{settings['groups']:,} groups ({settings['grouping']}). Images of {settings['image_size']} x "
        f"{settings['image_size']} pixels{', grey' if settings['grey'] else ''}.",
        "",
        "```bash",
        "predict_classifier RUN PICTURE_OR_FOLDER",
        "export_classifier RUN --out model.onnx",
        "```",
        "",
        "## Training",
        "",
        f"- data: {data}, {settings['training_images']:,} training images ({told})",
        f"- steps: {state['step']:,} of {settings['total_steps']:,}, {settings['images_per_step']:,} images "
        f"each, {state['minutes']:.1f} minutes on {settings['computed_on']}, torch {settings['torch']}",
        "",
        "```bash",
        command(settings),
        "```",
        "",
        "## Scores on validation images",
        "",
        *(["| | |", "|---|---|", *scores] if scores else ["None yet."]),
        "",
    ]
    return "\n".join(lines)


def command(settings: Mapping[str, Any]) -> str:
    """The call of `train_classifier` that these settings came from, less what says where to compute and to
    save."""
    preset = settings["preset"]
    first = ["train_classifier", "--preset", preset]
    return command_line(first, settings, PRESETS[preset], _NOT_FOR_OTHERS)
