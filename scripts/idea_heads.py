"""The ideas of `explore_heads.py`: heads that are not in the library, and how each is trained. No command."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm
from transformers import GPT2Config

from lm.evaluate import some_windows
from lm.model import CompressedLM, CompressedLMConfig
from lm.text.corpus import Corpus
from lm.build import parameter_groups
from sqrtvocab import HeadOutput, Partition
from sqrtvocab.heads import GroupedLinearHead
from sqrtvocab.heads.base import reset_linear, token_nll
from sqrtvocab.heads.per_group import PerGroupHead
from sqrtvocab.training import BatchPlan, learning_rate

if TYPE_CHECKING:
    from explore_heads import Config


# ---- heads that are not in the library ----


class ShortlistHead(nn.Module):
    """The K most frequent classes get more than their share; the rest is grouped-linear, G groups.

    Args:
        whole: "group": the K are one large first group. "outputs": each of the K stands beside the groups in
            the first softmax, as a group of its own.
    """

    def __init__(self, d: int, counts: Tensor, size: int, num_groups: int, whole: str) -> None:
        super().__init__()
        self.size, self.whole = size, whole
        order = Partition.by_frequency(counts).order
        assert order is not None
        self.register_buffer("position", torch.argsort(order))  # [V] class -> rank
        prior = (counts.double() + 1)[order]
        self.tail = GroupedLinearHead(d, len(counts) - size, num_groups)
        self.tail.init_prior(prior[size:] - 1)
        self.tail.group = nn.Identity()  # the groups are scored in `top`
        self.first = nn.Linear(d, size)  # scores of the K
        self.top = nn.Linear(d, num_groups + (1 if whole == "group" else 0))
        with torch.no_grad():
            log_prior = (prior / prior.sum()).log()
            sums = [
                part.logsumexp(0) for part in log_prior[size:].split(self.tail.partition.sizes().tolist())
            ]
            first = log_prior[:size]
            if whole == "group":
                sums = [first.logsumexp(0), *sums]
                first = first - first.logsumexp(0)
            self.first.bias.copy_(first)
            self.top.bias.copy_(torch.stack(sums))

    def forward(
        self, hidden: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean"
    ) -> HeadOutput:
        hidden, target = hidden.flatten(0, -2), target.flatten()
        kept = target != ignore_index
        hidden, rank = hidden[kept], self.position[target[kept]]  # [N, d], [N]
        frequent = rank < self.size
        inside, outside = frequent.nonzero().squeeze(1), (~frequent).nonzero().squeeze(1)
        tail_rank = rank[outside] - self.size
        tail_group, tail_member = self.tail.partition.split(tail_rank)
        nll = hidden.new_zeros(len(hidden))
        if self.whole == "group":
            group = torch.zeros_like(rank).index_copy(0, outside, tail_group + 1)
            first = token_nll(self.top(hidden), group, 0.0, 0.0)
            second = token_nll(self.first(hidden[inside]), rank[inside], 0.0, 0.0)
            nll = nll.index_add(0, inside, second)
        else:
            slot = rank.index_copy(0, outside, tail_group + self.size)
            logits = torch.cat([self.first(hidden), self.top(hidden)], -1)  # [N, K + G]
            first = token_nll(logits, slot, 0.0, 0.0)
        nll = nll.index_add(0, outside, self.tail._member_nll(hidden[outside], tail_group, tail_member, 0.0))
        parts = [first.sum(), nll.sum()]
        if reduction == "mean":
            parts = [part / kept.sum() for part in parts]
        return HeadOutput(parts[0] + parts[1], parts[0], parts[1])


class AdaptedHead(GroupedLinearHead):
    """grouped-linear, tied to the embedding, which sees the hidden state through a d x d matrix.

    Only its loss: `log_prob` and `predict` know nothing of the matrix.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapter = nn.Linear(self.in_features, self.in_features)
        nn.init.eye_(self.adapter.weight)
        nn.init.zeros_(self.adapter.bias)

    def _grouped_product(self, rows: Tensor, groups: Tensor) -> Tensor:
        return super()._grouped_product(self.adapter(rows), groups)


class NarrowHead(PerGroupHead):
    """grouped-linear on R numbers, a linear map of the hidden state: R·(V + d) parameters.

    A class vector is any combination of R vectors that all classes share, wherever their place in a group:
    the plain factorisation of the V x d matrix. Only its loss.
    """

    def __init__(self, d: int, num_classes: int, partition: Partition, rank: int) -> None:
        super().__init__(d, num_classes, partition=partition)
        self.shared = nn.Parameter(torch.empty(rank, d))
        self.scale = nn.Parameter(torch.empty(partition.num_groups, self.width, rank))
        self.reset_parameters()
        reset_linear(self.shared, d)
        nn.init.normal_(self.scale, std=rank**-0.5)

    def member_weight(self) -> Tensor:
        return self.scale @ self.shared  # [G, width, d]

    def _member_scores(self, hidden: Tensor, groups: Tensor | None) -> Tensor:
        raise NotImplementedError


