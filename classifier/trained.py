"""A classifier that `train_classifier` has trained, as the other commands open it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from classifier.backbones import make_encoder
from classifier.card import CARD, model_card
from classifier.cnn import IMAGE_SIZE
from classifier.config import TrainConfig
from classifier.images.protocol import ImageSet
from classifier.images.shuffled import shape_names
from classifier.labels import Labels, make_partition
from classifier.model import Classifier, make_classifier
from classifier.taxonomy import Taxonomy
from shapesgen.attributes import AttributeSpace
from sqrtvocab import Partition
from sqrtvocab.atomic import read_json
from sqrtvocab.errors import UserError
from sqrtvocab.settings import read_config
from sqrtvocab.training import load_checkpoint
from sqrtvocab.training.checkpoint import Checkpoint
from sqrtvocab.training.run import Document

# Beside the weights, where the settings do not decide them: the names of the user's classes, the order in
# which they make groups, their super-classes.
CLASSES, ORDER, TAXONOMY = "classes.json", "order.json", "taxonomy.json"
_FROM_DATA = (
    "frequency",
    "taxonomy",
    "clusters",
    "discovered",
)  # groupings that the settings alone do not tell


@dataclass(frozen=True)
class Trained:
    """A model with what its classes and images are."""

    config: TrainConfig
    checkpoint: Checkpoint
    model: Classifier
    partition: Partition
    """What "group" means, also for a head that has no groups."""
    classes: Sequence[str]
    """[V] their names."""
    own_classes: Sequence[str] | None
    """The same if they are the user's own; None for shapes."""
    space: AttributeSpace | None
    """How the classes are made of attributes, if that is known."""
    taxonomy: Taxonomy | None
    image_size: int

    @property
    def channels(self) -> int:
        """Of the images: 1 for grey ones."""
        return 1 if self.config.grey else 3


def open_trained(run: Path, name: str = "best") -> Trained:
    """The model in the checkpoint `name` of a run, on the CPU.

    Raises:
        UserError: if there is none, or it is damaged.
    """
    config = TrainConfig.of_run(run)
    checkpoint = load_checkpoint(run, name)
    if checkpoint is None:
        raise UserError(f"{run}: no checkpoint `{name}`; the first evaluation writes it")
    names, shuffle = _document(checkpoint, CLASSES), config.shuffle_labels
    space = config.space() if names is None and shuffle is None else None
    classes = shape_names(config.space(), shuffle) if names is None else names
    radices = config.given_radices if space is None else tuple(space.radices)
    if config.grouping in _FROM_DATA:
        order = torch.tensor(_document(checkpoint, ORDER))
        partition = Partition(len(classes), read_config(run)["groups"], order)
    else:
        partition = make_partition(
            len(classes), config.chosen_grouping, config.num_groups, config.seed, radices
        )
    size = config.image_size or IMAGE_SIZE
    encoder = make_encoder(config.backbone, size, 1 if config.grey else 3)
    model = make_classifier(config.head, partition, encoder, radices, **config.given_head_options())
    checkpoint.load_weights(model)
    super_classes = _document(checkpoint, TAXONOMY)
    taxonomy = None if super_classes is None else Taxonomy.from_json(super_classes)
    return Trained(config, checkpoint, model, partition, classes, names, space, taxonomy, size)


def documents_beside_weights(
    config: TrainConfig, images: ImageSet, labels: Labels, partition: Partition
) -> dict[str, Document]:
    """What `open_trained` must find in each checkpoint, by file name."""
    documents: dict[str, Document] = {CARD: model_card}
    if not config.has_shapes:
        documents[CLASSES] = list(images.classes)
    if partition.order is not None:
        documents[ORDER] = partition.order.tolist()
    if labels.taxonomy is not None:
        documents[TAXONOMY] = labels.taxonomy.to_json()
    return documents


def _document(checkpoint: Checkpoint, name: str) -> Any:
    """A file of the checkpoint, which has been verified; None if it has none."""
    path = checkpoint.folder / name
    return read_json(path) if path.exists() else None
