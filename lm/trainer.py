"""Hugging Face's `Trainer`, with label smoothing by the head."""

from __future__ import annotations

from typing import Any

from transformers import Trainer

from lm.model import CompressedLM


class HeadTrainer(Trainer):
    """A `Trainer` for a `CompressedLM`, bare or under a `PeftModel`, whose `label_smoothing_factor` reaches
    the head.

    `Trainer` itself keeps smoothed labels from the model and makes the loss of its logits, all V of them.
    What the head leaves out of the sum over all classes, `sqrtvocab.Head.forward` says.

    Raises:
        TypeError: another model, which would not know what to do with the smoothing.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        model: Any = self.model
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        if not isinstance(model, CompressedLM):
            raise TypeError(f"HeadTrainer trains a CompressedLM; a {type(model).__name__} goes with Trainer")
        self.label_smoother = None

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if (smoothing := self.args.label_smoothing_factor) and self.compute_loss_func is None:
            inputs = {**inputs, "label_smoothing": smoothing}
        return super().compute_loss(model, inputs, *args, **kwargs)
