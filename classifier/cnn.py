"""The paper's classifier: three convolutions, a 512-wide embedding and a head of any kind."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from classifier.config import EMBEDDING, TrainConfig
from shapesgen.attributes import AttributeSpace
from sqrtvocab import Head, HeadOutput, Partition, make_head
from sqrtvocab.training import BatchPlan, Runtime, UserError
from sqrtvocab.training.memory import ADAM, require_memory

IMAGE_SIZE = 100
CHANNELS = (3, 32, 64, 128)


class Encoder(nn.Module):
    """Images to embeddings: three times convolution, 2x2 max-pool and ReLU, then one linear layer and ReLU.

    The paper names no pooling; without it the linear layer alone would have 655 million parameters. Pooling
    comes before the ReLU: the two commute, and this way round the ReLU has a quarter of the work (a step is
    1.3x faster).
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        size = IMAGE_SIZE
        for before, after in pairwise(CHANNELS):
            layers += [
                nn.Conv2d(before, after, kernel_size=3, padding=1),
                nn.MaxPool2d(2),
                nn.ReLU(inplace=True),
            ]
            size //= 2
        self.convolutions = nn.Sequential(*layers)
        self.embed = nn.Linear(CHANNELS[-1] * size * size, EMBEDDING)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [N, 3, 100, 100] -> [N, 512].

        Inverted, so that the white background is 0: what the padding assumes, and most pixels then pass no
        gradient to the filters.
        """
        x = 1 - images.float() / 255  # [N, 3, 100, 100]
        x = self.convolutions(x)  # [N, 128, 12, 12]
        return torch.relu(self.embed(x.flatten(1)))  # [N, 512]


class Classifier(nn.Module):
    """The encoder and a head over its embeddings."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, images: Tensor, target: Tensor, reduction: str = "mean") -> HeadOutput:
        """uint8 [N, 3, 100, 100] and classes [N] -> the losses (see `sqrtvocab.HeadOutput`)."""
        return self.head(self.encoder(images), target, reduction=reduction)


def make_partition(space: AttributeSpace, grouping: str, num_groups: int | None, seed: int) -> Partition:
    """The groups that `--grouping` names; see `classifier.config.TrainConfig`.

    Raises:
        UserError: if there are more groups than classes.
    """
    if num_groups is not None and num_groups > space.num_classes:
        raise UserError(f"--num-groups {num_groups}: there are only {space.num_classes} classes")
    if grouping == "aligned":
        return Partition.aligned(space.radices)
    if grouping == "random":
        return Partition.random(space.num_classes, num_groups, seed=seed)
    return Partition.identity(space.num_classes, num_groups)


def make_classifier(head: str, partition: Partition, **options: Any) -> Classifier:
    """A new classifier over the classes of `partition`, which a head with groups takes as its own.

    Args:
        options: further options of the head's class.
    """
    encoder = Encoder()  # before the head: with one seed it must begin alike whatever the head draws
    offered = {"partition": partition}
    return Classifier(encoder, make_head(head, EMBEDDING, partition.num_classes, offered, **options))


def require_room(model: Classifier, config: TrainConfig, plan: BatchPlan, runtime: Runtime) -> None:
    """Refuse micro-batches that the memory of the CPU does not hold.

    Raises:
        UserError: saying what a step takes.
    """
    if runtime.device.type != "cpu":  # a GPU says itself what it lacks
        return
    batch = min(config.batch_size, -(-plan.items(0) // plan.world_size))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    features = batch * IMAGE_SIZE**2 * CHANNELS[1]  # what the first layer alone hands on

    def loss(twin: nn.Module) -> Tensor:
        images = torch.zeros(batch, CHANNELS[0], IMAGE_SIZE, IMAGE_SIZE, dtype=torch.uint8)
        with runtime.autocast():
            return twin(images, torch.zeros(batch, dtype=torch.int64)).loss

    def adam(twin: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(twin.parameters(), fused=True)

    require_memory(model, adam, loss, ADAM * parameters + 4 * features, f"--batch-size {batch}")


def parameter_table(model: Classifier) -> dict[str, int]:
    """Parameters of the encoder and the head, and of the flat head it could have been."""
    return {
        "encoder": sum(parameter.numel() for parameter in model.encoder.parameters()),
        "head": sum(parameter.numel() for parameter in model.head.parameters()),
        "flat head, for comparison": model.head.num_classes * (EMBEDDING + 1),
    }
