"""Counted operations are those one counts by hand."""

import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config

from lm.model import CompressedLM, CompressedLMConfig
from sqrtvocab import make_head
from sqrtvocab.measure.flops import count_flops

N, D, V = 24, 16, 100


def of_head(name, backward=False, **options):
    def make():
        head = make_head(name, D, V, **options)
        hidden, target = torch.empty(N, D, requires_grad=True), torch.zeros(N, dtype=torch.int64)

        def run():
            loss = head(hidden, target).loss
            if backward:
                loss.backward()

        return run

    return count_flops(make)


@pytest.mark.parametrize(
    ("name", "options", "columns"),
    [
        ("flat", {}, V),
        ("grouped", {"num_groups": 9}, 9 + 12),  # S = ceil(100 / 9)
        ("grouped-linear", {"num_groups": 9, "kernel": "grouped_mm"}, 9 + 16),  # S to a multiple of 8
        ("grouped-linear", {"num_groups": 9, "kernel": "loop"}, 9 + 16),
    ],
)
def test_heads(name, options, columns):
    forward = of_head(name, **options)
    assert forward.linear == 2 * N * D * columns
    assert forward.attention == 0
    assert of_head(name, backward=True, **options).linear == 3 * forward.linear


def test_class_vectors_are_computed_once_a_step():
    """The same product with the tokens as grouped-linear, and R multiply-adds for each number of a vector.

    A batch of products without a weight that torch knows of: it is told with attention.
    """
    rank, groups, width = 5, 9, 16
    forward = of_head("grouped-low-rank", num_groups=groups, rank=rank)
    assert forward.linear == 2 * D * N * (groups + width)
    assert forward.attention == 2 * D * groups * width * rank


def test_a_head_whose_cost_is_data():
    with pytest.raises(NotImplementedError, match="adaptive"):
        of_head("adaptive", cutoffs=[10])


def test_attention_apart():
    def make():
        query = torch.empty(2, 4, 32, 8)
        return lambda: F.scaled_dot_product_attention(query, query, query, is_causal=True)

    assert count_flops(make) == (0, 2 * 2 * 2 * 4 * 32 * 32 * 8)  # scores and averages, not halved


@pytest.mark.parametrize(("hidden", "paper"), [(128, 0.83), (256, 3.30), (1024, 52.0)])
def test_the_paper_s_own_model(hidden, paper):
    """Table 3, in its own convention, within 2 %."""

    def make():
        text = GPT2Config(vocab_size=50257, n_embd=hidden, n_layer=8, n_head=8, n_positions=512)
        model = CompressedLM(CompressedLMConfig(text_config=text, head="grouped"))
        ids = torch.zeros(1, 512, dtype=torch.int64)
        return lambda: model(input_ids=ids, labels=ids)

    flops = count_flops(make)
    by_hand = 512 * (8 * 12 * hidden**2 + hidden * (224 + 225))  # G = 224 groups of at most 225
    assert flops.multiply_adds == by_hand
    assert flops.attention == 2 * 2 * 8 * 512 * 512 * hidden
    assert flops.multiply_adds / 1e9 == pytest.approx(paper, rel=0.02)
