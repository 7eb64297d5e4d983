"""From the settings of a run to its text, its tokenizer and its model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from transformers import GPT2Config, GPTNeoConfig, LlamaConfig, PreTrainedConfig

from lm.config import TrainConfig
from lm.model import CompressedLM, CompressedLMConfig, token_order
from lm.text.corpus import pieces
from lm.text.sources import Source
from lm.text.tokenizer import TextTokenizer, load_tokenizer, make_tokenizer, vocab_size_of
from sqrtvocab import HeadCost, Partition
from sqrtvocab.heads import head_class
from sqrtvocab.training import UserError

GPT_NEO_WINDOW = 256  # of its local attention, in the paper


def open_tokenizer(spec: str, source: Source, cache: Path) -> TextTokenizer:
    """The tokenizer that `--tokenizer` names; one that is trained on the data is trained once and kept.

    Raises:
        UserError: see `make_tokenizer`; or a cache that cannot be written.
    """
    if not spec.startswith("train:"):
        return make_tokenizer(spec)
    vocab_size_of(spec)  # a wrong one is refused before there is a file of that name
    key = hashlib.sha256(json.dumps([spec, source.train.fingerprint()]).encode()).hexdigest()[:12]
    path = cache / f"tokenizer-{spec.removeprefix('train:')}-{key}.json"
    tokenizer = _kept(path)
    if tokenizer is None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock")):  # of several processes one trains, the others wait
                tokenizer = _kept(path)
                if tokenizer is None:
                    # In pieces, with the same words: a huge text would take a hundred times its size.
                    texts = (piece for text in source.train for piece in pieces(text))
                    tokenizer = make_tokenizer(spec, lambda: texts)
                    tokenizer.save(path)
        except OSError as error:
            raise UserError(f"--cache {cache}: cannot be written ({error.strerror or error})") from error
    return replace(tokenizer, name=spec)


def _kept(path: Path) -> TextTokenizer | None:
    try:
        return load_tokenizer(path)
    except UserError:  # there is none, or a torn one
        return None


def backbone_config(config: TrainConfig, tokenizer: TextTokenizer) -> PreTrainedConfig:
    """The backbone's configuration for `transformers`."""
    common: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.end,
        "eos_token_id": tokenizer.end,
        "tie_word_embeddings": config.tie_embeddings,
    }
    if config.backbone == "gpt2":
        return GPT2Config(
            n_embd=config.hidden_size,
            n_layer=config.num_layers,
            n_head=config.num_attention_heads,
            n_positions=config.seq_len,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            **common,
        )
    if config.backbone == "gpt-neo":
        pairs, odd = divmod(config.num_layers, 2)
        return GPTNeoConfig(
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            num_heads=config.num_attention_heads,
            max_position_embeddings=config.seq_len,
            attention_types=[[["global", "local"], pairs]] * (pairs > 0) + [[["global"], 1]] * odd,
            window_size=GPT_NEO_WINDOW,
            resid_dropout=config.dropout,
            embed_dropout=config.dropout,
            attention_dropout=config.dropout,
            **common,
        )
    return LlamaConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_attention_heads,
        intermediate_size=4 * config.hidden_size,
        max_position_embeddings=config.seq_len,
        **common,
    )


def build_model(
    config: TrainConfig,
    tokenizer: TextTokenizer,
    counts: npt.NDArray[np.int64],
    vectors: torch.Tensor | None = None,
) -> tuple[CompressedLM, Partition]:
    """A new model, and the partition that says what "group" means for it.

    Args:
        counts: [V] how often each token occurs in the training text.
        vectors: [V, any] what `--grouping clusters` groups the tokens by; without it, the order of the tokens
            is only a place for the one that comes with the weights to be loaded.

    Raises:
        UserError: more groups than tokens.
    """
    frequencies = torch.from_numpy(counts)
    if config.num_groups is not None and config.num_groups > len(counts):
        raise UserError(f"--num-groups {config.num_groups}: there are only {len(counts):,} tokens")
    if config.grouping != "clusters":
        order = token_order(config.grouping, frequencies, config.seed)
    elif vectors is None:
        order = torch.arange(len(counts))
    else:
        order = Partition.by_clusters(vectors, config.num_groups, frequencies, config.seed).order
    kind = head_class(config.head)
    offered = {
        "bias": config.prior,  # GPT-2's own output layer has none; a prior needs one
        "chunk_size": config.chunk_size,
        "modulation": config.modulation,
        "rank": config.rank,
    }
    options = {name: value for name, value in offered.items() if value is not None and kind.takes(name)}
    is_ordered = order is not None and (kind.takes("partition") or kind.takes("order"))
    model = CompressedLM(
        CompressedLMConfig(
            text_config=backbone_config(config, tokenizer),
            head=config.head,
            num_groups=config.num_groups,
            ordered=is_ordered,
            head_options=options or None,
            tie_word_embeddings=config.tie_embeddings,
            adapter=config.adapter,
        ),
        order=order if is_ordered else None,
    )
    if config.prior:
        model.head.init_prior(frequencies)
    return model, model.head.partition or Partition(len(counts), config.num_groups, order)


def parameter_table(model: CompressedLM) -> dict[str, int]:
    """How many parameters each part has; tied ones count as the embedding's, an adapter as the head's."""
    total = sum(parameter.numel() for parameter in model.parameters())
    embedding = sum(parameter.numel() for parameter in model.get_input_embeddings().parameters())
    shared = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    ours = [*model.head.parameters(), *(model.adapter.parameters() if model.adapter else ())]
    head = sum(parameter.numel() for parameter in ours if id(parameter) not in shared)
    return {
        "token embedding": embedding,
        "transformer": total - embedding - head,
        "head": head,
        "total": total,
    }


def head_cost(model: CompressedLM, counts: npt.NDArray[np.int64]) -> HeadCost:
    """What the head, and an adapter below it, cost on tokens as frequent as `counts` [V] says."""
    cost = model.head.cost(torch.from_numpy(counts))
    adapter = 0 if model.adapter is None else model.adapter.weight.numel()
    return replace(cost, multiply_adds=cost.multiply_adds + adapter)
