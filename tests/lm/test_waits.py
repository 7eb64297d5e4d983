"""`train_lm` does not make the host wait for a GPU, nor attention build a mask; see tests/gpu."""

import pytest
import torch
from pretend import pretended_gpu, trainers_on_it

from lm import cli
from lm.attention import UNMASKED
from lm.model import CompressedLM, CompressedLMConfig
from sqrtvocab.training import read_metrics


def train_there():
    with trainers_on_it():
        return cli.train_main()


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_a_training_step_never_waits(forked, tiny, tmp_path, precision):
    flags = [*tiny, "--max-steps", 4, "--eval-every", 2, "--precision", precision, "--out", tmp_path / "run"]
    result = forked(train_there, flags, tmp_path, {}).wait()
    assert result.code == 0, result.err
    assert [row["step"] for row in read_metrics(tmp_path / "run/metrics.jsonl")] == [2, 2, 4, 4]


def generate_there(backbone, **sampling):
    model = CompressedLM(CompressedLMConfig(text_config=backbone)).eval()
    prompt = torch.randint(1, 400, (2, 5))
    counts = []
    with pretended_gpu() as (device, watch):
        model.to(device)
        ids = prompt.to(device)
        mask = torch.ones_like(ids)
        for tokens in (4, 12):
            before = len(watch.waits)
            model.generate(ids, attention_mask=mask, min_new_tokens=tokens, max_new_tokens=tokens, **sampling)
            counts.append(len(watch.waits) - before)
    print(counts)
    raise SystemExit(counts[1] - counts[0] > 12 - 4)


@pytest.mark.parametrize(
    "sampling", [{"do_sample": False}, {"do_sample": True, "top_k": 20}], ids=["greedy", "drawn"]
)
def test_generation_waits_once_a_token(forked, backbone_of, tmp_path, sampling):
    process = forked(lambda: generate_there(backbone_of("gpt2"), **sampling), [], tmp_path, {})
    result = process.wait()
    assert result.code == 0, result.out + result.err


def test_unpadded_rows_need_no_mask(backbone, monkeypatch):
    model = CompressedLM(CompressedLMConfig(text_config=backbone))
    usual = model.backbone.config._attn_implementation
    ids = torch.randint(400, (3, 12))
    want = model(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids)).loss
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", None)  # not even asked
    torch.testing.assert_close(model(input_ids=ids, labels=ids).loss, want)
    assert model.backbone.config._attn_implementation == usual != UNMASKED


def test_padding_still_counts(backbone):
    model = CompressedLM(CompressedLMConfig(text_config=backbone)).eval()
    ids = torch.randint(400, (1, 10))
    want = model(input_ids=ids, labels=ids).loss
    padded = torch.cat([torch.randint(400, (1, 3)), ids], 1)
    mask = torch.tensor([[0] * 3 + [1] * 10])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    labels = torch.where(mask == 1, padded, -100)
    labels[:, 3] = -100
    got = model(input_ids=padded, attention_mask=mask, position_ids=positions, labels=labels).loss
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_a_compiled_step_has_no_mask_and_two_graphs(backbone_of, kind):
    torch.compiler.reset()
    graphs = []

    def spy(graph, inputs):
        graphs.append(graph)
        return graph

    model = CompressedLM(CompressedLMConfig(text_config=backbone_of(kind)))
    compiled = torch.compile(model, backend=spy)  # as `train_lm --compile` does
    for rows in (2, 3, 4, 5):
        ids = torch.randint(400, (rows, 12))
        compiled(input_ids=ids, shift_labels=ids, num_items_in_batch=1).loss.backward()
    attentions = [
        node.kwargs
        for graph in graphs
        for node in graph.graph.nodes
        if node.target is torch.nn.functional.scaled_dot_product_attention
    ]
    assert len(graphs) <= 2  # one for the first batch, one for all others
    assert len(attentions) == 2 * len(graphs)
    assert all(kwargs["attn_mask"] is None and kwargs["is_causal"] is True for kwargs in attentions)