class DeepGroup(nn.Module):
    """The group's logits from a hidden layer of width 4·d, instead of one linear layer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.wide = nn.Linear(linear.in_features, 4 * linear.in_features)
        self.last = nn.Linear(4 * linear.in_features, linear.out_features)
        with torch.no_grad():
            self.last.bias.copy_(linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.last(F.gelu(self.wide(hidden)))


# ---- the ideas ----


@dataclass(frozen=True)
class Setting:
    """What an idea may look at."""

    config: Config
    vocab_size: int
    counts: Tensor
    """[V] of the training text."""
    corpus: Corpus
    train: Callable[[CompressedLM], float]
    """A first training, for ideas that learn from one; returns its seconds."""


def compressed(setting: Setting, head: str, order: Tensor | None = None, **options: Any) -> CompressedLM:
    """The backbone with a head of the library."""
    config = setting.config
    torch.manual_seed(config.seed)
    backbone = GPT2Config(
        vocab_size=setting.vocab_size,
        n_embd=config.hidden_size,
        n_layer=config.num_layers,
        n_head=config.num_attention_heads,
        n_positions=config.seq_len,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    settings = {key: options.pop(key) for key in ("num_groups", "tie_word_embeddings") if key in options}
    ordered = {"ordered": order is not None, "head_options": options or None}
    return CompressedLM(
        CompressedLMConfig(text_config=backbone, head=head, **settings, **ordered), order=order
    )


def grouped_linear(setting: Setting, order: Tensor | None = None, **options: Any) -> CompressedLM:
    """The recipe to beat: groups by frequency, prior."""
    if order is None:
        order = Partition.by_frequency(setting.counts).order
    model = compressed(setting, "grouped-linear", order, **options)
    model.head.init_prior(setting.counts)
    return model


def light(setting: Setting, **options: Any) -> CompressedLM:
    """The paper's light head with prior and groups by frequency."""
    model = compressed(setting, "grouped", Partition.by_frequency(setting.counts).order, **options)
    model.head.init_prior(setting.counts)
    return model


def deep_group(setting: Setting) -> CompressedLM:
    model = grouped_linear(setting)
    model.head.group = DeepGroup(model.head.group)
    return model


def shortlist(size: int, whole: str) -> Callable[[Setting], CompressedLM]:
    def make(setting: Setting) -> CompressedLM:
        model = grouped_linear(setting)
        groups = math.isqrt(setting.vocab_size - size)
        model.head = ShortlistHead(setting.config.hidden_size, setting.counts, size, groups, whole)
        return model

    return make


def adapted(setting: Setting) -> CompressedLM:
    model = grouped_linear(setting, tie_word_embeddings=True)
    head = AdaptedHead(
        setting.config.hidden_size,
        setting.vocab_size,
        partition=model.head.partition,
        weight=model.get_input_embeddings().weight,
    )
    head.init_prior(setting.counts)
    model.head = head
    return model


def low_rank(rank: int) -> Callable[[Setting], CompressedLM]:
    def make(setting: Setting) -> CompressedLM:
        order = Partition.by_frequency(setting.counts).order
        model = compressed(setting, "grouped-low-rank", order, rank=rank)
        model.head.init_prior(setting.counts)
        return model

    return make


def narrow(rank: int) -> Callable[[Setting], CompressedLM]:
    def make(setting: Setting) -> CompressedLM:
        model = light(setting)
        head = NarrowHead(setting.config.hidden_size, setting.vocab_size, model.head.partition, rank)
        head.init_prior(setting.counts)
        model.head = head
        return model

    return make


