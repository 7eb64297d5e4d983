"""Named settings: what each is for, its command, how long it takes and what to expect of it."""

from __future__ import annotations

from classifier.config import TrainConfig

PRESETS: dict[str, TrainConfig] = {
    # The paper's run: 184,320 classes, 10 epochs, batch 64, accumulation 4, Adam 1e-3.
    #   train_classifier
    "paper": TrainConfig(),
    # TODO
    "quickstart": TrainConfig(preset="quickstart"),
}
