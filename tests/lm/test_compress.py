"""compress_vocab: a trained model starts near its old loss."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2LMHeadModel,
    GPTNeoForCausalLM,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from lm.compress import compress_vocab
from lm.model import CompressedLM
from lm.stories.write import stories

L = 64


@pytest.fixture(scope="module")
def text(small_tokenizer):
    """Token ids of training and validation stories, [N, 64] each."""

    def windows(split, count):
        ids = [
            i
            for story in stories(split, count)
            for i in [*small_tokenizer.encode(story), small_tokenizer.end]
        ]
        return torch.tensor(ids[: len(ids) // L * L]).view(-1, L)

    return windows("train", 300), windows("validation", 15)


@pytest.fixture(scope="module")
def trained(text, backbone_of):
    """A small GPT-2 that has learnt something: from 6.0 to below 4 nats."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(backbone_of("gpt2"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(200):
        ids = text[0][torch.randint(len(text[0]), (16,))]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@torch.no_grad()
def loss(model, ids) -> float:
    return model(input_ids=ids, labels=ids).loss.item()


def test_starts_near_the_old_loss(trained, text):
    train, validation = text
    counts = torch.bincount(train.flatten(), minlength=400)
    old = loss(trained, validation)
    assert old < 4
    fitted = compress_vocab(copy.deepcopy(trained), counts=counts, calibration=train[:32]).eval()
    expanded = compress_vocab(copy.deepcopy(trained), counts=counts).eval()
    one = {"counts": counts, "calibration": train[:32], "centroids": 1}
    by_one = compress_vocab(copy.deepcopy(trained), **one).eval()
    by_frequency = compress_vocab(copy.deepcopy(trained), grouping="frequency", **one).eval()
    assert loss(fitted, validation) == pytest.approx(old, abs=0.005)
    assert old + 0.01 < loss(by_one, validation) < loss(by_frequency, validation) - 0.02
    assert loss(by_one, validation) < loss(expanded, validation) < old + 0.5


def test_it_is_saved_and_generates_by_its_own_best_tokens(trained, text, tmp_path):
    made = compress_vocab(copy.deepcopy(trained), calibration=text[0][:8]).eval()
    assert made.head.group.centroids == 8
    made.save_pretrained(tmp_path)
    again = CompressedLM.from_pretrained(tmp_path).eval()
    prompt = text[1][:2, :8]
    with torch.no_grad():
        assert torch.equal(again(prompt).logits, made(prompt).logits)
        written = again.generate(prompt, max_new_tokens=5, min_new_tokens=5, do_sample=False)
        for length in range(8, 13):
            best = again(written[:, :length]).logits[:, -1].argmax(-1)
            assert torch.equal(written[:, length], best)


def test_groupings(trained):
    by_index = compress_vocab(copy.deepcopy(trained), grouping="index", counts=torch.ones(400))
    assert by_index.head.partition.order is None
    with pytest.raises(ValueError, match="grouping must be clusters, frequency or index; got 'random'"):
        compress_vocab(trained, grouping="random")
    with pytest.raises(ValueError, match="grouping by frequency needs counts"):
        compress_vocab(trained, grouping="frequency")


def test_the_conditional_distribution_is_exact(trained, text):
    """Within a group the new model gives the old one's odds, whatever the group layer says."""
    model = compress_vocab(copy.deepcopy(trained), num_groups=9, grouping="index").eval()
    with torch.no_grad():
        old = trained(input_ids=text[1][:2]).logits.log_softmax(-1)
        new = model(text[1][:2]).logits
    partition = model.head.partition
    for g in range(9):
        members = slice(
            partition.starts(torch.tensor(g)).item(), partition.starts(torch.tensor(g + 1)).item()
        )
        conditional = [x[..., members].log_softmax(-1) for x in (old, new)]
        torch.testing.assert_close(*conditional, rtol=1e-4, atol=1e-4)


def test_flat_changes_nothing(trained, text):
    assert loss(compress_vocab(copy.deepcopy(trained), "flat").eval(), text[1]) == pytest.approx(
        loss(trained, text[1]), abs=1e-5
    )


def test_the_backbone_is_shared_and_keeps_working(trained, text):
    before = loss(trained, text[1])
    model = compress_vocab(trained)
    assert model.backbone is trained.transformer
    assert loss(trained, text[1]) == before


def test_other_heads_start_from_the_prior(trained, text):
    train, validation = text
    counts = torch.bincount(train.flatten(), minlength=400)
    fresh = compress_vocab(copy.deepcopy(trained), "grouped").eval()
    primed = compress_vocab(copy.deepcopy(trained), "grouped", counts=counts).eval()
    assert loss(primed, validation) < loss(fresh, validation)


@pytest.mark.parametrize(("name", "kind"), [("gpt_neo", GPTNeoForCausalLM), ("llama", LlamaForCausalLM)])
def test_other_families(backbone_of, name, kind):
    torch.manual_seed(0)
    model = kind(backbone_of(name)).eval()
    ids = torch.randint(400, (2, 20))
    compressed = compress_vocab(model, calibration=ids).eval()
    assert loss(compressed, ids) == pytest.approx(loss(model, ids), abs=0.05)
    assert compressed.generate(ids, max_new_tokens=3, min_new_tokens=3).shape == (2, 23)


def test_models_that_cannot_be_compressed(trained, backbone_of):
    with pytest.raises(ValueError, match="GPT2Model has no linear output layer"):
        compress_vocab(trained.transformer)
    capped = copy.deepcopy(trained)
    forward = capped.forward

    def soft_capped(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = 3 * torch.tanh(output.logits / 3)
        return output

    capped.forward = soft_capped
    with pytest.raises(ValueError, match="does more to its logits than a linear layer"):
        compress_vocab(capped)


@pytest.mark.parametrize(
    ("config", "more"),
    [
        (Gemma2Config, {"head_dim": 8, "final_logit_softcapping": 30.0}),
        (GraniteConfig, {"logits_scaling": 1.5}),
        (Gemma2Config, {"head_dim": 8, "final_logit_softcapping": None}),
        (LlamaConfig, {}),
    ],
)
def test_small_logits_hide_nothing(config, more):
    """Near zero, what a soft cap or a scale does is too little to be seen."""
    shape = {
        "vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 32, "initializer_range": 1e-4, "pad_token_id": 0,
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_config(config(**shape, **more))
    if any(more.get(name) for name in ("final_logit_softcapping", "logits_scaling")):
        with pytest.raises(ValueError, match="does more to its logits than a linear layer"):
            compress_vocab(model)
    else:
        compress_vocab(model)
    assert not model.get_output_embeddings()._forward_hooks


def test_groups_for_a_head_without_groups(backbone_of):
    model = GPT2LMHeadModel(backbone_of("gpt2"))
    for head in ("flat", "adaptive"):
        with pytest.raises(ValueError, match=f"num_groups=7: the {head} head has no groups"):
            compress_vocab(model, head, num_groups=7)


def test_an_output_layer_on_something_narrower_than_the_hidden_state():
    config = OPTConfig(
        vocab_size=400, hidden_size=32, word_embed_proj_dim=16, ffn_dim=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    with pytest.raises(ValueError, match="takes 16 features, not the 32 of the hidden state"):
        compress_vocab(OPTForCausalLM(config))