@torch.no_grad()
def reallocated(setting: Setting) -> CompressedLM:
    """LightRNN's idea: train, then give each token the group that predicts it best, and train anew.

    The table holds, for each token and group, the log-probability of the group where the token occurred.
    Tokens choose in the order of what a wrong group would cost them; a full group is closed.
    """
    with torch.enable_grad():
        first = grouped_linear(setting)
        setting.train(first)
    partition, config = first.head.partition, setting.config
    table = torch.zeros(setting.vocab_size, partition.num_groups)  # [V, G]
    plan = BatchPlan(setting.corpus.train.windows(config.seq_len), config.batch_size, 1, config.seed)
    for batch in list(plan.batches(0, config.steps)):
        inputs, targets = setting.corpus.train.batch(batch, config.seq_len)
        hidden = first.backbone(input_ids=inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        table.index_add_(0, targets.flatten(), F.log_softmax(first.head.group(hidden), -1))
    room = partition.sizes()
    best = table.topk(2, dim=-1).values
    chosen: list[list[int]] = [[] for _ in room]
    left = []
    # A token that never occurred has no preference; it fills what remains.
    for token in torch.argsort(best[:, 0] - best[:, 1], descending=True).tolist():
        if not table[token].any():
            left.append(token)
            continue
        scores = table[token].masked_fill(room == 0, -math.inf)
        group = int(scores.argmax())
        room[group] -= 1
        chosen[group].append(token)
    for group, free in enumerate(room.tolist()):
        chosen[group] += [left.pop() for _ in range(free)]
    order = torch.tensor([token for group in chosen for token in group])
    return grouped_linear(setting, order)


def clustered(setting: Setting) -> CompressedLM:
    """Train, then group the tokens whose output vectors are alike, and train anew."""
    first = grouped_linear(setting)
    setting.train(first)
    partition = first.head.partition
    group, member = partition.split(torch.arange(setting.vocab_size))
    vectors = first.head.weight.detach()[group, member]  # [V, d]
    return grouped_linear(setting, Partition.by_clusters(vectors, partition.num_groups, setting.counts).order)


IDEAS: dict[str, tuple[str, Callable[[Setting], CompressedLM]]] = {
    "grouped-linear": ("grouped-linear, 224 groups by frequency, prior: the recipe to beat", grouped_linear),
    **{
        f"groups-{count}": (f"{count} groups", lambda s, count=count: grouped_linear(s, num_groups=count))
        for count in (28, 56, 112, 448, 896)
    },
    "trained-twice": ("trained twice as long: what `reallocated` and `clusters` cost", grouped_linear),
    "deep-group": ("the group from a hidden layer of width 4·d", deep_group),
    "first-group-1024": ("one large first group of 1,024", shortlist(1024, "group")),
    "first-group-4096": ("one large first group of 4,096", shortlist(4096, "group")),
    "shortlist-256": ("the 256 most frequent beside the groups", shortlist(256, "outputs")),
    "shortlist-1024": ("the 1,024 most frequent beside the groups", shortlist(1024, "outputs")),
    "tied": ("tied to the embedding", lambda s: grouped_linear(s, tie_word_embeddings=True)),
    "tied-adapter": ("tied to the embedding, through a d x d matrix", adapted),
    "reallocated": ("groups chosen anew from the loss table (LightRNN)", reallocated),
    "clusters": ("groups of like output vectors, from a first training", clustered),
    "light": ("the paper's head, frequency, prior", light),
    "film": ("film, frequency, prior", lambda s: light(s, modulation="film")),
    "both": ("film and scale-shift, frequency, prior", lambda s: light(s, modulation="both")),
    **{
        f"low-rank-{rank}": (f"{rank} shared layers, frequency, prior", low_rank(rank))
        for rank in (2, 4, 8, 16, 32)
    },
    **{f"narrow-{rank}": (f"grouped-linear through {rank} numbers", narrow(rank)) for rank in (16, 32)},
}


# ---- training ----


def train_and_score(model: CompressedLM, corpus: Corpus, config: Config, title: str) -> tuple[float, float]:
    """(validation loss in nats a token, seconds of training), with the settings of `train_lm`."""
    plan = BatchPlan(corpus.train.windows(config.seq_len), config.batch_size, 1, config.seed)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), betas=(0.9, 0.95), fused=True)
    model.train()
    began = time.perf_counter()
    steps = enumerate(plan.batches(0, config.steps))
    for step, batch in tqdm(steps, title, config.steps, leave=False, mininterval=1.0):
        inputs, targets = corpus.train.batch(batch, config.seq_len)
        lr = learning_rate(
            step, peak=config.lr, total_steps=config.steps, warmup_steps=config.steps // 4, schedule="cosine"
        )
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = model(input_ids=inputs, shift_labels=targets).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    seconds = time.perf_counter() - began
    model.eval()
    total = count = 0.0
    windows = some_windows(corpus.validation, config.seq_len, config.eval_tokens)
    with torch.no_grad():
        for first in range(0, len(windows), config.batch_size):
            batch = windows[first : first + config.batch_size]
            inputs, targets = corpus.validation.batch(batch, config.seq_len)
            total += float(model(input_ids=inputs, shift_labels=targets, num_items_in_batch=1).loss)
            count += int((targets != -100).sum())
    return total / count, seconds
