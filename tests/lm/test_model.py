"""CompressedLM against dense references: loss, gradients, decoding in every mode, saving and loading."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GenerationMixin,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
)

from lm.model import CompressedLM, CompressedLMConfig, CompressedLMOutput, token_order
from sqrtvocab.measure import allocated_by

V = 400
HEADS = ["flat", "grouped", "grouped-linear", "grouped-low-rank", "adaptive"]
GROUPED = ["grouped", "grouped-linear", "grouped-low-rank"]


def make(backbone, head="grouped-linear", **settings) -> CompressedLM:
    torch.manual_seed(0)
    order = torch.randperm(V, generator=torch.Generator().manual_seed(1)) if settings.get("ordered") else None
    model = CompressedLM(CompressedLMConfig(text_config=backbone, head=head, **settings), order=order)
    with torch.no_grad():  # sharpen, so that decoding has something to decide
        for parameter in model.head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def dense_log_probs(model: CompressedLM, hidden):
    """P(class) = P(group)·P(member | group), class by class from the head's parameters, in float64."""
    head = model.head
    hidden = hidden.double()
    groups = F.log_softmax(hidden @ head.group.weight.double().T + head.group.bias.double(), -1)
    result = hidden.new_empty(*hidden.shape[:-1], V)
    bounds = [V * g // head.partition.num_groups for g in range(head.partition.num_groups + 1)]
    order = head.partition.order.tolist() if head.partition.order is not None else list(range(V))
    for g, (start, stop) in enumerate(pairwise(bounds)):
        size = stop - start
        if model.config.head == "grouped":
            scores = hidden @ head.shared[:size].double().T * head.scale[g, :size].double()
        elif model.config.head == "grouped-low-rank":
            vectors = torch.einsum("sr,srd->sd", head.scale[g, :size].double(), head.shared[:size].double())
            scores = hidden @ vectors.T
        else:
            scores = hidden @ head.weight[g, :size].double().T
        members = F.log_softmax(scores + head.shift[g, :size].double(), -1)
        result[..., order[start:stop]] = groups[..., g : g + 1] + members
    return result


class Dense(CompressedLM):
    """The same model with logits from `dense_log_probs`, of the whole sequence and without a cache."""

    _sample = GenerationMixin._sample

    def forward(self, input_ids, attention_mask=None, position_ids=None, **ignored):
        hidden = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids
        ).last_hidden_state
        return CompressedLMOutput(logits=dense_log_probs(self, hidden).float())


