"""What a run tells of itself: how it begins, and what each look at its validation text shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from lm.build import describe_costs, describe_head
from lm.config import TrainConfig
from lm.evaluate import Evaluation, TokenNames, evaluate, some_windows
from lm.model import CompressedLM
from lm.text.corpus import Corpus
from lm.text.sources import Source
from lm.text.tokenizer import TextTokenizer
from sqrtvocab import Partition
from sqrtvocab.training import BatchPlan, Runtime
from sqrtvocab.training.board import Board
from sqrtvocab.training.logbook import Logbook
from sqrtvocab.training.projector import MOST, write_projection
from sqrtvocab.training.score_figures import show_scores
from sqrtvocab.training.score_report import group_by_classes
from sqrtvocab.training.scores import BANDS
from sqrtvocab.training.tally import not_finite

BOARD = Board(
    "language",
    {
        "loss/validation_group": "The group's share of the validation loss, −log P(group).",
        "loss/validation_member": "The member's share of the validation loss, −log P(token | group).",
        "perplexity": "exp(loss).",
        "bits_per_byte": "The validation loss by length of text, which does not depend on the tokenizer.",
        "accuracy/token": "Share of the validation tokens that are the most probable one.",
        "judge": "What another language model thinks of the stories; see `judge_lm`.",
        "parameters": "How many parameters each part of the model has.",
        "samples": "Stories that the model writes.",
        "speed/tokens_per_s": "Tokens trained on each second, evaluations left out.",
    },
    {
        "loss": ("loss/train", "loss/validation"),
        "accuracy": ("accuracy/token", "accuracy/group"),
        "accuracy by frequency": tuple(f"accuracy_by_frequency/{band}" for band in BANDS),
        "loss by frequency": tuple(f"loss_by_frequency/{band}" for band in BANDS),
    },
)


class Validation:
    """The validation text of a run, the same windows every time.

    Args:
        partition: what "group" means for a head that has no groups.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: TextTokenizer,
        config: TrainConfig,
        partition: Partition,
        runtime: Runtime,
    ) -> None:
        self._tokens, self._counts, self._runtime = corpus.validation, corpus.train.counts, runtime
        self._partition, self._length, self._batch_size = partition, config.seq_len, config.batch_size
        self._windows = some_windows(corpus.validation, config.seq_len, config.eval_tokens)
        self._names: Sequence[str] = TokenNames(tokenizer)
        self._name_group = group_by_classes(partition, self._names, self._counts)

    def score(self, model: CompressedLM, step: int) -> Evaluation:
        """What `model` makes of the text; every rank gets the same result.

        Raises:
            RunError: if the loss is not finite.
        """
        result = evaluate(
            model, self._tokens, self._windows, self._length, self._partition, self._runtime, self._batch_size
        )
        if not math.isfinite(result.loss):
            raise not_finite("validation loss", step)
        return result

    def metrics(self, result: Evaluation) -> dict[str, float]:
        """For TensorBoard."""
        bits = {"bits_per_byte": result.bits_per_byte(self._tokens)}
        return {**result.scalars(), **bits, **result.scores.scalars(self._counts)}

    def show(self, book: Logbook, result: Evaluation, step: int) -> None:
        """Draw the pictures in TensorBoard."""
        if self._runtime.is_main:
            show_scores(book, result.scores, self._counts, self._name_group, "tokens", step)

    def show_tokens(self, run: Path, model: CompressedLM) -> None:
        """Show the input embeddings of the most frequent tokens in TensorBoard's projector.

        Raises:
            RunError: the disk is full.
        """
        if not self._runtime.is_main:
            return
        frequent = np.argsort(-self._counts, kind="stable")[:MOST]
        table = cast(nn.Embedding, model.backbone.get_input_embeddings()).weight.detach()  # [V, d]
        vectors = table[torch.from_numpy(frequent).to(table.device)].float().cpu().numpy()
        write_projection(run, "tokens", vectors, [self._names[int(token)] for token in frequent])

    def summary(self, metrics: Mapping[str, float]) -> str:
        """The most important of the numbers, in a phrase."""
        return (
            f"validation loss {metrics['loss/validation']:.3f}, "
            f"perplexity {metrics['perplexity/validation']:.1f}, "
            f"{metrics['bits_per_byte']:.3f} bits per byte, accuracy {metrics['accuracy/token']:.1%} "
            f"(group {metrics['accuracy/group']:.1%})"
        )


def opening_facts(
    config: TrainConfig,
    source: Source,
    tokenizer: TextTokenizer,
    corpus: Corpus,
    model: CompressedLM,
    partition: Partition,
    plan: BatchPlan,
    parameters: Mapping[str, int],
) -> dict[str, str]:
    """What is to be known of a run when it begins, in the order in which to say it."""
    length, total_steps = config.seq_len, config.total_steps(plan.steps_per_epoch)
    return {
        "data": f"{source.name}: {corpus.train.documents:,} documents, {len(corpus.train.ids):,} tokens "
        f"to train on, {len(corpus.validation.ids):,} to validate"
        + (f" ({source.note})" if source.note else ""),
        "tokenizer": f"{tokenizer.name}, {tokenizer.vocab_size:,} tokens"
        + (" (those that occur, and their parts)" if config.vocab == "occurring" else ""),
        "backbone": f"{config.backbone}, hidden {config.hidden_size}, {config.num_layers} layers, "
        f"{config.num_attention_heads} heads",
        "head": describe_head(config, model.head, partition),
        **describe_costs(model, corpus.train.counts, config.batch_size * length),
        "parameters": "; ".join(f"{part} {count:,}" for part, count in parameters.items()),
        "steps": f"{total_steps:,} of {plan.effective_batch * length:,} tokens; "
        f"{plan.steps_per_epoch:,} an epoch",
    }
