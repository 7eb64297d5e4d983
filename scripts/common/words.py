"""A language model of words as it was before subwords: an LSTM trained by SGD, with any head."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from lm.text.sources import Source
from sqrtvocab import Head, Partition
from sqrtvocab.training.optimizer import make_adam, make_sgd

_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
_END = "<end>"
_START = 0.1  # embeddings begin within ± this


@dataclass(frozen=True)
class Words:
    """A text as the numbers of its words: V − 1 of them, and one for all others."""

    train: Tensor  # [N]
    validation: Tensor
    vocab_size: int

    @property
    def counts(self) -> Tensor:
        """[V] how often each word occurs in training."""
        return torch.bincount(self.train, minlength=self.vocab_size)


def read_words(source: Source, vocab_size: int, train: int, validation: int) -> Words:
    """The first words of a source, so many for training and for validation."""
    texts = list(islice(_split(source.train), train))
    known = [word for word, _ in Counter(texts).most_common(vocab_size - 1)]
    number = {word: index for index, word in enumerate(known)}

    def numbers(words: Iterable[str]) -> Tensor:
        return torch.tensor([number.get(word, vocab_size - 1) for word in words])

    return Words(numbers(texts), numbers(islice(_split(source.validation), validation)), vocab_size)


def _split(documents: Iterable[str]) -> Iterator[str]:
    for text in documents:
        yield from _WORD.findall(text)
        yield _END


def _dealt(counts: Tensor) -> Partition:
    """The most frequent word to the first group, the next to the second, and round again."""
    ranks = counts.argsort(descending=True, stable=True).argsort()  # [V]
    return Partition.from_groups(ranks % math.isqrt(len(counts)))


def _equal_mass(counts: Tensor) -> Partition:
    """√V stretches of equally many tokens, from the most frequent word down. A word that fills several is a
    group of its own."""
    order = counts.argsort(descending=True, stable=True)
    before = counts[order].double().cumsum(0) - counts[order]  # [V] tokens of words more frequent
    stretch = (before / counts.sum() * math.isqrt(len(counts))).long()
    return Partition.from_groups(stretch.unique(return_inverse=True)[1][order.argsort()])


# Counts [V] -> groups.
GROUPINGS: dict[str, Callable[[Tensor], Partition]] = {
    "frequency": Partition.by_frequency,
    "random": lambda counts: Partition.random(len(counts)),
    "dealt": _dealt,
    "equal mass": _equal_mass,
}


@dataclass(frozen=True)
class Recipe:
    """How the model is made and trained: as in PyTorch's word_language_model, without dropout."""

    optimizer: str
    lr: float
    slower: float | None = None
    """The rate of layers for which the head asks a smaller one under SGD, in parts of `lr`; None does as the
    head asks."""
    width: int = 200
    layers: int = 2
    batch: int = 20
    span: int = 35  # words through which gradients flow back
    clip: float = 0.25


class WordModel(nn.Module):
    """An embedding, an LSTM, a head."""

    def __init__(self, head: Head, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(head.num_classes, head.in_features)
        nn.init.uniform_(self.embedding.weight, -_START, _START)
        self.lstm = nn.LSTM(head.in_features, head.in_features, layers, batch_first=True)
        self.head = head


@dataclass(frozen=True)
class Trained:
    """What became of a training."""

    loss: float
    """Of the validation text, in nats a word."""
    training_loss: float
    """Of the last tenth of the steps."""
    cpu_seconds: float
    """Of the steps."""


def train_words(words: Words, head: Head, recipe: Recipe, seed: int) -> Trained:
    """Train a model with this head for one epoch of `words`."""
    torch.manual_seed(seed)
    model = WordModel(head, recipe.layers)
    if recipe.optimizer == "adam":
        optimizer = make_adam([{"params": model.parameters()}], head, lr=recipe.lr)
    else:
        optimizer = make_sgd([{"params": model.parameters()}], head, recipe.lr, words.counts)
        for group in optimizer.param_groups:
            if group["lr"] < recipe.lr and recipe.slower is not None:
                group["lr"] = recipe.slower * recipe.lr
    began, losses = time.process_time(), []
    for _, loss in _spans(model, words.train, recipe):
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        losses.append(loss.item())
    seconds = time.process_time() - began
    model.eval()
    with torch.no_grad():
        parts = [(count, loss.item()) for count, loss in _spans(model, words.validation, recipe)]
    total = sum(count for count, _ in parts)
    last = losses[-max(1, len(losses) // 10) :]
    return Trained(sum(count * loss for count, loss in parts) / total, sum(last) / len(last), seconds)


def _spans(model: WordModel, text: Tensor, recipe: Recipe) -> Iterator[tuple[int, Tensor]]:
    """The text in `batch` columns, a span at a time: how many words it predicts, and their mean loss."""
    columns = text[: len(text) // recipe.batch * recipe.batch].view(recipe.batch, -1)  # [B, N / B]
    state: tuple[Tensor, ...] | None = None
    for start in range(0, columns.shape[1] - 1, recipe.span):
        target = columns[:, start + 1 : start + 1 + recipe.span]  # [B, L]
        inputs = columns[:, start : start + target.shape[1]]
        hidden, state = model.lstm(model.embedding(inputs), state)  # [B, L, d]
        state = tuple(part.detach() for part in state)
        yield target.numel(), model.head(hidden, target).loss
