"""The language models that the benchmarks and tables compare, all made in the same way. No command."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

# torch is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from sqrtvocab.measure.gpu import GPU
    from sqrtvocab.measure.simulate import Memory, Training

FLAT = {"GPT-2": "GPT2LMHeadModel", "GPT-Neo": "GPTNeoForCausalLM"}
GPT_NEO_WINDOW = 256  # of its local attention, in the paper


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


@dataclass(frozen=True)
class Setting:
    """How a model is trained, apart from its size."""

    precision: Literal["fp32", "half"] = "fp32"
    """half is autocast: bfloat16, or float16 where a GPU has no bfloat16."""
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


def make_model(name: str, shape: Shape, setting: Setting = Setting()) -> Any:  # noqa: B008
    """The model: "GPT2LMHeadModel", "GPTNeoForCausalLM", "no head", or the name of one of our heads on GPT-2;
    "grouped on GPT-Neo" is a head on the other backbone."""
    import transformers

    from lm.model import CompressedLM, CompressedLMConfig

    drop = setting.dropout
    head, _, backbone = name.partition(" on ")
    if name == "GPTNeoForCausalLM" or backbone == "GPT-Neo":
        pairs, odd = divmod(shape.num_layers, 2)
        neo = transformers.GPTNeoConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            num_layers=shape.num_layers,
            num_heads=shape.num_attention_heads,
            attention_types=[[["global", "local"], pairs]] * (pairs > 0) + [[["global"], 1]] * odd,
            window_size=GPT_NEO_WINDOW,
            max_position_embeddings=shape.seq_len,
            bos_token_id=0,
            eos_token_id=0,
            resid_dropout=drop,
            embed_dropout=drop,
            attention_dropout=drop,
        )
        if backbone:
            return CompressedLM(CompressedLMConfig(text_config=neo, head=head, num_groups=shape.num_groups))
        return transformers.GPTNeoForCausalLM(neo)
    config = transformers.GPT2Config(
        vocab_size=shape.vocab_size,
        n_embd=shape.hidden_size,
        n_layer=shape.num_layers,
        n_head=shape.num_attention_heads,
        n_positions=shape.seq_len,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=drop,
        embd_pdrop=drop,
        attn_pdrop=drop,
        attn_implementation="eager" if setting.attention == "eager" else "sdpa",
    )
    if name == "GPT2LMHeadModel":
        model = transformers.GPT2LMHeadModel(config)
        model.loss_type = "ForCausalLM"  # what it takes anyway; its name does not say so, and it would warn
        return model
    if name == "no head":
        return transformers.GPT2Model(config)
    return CompressedLM(CompressedLMConfig(text_config=config, head=name, num_groups=shape.num_groups))


def make_training(name: str, shape: Shape, setting: Setting = Setting()) -> Training:  # noqa: B008
    """The model in training mode with AdamW and a batch of random tokens."""
    import torch
    import torch.nn.functional as F

    from sqrtvocab.measure.simulate import Training

    with torch.device(shape.device):
        model = make_model(name, shape, setting).train()
    if setting.checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    kinds = {name: name == setting.optimizer for name in ("fused", "foreach")}
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, **kinds)
    ids = torch.randint(shape.vocab_size, (shape.batch_size, shape.seq_len), device=shape.device)
    half = setting.precision == "half"
    kept = []  # the outputs of a loop such as `outputs = model(...); outputs.loss.backward()`

    def loss() -> torch.Tensor:
        with torch.autocast(shape.device, dtype=torch.bfloat16, enabled=half):
            if name == "no head":
                return model(input_ids=ids, use_cache=False).last_hidden_state.square().mean()
            if not (setting.old_loss and name in FLAT.values()):
                return model(input_ids=ids, labels=ids, use_cache=False).loss
            kept[:] = [logits := model(input_ids=ids, use_cache=False).logits]
            shifted = logits[:, :-1].contiguous()
            return F.cross_entropy(shifted.view(-1, shape.vocab_size), ids[:, 1:].reshape(-1))

    head = None if name == "no head" else model.lm_head if name in FLAT.values() else model.head
    return Training(model, adam, loss, head)


def simulate_training(
    name: str,
    shape: Shape,
    setting: Setting = Setting(),  # noqa: B008
    gpu: GPU | None = None,
) -> Memory:
    """The memory of a training step on a GPU, or on the CPU, from shapes alone."""
    from contextlib import nullcontext

    from sqrtvocab.measure.gpu import ROUNDING, as_on
    from sqrtvocab.measure.simulate import simulate

    # `transformers` looks at the positions for several texts in one row. It cannot see those of fake tensors,
    # and to be safe would build a [B, 1, L, L] mask that no real step has. "None" is what it would find.
    no_packing = patch("transformers.masking_utils.find_packed_sequence_indices", lambda position_ids: None)
    with no_packing, nullcontext() if gpu is None else as_on(gpu):
        make = partial(make_training, name, shape, setting)
        return simulate(make, round_to=1 if gpu is None else ROUNDING)
