"""How `generate()` takes the next token from a head that finds its best ones without a V-wide row.

`transformers` tells what its settings do to a distribution as a list of processors of V-wide scores. Those of
greedy decoding and sampling are read here as rules, which the head follows on a few tokens: temperature,
top-k, top-p, min-p, a penalty for repetition, ends that are forbidden for a while. A list with anything else
in it goes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from sqrtvocab import Head
from sqrtvocab.heads.sampling import draw, keep
from sqrtvocab.partition import host_sees

if TYPE_CHECKING:
    from lm.model import CompressedLM

# The order in which `transformers` applies them; in another one they would mean something else.
_KNOWN = (
    RepetitionPenaltyLogitsProcessor, MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor,
    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper,
)  # fmt: skip


@dataclass
class Rules:
    """What the settings of `generate()` make of the distribution of the next token."""

    do_sample: bool
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeated: RepetitionPenaltyLogitsProcessor | None = None
    ends: Tensor | None = None
    """Tokens that are forbidden ..."""
    min_length: int = 0
    """... while the text has fewer tokens than this."""

    @classmethod
    def read(cls, processors: Iterable[Any], do_sample: bool) -> Rules | None:
        """The rules that `processors` stand for; None if one of them might need all V scores."""
        rules, last = cls(do_sample), -1
        for processor in processors:
            place = _KNOWN.index(type(processor)) if type(processor) in _KNOWN else -1
            if place <= last:
                return None
            last = place
            if isinstance(processor, RepetitionPenaltyLogitsProcessor):
                rules.repeated = processor
            elif isinstance(processor, MinLengthLogitsProcessor):
                rules._forbid(processor.eos_token_id, processor.min_length)
            elif isinstance(processor, MinNewTokensLengthLogitsProcessor):
                length = processor.prompt_length_to_skip + processor.min_new_tokens
                rules._forbid(processor.eos_token_id, length)
            elif isinstance(processor, TemperatureLogitsWarper):
                rules.temperature = processor.temperature
            elif isinstance(processor, TopKLogitsWarper):
                rules.top_k = processor.top_k
            elif isinstance(processor, TopPLogitsWarper):
                rules.top_p = processor.top_p
            else:
                rules.min_p = processor.min_p
        if rules.repeated is not None:
            # A reward could raise any token that was seen, and without top-k all V must be weighed.
            is_reward = rules.repeated.penalty < 1
            if is_reward or (do_sample and rules.top_k is None):
                return None
        return rules

    def _forbid(self, ends: Tensor, min_length: int) -> None:
        self.ends, self.min_length = ends, max(self.min_length, min_length)  # both processors name all ends

    def choose(self, head: Head, rows: Tensor, text: Tensor) -> Tensor:
        """What the head is given [B, d] and the tokens so far [B, L] -> the next ones [B]."""
        is_early = self.ends is not None and text.shape[1] < self.min_length
        if self.repeated is None and not is_early:
            if not self.do_sample:
                return head.predict(rows)
            top_k = None if self.top_k is None else min(self.top_k, head.num_classes)
            return head.sample(rows, self.temperature, top_k, None, self.top_p, self.min_p)
        scores, tokens = self._shortlist(head, rows, text, is_early)  # [B, k] each, best first
        if not self.do_sample:
            return tokens[:, 0]
        logits = (scores - scores[:, :1]) / self.temperature
        choice = draw(keep(logits, self.top_p, self.min_p), None)  # [B]
        return tokens.gather(1, choice.unsqueeze(1)).squeeze(1)

    def _shortlist(self, head: Head, rows: Tensor, text: Tensor, is_early: bool) -> tuple[Tensor, Tensor]:
        """The best tokens after penalties, exactly: (scores, tokens), [B, k] each, best first; k is 1 for
        greedy decoding, `top_k`, or V.

        Penalties only lower, so a list is complete once its k-th best score is at least what the last one on
        it had before: no token that is not on the list can do better.
        """
        everything = head.num_classes
        wanted = min(self.top_k or everything, everything) if self.do_sample else 1
        ends = 0 if self.ends is None else len(self.ends)
        looked_at = wanted + ends if self.repeated is None else 2 * wanted + 8 + ends
        looked_at = min(looked_at if host_sees(rows) else everything, everything)  # each look is a wait there
        while True:
            before, tokens = head.topk(rows, looked_at)  # [B, m] each
            after = self._lowered(before, tokens, text, is_early)
            scores, places = after.topk(wanted, dim=-1)  # [B, k]
            if looked_at == everything or bool((scores[:, -1] >= before[:, -1]).all()):
                return scores, tokens.gather(1, places)
            looked_at = min(2 * looked_at + 8, everything)

    def _lowered(self, scores: Tensor, tokens: Tensor, text: Tensor, is_early: bool) -> Tensor:
        """Scores of tokens [B, m] after the penalties."""
        if self.repeated is not None:
            ignored = self.repeated.prompt_ignore_length
            positions = torch.arange(text.shape[1], device=text.device)
            if isinstance(ignored, Tensor):  # how much of each row is padding
                ignored = ignored.to(text.device).unsqueeze(1)  # [B, 1]
            seen = text.masked_fill(positions < (0 if ignored is None else ignored), -1)  # [B, L]
            is_seen = (tokens.unsqueeze(-1) == seen.unsqueeze(1)).any(-1)  # [B, m]
            # Scores are log-probabilities, never positive: a product lowers them.
            scores = torch.where(is_seen, scores * self.repeated.penalty, scores)
        if is_early:
            assert self.ends is not None
            scores = scores.masked_fill(torch.isin(tokens, self.ends.to(tokens.device)), -torch.inf)
        return scores


def decode(
    model: CompressedLM,
    text: Tensor,
    rules: Rules,
    stopping_criteria: StoppingCriteriaList,
    config: GenerationConfig,
    streamer: BaseStreamer | None,
    model_kwargs: dict[str, Any],
) -> GenerateDecoderOnlyOutput | Tensor:
    """Go on with `text` [B, L] until all rows have ended: `GenerationMixin._sample` without V-wide scores."""
    writer: Any = model  # the methods of `GenerationMixin` are written for models of another type
    ends_rows = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    padding: Any = config._pad_token_tensor  # there is one if rows can end
    unfinished = torch.ones(len(text), dtype=torch.bool, device=text.device)
    next_length = 1 if model_kwargs["use_cache"] else None
    model_kwargs["return_rows"] = True
    outputs = writer._prefill(text, config, model_kwargs, is_first_iteration=not config.is_assistant)
    with writer._optimize_model_for_decode():
        while True:
            model_kwargs = writer._update_model_kwargs_for_generation(outputs, model_kwargs)
            tokens = rules.choose(model.head, outputs.rows[:, -1], text).to(text.device)  # [B]
            if ends_rows:
                tokens = torch.where(unfinished, tokens, padding.to(text.device))
            text = torch.cat([text, tokens.unsqueeze(1)], 1)
            if streamer is not None:
                streamer.put(tokens.cpu())
            unfinished = unfinished & ~stopping_criteria(text, None)
            if not bool(unfinished.any()):
                break
            inputs = writer.prepare_inputs_for_generation(
                text, next_sequence_length=next_length, **model_kwargs
            )
            outputs = model(**inputs, return_dict=True)
    if streamer is not None:
        streamer.end()
    if not config.return_dict_in_generate:
        return text
    return GenerateDecoderOnlyOutput(
        sequences=cast(torch.LongTensor, text), past_key_values=model_kwargs.get("past_key_values")
    )
