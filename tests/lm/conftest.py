"""What several tests of the language models use."""

import pytest
from transformers import GPT2Config, GPTNeoConfig, LlamaConfig, PreTrainedConfig

from lm.stories import stories
from lm.tokenizer import TextTokenizer, gpt2_tokenizer, train_tokenizer


@pytest.fixture(scope="session")
def gpt2() -> TextTokenizer:
    return gpt2_tokenizer()


@pytest.fixture(scope="session")
def small_tokenizer() -> TextTokenizer:
    """400 tokens: enough to be a vocabulary, few enough for tiny models."""
    return train_tokenizer(400, stories("train", 100))


V = 400


def backbone_config(name: str, vocab_size: int = V) -> PreTrainedConfig:
    """A tiny backbone without dropout."""
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2Config(
            vocab_size=vocab_size, n_embd=32, n_layer=2, n_head=2, n_positions=64, **dropout, **ends
        )
    if name == "gpt_neo":
        return GPTNeoConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
            max_position_embeddings=64,
            resid_dropout=0.0,
            embed_dropout=0.0,
            attention_dropout=0.0,
            **ends,
        )
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        **ends,
    )


@pytest.fixture(params=["gpt2", "gpt_neo", "llama"])
def backbone(request) -> PreTrainedConfig:
    return backbone_config(request.param)


@pytest.fixture(scope="session")
def backbone_of():
    """`backbone_of("gpt2" | "gpt_neo" | "llama")`: a tiny configuration."""
    return backbone_config
