"""Which group a class belongs to, and which member of the group it is."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor


class ClassOrder(nn.Module):
    """The positions at which V classes stand: those of their own indices, or a permutation.

    A permutation is stored as buffers, so it travels in the state dict. A module built without one takes over
    that of the state dict it loads.

    Args:
        num_classes: V, at least 1.
        order: int tensor [V], ``order[p]`` is the class at position p; identity when not given.

    Raises:
        ValueError: V < 1, or ``order`` is not a permutation of the V classes.
        TypeError: V is not an integer.
    """

    order: Tensor | None  # [V] position -> class
    position: Tensor | None  # [V] class -> position

    def __init__(self, num_classes: int, order: Tensor | None = None) -> None:
        super().__init__()
        self.num_classes = positive("num_classes", num_classes)
        # Both directions are persistent: a model created on the meta device and then loaded must not be left
        # with an inverse that nobody computed.
        self.register_buffer("order", None)
        self.register_buffer("position", None)
        if order is not None:
            order = as_tensor("order", order)
            if not is_integral(order):
                raise ValueError(f"order must hold integers, got {order.dtype}")
            order = order.to(torch.int64)
            if order.shape != (num_classes,):
                raise ValueError(f"order must have shape [{num_classes}], got {list(order.shape)}")
            # Scattered, not sorted, which would take seconds for millions of classes.
            every = torch.arange(num_classes, device=order.device)
            position = torch.full_like(order, -1)
            if not order.is_meta:
                is_inside = bool(((order >= 0) & (order < num_classes)).all())
                if not is_inside or bool((position.scatter_(0, order, every) < 0).any()):
                    raise ValueError(f"order must be a permutation of the classes 0 to {num_classes - 1}")
            self.order, self.position = order.clone(), position

    def positions_of(self, classes: Tensor) -> Tensor:
        """Classes in [0, V), any shape and integer type -> positions, int64.

        Raises:
            TypeError: classes that are not integers.
            IndexError: a class outside [0, V). On a GPU, which would have to be waited for, it is not seen.
        """
        if not is_integral(classes):
            raise TypeError(f"classes must be integers, got {classes.dtype}")
        classes = classes.to(torch.int64)
        if host_sees(classes) and classes.numel():
            low, high = map(int, classes.aminmax())
            if low < 0 or high >= self.num_classes:
                raise IndexError(
                    f"classes must lie in [0, {self.num_classes}); observed values from {low} to {high}"
                )
        return classes if self.position is None else self.position[classes]

    def classes_at(self, positions: Tensor) -> Tensor:
        """Positions in [0, V), any shape -> classes, int64: the inverse of :meth:`positions_of`."""
        return positions if self.order is None else self.order[positions]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The weights mean nothing without the order that they were trained with.
        for name in ("order", "position"):
            saved = state_dict.get(prefix + name)
            if saved is not None and getattr(self, name) is None and saved.shape == (self.num_classes,):
                setattr(self, name, torch.empty_like(saved))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.num_classes} classes{'' if self.order is None else ', ordered'}"


class Partition(ClassOrder):
    """Splits V classes into G groups of consecutive positions, as evenly as integers allow.

    Group g holds the positions S_g = floor(V·g/G) to E_g = floor(V·(g+1)/G) − 1 (the paper's formulas), so
    group sizes differ by at most one. Both directions are closed-form integer arithmetic: no table, no
    search, no data-dependent branch.

    A class stands at the position of its own index, unless ``order`` says otherwise.

    Args:
        num_classes: V, at least 1.
        num_groups: G between 1 and V; floor(√V) when not given.
        order: int tensor [V], a permutation of the classes; identity when not given.

    Raises:
        ValueError: V < 1, G outside [1, V], or ``order`` is not a permutation of the V classes.
        TypeError: V or G is not an integer.
    """

    def __init__(self, num_classes: int, num_groups: int | None = None, order: Tensor | None = None) -> None:
        num_classes = positive("num_classes", num_classes)
        num_groups = math.isqrt(num_classes) if num_groups is None else integer("num_groups", num_groups)
        if not 1 <= num_groups <= num_classes:
            raise ValueError(
                f"num_groups must be between 1 and num_classes = {num_classes}, got {num_groups}"
            )
        super().__init__(num_classes, order)
        self.num_groups = num_groups
        self.group_size = -(-num_classes // num_groups)  # S: the size of the largest group

    # ---- constructors ----

    @classmethod
    def identity(cls, num_classes: int, num_groups: int | None = None) -> Partition:
        """Consecutive class indices form a group: the paper's grouping (BPE merge order for a tokenizer)."""
        return cls(num_classes, num_groups)

    @classmethod
    def random(cls, num_classes: int, num_groups: int | None = None, seed: int = 0) -> Partition:
        """Classes are dealt to the groups at random, the same way for the same seed."""
        num_classes = positive("num_classes", num_classes)
        order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed), device="cpu")
        return cls(num_classes, num_groups, order)

    @classmethod
    def by_frequency(cls, counts: Tensor | Sequence[float], num_groups: int | None = None) -> Partition:
        """Classes of similar frequency share a group: group 0 holds the most frequent ones.

        Args:
            counts: [V] how often each class occurs; classes of equal count keep their order.

        Raises:
            ValueError: counts that are not [V], not real numbers, not finite or negative.
        """
        counts = check_counts(counts)
        return cls(len(counts), num_groups, torch.argsort(counts, descending=True, stable=True))

    @classmethod
    def by_clusters(
        cls,
        vectors: Tensor,
        num_groups: int | None = None,
        counts: Tensor | Sequence[float] | None = None,
        seed: int = 0,
    ) -> Partition:
        """Classes with similar vectors share a group: k-means (scikit-learn), balanced to the group sizes.

        With one seed as repeatable as scikit-learn's k-means: another number of threads, another version or
        machine rounds differently and may move classes that lie between two groups. The result is an order
        like any other: to load it again needs neither scikit-learn nor the vectors.

        Args:
            vectors: [V, d], such as the rows of a trained embedding.
            counts: [V] how often each class occurs: frequent classes weigh more, and those that never occur,
                whose vectors nobody trained, only fill the places left.
            seed: where k-means begins.

        Raises:
            ValueError: vectors that are not [V, d] or not finite.
        """
        from sqrtvocab.clusters import cluster_order

        vectors = check_vectors(vectors)
        sizes = cls(len(vectors), num_groups).sizes().numpy()
        weights = None if counts is None else check_counts(counts, len(vectors)).cpu().numpy()
        order = cluster_order(vectors.numpy(), sizes, weights, seed)
        return cls(len(vectors), num_groups, torch.from_numpy(order))

    @classmethod
    def discovered(
        cls,
        vectors: Tensor,
        num_groups: int | None = None,
        counts: Tensor | Sequence[float] | None = None,
        seed: int = 0,
    ) -> Partition:
        """Groups of classes with similar vectors, as :meth:`by_clusters` makes them, whose members of one
        number differ alike from the others of their group: for ``grouped``, which shares the weights of
        member t among all groups, where nothing is known of how the labels are made.

        Members are matched by assignments (scipy) of every group to common patterns, which follow from them
        in turn; 15 rounds at most. What it is worth depends on the vectors: where they are no sums of what
        groups and members have in common, little.

        Args:
            vectors, counts, seed: see :meth:`by_clusters`.

        Raises:
            ValueError: vectors that are not [V, d] or not finite.
        """
        from sqrtvocab.clusters import matched_order

        clusters = cls.by_clusters(vectors, num_groups, counts, seed)
        order, sizes = clusters.classes_at(torch.arange(len(vectors))).numpy(), clusters.sizes()
        matched = matched_order(check_vectors(vectors).numpy(), order, sizes.numpy())
        return cls(len(vectors), num_groups, torch.from_numpy(matched))

    @classmethod
    def aligned(cls, radices: Sequence[int]) -> Partition:
        """The group count nearest √V that never cuts across the labels' mixed-radix structure.

        A label that encodes attributes in mixed radix (first attribute most significant) keeps its meaning
        under a group count that is a product of leading radices, times a divisor of the next one: then member
        t is the same combination of the remaining attributes in every group, which is what lets a linear
        layer shared by the groups generalise. Among these counts this takes the one with the fewest outputs
        G + V/G, the quantity whose minimum is √V.

        Args:
            radices: the number of options of each attribute, most significant first.
        """
        radices = [positive("each of radices", radix) for radix in radices]
        if not radices:
            raise ValueError("radices must name at least one attribute")
        num_classes = math.prod(radices)
        candidates = {
            math.prod(radices[:i]) * divisor
            for i, radix in enumerate(radices)
            for divisor in range(1, radix + 1)
            if radix % divisor == 0
        }
        return cls(num_classes, min(candidates, key=lambda groups: (groups + num_classes // groups, groups)))

    @classmethod
    def by_labels(cls, super_class: Tensor | Sequence[int], num_groups: int | None = None) -> Partition:
        """Classes of one super-class stand together: groups of equal size, filled super-class by super-class.

        A super-class larger than a group takes several, small ones share one, so a group is pure but where a
        super-class ends within it. The way to give equal groups, and their speed, a meaning;
        :meth:`from_groups` is for groups that must be the super-classes themselves.

        Args:
            super_class: [V] the super-class of each class, any integers; super-classes stand in their order,
                classes of one super-class in the order of their indices.
            num_groups: G; floor(√V) when not given.

        Raises:
            ValueError: super-classes that are not [V] integers.
        """
        labels = check_labels("super_class", super_class)
        return cls(len(labels), num_groups, labels.argsort(stable=True))

    @classmethod
    def from_groups(cls, labels: Tensor | Sequence[int], largest: int | None = None) -> Partition:
        """The groups given, of any sizes: P(group) is then the probability of a super-class.

        Where the sizes happen to be those of G equal groups it is an ordinary partition. Otherwise a head
        costs, for each row, what the group of its target costs: as much as with equal groups if rows are
        spread evenly over the groups, more if most of them lie in the large ones (:meth:`Head.cost` says how
        much), which ``largest`` bounds. Where the groups need not be the super-classes, :meth:`by_labels`
        makes equal ones.

        Args:
            labels: [V] the group of each class, from 0 to G − 1, each of them at least once. Members are in
                the order of their classes.
            largest: cut groups of more classes into as few parts of equal size as have at most so many. The
                parts, groups of their own, take the place of the group: P(super-class) is the sum of theirs,
                and ``labels[partition.join(group, 0)]`` says whose part each group is.

        Raises:
            ValueError: labels that are not [V] integers, negative, or leave a number out; ``largest`` < 1.
        """
        from sqrtvocab.uneven import cut, partition_by

        labels = check_labels("labels", labels)
        return partition_by(labels if largest is None else cut(labels, positive("largest", largest)))

    def grow(self, num_classes: int) -> Partition:
        """The same groups over more classes: those from V on join the smallest groups, all others stay
        together.

        Group sizes still differ by at most one, for which the groups may have to be numbered anew.

        Raises:
            ValueError: fewer classes than there are.
        """
        if integer("num_classes", num_classes) < self.num_classes:
            raise ValueError(f"{self.num_classes} classes cannot become {num_classes}: groups only grow")
        device = None if self.order is None else self.order.device
        sizes, wanted = self.sizes(device), Partition(num_classes, self.num_groups).sizes(device)  # [G], [G]
        number = torch.empty_like(sizes)  # [G] of each group in the new partition: large ones stay large
        number[sizes.argsort(stable=True)] = wanted.argsort(stable=True)
        room = wanted.scatter_add(0, number, -sizes)  # [G] places for new classes
        fresh = torch.arange(self.num_classes, num_classes, device=device)
        old = torch.arange(self.num_classes, device=device)
        groups = torch.cat(
            [number[self.split(old)[0]], torch.arange(len(room)).to(room).repeat_interleave(room)]
        )
        order = torch.cat([old, fresh])[groups.argsort(stable=True)]
        return Partition(num_classes, self.num_groups, order)

    # ---- class <-> (group, member) ----

    def split(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Classes in [0, V), any shape and integer type -> (group, member), int64, the same shape.

        Raises:
            TypeError, IndexError: as :meth:`positions_of`.
        """
        position = self.positions_of(classes)  # int64, for V·G overflows smaller types
        group = ((position + 1) * self.num_groups - 1) // self.num_classes
        return group, position - self.starts(group)

    def join(self, group: Tensor, member: Tensor) -> Tensor:
        """(group, member) -> classes, int64: the inverse of :meth:`split`. Padding slots are not classes."""
        return self.classes_at(self.starts(group.to(torch.int64)) + member)

    def starts(self, group: Tensor) -> Tensor:
        """S_g: the first position of each group given."""
        return self.num_classes * group // self.num_groups

    def sizes(self, device: torch.device | None = None) -> Tensor:
        """[G] how many classes each group holds."""
        edges = self.starts(torch.arange(self.num_groups + 1, device=device))
        return edges[1:] - edges[:-1]

    def padding(self, width: int | None = None, device: torch.device | None = None) -> Tensor:
        """[G, width] True at the slots that are no class; ``width`` is S by default."""
        slots = torch.arange(self.group_size if width is None else width, device=device)
        return slots >= self.sizes(device).unsqueeze(1)  # [G, width]

    def slots(self, groups: Tensor, width: int | None = None) -> Tensor:
        """Groups [K] -> [K, width]: the class of each member; padding repeats the group's first class."""
        member = torch.arange(self.group_size if width is None else width, device=groups.device)
        groups = groups.unsqueeze(1)  # [K, 1]
        sizes = self.starts(groups + 1) - self.starts(groups)
        return self.join(groups, torch.where(member < sizes, member, 0))

    def columns(self, width: int, device: torch.device | None = None) -> Tensor:
        """[V] where each class stands in a table [G, width] of groups and members that was made flat."""
        groups = torch.arange(self.num_groups, device=device)
        before = groups * width - self.starts(groups)  # [G] slots of padding before each group
        # Decoding wants this for every token: several times as fast as `split`, whose divisions are slow.
        steps = torch.ones(self.num_classes, dtype=torch.int64, device=device)  # [V] from column to column
        steps = steps.scatter_add(0, self.starts(groups[1:]), before.diff())
        columns = steps.cumsum(0) - 1
        return columns if self.position is None else columns.index_select(0, self.position)

    def extra_repr(self) -> str:
        order = "" if self.order is None else ", ordered"
        return f"{self.num_classes} classes, {self.num_groups} groups of at most {self.group_size}{order}"


def host_sees(values: Tensor) -> bool:
    """Whether the host knows these values without waiting for a device. Only then may loops and shapes follow
    them."""
    return values.device.type == "cpu" and not is_traced(values)


def is_traced(values: Tensor) -> bool:
    """Whether there are no values, because a graph is being made."""
    return torch.compiler.is_compiling() or isinstance(values, FakeTensor)


def integer(name: str, value: Any) -> int:
    """The value as an int; a TypeError that names the argument if it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def positive(name: str, value: Any) -> int:
    """The value as an int of at least 1."""
    if (value := integer(name, value)) < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def as_tensor(name: str, values: Any) -> Tensor:
    """The values as a tensor; a ValueError that names the argument if they are no numbers."""
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name} must hold numbers: {error}") from error


def is_integral(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def check_labels(name: str, labels: Tensor | Sequence[int]) -> Tensor:
    """One integer for each class, int64 [V] on the CPU."""
    with torch.device("cpu"):  # numbers, even where a model is made on the meta device
        labels = as_tensor(name, labels)
    if labels.dim() != 1 or not len(labels):
        raise ValueError(f"{name} must have shape [V], got {list(labels.shape)}")
    if not is_integral(labels):
        raise ValueError(f"{name} must hold integers, got {labels.dtype}")
    return labels.detach().to(device="cpu", dtype=torch.int64)


def check_vectors(vectors: Tensor) -> Tensor:
    """One vector for each class: finite, float32 [V, d] on the CPU."""
    vectors = torch.as_tensor(vectors).detach().to(device="cpu", dtype=torch.float32)
    if vectors.dim() != 2 or not vectors.numel():
        raise ValueError(f"vectors must have shape [V, d], got {list(vectors.shape)}")
    if not bool(vectors.isfinite().all()):
        raise ValueError("vectors must be finite")
    return vectors


def check_counts(counts: Tensor | Sequence[float], num_classes: int | None = None) -> Tensor:
    """How often each class occurs: finite, not negative, [V]."""
    counts = as_tensor("counts", counts)
    if counts.is_complex():
        raise ValueError(f"counts must be real numbers, got {counts.dtype}")
    if counts.dim() != 1 or len(counts) != (num_classes or max(1, len(counts))):
        raise ValueError(f"counts must have shape [{num_classes or 'V'}], got {list(counts.shape)}")
    if not bool(((counts >= 0) & counts.isfinite()).all()):
        raise ValueError("counts must be finite and not negative")
    return counts
