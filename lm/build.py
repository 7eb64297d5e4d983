"""From the settings of a run to its text, its tokenizer and its model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import nn
from tqdm import tqdm
from transformers import GPT2Config, GPTNeoConfig, LlamaConfig, PreTrainedConfig

from lm.config import TrainConfig
from lm.model import CompressedLM, CompressedLMConfig, token_order
from lm.text.corpus import Corpus, open_corpus, pieces
from lm.text.sources import Source, open_source
from lm.text.tokenizer import TextTokenizer, keep_occurring, load_tokenizer, make_tokenizer, vocab_size_of
from sqrtvocab import Head, HeadCost, Partition
from sqrtvocab.cache import default_cache
from sqrtvocab.heads import head_class, make_head
from sqrtvocab.training import BatchPlan, RunFolder, Runtime, UserError, write_text
from sqrtvocab.training.memory import bytes_of_state, require_free, require_memory
from sqrtvocab.training.optimizer import make_adam, make_sgd, require_sparse_support

GPT_NEO_WINDOW = 256  # of its local attention, in the paper


def open_text(
    config: TrainConfig, folder: RunFolder, say: Callable[[str], None]
) -> tuple[Source, TextTokenizer, Corpus]:
    """The text of a run, its tokenizer, and the text in tokens; on resuming, those that the run has.

    Raises:
        UserError: for data or a tokenizer that cannot be used, or a head that needs more than text has.
    """
    if head_class(config.head).rows_per_class > 1:
        raise UserError(
            f"--head {config.head}: needs batches with several rows of each class, and text has each token "
            "as often as it comes"
        )
    if missing := set(head_class(config.head).needs) - {"partition", "order", "weight"}:
        raise UserError(f"--head {config.head}: needs {', '.join(sorted(missing))}, which text does not have")
    cache, saved = config.cache or default_cache(), folder.saved
    data = data_of(config, saved)
    source = open_source(data, config.valid_fraction, config.text_column, say)
    if config.data == "auto" and data != "auto":
        source = replace(source, note=saved.get("data_note", ""))
    # The file that a tokenizer came from may be gone, so the run's copy is taken. One learnt from the data is
    # looked up instead: it tells whether these have changed.
    copy = folder.path / "tokenizer.json"
    is_same = all(vars(config)[name] == saved.get(name) for name in ("tokenizer", "vocab"))
    is_same = is_same and not config.tokenizer.startswith("train:")
    if is_same and copy.is_file():
        tokenizer = replace(load_tokenizer(copy), name=config.tokenizer)
    else:
        tokenizer = open_vocabulary(config, source, cache, say)
    return source, tokenizer, open_corpus(source, tokenizer, cache, say)


def data_of(config: TrainConfig, saved: Mapping[str, Any]) -> str:
    """The text to train on: on resuming, what the run has used so far.

    Args:
        saved: the settings of the run to continue; empty for a new one.
    """
    # `auto` might find something else today, and a relative path means nothing in another folder.
    moved = config.data == saved.get("data") and not Path(config.data).exists()
    return str(saved.get("data_used", config.data)) if config.data == "auto" or moved else config.data


def open_vocabulary(
    config: TrainConfig, source: Source, cache: Path, say: Callable[[str], None]
) -> TextTokenizer:
    """The tokenizer that `--tokenizer` names, with the tokens that `--vocab` leaves.

    Raises:
        UserError: see `open_tokenizer` and `keep_occurring`.
    """
    tokenizer = open_tokenizer(config.tokenizer, source, cache)
    if config.vocab == "whole":
        return tokenizer
    return keep_occurring(tokenizer, open_corpus(source, tokenizer, cache, say).train.counts)


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
                    tokenizer = make_tokenizer(spec, lambda: _watched(source, spec))
                    write_text(path.with_suffix(".sha256"), tokenizer.digest)
                    tokenizer.save(path)
        except OSError as error:
            raise UserError(f"--cache {cache}: cannot be written ({error.strerror or error})") from error
    return replace(tokenizer, name=spec)


def _watched(source: Source, spec: str) -> Iterator[str]:
    """The training text, with a progress bar: to learn 100,000 tokens from 250 MB takes minutes."""
    with tqdm(total=source.train.size, unit="B", unit_scale=True, delay=1, leave=False) as bar:
        bar.set_description(f"--tokenizer {spec}: counting words", refresh=False)
        for text in source.train:
            # In pieces, with the same words: a huge text would take a hundred times its size.
            for piece in pieces(text):
                yield piece
                bar.update(len(piece.encode()))


def _kept(path: Path) -> TextTokenizer | None:
    digest = path.with_suffix(".sha256")
    try:
        tokenizer = load_tokenizer(path)
    except UserError:  # there is none, or a torn one
        return None
    # A damaged one would be another vocabulary. (Older versions kept no digest.)
    is_sound = not digest.exists() or digest.read_bytes() == tokenizer.digest.encode()
    return tokenizer if is_sound else None


def backbone_config(config: TrainConfig, tokenizer: TextTokenizer) -> PreTrainedConfig:
    """The backbone's configuration for `transformers`."""
    # The tanh GELU of GPT-2 and GPT-Neo in one kernel instead of five; the values differ by rounding.
    gelu: dict[str, Any] = {"activation_function": "gelu_pytorch_tanh"}
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
            **gelu,
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
            **gelu,
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
        vectors: [V, any] what `--grouping clusters` and `discovered` go by; without it, the order of the
            tokens is only a place for the one that comes with the weights to be loaded.

    Raises:
        UserError: more groups than tokens, or a model that no memory holds.
    """
    d, layers = config.hidden_size, config.num_layers
    weights = len(counts) * d + 12 * layers * d * d  # the embedding and the blocks; a head, too, has some
    require_free(4 * weights, f"--hidden-size {d} --num-layers {layers}")
    frequencies = torch.from_numpy(counts)
    if config.num_groups is not None and config.num_groups > len(counts):
        raise UserError(f"--num-groups {config.num_groups}: there are only {len(counts):,} tokens")
    finders = {"clusters": Partition.by_clusters, "discovered": Partition.discovered}
    if config.grouping not in finders:
        order = token_order(config.grouping, frequencies, config.seed)
    elif vectors is None:
        order = torch.arange(len(counts))
    else:
        order = finders[config.grouping](vectors, config.num_groups, frequencies, config.seed).order
    kind = head_class(config.head)
    options = config.given_head_options()
    if kind.takes("bias"):
        options["bias"] = config.prior  # GPT-2's own output layer has none; a prior needs one
    is_ordered = order is not None and (kind.takes("partition") or kind.takes("order"))
    try:
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
    except ValueError as error:  # such as more samples than tokens
        raise UserError(f"--head {config.head}: {error}") from error
    if config.prior:
        model.head.init_prior(frequencies)
    return model, model.head.partition or Partition(len(counts), config.num_groups, order)


def parameter_groups(model: CompressedLM, weight_decay: float) -> list[dict[str, object]]:
    """Decay the backbone's matrices only: not its embeddings, not the head, whose shift holds the prior, not
    the adapter, which begins as the identity."""
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in model.backbone.parameters():
        is_matrix = parameter.dim() >= 2 and id(parameter) not in embeddings
        (decayed if is_matrix else kept).append(parameter)
    ours = {id(parameter) for parameter in (*decayed, *kept)}
    top = [*model.head.parameters(), *(model.adapter.parameters() if model.adapter else ())]
    kept += [parameter for parameter in top if id(parameter) not in ours]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def make_optimizer(
    model: CompressedLM, config: TrainConfig, counts: npt.NDArray[np.int64]
) -> torch.optim.Optimizer:
    """AdamW as GPT-2 and its successors are trained, or SGD.

    Args:
        counts: [V] how often each token occurs in the training text.
    """
    groups = parameter_groups(model, config.weight_decay)
    if config.optimizer == "sgd":
        return make_sgd(groups, model.head, config.lr, torch.from_numpy(counts))
    return make_adam(groups, model.head, torch.optim.AdamW, lr=config.lr, betas=(0.9, 0.95))


def require_room(model: CompressedLM, config: TrainConfig, plan: BatchPlan, runtime: Runtime) -> None:
    """Refuse micro-batches that the memory of the CPU does not hold, and gradients that cannot be had.

    Raises:
        UserError: saying what a step takes.
    """
    require_sparse_support(model.head, config.head, runtime, config.compile)
    if (
        runtime.device.type != "cpu" or model.head.is_split
    ):  # a GPU says itself what it lacks; a part is small
        return
    sequences, length = min(config.batch_size, -(-plan.items(0) // plan.world_size)), config.seq_len
    kept = 1 if config.checkpoint_activations else 8  # hidden states of a block, at least, for its gradient
    states = sequences * length * config.hidden_size * config.num_layers * kept

    def loss(twin: nn.Module) -> torch.Tensor:
        ids = torch.zeros(sequences, length, dtype=torch.int64)
        with runtime.autocast():
            return twin(input_ids=ids, shift_labels=ids, num_items_in_batch=1).loss

    flags = f"--batch-size {sequences} with --seq-len {length}"

    def optimizer(twin: nn.Module) -> torch.optim.Optimizer:
        if config.optimizer == "sgd":  # whatever its rates
            return torch.optim.SGD(twin.parameters(), lr=config.lr)
        return make_adam([{"params": twin.parameters()}], cast(CompressedLM, twin).head, torch.optim.AdamW)

    least = bytes_of_state(model, model.head, config.optimizer) + 4 * states
    require_memory(model, optimizer, loss, least, flags)


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


def describe_costs(model: CompressedLM, counts: npt.NDArray[np.int64], tokens: int) -> dict[str, str]:
    """A phrase for what the head costs in micro-batches of so many tokens, and one for the flat head."""
    with torch.device("meta"):
        flat = make_head("flat", model.head.in_features, model.head.num_classes)
    costs = {"costs": head_cost(model, counts), "flat costs": flat.cost()}
    return {name: cost.describe(tokens, "token") for name, cost in costs.items()}


def describe_head(config: TrainConfig, head: Head, partition: Partition) -> str:
    """One line about the head; `partition` is what group accuracy is reported by."""
    parts = [
        config.head,
        head.describe(),
        f"by {config.grouping}" if head.has_groups or head.frequent_first else None,
        "prior" if config.prior else None,
        "through an adapter" if config.adapter else None,
    ]
    groups = f"{partition.num_groups:,} groups of at most {partition.group_size:,} classes"
    known = "" if head.has_groups else f"; group accuracy by {groups}, by {config.grouping}"
    return ", ".join(filter(None, parts)) + known