# ---- training ----


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_is_that_of_the_dense_distribution(backbone, head):
    model = make(backbone, head)
    ids = torch.randint(V, (3, 12))
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.2, -100)
    output = model(ids, labels=labels)
    logits = model(ids).logits
    expected = F.nll_loss(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(output.loss, output.group_loss + output.member_loss)
    assert output.logits is None
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(model(ids, shift_labels=shifted).loss, expected)
    total = model(ids, shift_labels=shifted, num_items_in_batch=1).loss
    torch.testing.assert_close(total, expected * (shifted != -100).sum())


@pytest.mark.parametrize("head", GROUPED)
@pytest.mark.parametrize("ordered", [False, True])
def test_logits_are_the_joint_log_probabilities(backbone, head, ordered):
    model = make(backbone, head, num_groups=7, ordered=ordered)
    ids = torch.randint(V, (2, 9))
    hidden = model.backbone(input_ids=ids).last_hidden_state
    expected = dense_log_probs(model, hidden)
    torch.testing.assert_close(model(ids).logits.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, model(ids).logits[:, -2:])
    assert torch.allclose(model(ids).logits.exp().sum(-1), torch.ones(2, 9), atol=1e-5)


def test_flat_tied_is_gpt2_itself(backbone_of):

    config = backbone_of("gpt2")
    theirs = GPT2LMHeadModel(config)
    ours = make(config, "flat", tie_word_embeddings=True, head_options={"bias": False})
    ours.backbone.load_state_dict(theirs.transformer.state_dict())
    assert ours.head.weight is ours.backbone.wte.weight
    ids = torch.randint(V, (2, 20))
    mine, his = ours(ids, labels=ids), theirs(input_ids=ids, labels=ids)
    torch.testing.assert_close(mine.loss, his.loss)
    mine.loss.backward()
    his.loss.backward()
    for name, parameter in theirs.transformer.named_parameters():
        torch.testing.assert_close(
            ours.backbone.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("head", ["flat", "grouped-linear"])
def test_an_adapter_stands_between_backbone_and_tied_head(backbone, head, tmp_path):
    model = make(backbone, head, tie_word_embeddings=True, adapter=True)
    ids = torch.randint(V, (2, 9))
    hidden = model.backbone(input_ids=ids).last_hidden_state
    torch.testing.assert_close(model(ids).logits, model.head.log_prob(hidden))  # the identity at first
    nn.init.normal_(model.adapter.weight, std=0.2)
    nn.init.normal_(model.adapter.bias)
    seen = hidden @ model.adapter.weight.T + model.adapter.bias
    expected = model.head.log_prob(seen)
    torch.testing.assert_close(model(ids).logits, expected)
    torch.testing.assert_close(model(ids, logits_to_keep=1).logits, expected[:, -1:])
    loss = model(ids, labels=ids).loss
    torch.testing.assert_close(loss, F.nll_loss(expected[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
    loss.backward()
    assert float(model.adapter.weight.grad.abs().sum()) > 0
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(CompressedLM.from_pretrained(tmp_path).eval()(ids).logits, model(ids).logits)


def test_a_label_outside_the_vocabulary(backbone_of):

    model = make(backbone_of("gpt2"))
    with pytest.raises(IndexError, match=r"target must lie in \[0, 400\)"):
        model(torch.zeros(1, 3, dtype=torch.int64), labels=torch.tensor([[1, 400, 2]]))


@pytest.mark.parametrize("head", GROUPED)
def test_training_builds_nothing_v_wide(head):
    vocabulary, tokens = 40_000, 256
    config = GPT2Config(vocab_size=vocabulary, n_embd=16, n_layer=1, n_head=1, n_positions=tokens)
    model = CompressedLM(CompressedLMConfig(text_config=config, head=head))
    ids = torch.randint(vocabulary, (1, tokens))
    largest = allocated_by(lambda: model(ids, labels=ids).loss.backward()).largest
    assert largest <= 4 * vocabulary * 16 * 2  # a gradient of the V x d tables, but never tokens x V


def test_evaluation_and_training_use_no_cache(backbone):
    model = make(backbone)
    ids = torch.randint(V, (1, 5))
    assert model(ids, labels=ids).past_key_values is None
    assert model(ids).past_key_values is not None


def test_gradient_checkpointing_changes_nothing(backbone):
    ids = torch.randint(V, (2, 8))
    gradients = []
    for checkpointing in (False, True):
        model = make(backbone).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


# ---- decoding ----

MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "temperature": {"do_sample": True, "temperature": 0.7},
    "top-k": {"do_sample": True, "top_k": 5},
    "top-p": {"do_sample": True, "top_k": 0, "top_p": 0.6},
    "beams": {"do_sample": False, "num_beams": 3},
    "sampled beams": {"do_sample": True, "num_beams": 2},
    "no repeats": {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("head", GROUPED)
def test_generate_is_decoding_from_the_dense_distribution(backbone, head, mode):
    model = make(backbone, head, ordered=True)
    dense = Dense(model.config, model.backbone, model.head.partition.order).eval()
    dense.head.load_state_dict(model.head.state_dict())
    prompts = torch.randint(1, V, (2, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])  # padded on the left
    options = {"max_new_tokens": 8, "pad_token_id": 0, "attention_mask": mask, **MODES[mode]}
    is_plain = options["do_sample"] and "num_beams" not in options
    ordinary = {"custom_generate": GenerationMixin._sample} if is_plain else {}
    torch.manual_seed(3)
    ours = model.generate(prompts, **options, **ordinary)  # sampling of ours: see test_decode.py
    torch.manual_seed(3)
    theirs = dense.generate(prompts, use_cache=False, **options)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_generate_equals_transformers_own_model(backbone_of, mode):

    config = backbone_of("llama")
    theirs = LlamaForCausalLM(config).eval()
    ours = make(config, "flat", head_options={"bias": False})
    ours.backbone.load_state_dict(theirs.model.state_dict())
    ours.head.weight.data.copy_(theirs.lm_head.weight)
    prompts = torch.randint(1, V, (2, 6))
    options = {
        "max_new_tokens": 8,
        "pad_token_id": 0,
        "attention_mask": torch.ones_like(prompts),
        **MODES[mode],
    }
    results = []
    for model in (ours, theirs):
        torch.manual_seed(3)
        results.append(model.generate(prompts, **options))
    assert torch.equal(*results)


@pytest.mark.parametrize("options", [{}, {"use_cache": True}, {"num_beams": 2}])
def test_a_backbone_without_a_key_value_cache_writes_too(options):
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    model = make(MambaConfig(vocab_size=V, hidden_size=32, num_hidden_layers=2, state_size=4, **ends))
    model(torch.randint(V, (2, 6)), labels=torch.randint(V, (2, 6))).loss.backward()
    prompts = torch.randint(1, V, (2, 6))
    length = {"max_new_tokens": 5, "min_new_tokens": 5}
    written = model.generate(prompts, do_sample=False, **length, **options)
    assert written.shape == (2, 11)
    if "num_beams" not in options:
        for position in range(6, 11):
            logits = model(written[:, :position], logits_to_keep=1).logits[:, -1]
            assert torch.equal(logits[:, 1:].argmax(-1) + 1, written[:, position])  # the end is forbidden


def test_the_prompt_costs_one_row_of_logits(backbone_of, monkeypatch):

    model = make(backbone_of("gpt2"))
    shapes, log_prob = [], model.head.log_prob

    def watched(hidden):
        shapes.append(tuple(hidden.shape[:2]))
        return log_prob(hidden)

    monkeypatch.setattr(model.head, "log_prob", watched)
    prompts = torch.randint(1, V, (2, 30))
    model.generate(
        prompts, max_new_tokens=3, min_new_tokens=3, do_sample=False, custom_generate=GenerationMixin._sample
    )
    assert shapes == [(2, 1)] * 3


# ---- saving and loading ----


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("ordered", [False, True])
def test_round_trip(backbone, head, ordered, tmp_path):
    if head == "flat" and ordered:
        pytest.skip("flat has no order")
    model = make(backbone, head, ordered=ordered)
    model.save_pretrained(tmp_path)
    ids = torch.randint(V, (2, 7))
    for loaded in (CompressedLM.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert type(loaded) is CompressedLM
        # The weights to the bit; products may differ in the last one, as memory is aligned otherwise.
        saved = model.state_dict()
        assert saved.keys() == loaded.state_dict().keys()
        assert all(torch.equal(weight, saved[name]) for name, weight in loaded.state_dict().items())
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
        torch.testing.assert_close(loaded(ids, labels=ids).loss, model(ids, labels=ids).loss)
        assert loaded.config.to_dict() == CompressedLM.from_pretrained(tmp_path).config.to_dict()


@pytest.mark.parametrize("head", ["flat", "grouped-linear"])
def test_tied_weights_stay_tied(backbone, head, tmp_path):
    model = make(backbone, head, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    loaded = CompressedLM.from_pretrained(tmp_path)
    assert loaded.head.weight is loaded.get_input_embeddings().weight
    ids = torch.randint(V, (2, 7))
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    sizes = {name: parameter.numel() for name, parameter in loaded.named_parameters()}
    assert "head.weight" not in sizes  # counted once


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_loaded_in_another_dtype_the_head_takes_a_kernel_that_fits(backbone_of, dtype, tmp_path):

    model = make(backbone_of("llama"))
    model.save_pretrained(tmp_path)
    loaded = CompressedLM.from_pretrained(tmp_path, dtype=dtype)
    ids = torch.randint(V, (2, 7))
    assert loaded.head.weight.dtype == dtype
    made_here = make(backbone_of("llama")).head.to(dtype)
    assert loaded.head.kernels == made_here.kernels
    assert loaded.head.other_kernel == made_here.other_kernel
    assert abs(loaded(ids, labels=ids).loss - model(ids, labels=ids).loss) < 0.1


def test_a_checkpoint_of_other_groups_is_refused(backbone_of, tmp_path):
    make(backbone_of("gpt2")).save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"num_groups": null', '"num_groups": 7'))
    with pytest.raises(
        ValueError, match=r"does not fit the configuration: .*head\.shift is \[20, 20\], not \[7, 58\]"
    ):
        CompressedLM.from_pretrained(tmp_path)
    assert CompressedLM.from_pretrained(tmp_path, ignore_mismatched_sizes=True).head.partition.num_groups == 7


def test_a_checkpoint_that_lacks_weights_is_refused(backbone_of, tmp_path):
    from safetensors.torch import load_file, save_file

    make(backbone_of("gpt2")).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["head.group.bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights of this model: head\.group\.bias"):
        CompressedLM.from_pretrained(tmp_path)


def test_the_backbone_keeps_its_attention():
    config = LlamaConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, attn_implementation="eager"
    )
    model = CompressedLM(CompressedLMConfig(text_config=config))
    assert config._attn_implementation == "eager"
    assert model.backbone.config._attn_implementation == "eager"


def test_settings_that_do_not_fit(backbone):
    for settings, says in (
        ({"head": "round"}, "no head is called 'round'"),
        ({"head": "grouped", "tie_word_embeddings": True}, "has no V x d weight to tie"),
        ({"num_groups": V + 1}, "num_groups must be between 1 and"),
    ):
        with pytest.raises(ValueError, match=says):
            CompressedLM(CompressedLMConfig(text_config=backbone, **settings))


def test_orders():
    counts = torch.tensor([3, 9, 1, 5])
    assert token_order("index", counts) is None
    assert token_order("frequency", counts).tolist() == [1, 3, 0, 2]
    assert sorted(token_order("random", counts).tolist()) == [0, 1, 2, 3]


def test_the_first_loss_is_that_of_guessing(backbone):
    model = CompressedLM(CompressedLMConfig(text_config=backbone))
    ids = torch.randint(V, (4, 32))
    assert abs(model(ids, labels=ids).loss.item() - math.log(V)) < 0.6


def test_a_vocabulary_that_cannot_grow_is_not_resized_by_half(backbone_of):
    model = CompressedLM(CompressedLMConfig(text_config=backbone_of("gpt2"), head="adaptive"))
    embedding = model.get_input_embeddings()
    for same in ({}, {"new_num_tokens": 400}, {"new_num_tokens": 399, "pad_to_multiple_of": 8}):
        assert model.resize_token_embeddings(**same) is embedding
    with pytest.raises(
        NotImplementedError, match=r"has 400 classes and cannot grow to 408: .*compress_vocab"
    ):
        model.resize_token_embeddings(401, pad_to_multiple_of=8)
    with pytest.raises(NotImplementedError, match="cannot grow to 300"):
        make(backbone_of("gpt2"), "flat").resize_token_embeddings(300)
    assert embedding.num_embeddings == 400


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("head", ["flat", "grouped-linear"])
@pytest.mark.parametrize(
    "backbone",
    ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt_neo", "llama"))],
    indirect=True,
)
def test_a_vocabulary_that_grows(backbone, head, ordered, tied, tmp_path):
    if head == "flat" and ordered:
        pytest.skip("flat has no order")
    model = make(backbone, head, ordered=ordered, tie_word_embeddings=tied)
    ids = torch.randint(V, (2, 9))
    before = model(ids).logits.detach()
    embedding = model.resize_token_embeddings(V + 5, pad_to_multiple_of=8)
    assert embedding.num_embeddings == model.config.vocab_size == model.head.num_classes == 408
    assert (model.head.weight is embedding.weight) == tied
    after = model(ids).logits
    assert after.shape[-1] == 408
    ratios = after[..., :V] - before
    torch.testing.assert_close(ratios, ratios[..., :1].expand_as(ratios), rtol=0, atol=1e-4)
    assert after[..., V:].max() < math.log(1 / V)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    text = torch.tensor([[3, V + 1, 5, V + 4]] * 4)
    losses = []
    for _ in range(80):
        loss = model.train()(text, labels=text).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 < losses[0]
    model.save_pretrained(tmp_path)
    loaded = CompressedLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(text).logits, model.eval()(text).logits)
    written = loaded.generate(text[:1, :1], max_new_tokens=1, do_sample=False, pad_token_id=0)
    assert written.tolist() == [[3, V + 1]]


def test_plain_tuples(backbone):
    model = CompressedLM(CompressedLMConfig(text_config=backbone)).eval()
    ids = torch.randint(400, (2, 6))
    assert torch.equal(model(ids, return_dict=False)[0], model(ids).logits)
    assert torch.equal(model(ids)[0], model(ids).logits)
    loss, group_loss, member_loss, predictions = model(ids, labels=ids, return_dict=False)
    assert torch.equal(predictions, model(ids).logits.argmax(-1))
    assert loss == model(ids, labels=ids).loss
    torch.testing.assert_close(loss, group_loss + member_loss)


def test_a_folder_of_an_older_version_loads(backbone, tmp_path):
    """The adaptive head used to keep its order under another name."""
    model = make(backbone, "adaptive", ordered=True)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {name.replace("head.ranking.", "head.partition."): tensor for name, tensor in weights.items()}
    assert "head.partition.order" in old
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = CompressedLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(V, (2, 5))
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
