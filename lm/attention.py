"""Causal attention without a mask: what rows of text without padding need, and nothing to wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

# `transformers` makes no mask for an attention that it knows none for; otherwise it looks, on the host,
# whether the positions of a row begin anew, and where it cannot look it makes a [B, 1, L, L] mask to be safe,
# with which torch has no flash kernel.
UNMASKED = "sdpa_unmasked"
AttentionInterface.register(UNMASKED, sdpa_attention_forward)

# Kind of backbone -> its attention that is causal without a mask: by sdpa's own flag, or because GPT-Neo
# brings its causality with it. Others may have windows, which are known from the mask alone.
CAUSAL_BY_ITSELF = {"gpt2": "sdpa", "llama": "sdpa", "gpt_neo": "eager"}


@contextmanager
def unmasked(backbone: PreTrainedModel, *, is_unpadded: bool) -> Iterator[None]:
    """The context of a forward pass; if it sees whole rows from their beginning, no mask is made."""
    config = backbone.config
    usual = config._attn_implementation
    if is_unpadded and CAUSAL_BY_ITSELF.get(config.model_type) == usual:
        config._attn_implementation = UNMASKED
    try:
        yield
    finally:
        config._attn_implementation = usual
