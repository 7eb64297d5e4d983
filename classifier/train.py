"""Train the paper's CNN on 184,320 classes of drawn shapes, with any head.

    train_classifier --preset quickstart                          # a minute on two CPU cores
    train_classifier --preset quickstart --head flat              # the same, with the ordinary head
    train_classifier                                              # the paper's run
    torchrun --nproc-per-node 2 -m classifier.train               # the same on two GPUs
    tensorboard --logdir runs                                     # watch

Everything random is a function of the seed and the step, and everything learnt is in the checkpoint, so a run that
was killed goes on with --resume auto as if nothing had happened.
"""

from __future__ import annotations

if __name__ == "__main__":  # first of all, so that `python -m classifier.train --help` need not import torch
    from classifier.cli import train_main

    raise SystemExit(train_main())

import math
import time

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from classifier.cnn import Classifier, parameter_table
from classifier.config import TrainConfig
from classifier.data import ceiling, class_counts, image_loader, make_dataset, sample_indices
from classifier.evaluate import Evaluation, evaluate
from classifier.figures import CONFUSED, confusion_figure, example_grid
from classifier.model import make_classifier, make_partition
from sqrtvocab.training import (
    BatchPlan,
    Logbook,
    StopWatch,
    Tally,
    exchange_gradients,
    find_checkpoint,
    learning_rate,
    markdown_table,
    open_runtime,
    read_config,
    require_same,
    require_space,
    save_checkpoint,
    share_of_mean,
    write_json,
)

# What must not change when a run is resumed. The number of ranks may, as long as a step sees as many images.
SAME_RUN = (
    "head", "num_classes", "groups", "grouping", "prior", "data", "only", "rotation_cue", "images_per_class",
    "images_per_step", "lr", "schedule", "warmup_steps", "seed",
)  # fmt: skip


def train(config: TrainConfig) -> None:
    """Run `train_classifier`.

    Raises:
        UserError: for input that cannot be used.
        RunError: if the loss is not finite.
    """
    with open_runtime(config.device, config.precision, config.seed) as runtime, StopWatch(config.max_minutes) as stop:
        ...
