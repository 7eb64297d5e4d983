"""What several tests of the language models use: tokenizers, tiny backbones, commands as processes."""

import subprocess
import sys
from pathlib import Path

import pytest
import transformers.models.gpt2.modeling_gpt2  # noqa: F401  (here, so that the forked processes need not)
from transformers import GPT2Config, GPTNeoConfig, LlamaConfig, PreTrainedConfig

import lm.evaluate
import lm.judge.command
import lm.sample
import lm.train  # noqa: F401  (imported here, so that the forked processes need not)
from lm import cli
from lm.stories.write import stories
from lm.text.tokenizer import END, TextTokenizer, gpt2_tokenizer, train_tokenizer


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


# ---- commands ----


@pytest.fixture(scope="session")
def story_file(tmp_path_factory) -> Path:
    """Seventy built-in stories, one in ten for validation."""
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text("".join(f"{story}\n{END}\n" for story in stories("train", 70)))
    return path


@pytest.fixture(scope="session")
def tiny(story_file, tmp_path_factory) -> list[object]:
    """Flags of `train_lm` for a model that takes milliseconds a step."""
    return [
        "--data", story_file, "--valid-fraction", 0.1, "--tokenizer", "train:300",
        "--cache", tmp_path_factory.mktemp("cache"), "--hidden-size", 16, "--num-layers", 2,
        "--num-attention-heads", 2, "--seq-len", 32, "--batch-size", 4, "--lr", 0.01, "--warmup-steps", 2,
        "--schedule", "constant", "--eval-tokens", 512, "--sample-every", 0, "--device", "cpu",
    ]  # fmt: skip


@pytest.fixture
def start(forked, tmp_path):
    """`start("train" | "eval" | "sample" | "judge", flags..., NAME="value")` begins a command."""

    def begin(command: str, *flags: object, **env: str):
        return forked(getattr(cli, f"{command}_main"), flags, tmp_path, env)

    return begin


@pytest.fixture
def run(start):
    """The same, to its end."""

    def finish(command: str, *flags: object, **env: str):
        return start(command, *flags, **env).wait()

    return finish


@pytest.fixture(scope="session")
def finished(forked, tiny, tmp_path_factory) -> Path:
    """The folder of a short finished run with samples. Copy it before changing anything in it."""
    folder = tmp_path_factory.mktemp("session")
    out = folder / "finished"
    flags = [*tiny, "--max-steps", 20, "--eval-every", 10, "--sample-every", 20, "--out", out]
    result = forked(cli.train_main, flags, folder, {}).wait()
    assert result.code == 0, result.err
    return out


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A judge of its own process: (address, log of all requests)."""
    log = tmp_path_factory.mktemp("judge") / "log.jsonl"
    script = Path(__file__).with_name("fake_judge.py")
    process = subprocess.Popen([sys.executable, script, log], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip(), log
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def hub(tmp_path):
    """A server on the loopback that answers as the hub does: its address and the log of what it was asked."""
    log, script = tmp_path / "hub.log", Path(__file__).with_name("fake_hub.py")
    server = subprocess.Popen([sys.executable, script, log], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield server.stdout.readline().strip(), log
    server.kill()
    server.wait()
    server.stdout.close()
