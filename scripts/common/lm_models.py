"""The language models that the benchmarks and tables compare, all made in the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

# torch is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from sqrtvocab.measure.gpu import GPU
    from sqrtvocab.measure.simulate import Memory, Training

FLAT = {"GPT-2": "GPT2LMHeadModel", "GPT-Neo": "GPTNeoForCausalLM"}
# What the tables of the paper compare; its own head stands on GPT-2 ("We apply our method on the GPT-2
# architecture"), and so does our default.
MODELS = {**FLAT, "grouped": "grouped", "grouped-linear": "grouped-linear"}
# The flat models are as `transformers` has them; ours have the same GELU in one kernel, and so has this.
FUSED_GELU = {"GPT-2, fused GELU": "GPT2LMHeadModel, fused GELU"}
_FLAT_NAMES = (*FLAT.values(), *FUSED_GELU.values())


@dataclass(frozen=True)
class Shape:
    """The size of everything."""

    vocab_size: int = 50257
    hidden_size: int = 128
    num_layers: int = 8
    num_attention_heads: int = 8
    seq_len: int = 512
    batch_size: int = 32
    device: str = "cpu"
    num_groups: int | None = None


WRITING_MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling, top-k 50": {"do_sample": True, "top_k": 50},
}

# Two small shapes for --quick, which the paper has not.
QUICK_SIZES = {"tiny": Shape(2000, 16, 2, 2, 32, 2), "small": Shape(2000, 32, 2, 2, 32, 2)}


@dataclass(frozen=True)
class Setting:
    """How a model is trained, apart from its size."""

    precision: Literal["fp32", "half"] = "fp32"
    """half is autocast in bfloat16. (A T4 would take float16, of as many bytes.)"""
    attention: Literal["fused", "eager"] = "fused"
    """GPT-Neo is always eager: `transformers` has no other for it without a further package."""
    dropout: float = 0.0
    checkpoint: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    optimizer: Literal["fused", "foreach", "plain"] = "fused"
    """Which of torch's implementations of AdamW."""
    old_loss: bool = False
    """A flat model's loss as in `transformers` of 2024, which copied the logits to shift them, in a loop that
    keeps the model's outputs, the logits among them, until the next step."""


USUAL = Setting()


def make_model(name: str, shape: Shape, setting: Setting = USUAL) -> Any:
    """A model by name: one of `FLAT`'s classes, or GPT-2 with one of our heads, or with "no head";
    the last also with "gelu_new", the GELU of `FLAT`."""
    from types import SimpleNamespace

    import transformers

    from lm.build import backbone_config
    from lm.config import TrainConfig
    from lm.model import CompressedLM, CompressedLMConfig

    settings = TrainConfig(
        backbone="gpt-neo" if name == "GPTNeoForCausalLM" else "gpt2",
        head="flat",
        tie_embeddings=name in _FLAT_NAMES,
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        num_attention_heads=shape.num_attention_heads,
        seq_len=shape.seq_len,
        dropout=setting.dropout,
    )
    tokenizer: Any = SimpleNamespace(vocab_size=shape.vocab_size, end=0)  # all that is asked of it
    config: Any = backbone_config(settings, tokenizer)  # of the class that each backbone takes
    if name in FLAT.values() or name.endswith("gelu_new"):
        config.activation_function = type(config)().activation_function
    if name == "GPTNeoForCausalLM":
        return transformers.GPTNeoForCausalLM(config)
    config._attn_implementation = "eager" if setting.attention == "eager" else "sdpa"
    if name in _FLAT_NAMES:
        model = transformers.GPT2LMHeadModel(config)
        model.loss_type = "ForCausalLM"  # what it takes anyway; its name does not say so, and it would warn
        return model
    if name.startswith("no head"):
        return transformers.GPT2Model(config)
    return CompressedLM(CompressedLMConfig(text_config=config, head=name, num_groups=shape.num_groups))


