"""Named settings: what each is for, its command, how long it takes and what to expect of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from classifier.config import TrainConfig

_MAKERS: dict[str, Callable[[], TrainConfig]] = {
    # The paper's run: 184,320 classes, 10 epochs, batch 64, accumulation 4, Adam 1e-3. 57,600 steps: meant
    # for a GPU. On two CPU cores add --max-minutes 30 --eval-every 100 and watch it begin to learn.
    #   train_classifier
    "paper": TrainConfig,
    # The paper's claim in miniature: 960 classes (8 shapes, 2 patterns, 12 colours, 5 sizes), 7,680 images
    # seen. About a minute on two free CPU cores.
    #   train_classifier --preset quickstart                  # accuracy about 56 %
    #   train_classifier --preset quickstart --head flat      # accuracy about 8 %
    "quickstart": partial(
        TrainConfig,
        preset="quickstart",
        only=(
            "pattern=solid,striped",
            "rotation=0",
            "texture=none",
            "opacity=1.0",
            "border=solid",
        ),
        max_steps=240,
        batch_size=32,
        accumulate=1,
        schedule="cosine",
        eval_every=40,
        eval_images=240,
    ),
    # All 184,320 classes with the paper's head and a faster encoder: ten minutes on one CPU core.
    #   train_classifier --preset fast                        # accuracy about 99 %
    "fast": partial(
        TrainConfig,
        preset="fast",
        backbone="swift",
        max_steps=4000,
        batch_size=128,
        accumulate=1,
        lr=3e-3,
        schedule="cosine",
        warmup_steps=20,
        eval_every=1000,
        eval_images=2000,
    ),
    # All 184,320 classes, of whose labels nothing need be known: images are compared with each other.
    # About ten minutes on one CPU core.
    #   train_classifier --preset prototype --shuffle-labels 0    # accuracy 97.7 ± 0.6 % (three seeds)
    "prototype": partial(
        TrainConfig,
        preset="prototype",
        head="prototype",
        backbone="swift",
        storage="float16",
        grouping="index",
        max_steps=2000,
        batch_size=128,
        accumulate=1,
        lr=3e-3,
        schedule="cosine",
        warmup_steps=20,
        mine_at=(50, 250, 600, 1000, 1500),
        refresh_images=2,
        eval_every=1_000_000,  # each evaluation embeds an image of every class
    ),
    # Your own pictures, whose labels mean nothing to the head: the default with --data FOLDER_OR_TABLE.
    #   train_classifier --data photos
    "pictures": partial(
        TrainConfig,
        preset="pictures",
        head="grouped-linear",
        grouping="auto",
        prior=True,
        augment="shift",
        accumulate=1,
        schedule="cosine",
        warmup_steps=50,
        eval_every=200,
    ),
}


class Presets(Mapping[str, TrainConfig]):
    """By name. Each is made, and checked, when it is asked for: whether its head takes an option is known to
    the head, whose class imports torch, and `--help` must not wait for that."""

    def __init__(self, makers: Mapping[str, Callable[[], TrainConfig]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> TrainConfig:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


PRESETS = Presets(_MAKERS)
