"""A run folder of `train_lm`: what is in it, and how a trained model comes out of it again.

config.json      the settings of the run
tokenizer.json   its tokenizer
best/, last/     checkpoints; each is also a folder for `transformers`, with tokenizer and model card
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from lm.config import TrainConfig
from lm.hub import CODE, CODE_FILE, model_card, tokenizer_files
from lm.model import CompressedLM
from lm.text.tokenizer import TextTokenizer, load_tokenizer
from sqrtvocab import Head, Partition
from sqrtvocab.atomic import read_json, read_sealed, sealed
from sqrtvocab.errors import UserError
from sqrtvocab.training import Document, Runtime, load_checkpoint, read_config, write_json


@dataclass(frozen=True)
class TrainedRun:
    """A trained model and what belongs to it."""

    config: TrainConfig
    settings: dict[str, Any]  # of the run, with what was resolved at its start
    state: dict[str, Any]  # of the checkpoint
    model: CompressedLM
    tokenizer: TextTokenizer


def load_run(run: Path, checkpoint: str, runtime: Runtime) -> TrainedRun:
    """The model of a run, ready to be used.

    Raises:
        UserError: no run, no checkpoint, a damaged one, or one that does not fit the tokenizer beside it.
    """
    settings, config = read_config(run), TrainConfig.of_run(run)
    for name, kind in {"data_used": str, "groups": int}.items():  # found out at the start of the run
        if not isinstance(settings.get(name), kind):
            path = run / "config.json"
            raise UserError(f"{path}: the setting '{name}' cannot be {settings.get(name)!r}")
    found = load_checkpoint(run, checkpoint)
    if found is None:
        raise UserError(f"{run}: no checkpoint `{checkpoint}`; the first evaluation writes it")
    logging.disable_progress_bar()  # loading takes a moment, and has nothing to say
    try:
        model = CompressedLM.from_pretrained(found.folder)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{found.folder}: cannot be loaded ({' '.join(str(error).split())[:300]})") from error
    tokenizer = load_tokenizer(run / "tokenizer.json")
    vocab_size = model.config.get_text_config().vocab_size
    if tokenizer.digest != settings.get("tokenizer_digest") or tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"{run / 'tokenizer.json'}: damaged, or not the tokenizer that this model was trained with "
            f"({tokenizer.vocab_size:,} tokens here, {vocab_size:,} in the model)"
        )
    return TrainedRun(config, settings, found.state, model.to(runtime.device).eval(), tokenizer)


def embedding_of(run: Path, tokenizer: TextTokenizer, runtime: Runtime) -> torch.Tensor:
    """The token embedding [V, d] that a run has learnt.

    Raises:
        UserError: no such run, or one with another tokenizer.
    """
    if not run.is_dir():
        raise UserError(f"--embeddings {run}: no such folder; expected the run folder of a finished train_lm")
    try:
        with torch.random.fork_rng(devices=()):  # the model that is built next must not depend on it
            trained = load_run(run, "best", runtime)
    except UserError as error:
        raise UserError(f"--embeddings {error}") from error
    if trained.tokenizer.digest != tokenizer.digest:
        raise UserError(
            f"--embeddings {run}: trained with another tokenizer ({trained.tokenizer.name}, "
            f"{trained.tokenizer.vocab_size:,} tokens) than this run's ({tokenizer.name}, "
            f"{tokenizer.vocab_size:,} tokens)"
        )
    return trained.model.get_input_embeddings().weight.detach()  # type: ignore[operator]


def model_documents(model: CompressedLM, tokenizer: TextTokenizer) -> dict[str, Document]:
    """The files beside the weights that make a checkpoint one for `from_pretrained` and `pipeline`, too."""
    context = int(model.config.max_position_embeddings)
    generation = json.loads(model.generation_config.to_json_string())
    # Without a length of its own, a `pipeline` writes 256 tokens, more than a short context holds.
    generation |= {"max_new_tokens": min(256, context // 2), "pad_token_id": tokenizer.end}
    return {
        "config.json": {**json.loads(model.config.to_json_string()), "architectures": [type(model).__name__]},
        "generation_config.json": generation,
        CODE_FILE: CODE,
        **tokenizer_files(tokenizer, context),
        "README.md": model_card,  # of the settings and the state at that time
    }


def write_partition(run: Path, head: Head, partition: Partition) -> None:
    """Keep what "group" means for a head that does not know it itself."""
    if head.partition is None and partition.order is not None:
        write_json(run / "order.json", sealed({"order": partition.order.tolist()}))


def read_partition(run: Path, head: Head, grouping: str, num_groups: int) -> Partition:
    """What "group" means for the head of this run.

    Args:
        grouping, num_groups: of the run's settings.

    Raises:
        UserError: `order.json` is damaged or missing.
    """
    if head.partition is not None:
        return head.partition
    path = run / "order.json"
    if grouping == "index":
        return Partition(head.num_classes, num_groups)
    if not path.exists():
        raise UserError(
            f"{path}: missing, and with it what a group of tokens is; take it from a backup, or from a run "
            "with the same --data, --tokenizer and --grouping"
        )
    is_plain = isinstance(read_json(path), list)  # as older versions wrote it
    order: Any = read_json(path) if is_plain else read_sealed(path).get("order")
    try:
        return Partition(head.num_classes, num_groups, torch.tensor(order))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path}: not an order of the {head.num_classes:,} tokens ({error})") from error
