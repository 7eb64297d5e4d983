"""The contract that every head keeps, and what all of them share."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads import place
from sqrtvocab.heads.sampling import draw, draw_among_best, draw_cooled, draw_nucleus
from sqrtvocab.partition import ClassOrder, Partition, check_counts, host_sees, integer, is_traced, positive

REDUCTIONS = ("mean", "sum", "none")
RESTS = ("drop", "spread")

# Decoding works on blocks of at most this many elements, so that it never holds N·V: on a CPU 16 MiB of
# float32, which its cache likes; elsewhere 128 MiB, beside which the start of a kernel is nothing.
BLOCK_ELEMENTS = 2**22
DEVICE_BLOCK_ELEMENTS = 2**25


class HeadOutput(NamedTuple):
    """What a head returns in training; ``loss = group_loss + member_loss``."""

    loss: Tensor
    """The negative log-likelihood of the classes, reduced; see ``Head.surrogate``."""
    group_loss: Tensor
    """Its share −log P(group); zero for a head without groups."""
    member_loss: Tensor
    """Its share −log P(class | group)."""


class Guesses(NamedTuple):
    """What a head takes hidden states for, compared with what they are; see :meth:`Head.guesses`."""

    classes: Tensor
    """[..., k] the most probable classes, best first."""
    group: Tensor
    """[...] the group predicted."""
    in_group: Tensor
    """[...] the most probable class of the target's group."""
    log_probs: Tensor
    """[..., k] of ``classes``."""


class PartRows(NamedTuple):
    """Which part of a head one of several ranks holds; see :meth:`Head.part_rows`."""

    rows: Tensor
    """Of the tables that are split, [R] on the CPU."""
    classes: Tensor
    """[n] the classes of the part, in its own order."""


@dataclass(frozen=True)
class HeadCost:
    """The forward cost of a head in training, for each row (a token, an image) and for each batch."""

    multiply_adds: float
    logits: float
    fixed: float = 0.0
    """Multiply-adds of a batch, however many rows it has."""
    chunk: int | None = None
    """Rows whose logits are there at a time; None is all of them."""

    def describe(self, rows: int, row: str = "row") -> str:
        """One phrase, for a micro-batch of so many rows."""
        at_once, span = (rows, "micro-batch") if self.chunk is None else (min(self.chunk, rows), "chunk")
        return (
            f"{(self.multiply_adds + self.fixed / rows) / 1e6:.2f} M multiply-adds a {row}, "
            f"{4e-6 * self.logits * at_once:,.1f} MB of logits a {span}"
        )


