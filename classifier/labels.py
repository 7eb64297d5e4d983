"""What is known of a set's classes besides their names, and the groups that `--grouping` makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from classifier.config import TrainConfig
from classifier.data import class_counts
from classifier.images.protocol import ImageSet
from classifier.taxonomy import Taxonomy, read_taxonomy
from sqrtvocab import Partition
from sqrtvocab.errors import UserError

_UNEVEN = 2  # times as many training images as the rarest class has: more, and frequencies are worth knowing


@dataclass(frozen=True)
class Labels:
    """The classes of a run's images."""

    counts: Tensor
    """[V] training images of each class."""
    radices: tuple[int, ...] | None
    """The options of each attribute, if the classes are made of attributes."""
    taxonomy: Taxonomy | None
    """Their super-classes, if told."""

    @property
    def are_uneven(self) -> bool:
        """Whether some classes have far more training images than others."""
        return int(self.counts.max()) > _UNEVEN * int(self.counts.min())

    def settle(self, config: TrainConfig) -> TrainConfig:
        """The settings with what these classes decide: the grouping, and whether the head starts from their
        frequencies."""
        prior = self.are_uneven if config.prior is None else config.prior
        return replace(config, grouping=config.chosen_grouping, prior=prior)

    def partition(self, config: TrainConfig) -> Partition:
        """The groups.

        Raises:
            UserError: if there are more groups than classes, or nothing to make them by.
        """
        return make_partition(
            len(self.counts),
            config.chosen_grouping,
            config.num_groups,
            config.seed,
            self.radices,
            self.counts,
            self.taxonomy,
        )

    def frequent_first(self) -> Tensor | None:
        """[V] the classes from the most frequent to the rarest; None if they are even."""
        return torch.argsort(self.counts, descending=True, stable=True) if self.are_uneven else None

    def describe_prior(self, is_used: bool) -> str:
        """Whether the head starts from the frequencies, and what they are, in a phrase."""
        low, high = int(self.counts.min()), int(self.counts.max())
        images = f"{high:,}" if low == high else f"{low:,} to {high:,}"
        start = "the head starts from the frequencies of" if is_used else "off; there are"
        return f"{start} {'uneven' if self.are_uneven else 'even'} classes ({images} training images each)"


def read_labels(config: TrainConfig, images: ImageSet) -> Labels:
    """What `--radices`, `--taxonomy` and the images themselves say of the classes.

    Raises:
        UserError: if they do not fit each other.
    """
    radices = config.given_radices if images.space is None else tuple(images.space.radices)
    if radices is not None:
        require_radices(radices, len(images.classes))
    taxonomy = None if config.taxonomy is None else read_taxonomy(config.taxonomy, images.classes)
    return Labels(class_counts(images), radices, taxonomy)


def require_radices(radices: Sequence[int], num_classes: int) -> None:
    """Refuse `--radices` that make another number of classes than there are."""
    made = 1
    for radix in radices:
        made *= radix
    if made != num_classes:
        given = ",".join(map(str, radices))
        raise UserError(f"--radices {given}: they make {made:,} classes, and there are {num_classes:,}")


def make_partition(
    num_classes: int,
    grouping: str,
    num_groups: int | None,
    seed: int,
    radices: Sequence[int] | None = None,
    counts: Tensor | None = None,
    taxonomy: Taxonomy | None = None,
) -> Partition:
    """The groups that `--grouping` names; see `classifier.config.TrainConfig`.

    Args:
        radices: the options of each attribute, for aligned.
        counts: [V] images of each class, for frequency.
        taxonomy: for taxonomy.

    Raises:
        UserError: if there are more groups than classes, or nothing to make them by.
    """
    if num_groups is not None and num_groups > num_classes:
        raise UserError(f"--num-groups {num_groups}: there are only {num_classes} classes")
    if grouping == "aligned":
        if radices is None:
            raise UserError(
                "--grouping aligned: nothing tells how these classes are made; use index or random, or tell "
                "it with --radices"
            )
        return Partition.aligned(radices)
    if grouping == "random":
        return Partition.random(num_classes, num_groups, seed=seed)
    if grouping == "frequency":
        if counts is None:
            raise ValueError("grouping 'frequency' needs counts")
        return Partition.by_frequency(counts, num_groups)
    if grouping == "taxonomy":
        if taxonomy is None:
            raise ValueError("grouping 'taxonomy' needs a taxonomy")
        return Partition.by_labels(torch.from_numpy(taxonomy.super_class), num_groups)
    return Partition.identity(num_classes, num_groups)
