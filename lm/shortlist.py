"""How many of the largest logits are all that a call of `generate()` looks at.

Greedy decoding looks at one, sampling with `top_k` at so many. A head with groups finds those without V
logits, so `CompressedLM.generate` asks for no more, unless a setting might look below them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# Settings that leave the choice of a token alone, or that come after `top_k` has thrown the rest away.
_HARMLESS = frozenset((
    "inputs", "input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds",
    "max_length", "max_new_tokens", "max_time", "stop_strings", "stopping_criteria", "tokenizer", "streamer",
    "use_cache", "cache_config", "max_cache_len", "compile_config", "disable_compile",
    "pad_token_id", "bos_token_id", "eos_token_id", "early_stopping", "length_penalty", "synced_gpus",
    "num_return_sequences", "return_dict_in_generate", "output_attentions", "output_hidden_states",
    "transformers_version", "_from_model_config", "temperature", "top_p", "min_p",
))  # fmt: skip
# Settings that do nothing at this value. One that is in neither list might do anything.
_NEUTRAL = {
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "output_scores": False,
    "output_logits": False,
    "remove_invalid_values": False,
    "renormalize_logits": False,
}
_READ_BELOW = frozenset(("do_sample", "top_k", "min_length", "min_new_tokens"))
_DEFAULT_TOP_K = 50  # what `generate()` takes when nobody says


def shortlist(settings: Mapping[str, Any]) -> int | None:
    """The number of logits wanted under these settings of `generate()`; None if it may need all of them.

    Args:
        settings: everything that was said, by a `GenerationConfig` or as an argument. None says nothing,
            except for `top_k`, which it switches off.
    """
    said = {name: value for name, value in settings.items() if value is not None}
    for name, value in said.items():
        if name not in _HARMLESS and name not in _READ_BELOW and _NEUTRAL.get(name, _HARMLESS) != value:
            return None
    count = settings.get("top_k", _DEFAULT_TOP_K) if said.get("do_sample") else 1
    if not count:  # sample from all
        return None
    if said.get("min_length") or said.get("min_new_tokens"):  # these forbid the end
        count += torch.as_tensor(said.get("eos_token_id", 0)).numel()
    return int(count)