def make_training(name: str, shape: Shape, setting: Setting = USUAL) -> Training:
    """The model in training mode with AdamW and a batch of random tokens.

    The tokens are as frequent as words are (Zipf, the first of the vocabulary the most frequent): what the
    adaptive head costs depends on that.
    """
    import torch
    import torch.nn.functional as F

    from scripts.common.targets import make_targets
    from sqrtvocab.measure.simulate import Training

    with torch.device(shape.device):
        model = make_model(name, shape, setting).train()
    if setting.checkpoint:
        model.activation_checkpointing_enable({"use_reentrant": False})
    adam = torch.optim.AdamW(
        model.parameters(),
        lr=1e-4,
        fused=setting.optimizer == "fused",
        foreach=setting.optimizer == "foreach",
    )
    tokens = make_targets("zipf", shape.batch_size * shape.seq_len, shape.vocab_size, shape.device)
    ids = tokens.view(shape.batch_size, shape.seq_len)  # [B, L]
    half = setting.precision == "half"
    kept: list[
        torch.Tensor
    ] = []  # the outputs of a loop such as `outputs = model(...); outputs.loss.backward()`

    def loss() -> torch.Tensor:
        with torch.autocast(shape.device, dtype=torch.bfloat16, enabled=half):
            if name.startswith("no head"):
                return model(input_ids=ids, use_cache=False).last_hidden_state.square().mean()
            if not (setting.old_loss and name in _FLAT_NAMES):
                return model(input_ids=ids, labels=ids, use_cache=False).loss
            kept[:] = [logits := model(input_ids=ids, use_cache=False).logits]
            shifted = logits[:, :-1].contiguous()
            return F.cross_entropy(shifted.view(-1, shape.vocab_size), ids[:, 1:].reshape(-1))

    head = None if name.startswith("no head") else model.lm_head if name in _FLAT_NAMES else model.head
    return Training(model, adam, loss, head)


def train_step(name: str, shape: Shape) -> Callable[[], Any]:
    """A whole training step, for `sqrtvocab.measure.race`."""
    return make_training(name, shape).step


def as_if_trained(model: Any) -> None:
    """Make the model as sure of itself as after a short training; a new one is nearly uniform, as no text is.

    Words as frequent as 1 / rank, and hidden states so long that a row's best token lies in the first group
    or two and its best 50 in about 17, with an entropy of 3 nats.
    """
    import torch

    model.head.init_prior(1e6 / torch.arange(1, model.head.num_classes + 1))
    model.backbone.ln_f.weight.data *= 8


def write_step(name: str, mode: str, shape: Shape, batch_size: int, new_tokens: int) -> Callable[[], Any]:
    """Generation with a cache, always of the same length, by models that know what to say."""
    import torch
    from transformers import GenerationMixin

    name, _, dense = name.partition(", ")
    with torch.device(shape.device):
        model = make_model(name, shape).eval()
    model.generation_config.eos_token_id = None  # or a text might end early
    if name != FLAT["GPT-2"]:  # whose work is always the same
        as_if_trained(model)
    ids = torch.randint(1, shape.vocab_size, (batch_size, min(16, shape.seq_len // 2)), device=shape.device)
    options = {
        "max_new_tokens": new_tokens,
        **WRITING_MODES[mode],
        "pad_token_id": 0,
        "attention_mask": torch.ones_like(ids),
        **({"custom_generate": GenerationMixin._sample} if dense else {}),
    }

    def step() -> None:
        with torch.inference_mode():
            model.generate(ids, **options)

    return step


def simulate_training(
    name: str,
    shape: Shape,
    setting: Setting = USUAL,
    gpu: GPU | None = None,
) -> Memory:
    """The memory of a training step on a GPU, or on the CPU, from shapes alone."""
    from contextlib import nullcontext

    from sqrtvocab.measure.gpu import ROUNDING, gpu_rules
    from sqrtvocab.measure.simulate import simulate

    with nullcontext() if gpu is None else gpu_rules(gpu):
        make = partial(make_training, name, shape, setting)
        return simulate(make, round_to=1 if gpu is None else ROUNDING)
