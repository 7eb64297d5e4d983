"""A head whose classes are split over the ranks of a process group, so that V·d need not fit on one device.

    head = split_head(make_head("flat", d, V))        # on every rank, from the same weights
    loss = head(hidden, target).loss                  # of this rank's rows, among all V classes
    head.topk(hidden, 5)

Every rank holds a part of the classes as a head of its own, P(class | part), and scores the rows of all ranks
with it. What it hands on for each row are a few numbers: the log-mass of its part, that is the log of the sum
of the exponentials of its scores, by whose softmax P(part) is known; and what it says of the target or of the
best classes. In training no logits travel. All ranks must call the same methods in the same order, with any
number of rows, also none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from sqrtvocab.heads.base import Guesses, Head, HeadCost
from sqrtvocab.heads.collectives import Group, gather_rows, row_counts
from sqrtvocab.heads.sampling import draw
from sqrtvocab.partition import Partition

# What a head says about itself that is the same of all its parts.
_SAME = ("has_groups", "surrogate", "rows_per_class", "from_examples")


def split_head(head: Head, group: Group = None) -> Head:
    """This rank's part of ``head``, which computes what the whole one does, together with the other ranks.

    The gradients of its parameters are those of the mean of the ranks' losses, as of parameters that
    DistributedDataParallel averages; it must be told to leave :meth:`SplitHead.split_parameters` alone.

    Args:
        head: the same on all ranks. It is left as it is; parts are copies.
        group: the ranks; all by default.

    Raises:
        ValueError: a head that cannot be split (see ``Head.why_whole``), or fewer classes than ranks.
    """
    if reason := head.why_whole():
        raise ValueError(f"the classes cannot be split over ranks: {reason}")
    return SplitHead(head, group)


class SplitHead(Head):
    """Made by :func:`split_head`."""

    sparse_topk = True
    local: Tensor

    def __init__(self, whole: Head, group: Group = None) -> None:
        super().__init__(whole.in_features, whole.num_classes, whole.validate)
        self.group, self.rank, self.ranks = group, dist.get_rank(group), dist.get_world_size(group)
        for name in _SAME:
            setattr(self, name, getattr(whole, name))
        parts = [whole.part_rows(number, self.ranks) for number in range(self.ranks)]
        mine = parts[self.rank]
        self.part = whole.make_part(mine.rows, mine.classes)
        self.partition = whole.partition
        self._rows_of, self._classes_of = [part.rows for part in parts], [part.classes for part in parts]
        local = torch.full((self.num_classes,), -1)
        local[mine.classes] = torch.arange(len(mine.classes))
        # [V] where a class is in the part; −1: nowhere
        self.register_buffer("local", local, persistent=False)
        self._tables, self._about = whole.split_tables, whole.describe()
        self._template = (_without_data(whole),)  # in a tuple: not a module of this one
        self._has_common_rows = False
        for parameter in self.split_parameters():
            parameter.register_hook(self._mean_over_ranks)
        self.part.belongs_to(self)
        self.register_load_state_dict_pre_hook(_take_part)
        self.register_load_state_dict_post_hook(lambda head, _: head.part.belongs_to(head))
        self.train(whole.training)

    # ---- what trainers must know ----

    @property
    def is_split(self) -> bool:
        return True

    def split_parameters(self) -> list[nn.Parameter]:
        """The parameters of which other ranks have other rows."""
        return [parameter for name, parameter in self.part.named_parameters() if name in self._tables]

    def whole_table(self, part: Tensor) -> Tensor | None:
        """From the rows of every rank all of them, on the CPU of rank 0; None on the others."""
        parts: list[Tensor] | None = [part] * self.ranks if self.rank == 0 else None
        dist.gather_object(part.detach().cpu(), parts, dist.get_global_rank(self._group, 0), self._group)
        if parts is None:
            return None
        table = parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
        for rows, values in zip(self._rows_of, parts, strict=True):
            table[rows] = values
        return table

    def own_rows(self, table: Tensor) -> Tensor:
        """Of a whole table the rows of this rank."""
        return table[self._rows_of[self.rank].to(table.device)]

    def whole(self) -> Head | None:
        """The head that was split, as it is now, on the CPU of rank 0; None on the others. All ranks must
        call it."""
        state = self.part.state_dict()
        tables = {
            name: self.whole_table(tensor) if name in self._tables else tensor.cpu()
            for name, tensor in state.items()
        }
        if self.rank:
            return None
        (template,) = self._template
        memo: dict[int, Any] = {}
        if self.partition is not None:
            memo[id(template.partition)] = copy.deepcopy(self.partition).cpu()
        for name, tensor in template.state_dict(keep_vars=True).items():
            if (value := tables.get(name)) is not None:
                memo[id(tensor)] = nn.Parameter(value) if isinstance(tensor, nn.Parameter) else value
        return copy.deepcopy(template, memo).train(self.training)

    @contextmanager
    def common_rows(self) -> Iterator[None]:
        before, self._has_common_rows = self._has_common_rows, True
        try:
            yield
        finally:
            self._has_common_rows = before

    def reset_parameters(self) -> None:
        self.part.reset_parameters()

    def describe(self) -> str:
        return f"{self._about}, split over {self.ranks} ranks"

    def cost(self, counts: Tensor | Sequence[float] | None = None) -> HeadCost:
        return self._template[0].cost(counts)

    def parameter_groups(
        self, lr: float, counts: Tensor | Sequence[float] | None = None
    ) -> list[dict[str, Any]]:
        (template,) = self._template
        names = {id(parameter): name for name, parameter in template.named_parameters()}
        return [
            {**group, "params": [self.part.get_parameter(names[id(one)]) for one in group["params"]]}
            for group in template.parameter_groups(lr, counts)
        ]

    # ---- rows and numbers travel ----

    @property
    def _group(self) -> dist.ProcessGroup:
        return dist.group.WORLD if self.group is None else self.group  # type: ignore[return-value]

    def _mean_over_ranks(self, gradient: Tensor) -> Tensor:
        return gradient / self.ranks

    def _from_all(self, *tensors: Tensor) -> tuple[Rows, list[Tensor]]:
        """What the ranks have in rows of [n, ...], together [N, ...]; and how to find one's own again."""
        count = len(tensors[0])
        if self._has_common_rows:
            return Rows([count], 0), list(tensors)
        sizes = row_counts(count, self.group)
        return Rows(sizes, self.rank), [gather_rows(tensor, sizes, self.group) for tensor in tensors]

    def of_parts(self, values: Tensor) -> Tensor:
        """[...] of this part -> [W, ...] of all parts, for which ranks have the same rows."""
        return gather_rows(values.unsqueeze(0), [1] * self.ranks, self.group)

    def _columns(self, values: Tensor, columns: list[Tensor]) -> Tensor:
        """[N, columns of this part] -> [N, those of all parts], each in its place."""
        sizes = [len(some) for some in columns]
        joined = gather_rows(values.T, sizes, self.group).T  # [N, all]
        return joined.index_select(1, torch.cat(columns).argsort().to(values.device))

    def _joint(self, log_probs: Tensor, rows: Tensor) -> Tensor:
        """log P(· | part) [N, ...] -> log P(·)."""
        masses = self.of_parts(self.part._log_mass(rows))  # [W, N]
        share = F.log_softmax(masses, dim=0)[self.rank].unsqueeze(1)  # [N, 1]
        return torch.where(share == -torch.inf, -torch.inf, log_probs + share)

    # ---- the loss ----

    def _nll(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        own, (rows, target) = self._from_all(hidden, target)
        place = self.local[target]  # [N]
        inside, place = place >= 0, place.clamp(min=0)
        group, member, mass = self.part._nll_and_mass(rows, place, 0.0)  # [N] each
        first, second = (group, member) if self.has_groups else (member, torch.zeros_like(member))
        first = torch.where(mass == -torch.inf, torch.inf, first)  # a part without any class that is known
        # −log P = (log of all masses − mass) + (−log P within the part): P(part) belongs to the first level.
        said, second = torch.where(inside, mass - first, 0.0), torch.where(inside, second, 0.0)
        if label_smoothing:
            # Evenly spread, the first level weighs every part by its size; the second knows its own group.
            share = self.part.num_classes / self.num_classes
            group, member, _ = self.part._nll_and_mass(rows, place, 1.0)
            even = share * (mass - (group if self.has_groups else member))
            said = (1 - label_smoothing) * said + label_smoothing * even
            within = torch.where(inside, share * member, 0.0) if self.has_groups else 0.0
            second = (1 - label_smoothing) * second + label_smoothing * within
        said_of_all = self.of_parts(torch.stack([mass, said, second], 1))  # [W, N, 3]
        masses, all_said, all_second = said_of_all.unbind(-1)
        first, second = own(masses.logsumexp(0) - all_said.sum(0)), own(all_second.sum(0))
        return (first, second) if self.has_groups else (second, first)

    def _kept_nll(
        self, hidden: Tensor, target: Tensor, kept: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        if self.surrogate and self.training:  # a loss of the rows alone, which knows of ranks by itself
            return self.part._kept_nll(hidden, target, kept, label_smoothing)
        return super()._kept_nll(hidden, target, kept, label_smoothing)

    def _weighted_nll(self, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        if self.surrogate and self.training:
            return self.part._weighted_nll(*args)
        return super()._weighted_nll(*args)

    def _spread_nll(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        group, member = self._nll(
            hidden, torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device), 1.0
        )
        return (group, torch.zeros_like(member)) if self.has_groups else (group, member)

    # ---- decoding ----

    def _log_prob(self, hidden: Tensor) -> Tensor:
        own, (rows,) = self._from_all(hidden)
        log_probs = self._joint(self.part._log_prob(rows), rows)
        return own(self._columns(log_probs, self._classes_of))

    def group_log_prob(self, hidden: Tensor) -> Tensor:
        self._check_hidden(hidden)
        own, (rows,) = self._from_all(hidden.reshape(-1, self.in_features))
        return own(self._groups(rows)).unflatten(0, hidden.shape[:-1])

    def _groups(self, rows: Tensor) -> Tensor:
        """[N, d] -> [N, G] log P(group)."""
        return self._columns(self._joint(self.part.group_log_prob(rows), rows), self._rows_of)

    def _topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        own, (rows,) = self._from_all(hidden)
        log_probs, classes = self._best(rows, k)
        return own(log_probs), own(classes)

    def _best(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best classes of rows that all ranks have, [N, k] each."""
        best, places = self.part._topk(rows, min(k, self.part.num_classes))
        best = self._joint(best, rows)
        spare = k - best.shape[1]  # a part may have fewer classes
        best, classes = F.pad(best, (0, spare), value=-torch.inf), F.pad(self._names(places), (0, spare))
        best, classes = (
            self.of_parts(table).movedim(0, 1).flatten(1) for table in (best, classes)
        )  # [N, W·k]
        best, choice = best.topk(k, dim=-1)
        return best, classes.gather(1, choice)

    def _names(self, places: Tensor) -> Tensor:
        """Classes of the part -> classes."""
        return self._classes_of[self.rank].to(places.device)[places]

    def _sample(self, hidden: Tensor, generator: torch.Generator | None) -> Tensor:
        own, (rows,) = self._from_all(hidden)
        masses = self.of_parts(self.part._log_mass(rows)).T  # [N, W]
        # The parts draw differently, but all ranks must agree on which part was drawn.
        seed = torch.randint(2**62, (2,), generator=generator, device=rows.device)
        dist.broadcast(seed, dist.get_global_rank(self._group, 0), self._group)
        common, particular = (int(number) for number in seed)
        dice = torch.Generator(rows.device)
        part = draw(masses, dice.manual_seed(common))  # [N]
        drawn = self._names(self.part._sample(rows, dice.manual_seed(particular + self.rank)))
        return own(self.of_parts(drawn).gather(0, part.unsqueeze(0)).squeeze(0))

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
        if self._has_common_rows:
            return super().sample(hidden, temperature, top_k, generator, top_p, min_p)
        # How often a row must be looked at depends on it and on dice: all ranks do it for all rows together.
        self._check_hidden(hidden)
        own, (rows,) = self._from_all(hidden.reshape(-1, self.in_features))
        seed = torch.randint(2**62, (1,), generator=generator, device=rows.device)
        dist.broadcast(seed, dist.get_global_rank(self._group, 0), self._group)
        dice = torch.Generator(rows.device).manual_seed(int(seed))
        with self.common_rows():
            drawn = super().sample(rows, temperature, top_k, dice, top_p, min_p)
        return own(drawn).view(hidden.shape[:-1])

    def _guesses(self, hidden: Tensor, target: Tensor, partition: Partition, k: int) -> Guesses:
        own, (rows, target) = self._from_all(hidden, target)
        log_probs, classes = self._best(rows, k)
        is_mine = partition is self.partition and self.has_groups
        group = self._groups(rows).argmax(-1) if is_mine else partition.split(classes[:, 0])[0]
        blocks = zip(self._blocks(rows), self._blocks(target), strict=True)
        best = [self._best_rival(some, truth, partition) for some, truth in blocks]
        return Guesses(own(classes), own(group), own(torch.cat(best)), own(log_probs))

    def _best_rival(self, rows: Tensor, target: Tensor, partition: Partition) -> Tensor:
        """[N] the most probable class of the target's group, in whichever parts it is."""
        rivals = partition.slots(partition.split(target)[0])  # [N, S]
        places = self.local[rivals]
        log_probs = self._joint(self.part._log_prob(rows), rows)  # [N, V of the part]
        found = log_probs.gather(1, places.clamp(min=0)).masked_fill(places < 0, -torch.inf)  # [N, S]
        best = self.of_parts(found).amax(0).argmax(-1, keepdim=True)  # [N, 1]
        return rivals.gather(1, best).squeeze(1)

    # ---- classes that are examples ----

    def learn_classes(self, vectors: Tensor, classes: Tensor) -> None:
        self._check_range(classes)
        self.part.learn_classes(vectors, classes)

    def forget_classes(self) -> None:
        self.part.forget_classes()

    def fit_temperature(self, hidden: Tensor, target: Tensor) -> None:
        with self.common_rows():
            self.part.fit_temperature(hidden, target)

    def find_hard_classes(self, vectors: Tensor, classes: Tensor) -> None:
        self.part.find_hard_classes(vectors, classes)

    @property
    def hard_classes(self) -> Tensor | None:
        return self.part.hard_classes

    def _set_prior(self, log_prior: Tensor) -> None:
        raise ValueError("init_prior: before the head is split")


class Rows:
    """Which of the rows of all ranks are a rank's own."""

    def __init__(self, sizes: list[int], rank: int) -> None:
        self._sizes, self._rank = sizes, rank

    def __call__(self, values: Tensor) -> Tensor:
        """[N, ...] -> [n, ...]."""
        return values.split(self._sizes)[self._rank]


def _without_data(head: Head) -> Head:
    """A copy that takes no memory."""
    memo: dict[int, Any] = {} if head.partition is None else {id(head.partition): head.partition}
    for tensor in head.state_dict(keep_vars=True).values():
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = (
            nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
        )
    return copy.deepcopy(head, memo)


def _take_part(head: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before loading: a state dict is that of a whole head."""
    for name in head.part.state_dict():
        if prefix + name in state_dict:
            table = state_dict.pop(prefix + name)
            state_dict[f"{prefix}part.{name}"] = head.own_rows(table) if name in head._tables else table
