"""Stories from a model: many at once, or one as a stream of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from lm.model import CompressedLM
from lm.text.tokenizer import TextTokenizer
from sqrtvocab.training import UserError

_COLDEST, _HOTTEST = 1e-6, 1e30


def context_length(model: CompressedLM) -> int:
    """The most tokens, prompt included, that the model can look at."""
    return int(model.config.get_text_config().max_position_embeddings)


def fitting(openings: Sequence[str], tokenizer: TextTokenizer, model: CompressedLM) -> list[str]:
    """The openings that leave room for a token in the model's context."""
    return [opening for opening in openings if len(tokenizer.encode(opening)) + 1 < context_length(model)]


@torch.inference_mode()
def continue_stories(
    model: CompressedLM,
    tokenizer: TextTokenizer,
    openings: Sequence[str],
    *,
    max_tokens: int,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
    batch_size: int = 32,
) -> list[str]:
    """How the model continues each opening, up to the end of the story or `max_tokens`.

    Random numbers come from `seed` alone, and the caller's generators are left as they were. The model's
    context must hold the longest opening of a batch and its story; that may shorten all stories of the batch.

    Raises:
        UserError: an opening that leaves no room in the model's context.
    """
    was_training = model.training
    model.eval()
    results: list[str] = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for start in range(0, len(openings), batch_size):
            ids, mask = _left_padded(openings[start : start + batch_size], tokenizer)
            produced = _generate(model, tokenizer, ids, mask, max_tokens, temperature, top_k)
            results += [_continuation(row, tokenizer) for row in produced[:, ids.shape[1] :].tolist()]
    model.train(was_training)
    return results


@torch.inference_mode()
def stories_in_markdown(
    model: CompressedLM, tokenizer: TextTokenizer, openings: Sequence[str], max_tokens: int
) -> str:
    """A story for each opening that fits the model's context, as a document for people to read."""
    openings = fitting(openings, tokenizer, model)
    texts = continue_stories(model, tokenizer, openings, max_tokens=max_tokens)
    stories = (f"**{opening}**{text}" for opening, text in zip(openings, texts, strict=True))
    return "\n\n---\n\n".join(story.replace("\n", "\n\n") for story in stories)


def stream_story(
    model: CompressedLM,
    tokenizer: TextTokenizer,
    opening: str,
    write: Callable[[str], object],
    *,
    max_tokens: int,
    temperature: float,
    top_k: int,
) -> None:
    """Write the opening and then, as it comes, how the model goes on.

    Raises:
        UserError: an opening that leaves no room in the model's context.
    """
    ids, mask = _left_padded([opening], tokenizer)
    _generate(model, tokenizer, ids, mask, max_tokens, temperature, top_k, _Writer(tokenizer, write))


class _Writer(BaseStreamer):
    """Writes whole characters: a token may end in the middle of one."""

    def __init__(self, tokenizer: TextTokenizer, write: Callable[[str], object]) -> None:
        self._tokenizer, self._write = tokenizer, write
        self._ids: list[int] = []
        self._written = ""

    def put(self, value: Tensor) -> None:
        self._ids += value.flatten().tolist()
        text = self._tokenizer.decode(self._ids)
        if not text.endswith("\ufffd"):
            self._write(text[len(self._written) :])
            self._written = text

    def end(self) -> None:
        self._write(self._tokenizer.decode(self._ids)[len(self._written) :])


def _left_padded(openings: Sequence[str], tokenizer: TextTokenizer) -> tuple[Tensor, Tensor]:
    """Ids and attention mask [B, L]. Each opening follows an end, as every story does in training."""
    rows = [[tokenizer.end, *tokenizer.encode(opening)] for opening in openings]
    width = max(map(len, rows))
    ids = torch.tensor([[tokenizer.end] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def _generate(
    model: CompressedLM,
    tokenizer: TextTokenizer,
    ids: Tensor,
    mask: Tensor,
    max_tokens: int,
    temperature: float,
    top_k: int,
    streamer: BaseStreamer | None = None,
) -> Tensor:
    room = context_length(model) - ids.shape[1]
    if room < 1:
        raise UserError(
            f"an opening of {ids.shape[1]} tokens leaves no room: the model looks at {context_length(model)}"
        )
    sampling: dict[str, Any] = {"do_sample": False}
    # Colder, there is one token left that can be drawn, and at last the logits divided are infinite.
    # Hotter, the temperature is infinite in float32, and what top_k has left out divided by it no number.
    if temperature >= _COLDEST:  # top_k 0 is all tokens
        sampling = {"do_sample": True, "temperature": min(temperature, _HOTTEST), "top_k": top_k}
    return cast(Any, model).generate(
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=min(max_tokens, room),
        eos_token_id=tokenizer.end,
        pad_token_id=tokenizer.end,
        streamer=streamer,
        **sampling,
    )


def _continuation(ids: list[int], tokenizer: TextTokenizer) -> str:
    return tokenizer.decode(ids[: ids.index(tokenizer.end)] if tokenizer.end in ids else ids)