class Head(nn.Module, ABC):
    """An output layer over V classes together with its loss: a distribution P(class | hidden).

    ``hidden`` is [..., d] in every method and ``target`` [...]. The loss means exactly what
    ``F.cross_entropy`` means on the dense distribution ``log_prob(hidden)``, and is at least float32
    whatever the precision of the parameters. A head that trains on something else says so
    (``surrogate``); in evaluation mode, after ``eval()``, the loss of every head is exact.

    What a caller must know about a head it asks here, never by its class or name. A new head implements
    :meth:`_log_prob`, :meth:`_set_prior` and :meth:`reset_parameters`, and may answer everything else
    without V-wide rows. Options that several heads share have one name: ``partition`` (groups), ``order``
    (a permutation of the classes), ``weight`` (a [V, d] parameter to share, kept as ``self.weight``),
    ``radices`` (how labels encode attributes).

    Args:
        in_features: d, the width of the hidden state.
        num_classes: V.
        validate: on every device raise an IndexError with the range observed when a target lies outside
            [0, V). On the CPU this is always done; on CUDA it costs a synchronisation, and without it an
            asynchronous device assertion guards the range, as in a compiled graph.

    Every head takes ``device`` and ``dtype`` for its parameters, as the modules of ``torch.nn`` do.
    """

    has_groups: ClassVar[bool] = False
    """Whether the head predicts a group first; ``partition`` is then its own."""
    frequent_first: ClassVar[bool] = False
    """Whether the ``order`` that the head takes must begin with the most frequent classes."""
    sparse_topk: ClassVar[bool] = False
    """Whether ``topk`` finds its few classes without a V-wide row."""
    can_grow: ClassVar[bool] = False
    """Whether :meth:`grow` makes room for new classes."""
    starts_from_linear: ClassVar[bool] = False
    """Whether :meth:`init_from_linear` can use an output layer that exists."""
    surrogate: ClassVar[bool] = False
    """Whether the loss in training mode stands in for the negative log-likelihood: an estimate or a bound of
    it that never sees all V classes. What it is instead, the head's own text says."""
    rows_per_class: ClassVar[int] = 1
    """How many rows of each of its classes a batch must hold in training mode."""
    from_examples: ClassVar[bool] = False
    """Whether a class is what the head was shown of it. Before an evaluation :meth:`learn_classes` brings all
    of them up to date, and :meth:`fit_temperature` follows."""
    split_tables: ClassVar[tuple[str, ...]] = ()
    """Parameters and buffers whose rows several ranks can share, by name; none if a head must be whole. See
    `sqrtvocab.heads.parallel`, which needs :meth:`part_rows`, :meth:`make_part` and :meth:`_log_mass`."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Options without which the head makes no sense, although it can be made."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Names in the state dicts of older versions -> names now."""

    partition: Partition | None
    """The groups that the head predicts; None for a head without groups."""

    def __init__(self, in_features: int, num_classes: int, validate: bool = False) -> None:
        super().__init__()
        self.in_features = positive("in_features", in_features)
        self.num_classes = positive("num_classes", num_classes)
        self.validate = validate
        self.partition = None
        self.register_state_dict_post_hook(_note_classes)
        self.register_load_state_dict_post_hook(_orders_follow)

    # ---- what a caller asks before there is a head ----

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """The keyword arguments of the head besides in_features and num_classes."""
        return tuple(inspect.signature(cls).parameters)[2:]

    @classmethod
    def takes(cls, option: str) -> bool:
        """Whether the head has this option."""
        return option in cls.option_names()

    # ---- what a head implements, on hidden states [N, d] ----

    @abstractmethod
    def reset_parameters(self) -> None:
        """Initialise the head's own parameters; a tied weight is left as it is."""

    @abstractmethod
    def _log_prob(self, hidden: Tensor) -> Tensor:
        """[N, d] -> [N, V]."""

    @abstractmethod
    def _set_prior(self, log_prior: Tensor) -> None:
        """Set the biases so that a zero hidden state gives ``log_prior`` [V]."""

    # ---- what a head may do better: here, from the dense distribution ----

    def _nll(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        """[N, d], valid targets [N] -> (group part, member part) of each token's loss, [N] and [N]."""
        nll = token_nll(self._log_prob(hidden), target, label_smoothing, 1 / self.num_classes)
        return torch.zeros_like(nll), nll

    def _soft_nll(
        self, hidden: Tensor, target: Tensor, share: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """[N, d], valid targets [N, K], how much each counts [N, K] -> the two parts of a row's loss, [N]."""
        rows = hidden.repeat_interleave(target.shape[1], 0, output_size=target.numel())  # [N·K, d]
        parts = self._nll(rows, target.flatten(), label_smoothing)
        group_nll, member_nll = (weighted_sum(part.view_as(target), share) for part in parts)
        return group_nll, member_nll

    def _spread_nll(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[N, d] -> the parts of the loss of a target spread evenly over all classes, [N] each. A head with
        groups leaves out what lies within groups, which would need all V logits."""
        nll = -self._log_prob(hidden).mean(-1)
        return torch.zeros_like(nll), nll

    def _topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """[N, d] -> (log-probabilities, classes) of the k most probable classes, [N, k] each."""
        parts = [self._log_prob(rows).topk(k, dim=-1) for rows in self._blocks(hidden)]
        return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])

    def _sample(self, hidden: Tensor, generator: torch.Generator | None) -> Tensor:
        """[N, d] -> [N] one class drawn from P(class | hidden)."""
        return torch.cat([draw(self._log_prob(rows), generator) for rows in self._blocks(hidden)])

    def _propose(
        self, hidden: Tensor, limit: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """[N, d] -> a class drawn from P(class | hidden), its log-probability, and whether fewer than
        ``limit`` classes are more probable, [N] each; None where this is no sooner known than the ``limit``
        best classes themselves."""
        return None

    def _guesses(self, hidden: Tensor, target: Tensor, partition: Partition, k: int) -> Guesses:
        """:meth:`guesses` of [N, d] and valid targets [N]."""
        blocks = []
        for rows, truth in zip(self._blocks(hidden), self._blocks(target), strict=True):
            log_probs = self._log_prob(rows)  # [R, V]
            best_log_probs, classes = log_probs.topk(k, dim=-1)  # [R, k] each
            rivals = partition.slots(partition.split(truth)[0])  # [R, S] the classes of the target's group
            best = log_probs.gather(1, rivals).argmax(-1, keepdim=True)  # [R, 1]
            group = partition.split(classes[:, 0])[0]  # [R]
            blocks.append(Guesses(classes, group, rivals.gather(1, best).squeeze(1), best_log_probs))
        return Guesses(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))

    # ---- what a head says whose classes ranks can share ----

    @property
    def is_split(self) -> bool:
        """Whether this is a part of a head, the others of which are on other ranks."""
        return False

    def why_whole(self) -> str | None:
        """Why the head cannot be split; None if it can."""
        return None if self.split_tables else f"{type(self).__name__} must be whole"

    def part_rows(self, number: int, parts: int) -> PartRows:
        """What the part ``number`` of so many holds: consecutive classes, as evenly as integers allow."""
        if parts > self.num_classes:
            raise ValueError(f"{self.num_classes} classes cannot be split over {parts} ranks")
        start, stop = (self.num_classes * edge // parts for edge in (number, number + 1))
        classes = torch.arange(start, stop)
        return PartRows(classes, classes)

    def make_part(self, rows: Tensor, classes: Tensor) -> Head:
        """A head over these of the classes, which has these rows of ``split_tables``: P(class | part)."""
        raise NotImplementedError

    def belongs_to(self, whole: Any) -> None:
        """Told to a part when it is made and when it is loaded, on all ranks; its classes are then those of
        ``whole`` wherever a method takes classes."""

    def _log_mass(self, hidden: Tensor) -> Tensor:
        """[N, d] -> [N]: the log of the sum of the exponentials of all scores, before they are normalised."""
        raise NotImplementedError

    def _nll_and_mass(
        self, hidden: Tensor, target: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``_nll`` and ``_log_mass``, where one computation can serve both."""
        return (*self._nll(hidden, target, label_smoothing), self._log_mass(hidden))

    def common_rows(self) -> AbstractContextManager[None]:
        """While this lasts, all ranks decode the same rows, and with the same seed draw the same classes;
        else every rank has its own."""
        return nullcontext()

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        """What a training step costs.

        Args:
            counts: [V] how often each class is a target; equally often by default.
        """
        return HeadCost(self.in_features * self.num_classes, self.num_classes)

    def parameter_groups(
        self, lr: float, counts: Tensor | Sequence[float] | None = None
    ) -> list[dict[str, Any]]:
        """The head's parameters for SGD, grouped by the learning rates that they need.

        Adam needs none of this: its steps do not grow with the gradient.

        Args:
            lr: a rate that suits a flat head.
            counts: [V] how often each class is a target; equally often by default.
        """
        return [{"params": list(self.parameters()), "lr": lr}]

    def describe(self) -> str:
        """What is peculiar to this head, in one line, its name left out: such as its groups, its rank."""
        return f"{self.num_classes:,} classes"

    def kernel_for(self, dtype: torch.dtype) -> str | None:
        """Which kernel trains products of this dtype where the head is; None if it has no choice."""
        return None

    def learn_classes(self, vectors: Tensor, classes: Tensor) -> None:
        """From now on ``classes`` [M] are what ``vectors`` [M, d], means of hidden states, show; see
        ``from_examples``. Other heads learn from gradients alone, here and in the three methods below."""

    def forget_classes(self) -> None:
        """No class is known any more."""

    def fit_temperature(self, hidden: Tensor, target: Tensor) -> None:
        """Choose how sharp the distribution is in evaluation mode: best for these rows [N, d] and classes
        [N], which should be training data that :meth:`learn_classes` was not given."""

    def add_classes(self, vectors: Tensor, names: Sequence[str] = (), existing: Sequence[str] = ()) -> Head:
        """A head with further classes, from V on, that needs no training; see ``from_examples``.

        Raises:
            NotImplementedError: other heads.
        """
        raise NotImplementedError(f"a {type(self).__name__} learns its classes by training")

    def find_hard_classes(self, vectors: Tensor, classes: Tensor) -> None:
        """Find out which of ``classes`` [M] are hard to tell apart, by their ``vectors`` [M, d]."""

    @property
    def hard_classes(self) -> Tensor | None:
        """[T, 1 + k] what was found: classes that batches had better hold together, each row one and the k
        nearest to it; rows of −1 are none."""
        return None

    def give_sparse_gradients(self) -> list[nn.Parameter]:
        """From now on let gradients be sparse tensors where a step meets few rows of a parameter.

        Returns:
            Those parameters: they need an optimiser that takes sparse gradients, such as
            ``torch.optim.SparseAdam``. None, unless a head knows better.
        """
        return []

    @torch.no_grad()
    def init_from_linear(self, weight: Tensor, bias: Tensor | None, hidden: Tensor | None = None) -> bool:
        """Start as near as this kind of head can to softmax(weight h + bias), an output layer that exists.

        Args:
            weight: [V, d].
            bias: [V], or None.
            hidden: [N, d] typical hidden states, where a head must choose at which to be near.

        Returns:
            False if the head cannot use such a layer; it is then left as it was.
        """
        return False

    def grow(self, num_classes: int, weight: nn.Parameter | None = None) -> Head:
        """A head of the same kind and options over more classes. The old ones keep the ratios of their
        probabilities; the new ones, from V on, are no more probable than the average.

        Args:
            weight: for a head with a shared weight, the new [num_classes, d] one. Its first V rows are those
                of the old one; the others are set.

        Raises:
            NotImplementedError: see ``can_grow``.
            ValueError: fewer classes than there are.
        """
        raise NotImplementedError(f"a {type(self).__name__} cannot grow from {self.num_classes:,} classes")

    # ---- what a user calls ----

    def forward(
        self,
        hidden: Tensor,
        target: Tensor,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        weight: Tensor | None = None,
        target_weight: Tensor | None = None,
        rest: str = "drop",
    ) -> HeadOutput:
        """The loss of ``target`` [...] given ``hidden`` [..., d].

        Given ``target_weight``, the target of a row is a distribution on K classes, for mixup, sets of labels
        or a teacher's stored top k: ``target`` and ``target_weight`` are [..., K], and the loss is
        Σ_k target_weight_k · (−log P(target_k)), exactly, without anything V-wide.

        Args:
            ignore_index: targets of this value take no part, neither in the sum nor in the mean's divisor.
            reduction: "mean" | "sum" | "none"; "none" keeps the shape of ``target``.
            label_smoothing: ε in [0, 1]. ``flat`` spreads ε evenly over all V classes, as F.cross_entropy.
                Heads with groups leave out, of that same sum, the terms inside groups other than the
                target's, which would need all V logits; what remains is the exact smoothing of P(group),
                each group weighing its size, and of the members of the target's group.
            weight: [V] how much each class counts, as in F.cross_entropy: the mean of rows with one target
                divides by the sum of their weights. Not together with ``label_smoothing``.
            target_weight: [..., K], not negative. The mean divides by the number of rows that have a target
                left, whatever their weights sum to, as F.cross_entropy does for class probabilities.
            rest: what becomes of 1 − Σ_k target_weight_k, such as what a teacher gave to classes that were
                not stored: "drop" leaves it out, "spread" spreads it evenly over all V classes; a head with
                groups then counts what that says about the groups, each weighing its size, and leaves out the
                terms within groups.

        Raises:
            IndexError: a target outside [0, V) that is not ``ignore_index``; see ``validate``.
            TypeError, ValueError: the argument named is of the wrong kind or shape.
        """
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}; got {reduction!r}")
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing must lie in [0, 1], got {label_smoothing}")
        self._check_hidden(hidden)
        if not isinstance(target, Tensor):
            raise TypeError(f"target must be a tensor, got {type(target).__name__}")
        if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
            raise TypeError(f"target must hold class indices (integers), got {target.dtype}")
        shape = hidden.shape[:-1]
        expected = shape if target_weight is None else (*shape, *target.shape[-1:])
        if target.shape != expected:
            raise ValueError(
                f"target must have the shape of hidden less its last dimension, {list(shape)}"
                + ("" if target_weight is None else ", and one more for its classes")
                + f"; got {list(target.shape)}"
            )
        flat_target = target.reshape(-1).to(torch.int64)  # [N] or [N·K]
        kept = flat_target != ignore_index
        # Ignored tokens are computed as class 0 and masked afterwards: dropping them would make shapes depend
        # on data, which costs a synchronisation on CUDA and breaks compiled graphs.
        safe_target = torch.where(kept, flat_target, 0)
        self._check_range(safe_target)

        rows = hidden.reshape(-1, self.in_features)  # [N, d]
        if weight is not None or target_weight is not None:
            self._check_weights(weight, target, target_weight, rest, label_smoothing)
            group_loss, member_loss, count = self._weighted_nll(
                rows, safe_target, kept, label_smoothing, weight, target_weight, rest
            )
            if reduction != "none":
                group_loss, member_loss = group_loss.sum(), member_loss.sum()
        elif reduction == "none":
            parts = self._kept_nll(rows, safe_target, kept, label_smoothing)
            group_loss, member_loss = (torch.where(kept, part, 0.0) for part in parts)
        else:
            group_loss, member_loss = self._nll_sum(rows, safe_target, kept, label_smoothing)
            count = kept.sum()
        if reduction == "mean":  # no token kept: 0/0 is NaN, as in F.cross_entropy
            group_loss, member_loss = group_loss / count, member_loss / count
        elif reduction == "none":
            group_loss, member_loss = group_loss.view(shape), member_loss.view(shape)
        return HeadOutput(group_loss + member_loss, group_loss, member_loss)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """[..., d] -> [..., V]: exact, normalised, at least float32. Builds all V columns."""
        self._check_hidden(hidden)
        return self._log_prob(hidden.reshape(-1, self.in_features)).view(*hidden.shape[:-1], self.num_classes)

    @torch.no_grad()
    def predict(self, hidden: Tensor) -> Tensor:
        """[..., d] -> [...]: the most probable class, exactly."""
        return self.topk(hidden, 1)[1].squeeze(-1)

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """[..., d] -> (log-probabilities, classes), [..., k] each, most probable first, exactly.

        Raises:
            ValueError: k outside [1, V].
        """
        self._check_hidden(hidden)
        if not 1 <= integer("k", k) <= self.num_classes:
            raise ValueError(f"k must be between 1 and num_classes = {self.num_classes}, got {k}")
        log_probs, classes = self._topk(hidden.reshape(-1, self.in_features), k)
        shape = (*hidden.shape[:-1], k)
        return log_probs.view(shape), classes.view(shape)

    @torch.no_grad()
    def guesses(
        self, hidden: Tensor, target: Tensor, partition: Partition | None = None, k: int = 1
    ) -> Guesses:
        """What the head takes hidden [..., d] for, beside the truth ``target`` [...]: for reports.

        Args:
            partition: what a group is; the head's own by default. A head without groups predicts the group of
                its best class.

        Raises:
            ValueError: no partition for a head without groups, or k outside [1, V].
            IndexError: a target outside [0, V).
        """
        self._check_hidden(hidden)
        partition = self.partition if partition is None else partition
        if partition is None:
            raise ValueError("a head without groups needs a partition that says what a group is")
        if not 1 <= integer("k", k) <= self.num_classes:
            raise ValueError(f"k must be between 1 and num_classes = {self.num_classes}, got {k}")
        truth = target.reshape(-1).to(torch.int64)
        self._check_range(truth)
        found = self._guesses(hidden.reshape(-1, self.in_features), truth, partition, k)
        shape = (*target.shape, k)
        return Guesses(
            found.classes.view(shape),
            found.group.view_as(target),
            found.in_group.view_as(target),
            found.log_probs.view(shape),
        )

    def group_log_prob(self, hidden: Tensor) -> Tensor:
        """[..., d] -> [..., G]: log P(group), exact, normalised, at least float32.

        Raises:
            ValueError: a head without groups.
        """
        raise ValueError(f"{type(self).__name__} predicts no groups")

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
    ) -> Tensor:
        """[..., d] -> [...]: one class per hidden state, drawn from softmax(log_prob / temperature).

        Looks at as few classes as it can: rows that are nearly uniform, and temperatures above 1 without
        ``top_k``, end in ``log_prob``, a block of rows at a time.

        Args:
            temperature: 0 gives :meth:`predict`.
            top_k: draw from the ``top_k`` most probable classes only.
            generator: the source of randomness, on the device of ``hidden``.
            top_p: draw from the fewest most probable classes, of those that ``top_k`` leaves, whose
                probabilities add up to at least this.
            min_p: draw from classes, of those left, at least ``min_p`` times as probable as the best one.

        Raises:
            ValueError: a negative or infinite temperature, ``top_k`` outside [1, V], ``top_p`` outside
                (0, 1], ``min_p`` outside [0, 1].
        """
        if not (temperature >= 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature must be finite and not negative, got {temperature}")
        if top_k is not None and not 1 <= integer("top_k", top_k) <= self.num_classes:
            raise ValueError(f"top_k must be between 1 and num_classes = {self.num_classes}, got {top_k}")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
        if min_p is not None and not 0 <= min_p <= 1:
            raise ValueError(f"min_p must lie in [0, 1], got {min_p}")
        if temperature == 0:
            return self.predict(hidden)
        self._check_hidden(hidden)
        rows = hidden.reshape(-1, self.in_features)  # [N, d]
        if top_k is not None:
            drawn = draw_among_best(self, rows, temperature, top_k, top_p, min_p, generator)
        elif top_p is not None or min_p is not None:
            drawn = draw_nucleus(self, rows, temperature, top_p, min_p, generator)
        elif temperature == 1:
            drawn = self._sample(rows, generator)
        else:
            drawn = draw_cooled(self, rows, temperature, generator)
        return drawn.view(hidden.shape[:-1])

    @torch.no_grad()
    def init_prior(self, counts: Tensor | Sequence[float], smoothing: float = 1.0) -> None:
        """Start from the unigram distribution: P(class | 0) = (counts + smoothing) / Σ (counts + smoothing).

        Exactly, within the precision of the parameters. The head then need not spend its first steps on
        learning how often each class occurs.

        Args:
            counts: [V] how often each class occurs in the training data.
            smoothing: added to every count, so that a class never seen keeps a chance.

        Raises:
            ValueError: counts of another length, negative or not finite, or a class left with probability 0.
        """
        weights = check_counts(counts, self.num_classes).to(device="cpu", dtype=torch.float64) + smoothing
        if not bool((weights > 0).all()):
            raise ValueError(f"smoothing = {smoothing} leaves a class without any probability")
        self._set_prior((weights / weights.sum()).log())

    # ---- helpers for the heads ----

    def _kept_nll(
        self, hidden: Tensor, target: Tensor, kept: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """``_nll``; for heads in which rows that do not count could matter to others."""
        return self._nll(hidden, target, label_smoothing)

    def _nll_sum(
        self, hidden: Tensor, target: Tensor, kept: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """The two parts of ``_nll``, each summed over the tokens kept, [] and []."""
        # `where` rather than a product: it sends exact zeros back even when the mean divides by no token.
        group_nll, member_nll = self._kept_nll(hidden, target, kept, label_smoothing)  # [N], [N]
        return torch.where(kept, group_nll, 0.0).sum(), torch.where(kept, member_nll, 0.0).sum()

    def _weighted_nll(
        self,
        hidden: Tensor,
        target: Tensor,
        kept: Tensor,
        label_smoothing: float,
        weight: Tensor | None,
        target_weight: Tensor | None,
        rest: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Targets [N·K] -> the two parts of each row's loss [N] and what the mean divides by []."""
        share = kept.to(torch.float32)  # [N·K]
        if target_weight is not None:
            share = share * wide(target_weight.detach()).reshape(-1)
        mass = share  # before the weights of the classes
        if weight is not None:
            share = share * wide(weight.detach()).index_select(0, target)
        if target_weight is None:
            parts = self._nll(hidden, target, label_smoothing)
            group_nll, member_nll = (weighted_sum(part[:, None], share[:, None]) for part in parts)
            return group_nll, member_nll, share.sum()
        by_row = (len(hidden), target_weight.shape[-1])
        has_target = kept.view(by_row).any(1)  # [N]
        group_nll, member_nll = self._soft_nll(
            hidden, target.view(by_row), share.view(by_row), label_smoothing
        )
        if rest == "spread":
            left = (1 - mass.view(by_row).sum(1)).clamp(min=0.0) * has_target  # [N]
            group_spread, member_spread = self._spread_nll(hidden)
            group_nll, member_nll = group_nll + left * group_spread, member_nll + left * member_spread
        return group_nll, member_nll, has_target.sum()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, *args: Any
    ) -> None:
        saved = metadata.get("num_classes", self.num_classes)
        if saved != self.num_classes:
            raise ValueError(
                f"the state dict is of a head over {saved:,} classes, this one has {self.num_classes:,}"
            )
        for old, new in self.renamed.items():
            if prefix + old in state_dict:
                state_dict[prefix + new] = state_dict.pop(prefix + old)
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {self.num_classes} classes, {self.describe()}"

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows [N, ...] in blocks small enough to work out all classes of each."""
        return in_blocks(rows, self.num_classes)

    def _check_hidden(self, hidden: Tensor) -> None:
        if not isinstance(hidden, Tensor):
            raise TypeError(f"hidden must be a tensor, got {type(hidden).__name__}")
        if not hidden.is_floating_point():
            raise TypeError(f"hidden must be floating point, got {hidden.dtype}")
        if hidden.dim() == 0 or hidden.shape[-1] != self.in_features:
            raise ValueError(
                f"hidden must have in_features = {self.in_features} as its last dimension; "
                f"got shape {list(hidden.shape)}"
            )
        dtype = next(self.parameters()).dtype
        if hidden.dtype != dtype and place.autocast_dtype(hidden) is None:
            raise TypeError(
                f"hidden is {hidden.dtype}, the head's parameters are {dtype}; "
                "convert one of them, or run under torch.autocast"
            )

    def _check_weights(
        self,
        weight: Tensor | None,
        target: Tensor,
        target_weight: Tensor | None,
        rest: str,
        label_smoothing: float,
    ) -> None:
        if weight is not None and weight.shape != (self.num_classes,):
            raise ValueError(f"weight must have shape [{self.num_classes}], got {list(weight.shape)}")
        if weight is not None and label_smoothing:
            raise ValueError("weight and label_smoothing do not go together")
        if target_weight is not None and target_weight.shape != target.shape:
            raise ValueError(
                f"target_weight must have the shape of target, {list(target.shape)}; "
                f"got {list(target_weight.shape)}"
            )
        if target_weight is not None and not target.shape[-1]:
            raise ValueError(f"target must name at least one class a row, got shape {list(target.shape)}")
        if rest not in RESTS:
            raise ValueError(f"rest must be one of {', '.join(RESTS)}; got {rest!r}")

    def _check_range(self, target: Tensor) -> None:
        """Targets [N], the ignored ones already replaced, must lie in [0, V)."""
        if target.numel() == 0 or target.is_meta:
            return
        if host_sees(target) or (self.validate and not is_traced(target)):
            low, high = (int(bound) for bound in target.aminmax())
            if low < 0 or high >= self.num_classes:
                raise IndexError(
                    f"target must lie in [0, {self.num_classes}) or equal ignore_index; "
                    f"observed values from {low} to {high}"
                )
        elif target.device.type in ("cpu", "cuda"):  # others have no such assertion
            inside = ((target >= 0) & (target < self.num_classes)).all()
            torch._assert_async(inside, f"target must lie in [0, {self.num_classes}) or equal ignore_index")


def wide(logits: Tensor) -> Tensor:
    """Half-precision logits to float32: a log-sum-exp over many classes needs it."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table, widened: [C, ...], [...] -> [..., ...].

    A row that many tokens take has a gradient of as many terms. ``F.embedding`` adds them up one by one in
    the format of its table: in half precision the later ones are lost, so the table is widened first.
    """
    if table.requires_grad and torch.is_grad_enabled():
        return F.embedding(index, wide(table))
    return wide(F.embedding(index, table))


def token_nll(logits: Tensor, target: Tensor, label_smoothing: float, spread: Tensor | float) -> Tensor:
    """(1 − ε)·nll + ε·Σ_c spread_c·(−log p_c), for logits [N, C] and target [N] -> [N].

    Slots at −inf are no classes and add nothing.
    """
    if label_smoothing == 0.0:
        return F.cross_entropy(wide(logits), target, reduction="none")
    log_probs = F.log_softmax(wide(logits), dim=-1)  # [N, C]
    uniform = -(spread * log_probs.masked_fill(log_probs == -math.inf, 0.0)).sum(-1)  # [N]
    nll = F.nll_loss(log_probs, target, reduction="none")  # [N]
    return (1 - label_smoothing) * nll + label_smoothing * uniform


def mean_frequency(shares: Tensor) -> float:
    """Σ p²: how frequent the output that a row asks for is on average, for outputs as frequent as ``shares``
    [K]. In a step of plain SGD the score of an output of frequency p moves by about the rate times p."""
    return float(shares.square().sum())


def weighted_sum(values: Tensor, share: Tensor) -> Tensor:
    """Σ_k share·values, [N, K] each -> [N]; what has no share cannot spoil the sum, be it infinite."""
    return torch.where(share == 0, 0.0, share * values).sum(1)


def block_rows(width: int, device: torch.device | None = None) -> int:
    """How many rows of this many elements make a block; on the CPU by default."""
    is_cpu = device is None or place.is_cpu(device)
    return max(1, (BLOCK_ELEMENTS if is_cpu else DEVICE_BLOCK_ELEMENTS) // width)


def in_blocks(rows: Tensor, width: int) -> tuple[Tensor, ...]:
    """Rows [N, ...] in blocks in which each may have so many elements. In a graph being traced it is one
    block: their number would become part of the graph, and the compiler need not store what it fuses."""
    if torch.compiler.is_compiling():
        return (rows,)
    return rows.split(block_rows(width, rows.device))


def check_tied(weight: nn.Parameter, num_classes: int, in_features: int) -> nn.Parameter:
    """A parameter to share, if it is one and has shape [V, d]."""
    if not isinstance(weight, nn.Parameter):
        raise TypeError(
            f"weight must be an nn.Parameter such as embedding.weight, got {type(weight).__name__}"
        )
    if weight.shape != (num_classes, in_features):
        raise ValueError(f"weight must have shape [{num_classes}, {in_features}], got {list(weight.shape)}")
    return weight


def check_growth(head: Any, num_classes: int, weight: nn.Parameter | None) -> None:
    """What :meth:`Head.grow` is given must fit."""
    if integer("num_classes", num_classes) < head.num_classes:
        raise ValueError(f"{head.num_classes} classes cannot become {num_classes}: a head only grows")
    if head.tied != (weight is not None):
        raise ValueError("weight is for a head that shares one, and such a head needs the new one")


def reset_linear(weight: Tensor, fan_in: int) -> None:
    """Initialise as nn.Linear does: uniform within ±1/√fan_in."""
    bound = 1 / math.sqrt(fan_in)
    nn.init.uniform_(weight, -bound, bound)


def _note_classes(head: Any, state_dict: object, prefix: str, metadata: dict[str, Any]) -> None:
    """The shapes in a state dict do not tell V: 10 or 11 classes, in 3 groups, fill the same tables. It is
    noted where torch keeps the versions of modules, so no tensor is added; a file of tensors alone does not
    have it."""
    metadata["num_classes"] = head.num_classes


def _orders_follow(head: Any, _: object) -> None:
    """After loading: an order that was taken over must be where the parameters are."""
    for module in head.children():
        if isinstance(module, ClassOrder):
            module.to(next(head.parameters()).device)
