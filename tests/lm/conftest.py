"""What several tests of the language models use."""

import pytest

from lm.stories import stories
from lm.tokenizer import TextTokenizer, gpt2_tokenizer, train_tokenizer


@pytest.fixture(scope="session")
def gpt2() -> TextTokenizer:
    return gpt2_tokenizer()


@pytest.fixture(scope="session")
def small_tokenizer() -> TextTokenizer:
    """400 tokens: enough to be a vocabulary, few enough for tiny models."""
    return train_tokenizer(400, stories("train", 100))
