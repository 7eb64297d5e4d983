"""to_flat against the dense optimum, found by another library."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import nn
from transformers import Gemma2Config, GPT2LMHeadModel, GPTNeoForCausalLM, LlamaForCausalLM

from lm.compress import compress_vocab
from lm.model import CompressedLM, CompressedLMConfig, token_order
from lm.to_flat import to_flat

V = 60
CLASSES = {"gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM, "gpt_neo": GPTNeoForCausalLM}


def make(config, head="grouped-linear", **settings) -> CompressedLM:
    """A model with opinions: its head is far from uniform, its last norm far from new."""
    torch.manual_seed(0)
    order = token_order("random", torch.ones(V)) if settings.get("ordered") else None
    model = CompressedLM(CompressedLMConfig(text_config=config, head=head, **settings), order=order)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
        for name, parameter in model.backbone.named_parameters():
            if name.startswith(("ln_f", "norm")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def divergence(model, flat, ids) -> float:
    """The mean Kullback-Leibler divergence from one model's distributions to another's."""
    with torch.no_grad():
        ours = model(ids).logits.double().log_softmax(-1)
        theirs = flat(input_ids=ids).logits.double().log_softmax(-1)
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


@pytest.mark.parametrize("kind", CLASSES)
def test_as_near_as_a_linear_layer_can_be(backbone_of, kind):
    model = make(backbone_of(kind, V), ordered=True)
    ids = torch.randint(V, (32, 32))
    flat, before, after = to_flat(model, ids)
    assert type(flat) is CLASSES[kind]
    assert flat.base_model is model.backbone

    with torch.no_grad():
        hidden = (
            model.backbone(input_ids=ids[8:]).last_hidden_state.flatten(0, 1).double().numpy()
        )  # what it fits
        wanted = model(ids[8:]).logits.flatten(0, 1).double().exp().numpy()

    def loss(flattened):
        weight = flattened.reshape(V, 32)
        logits = hidden @ weight.T
        logits -= logits.max(-1, keepdims=True)
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        gradient = (np.exp(log_probs) - wanted).T @ hidden / len(hidden)
        return -(wanted * log_probs).sum(-1).mean(), gradient.flatten()

    optimum = minimize(loss, np.zeros(V * 32), jac=True, method="L-BFGS-B", options={"maxiter": 5000})
    ours = loss(flat.lm_head.weight.detach().double().numpy().flatten())[0]
    entropy = -(wanted * np.log(wanted)).sum(-1).mean()
    assert abs(ours - optimum.fun) < 0.02 * (optimum.fun - entropy)

    held = ids[:8]
    with torch.no_grad():
        assert before == pytest.approx(model(held, labels=held).loss.item(), rel=1e-4)
        assert after == pytest.approx(
            F.cross_entropy(flat(input_ids=held).logits[:, :-1].flatten(0, 1), held[:, 1:].flatten()).item(),
            rel=1e-4,
        )


@pytest.mark.parametrize("adapter", [False, True])
def test_a_flat_head_comes_back_as_it_was(backbone_of, adapter):
    settings = {"head_options": {"bias": False}, "adapter": adapter, "tie_word_embeddings": adapter}
    model = make(backbone_of("llama", V), "flat", **settings)
    if adapter:
        nn.init.normal_(model.adapter.weight, std=0.3)
    ids = torch.randint(V, (16, 32))
    flat, before, after = to_flat(model, ids)
    assert divergence(model, flat, torch.randint(V, (4, 32))) < 1e-7
    assert before == pytest.approx(after, abs=1e-4)


def test_there_and_back(backbone_of):
    """What compress_vocab makes of an ordinary model, to_flat nearly undoes; both keep the backbone."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(backbone_of("gpt2", V)).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
        model.transformer.ln_f.bias.normal_(std=0.3)
    ids = torch.randint(V, (48, 32))
    compressed = compress_vocab(model, calibration=ids).eval()
    flat, *_ = to_flat(compressed, ids)
    assert flat.base_model is model.base_model
    held = torch.randint(V, (8, 32))
    assert divergence(model, flat, held) < divergence(model, compressed, held) + 0.02


def test_the_ordinary_model_is_saved_and_writes(backbone_of, tmp_path):
    model = make(backbone_of("gpt2", V), "grouped")
    flat, *_ = to_flat(model, torch.randint(V, (16, 32)), steps=5)
    flat.save_pretrained(tmp_path)
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    ids = torch.randint(1, V, (2, 6))
    torch.testing.assert_close(loaded(input_ids=ids).logits, flat(input_ids=ids).logits)
    assert loaded.lm_head.weight is not loaded.transformer.wte.weight
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(loaded.generate(ids, **options), flat.generate(ids, **options))


def test_what_cannot_be_flat(backbone_of):
    model = make(backbone_of("gpt2", V))
    with pytest.raises(ValueError, match=r"calibration of shape \[4, 8\] is too little"):
        to_flat(model, torch.randint(V, (4, 8)))
    capped = Gemma2Config(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=48, head_dim=16, final_logit_softcapping=30.0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="Gemma2ForCausalLM does more to its logits than a linear layer"):
        to_flat(make(capped), torch.randint(V, (16, 32)))
