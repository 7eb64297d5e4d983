"""A classifier: an encoder and a head of any kind over its embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from classifier.backbones import Backbone
from classifier.cnn import FILTERS, Encoder
from classifier.config import TrainConfig
from classifier.swift import Swift
from sqrtvocab import Head, HeadOutput, Partition, make_head
from sqrtvocab.errors import UserError
from sqrtvocab.heads.registry import HEADS
from sqrtvocab.training import BatchPlan, Runtime
from sqrtvocab.training.class_plan import ClassPlan
from sqrtvocab.training.memory import bytes_of_state, require_memory
from sqrtvocab.training.optimizer import make_adam, make_sgd, require_sparse_support


class Classifier(nn.Module):
    """An encoder and a head over its embeddings."""

    def __init__(self, encoder: Encoder | Swift | Backbone, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(
        self, images: Tensor, target: Tensor, shares: Tensor | None = None, reduction: str = "mean"
    ) -> HeadOutput:
        """uint8 [N, C, height, width] and classes [N], or several for each image [N, K] with their shares
        [N, K] -> the losses (see `sqrtvocab.HeadOutput`)."""
        return self.head(self.encoder(images), target, reduction=reduction, target_weight=shares)


def make_classifier(
    head: str,
    partition: Partition,
    encoder: Encoder | Swift | Backbone | None = None,
    radices: Sequence[int] | None = None,
    order: Tensor | None = None,
    **options: Any,
) -> Classifier:
    """A new classifier over the classes of `partition`, which a head with groups takes as its own.

    Args:
        encoder: the paper's CNN if None. Made before the head: with one seed it must begin alike whatever the
            head draws.
        radices: the options of each attribute, if the classes are made of attributes.
        order: [V] the classes from the most frequent to the rarest, for a head that begins with those; None
            leaves them as they are.
        options: further options of the head's class.

    Raises:
        UserError: for options that do not fit the embedding or the classes.
    """
    encoder = Encoder() if encoder is None else encoder
    offered: dict[str, Any] = {"partition": partition, "radices": radices}
    if HEADS[head].frequent_first:
        offered["order"] = order
    if radices is None and "radices" in HEADS[head].needs:
        raise UserError(
            f"--head {head}: it needs classes that are made of attributes; --radices tells how yours are"
        )
    try:
        built = make_head(head, encoder.width, partition.num_classes, offered, **options)
    except ValueError as error:
        raise UserError(f"--head {head}: {error}") from error
    return Classifier(encoder, built)


def make_optimizer(
    model: Classifier, config: TrainConfig, counts: Tensor, runtime: Runtime
) -> torch.optim.Optimizer:
    """Adam, as in the paper, or SGD.

    Args:
        counts: [V] how many training images each class has.

    Raises:
        UserError: if the head's gradients do not suit the runtime.
    """
    require_sparse_support(model.head, config.head, runtime, config.compile)
    groups = [{"params": model.parameters()}]
    if config.optimizer == "sgd":
        return make_sgd(groups, model.head, config.lr, counts)
    return make_adam(groups, model.head, lr=config.lr)


def require_room(
    model: Classifier,
    shape: tuple[int, int, int],
    config: TrainConfig,
    plan: BatchPlan | ClassPlan,
    runtime: Runtime,
) -> None:
    """Refuse micro-batches of images of `shape` (height, width, channels) that the memory of the CPU does not
    hold.

    Raises:
        UserError: saying what a step takes.
    """
    if (
        runtime.device.type != "cpu" or model.head.is_split
    ):  # a GPU says itself what it lacks; a part is small
        return
    height, width, channels = shape
    batch = min(config.batch_size, -(-plan.items(0) // plan.world_size))
    # What the first layer of the CNN alone hands on, or less than what all layers of any other model do.
    features = batch * height * width * (FILTERS[0] if isinstance(model.encoder, Encoder) else 16)

    def loss(twin: nn.Module) -> Tensor:
        images = torch.zeros(batch, channels, height, width, dtype=torch.uint8)
        with runtime.autocast():
            return twin(images, torch.zeros(batch, dtype=torch.int64)).loss

    def optimizer(twin: nn.Module) -> torch.optim.Optimizer:
        if config.optimizer == "sgd":  # whatever its rates
            return torch.optim.SGD(twin.parameters(), lr=config.lr)
        return make_adam([{"params": twin.parameters()}], cast(Classifier, twin).head)

    least = bytes_of_state(model, model.head, config.optimizer) + 4 * features
    require_memory(model, optimizer, loss, least, f"--batch-size {batch}")


def parameter_table(model: Classifier) -> dict[str, int]:
    """Parameters of the encoder and the head, and of the flat head it could have been."""
    return {
        "encoder": sum(parameter.numel() for parameter in model.encoder.parameters()),
        "head": sum(parameter.numel() for parameter in model.head.parameters()),
        "flat head, for comparison": model.head.num_classes * (model.encoder.width + 1),
    }
