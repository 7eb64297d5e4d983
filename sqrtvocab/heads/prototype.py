"""Classes that are examples: a class is the mean direction of a few of its rows, and has no parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from sqrtvocab.heads.base import Head, HeadCost, block_rows, check_growth, in_blocks, token_nll, wide
from sqrtvocab.heads.collectives import gather_rows, is_alone, row_counts
from sqrtvocab.heads.probing import Probes
from sqrtvocab.partition import integer

if TYPE_CHECKING:
    from sqrtvocab.heads.parallel import SplitHead

START, SHARPEST = 20.0, 200.0  # what cosines are multiplied by, at first and at most
HASTE = 10.0  # how much faster the sharpness is learnt than a weight: under Adam, ten times the learning rate
HARD, NEAREST = 4096, 8  # classes whose neighbours are kept for hard batches, and how many of each
BLOCK = 2**14  # classes whose stored vectors are made float32 at a time
SLICE = 2**11  # classes that decoding looks at together
FAINT = -80.0  # logarithm of the least term of a sum that is at least 1
FEWEST = 2  # rows of a class in a batch


class ProbedTopk(NamedTuple):
    """The best classes of the groups that were looked into; see :meth:`PrototypeHead.topk`."""

    log_probs: Tensor
    """[..., k] among the classes looked at, which is more than among all."""
    classes: Tensor
    """[..., k] best first."""
    certain: Tensor
    """[...] whether no class of another group can be better than these."""


class PrototypeHead(Head):
    """P(class) = softmax(s · cos(h, v_class) + b), where v_class is the mean direction of rows of the class
    that the head was shown; a class that it was never shown has no probability. (Before it was shown any, all
    are equally probable.)

    v is a buffer [V, d], b another one that only ``init_prior`` sets: no gradients, no moments in the
    optimiser. The only parameter is the sharpness s = 20·exp(10·log_scale), at most 200.

    Trained are the rows, not the classes. In training mode a batch must hold two or more rows of each of its
    classes. A row's loss is that of its class among the classes of the batch: its class is the mean of the
    *other* rows of the class, another class each of its rows, which share one vote. Given ``samples``, that
    many of the stored vectors join, each standing for so many classes that the estimate of the sum over all
    known classes has no bias (the "log Q correction" of sampled softmax). Under ``torch.distributed`` the
    batch is that of all ranks, with the gradients of one process. As rows pass, their mean becomes the vector
    of their class.

    In evaluation mode the loss is exact, as everything else is, a block of rows at a time; s is then what
    :meth:`fit_temperature` found, if it was called. Cosines are computed in float32 even under autocast:
    times 200, an error of half precision would be a nat.

    Args:
        in_features, num_classes, validate, device, dtype: see :class:`~sqrtvocab.heads.base.Head`.
        samples: stored classes that join each training batch.
        momentum: how much of a class's old vector stays when its rows pass; 0 keeps the newest only.
        storage: number format of the vectors, such as ``torch.float16`` or "float16"; ``dtype`` by default.
    """

    surrogate = True
    rows_per_class = FEWEST
    from_examples = True
    can_grow = True
    tied = False
    split_tables: ClassVar[tuple[str, ...]] = ("vectors", "known", "bias")

    vectors: Tensor
    known: Tensor
    bias: Tensor
    fitted_scale: Tensor
    hard: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        samples: int = 0,
        momentum: float = 0.0,
        storage: torch.dtype | str | None = None,
        validate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, validate)
        if not 0 <= integer("samples", samples) <= num_classes:
            raise ValueError(
                f"samples is {samples}, but there are only num_classes = {num_classes} to draw from"
            )
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
        self.samples, self.momentum = samples, momentum
        self.log_scale = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        like = self.log_scale.detach()
        stored = like if storage is None else like.to(_number_format(storage))
        hard = (min(HARD, num_classes), 1 + min(NEAREST, num_classes - 1))
        self.register_buffer("vectors", stored.new_empty(num_classes, in_features))  # [V, d] of length 1
        self.register_buffer("known", like.new_empty(num_classes, dtype=torch.bool))  # [V]
        self.register_buffer("bias", like.new_empty(num_classes))  # [V]
        self.register_buffer("fitted_scale", like.new_empty(()))  # 0: not fitted
        self.register_buffer("hard", like.new_empty(hard, dtype=torch.int64))  # a row of −1: none
        self._probes: Probes | None = None
        self._whole: tuple[SplitHead] | None = None  # what this is a part of; no module of this one
        self._any_known: Tensor | None = None  # of a part: whether any class of the whole is
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forgets all classes."""
        nn.init.zeros_(self.log_scale)
        for buffer in (self.vectors, self.known, self.bias, self.fitted_scale):
            buffer.zero_()
        self.hard.fill_(-1)
        self._probes = None

    # ---- the classes ----

    @torch.no_grad()
    def learn_classes(self, vectors: Tensor, classes: Tensor) -> None:
        self._check_vectors(vectors, classes)
        if self._whole is not None:
            self._any_known = torch.tensor(len(classes) > 0 or bool(self._any_known), device=classes.device)
            place, is_here = self._stored(classes)
            vectors, classes = vectors[is_here], place[is_here]
        self.vectors.index_copy_(0, classes, _directions(vectors).to(self.vectors.dtype))
        self.known.index_fill_(0, classes, True)
        self._probes = None

    @torch.no_grad()
    def forget_classes(self) -> None:
        self.known.zero_()
        self._any_known = None if self._whole is None else self.known.any()
        self._probes = None

    @torch.no_grad()
    def add_classes(
        self, vectors: Tensor, names: Sequence[str] = (), existing: Sequence[str] = ()
    ) -> PrototypeHead:
        """A head with M further classes, from V on, which need no training.

        Args:
            vectors: [M, d], for each new class the mean of what the encoder makes of its examples.
            names: [M] of the new classes, where classes have names.
            existing: [V] those of the classes there are.

        Raises:
            ValueError: vectors of another width, names of another number, or a name that exists.
        """
        if vectors.dim() != 2 or vectors.shape[1] != self.in_features:
            raise ValueError(
                f"vectors must have shape [M, {self.in_features}], the width of the embedding; "
                f"got {list(vectors.shape)}"
            )
        if names and len(names) != len(vectors):
            raise ValueError(f"{len(vectors)} vectors, but {len(names)} names of classes")
        there = set(existing)
        for name in names:
            if name in there:
                raise ValueError(f"there is a class {name!r} already: give the new one another name")
            there.add(name)
        grown = self.grow(self.num_classes + len(vectors))
        new = torch.arange(self.num_classes, grown.num_classes, device=vectors.device)
        grown.learn_classes(vectors, new)
        return grown

    @torch.no_grad()
    def grow(self, num_classes: int, weight: nn.Parameter | None = None) -> PrototypeHead:
        """New classes are unknown: they have no probability."""
        check_growth(self, num_classes, weight)
        grown = PrototypeHead(
            self.in_features,
            num_classes,
            self.samples,
            self.momentum,
            self.vectors.dtype,
            self.validate,
            self.log_scale.device,
            self.log_scale.dtype,
        )
        grown.log_scale.copy_(self.log_scale)
        grown.fitted_scale.copy_(self.fitted_scale)
        for name in ("vectors", "known", "bias"):
            grown.get_buffer(name)[: self.num_classes] = self.get_buffer(name)
        return grown.train(self.training)

    @torch.no_grad()
    def find_hard_classes(self, vectors: Tensor, classes: Tensor) -> None:
        """The ``NEAREST`` neighbours of up to ``HARD`` of these, evenly chosen."""
        self._check_vectors(vectors, classes)
        self.hard.fill_(-1)
        width = self.hard.shape[1]
        if len(classes) < width:
            return
        points = _directions(vectors)  # [M, d]
        chosen = torch.arange(0, len(classes), -(-len(classes) // HARD), device=classes.device)  # [T]
        for start in range(0, len(chosen), block := block_rows(len(classes))):
            rows = chosen[start : start + block]
            cosines = points[rows] @ points.T  # [R, M]
            cosines.scatter_(1, rows.unsqueeze(1), math.inf)  # first comes the class itself
            self.hard[start : start + len(rows)] = classes[cosines.topk(width).indices]

    @property
    def hard_classes(self) -> Tensor:
        return self.hard

    @torch.no_grad()
    def fit_temperature(self, hidden: Tensor, target: Tensor) -> None:
        """Newton's method: the mean loss is convex in s. Rows of unknown classes are left out."""
        self._check_hidden(hidden)
        place, is_here = self._stored(target)
        is_known = is_here & self.known[place]
        usable = self._of_parts(is_known).any(0)
        points, place, is_known = _directions(hidden[usable]), place[usable], is_known[usable]
        if not len(points):
            return
        low, high, scale = 1.0, SHARPEST * 10, self._scale().item()
        for _ in range(30):
            slope, curvature = 0.0, 0.0
            for rows, truth, here in zip(*map(self._blocks, (points, place, is_known)), strict=True):
                cosines = self._cosines(rows).masked_fill(~self.known, -1.0)  # [R, V]
                logits = scale * cosines + self._penalties()
                chance = logits.softmax(-1).nan_to_num(0.0)  # a part of a head may know no class
                own = torch.where(here, cosines.gather(1, truth.unsqueeze(1)).squeeze(1), 0.0)
                moments = [(chance * power).sum(-1) for power in (cosines, cosines.square())]
                parts = self._of_parts(torch.stack([logits.logsumexp(-1), own, *moments]))  # [parts, 4, R]
                share, truths = parts[:, 0].softmax(0), parts[:, 1].sum(0)  # [parts, R], [R]
                mean, square = ((share * moment).sum(0) for moment in parts[:, 2:].unbind(1))  # [R] each
                slope += float((mean - truths).sum())
                curvature += float((square - mean.square()).sum())
            low, high = (scale, high) if slope < 0 else (low, scale)
            newton = scale - slope / max(curvature, 1e-12)
            before, scale = scale, newton if low < newton < high else math.sqrt(low * high)
            if abs(scale - before) < 1e-3 * before:
                break
        self.fitted_scale.fill_(scale)

    # ---- the distribution ----

    def _scale(self) -> Tensor:
        learnt = (START * (HASTE * wide(self.log_scale)).exp()).clamp(max=SHARPEST)
        return (
            learnt if self.training else torch.where(self.fitted_scale > 0, wide(self.fitted_scale), learnt)
        )

    def _penalties(self) -> Tensor:
        """[V] what is added to the logits: −inf for a class that is not known while others are."""
        any_known = self.known.any() if self._any_known is None else self._any_known
        return wide(self.bias).masked_fill(~self.known & any_known, -math.inf)

    def _cosines(self, directions: Tensor) -> Tensor:
        """[N, d] -> [N, V]."""
        if self.vectors.dtype == directions.dtype:
            return F.linear(directions, self.vectors)
        parts = [F.linear(directions, block.to(directions.dtype)) for block in self.vectors.split(BLOCK)]
        return torch.cat(parts, -1)

    def _logits(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return self._cosines(self._scale() * _directions(hidden)) + self._penalties()  # [N, V]

    def _log_prob(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self._logits(hidden), dim=-1)

    def _topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        width = self.num_classes if torch.compiler.is_compiling() else min(SLICE, self.num_classes)
        with torch.autocast(hidden.device.type, enabled=False):
            parts = [self._best(rows, k, width) for rows in in_blocks(hidden, width)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _best(self, hidden: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """``_topk`` from ``width`` classes at a time: each vector is read once, and a slice of the logits is
        used up while it is in the cache."""
        rows, penalties = self._scale() * _directions(hidden), self._penalties()  # [N, d], [V]
        count = rows.shape[0]  # len() would fix the number of rows in a graph
        best, classes = rows.new_empty(count, 0), self.hard.new_empty(count, 0)  # [N, <= k]
        top = rows.new_full((count, 1), torch.finfo(rows.dtype).min)  # [N, 1] the best so far
        total = torch.zeros_like(top)  # Σ exp(logit − top) so far
        for start in range(0, self.num_classes, width):
            vectors = self.vectors[start : start + width].to(rows.dtype)  # [C, d]
            logits = torch.addmm(penalties[start : start + width], rows, vectors.T)  # [N, C]
            found, index = logits.topk(min(k, len(vectors)))
            best = torch.cat([best, found], 1)
            best, kept = best.topk(min(k, best.shape[1]))
            classes = torch.cat([classes, index + start], 1).gather(1, kept)
            before, top = top, torch.maximum(top, best[:, :1])
            # Below FAINT a term is lost in rounding anyhow, but exp() of it is slow: it has no normal number.
            terms = logits.sub_(top).clamp_(min=FAINT).exp_()
            total = total * (before - top).exp() + terms.sum(1, keepdim=True)
        return best - top - total.log(), classes

    def _log_mass(self, hidden: Tensor) -> Tensor:
        return torch.cat([self._logits(rows).logsumexp(-1) for rows in self._blocks(hidden)])

    def _set_prior(self, log_prior: Tensor) -> None:
        self.bias.copy_(log_prior)

    # ---- the loss ----

    def _nll(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        if self.training:
            return self._kept_nll(hidden, target, torch.ones_like(target, dtype=torch.bool), label_smoothing)
        blocks = zip(self._blocks(hidden), self._blocks(target), strict=True)
        spread = 1 / self.num_classes
        nll = torch.cat([token_nll(self._logits(rows), y, label_smoothing, spread) for rows, y in blocks])
        return torch.zeros_like(nll), nll

    def _kept_nll(
        self, hidden: Tensor, target: Tensor, kept: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        if not self.training:
            return super()._kept_nll(hidden, target, kept, label_smoothing)
        if label_smoothing:
            raise ValueError("label_smoothing: prototypes are trained without it")
        with torch.autocast(hidden.device.type, enabled=False):
            nll = self._batch_nll(_directions(hidden), target, kept)
        return torch.zeros_like(nll), nll

    def _weighted_nll(self, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        if self.training:
            raise ValueError("weight and target_weight: prototypes are trained without them")
        return super()._weighted_nll(*args)

    def _batch_nll(self, mine: Tensor, my_target: Tensor, my_kept: Tensor) -> Tensor:
        """Directions [n, d], classes [n], which rows count [n] -> [n]; against the N rows of all ranks."""
        points, target, kept = mine, my_target, my_kept  # [N, d], [N], [N]
        group = None if self._whole is None else self._whole[0].group
        if not is_alone(group):
            sizes = row_counts(len(mine), group)
            points, target, kept = (gather_rows(rows, sizes, group) for rows in (points, target, kept))
        same = (my_target.unsqueeze(1) == target) & kept  # [n, N] rows of the same class, the row itself too
        others = same.sum(1) - 1  # [n]
        self._check_pairs(others, my_target, my_kept)
        cosines = mine @ points.T  # [n, N]
        own = (torch.where(same, cosines, 0.0).sum(1) - mine.square().sum(1)) / others.clamp(min=1)
        votes = ((target.unsqueeze(1) == target) & kept).sum(1).clamp(min=1)  # [N] rows of each one's class
        rivals = self._scale() * cosines - votes.to(cosines.dtype).log()
        parts = [self._scale() * own.unsqueeze(1), rivals.masked_fill(same | ~kept, -math.inf)]
        if self.samples:
            parts.append(self._sampled_logits(mine, my_target, target, kept))
        self._remember(points.detach(), target, kept)
        logits = torch.cat(parts, 1)
        return logits.logsumexp(1) - logits[:, 0]

    def _sampled_logits(self, mine: Tensor, my_target: Tensor, target: Tensor, kept: Tensor) -> Tensor:
        """[n, M] of stored classes. Those of the batch take part already; of the others all are as likely."""
        weight = self.known.index_fill(0, target, False).to(mine.dtype)  # [V]
        left = weight.sum()
        # Never empty: where nothing is left to draw, what is drawn is masked.
        drawn = torch.multinomial(weight + (left == 0), self.samples, replacement=True)  # [M]
        cosines = mine @ self.vectors[drawn].to(mine.dtype).T
        logits = self._scale() * cosines + (left.clamp(min=1.0) / self.samples).log()
        return logits.masked_fill(weight[drawn] == 0, -math.inf)

    @torch.no_grad()
    def _remember(self, points: Tensor, target: Tensor, kept: Tensor) -> None:
        """The classes of a batch become the means of their rows [N, d]."""
        same = ((target.unsqueeze(1) == target) & kept).to(points.dtype)  # [N, N]
        means = _directions(same @ points)
        if self._whole is not None:
            self._any_known = torch.as_tensor(self._any_known, device=kept.device) | kept.any()
            target, is_here = self._stored(target)
            kept = kept & is_here
        if self.momentum:
            old = self.vectors[target].to(points.dtype) * self.known[target].unsqueeze(1)
            means = _directions(self.momentum * old + (1 - self.momentum) * means)
        # A row that does not count repeats the first one that does, for indices must not contradict each
        # other; if none does, nothing changes.
        first = kept.int().argmax(0, keepdim=True)  # [1]: a scalar index would be read from the tensor
        any_kept = kept.any()
        places = torch.where(kept, target, target[first])
        means = torch.where(kept.unsqueeze(1), means, means[first]).to(self.vectors.dtype)
        self.vectors.index_copy_(0, places, torch.where(any_kept, means, self.vectors[places]))
        self.known.index_copy_(0, places, self.known[places] | any_kept)
        self._probes = None

    # ---- a part of the classes ----

    def why_whole(self) -> str | None:
        return "it draws from all stored classes (samples)" if self.samples else super().why_whole()

    @torch.no_grad()
    def make_part(self, rows: Tensor, classes: Tensor) -> PrototypeHead:
        like: Any = {"device": self.log_scale.device, "dtype": self.log_scale.dtype}
        stored = self.vectors.dtype
        part = PrototypeHead(self.in_features, len(classes), 0, self.momentum, stored, self.validate, **like)
        part.log_scale.copy_(self.log_scale)
        part.fitted_scale.copy_(self.fitted_scale)
        part.hard = self.hard.clone()  # about all classes
        for name in self.split_tables:
            part.get_buffer(name).copy_(self.get_buffer(name)[rows])
        return part.train(self.training)

    def belongs_to(self, whole: Any) -> None:
        self._whole = (whole,)
        self._any_known = self._of_parts(self.known.any()).any()

    def _stored(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Where classes [n] are stored, and whether they are here; other ranks have others."""
        if self._whole is None:
            return classes, torch.ones_like(classes, dtype=torch.bool)
        place = self._whole[0].local[classes]
        return place.clamp(min=0), place >= 0

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        # All ranks must make as many blocks, though some have a class more.
        return super()._blocks(rows) if self._whole is None else self._whole[0]._blocks(rows)

    def _of_parts(self, values: Tensor) -> Tensor:
        """[...] here -> [parts, ...], of the parts on all ranks."""
        return values.unsqueeze(0) if self._whole is None else self._whole[0].of_parts(values)

    # ---- decoding by groups ----

    def topk(self, hidden: Tensor, k: int, probe: int | None = None) -> Any:
        """As :meth:`Head.topk`, exactly; or, given ``probe``, in so many groups of similar classes.

        The groups are made when they are first needed after the classes have changed, which takes a minute
        for 184,320 classes, and keep a copy of the vectors. For each hidden state those with the nearest
        centres are opened.

        Returns:
            (log-probabilities, classes), [..., k] each; given ``probe`` a :class:`ProbedTopk`.

        Raises:
            ValueError: k outside [1, V], or more than the groups hold that are opened.
        """
        if probe is None:
            return super().topk(hidden, k)
        self._check_hidden(hidden)
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            rows = _directions(hidden.reshape(-1, self.in_features))
            logits, classes, total, certain = self.probes().topk(
                rows, k, probe, self._penalties(), float(self._scale())
            )
        shape = hidden.shape[:-1]
        log_probs = (logits - total.unsqueeze(1)).view(*shape, k)
        return ProbedTopk(log_probs, classes.view(*shape, k), certain.view(shape))

    def probes(self, num_groups: int | None = None) -> Probes:
        """The groups that :meth:`topk` with ``probe`` looks into, √V by default; made anew if ``num_groups``
        is given or the classes have changed."""
        if self._probes is None or num_groups is not None:
            self._probes = Probes(self.vectors, self.known, num_groups)
        return self._probes

    # ---- reports and checks ----

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        """Of a batch of 64 rows: each is a candidate of every other."""
        candidates = 64 + self.samples
        return HeadCost(self.in_features * candidates, candidates)

    def describe(self) -> str:
        parts = [f"{int(self.known.sum()):,} of {self.num_classes:,} classes known"]
        parts += [f"{self.samples:,} stored ones in each batch"] if self.samples else []
        return ", ".join(parts)

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {self.num_classes} classes"

    def _apply(self, *args: Any, **options: Any) -> PrototypeHead:
        self._probes = None  # of another device or number format
        return super()._apply(*args, **options)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._probes = None

    def _check_vectors(self, vectors: Tensor, classes: Tensor) -> None:
        if vectors.shape != (len(classes), self.in_features):
            raise ValueError(
                f"vectors must have shape [{len(classes)}, {self.in_features}], one row for each class; "
                f"got {list(vectors.shape)}"
            )
        if self._whole is None:  # which has looked already
            self._check_range(classes)

    def _check_pairs(self, others: Tensor, target: Tensor, kept: Tensor) -> None:
        if torch.compiler.is_compiling() or isinstance(others, FakeTensor) or others.is_meta:
            return
        alone = (others < FEWEST - 1) & kept
        if bool(alone.any()):
            raise ValueError(
                f"class {int(target[alone][0])} has a single row in this batch: prototypes are trained on "
                f"{FEWEST} or more of each class (train_classifier: --images-of-a-class {FEWEST}); "
                "for the exact loss of any batch call eval()"
            )


def _number_format(storage: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, storage, None) if isinstance(storage, str) else storage
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"storage must be a number format such as float16, got {storage!r}")
    return found


def _directions(rows: Tensor) -> Tensor:
    """[N, d] -> the same at length 1, at least float32; zero stays zero."""
    return F.normalize(wide(rows), dim=-1)
