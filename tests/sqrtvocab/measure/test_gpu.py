"""Fake CPU tensors take the kernels and number formats that CUDA would give them."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from sqrtvocab.measure.gpu import GPUS, gpu_rules
from sqrtvocab.measure.simulate import Training, simulate


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operators_of_attention(gpu, dtype, dropout, head_dim=16):
    with FakeTensorMode(), gpu_rules(GPUS[gpu]), Names() as operators:
        query = torch.empty(2, 4, 32, head_dim, dtype=dtype, requires_grad=True)
        out = F.scaled_dot_product_attention(query, query, query, is_causal=True, dropout_p=dropout)
        out.sum().backward()
        assert out.shape == query.shape
        assert query.grad.shape == query.shape
    return " ".join(operators.names)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    ("gpu", "dtype", "kernel"),
    [
        ("t4", torch.float32, "efficient"),
        ("t4", torch.float16, "efficient"),  # flash needs Ampere
        ("a10g", torch.float32, "efficient"),  # flash needs half precision
        ("a10g", torch.bfloat16, "flash"),
        ("h100", torch.bfloat16, "flash"),
    ],
)
def test_the_attention_kernel(gpu, dtype, kernel, dropout):
    operators = operators_of_attention(gpu, dtype, dropout)
    assert f"_scaled_dot_product_{kernel}_attention.default" in operators
    assert f"_scaled_dot_product_{kernel}_attention_backward" in operators
    assert "softmax" not in operators


def test_wide_heads():
    assert GPUS["l40s"].attention_kernel(torch.bfloat16, 256) == "flash"
    assert GPUS["l40s"].attention_kernel(torch.bfloat16, 256, dropout=0.1) == "efficient"
    assert GPUS["l40s"].attention_kernel(torch.bfloat16, 200) == "efficient"
    assert GPUS["a100"].attention_kernel(torch.bfloat16, 256, dropout=0.1) == "flash"
    assert GPUS["a100"].attention_kernel(torch.bfloat16, 264) == "efficient"


def test_both_kernels_keep_as_much():
    """So a figure for one holds for the other."""

    def make():
        layer = torch.nn.Linear(64, 64)

        def loss():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                query = layer(torch.empty(2, 4, 32, 64))
                return F.scaled_dot_product_attention(query, query, query, is_causal=True).sum()

        return Training(layer, torch.optim.SGD(layer.parameters()), loss)

    peaks = []
    for gpu in ("t4", "a10g"):
        with gpu_rules(GPUS[gpu]):
            peaks.append(simulate(make).peak)
    assert peaks[0] == pytest.approx(peaks[1], abs=64)  # the state of the dropout, used or not


def kept_by_dropout(device, **options):
    """What F.dropout keeps for its backward pass."""
    kept = []

    def pack(tensor):
        kept.append((tensor.dtype, tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        F.dropout(torch.empty(8, 8, device=device, requires_grad=True) + 0, **options)
    return kept


@pytest.mark.parametrize(
    "options", [{"p": 0.1}, {"p": 0.0}, {"p": 0.1, "training": False}, {"p": 0.1, "inplace": True}]
)
def test_dropout_keeps_what_it_keeps_on_cuda(options):
    with FakeTensorMode():
        expected = kept_by_dropout("cuda", **options)
        with gpu_rules(GPUS["a10g"]):
            assert kept_by_dropout("cpu", **options) == expected
    if options == {"p": 0.1}:
        assert expected == [(torch.bool, (8, 8))]  # a byte an element


def test_dropout_in_a_step():
    """Ten layers of dropout add ten masks of a byte an element to what a step holds."""
    rows, width, layers = 256, 64, 10

    def make(p):
        model = torch.nn.Sequential(*(torch.nn.Dropout(p) for _ in range(layers)), torch.nn.Linear(width, 1))
        inputs = torch.empty(rows, width, requires_grad=True)
        return Training(model, torch.optim.SGD(model.parameters()), lambda: model(inputs).sum())

    with gpu_rules(GPUS["a10g"]):
        without, with_dropout = (simulate(lambda p=p: make(p)).activations for p in (0.0, 0.1))
    # And the output of the last, which the linear layer keeps; without dropout that is the input itself.
    assert with_dropout - without == layers * rows * width + 4 * rows * width


OPERATIONS = {
    "linear": lambda x: F.linear(x, x),
    "matmul": lambda x: x @ x,
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "softmax": lambda x: F.softmax(x, -1),
    "method softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "pow": lambda x: torch.pow(x, 3.0),
    "operator pow": lambda x: x**3.0,
    "tanh": torch.tanh,
    "multiply": lambda x: 0.5 * x,
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(8, dtype=torch.int64, device=x.device)),
    "dropout": lambda x: F.dropout(x, 0.1),
    "embedding": lambda x: F.embedding(torch.zeros(8, dtype=torch.int64, device=x.device), x),
    "relu": F.relu,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_autocast_is_that_of_cuda(operation, dtype):
    call = OPERATIONS[operation]
    before = torch.is_autocast_enabled("cuda")
    with FakeTensorMode():
        torch.set_autocast_enabled("cuda", True)  # torch.autocast itself refuses where there is no GPU
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            expected = call(torch.empty(8, 8, device="cuda", dtype=dtype)).dtype
        finally:
            torch.set_autocast_enabled("cuda", before)
            torch.clear_autocast_cache()
        with gpu_rules(GPUS["a10g"]), torch.autocast("cpu", dtype=torch.bfloat16):
            assert call(torch.empty(8, 8, dtype=dtype)).dtype == expected


def test_capacities():
    t4 = GPUS["t4"]
    assert t4.fits(t4.usable)
    assert not t4.fits(t4.usable + 1)
    assert t4.usable < 14.3 * 2**30


@pytest.mark.parametrize(
    ("gpu", "dtype", "kernel"),
    [
        ("a10g", torch.bfloat16, "flash"),
        ("a10g", torch.float32, "math"),  # the memory-efficient kernel wants as many heads of all three
        ("t4", torch.float16, "math"),
    ],
)
def test_fewer_heads_of_keys_than_of_queries(gpu, dtype, kernel):
    with FakeTensorMode(), gpu_rules(GPUS[gpu]), Names() as operators:
        query = torch.empty(2, 8, 32, 16, dtype=dtype, requires_grad=True)
        key = torch.empty(2, 2, 32, 16, dtype=dtype, requires_grad=True)
        out = F.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)
        out.sum().backward()
    assert (out.shape, query.grad.shape, key.grad.shape) == (query.shape, query.shape, key.shape)
    names = " ".join(operators.names)
    assert ("flash" in names, "softmax" in names) == (kernel == "flash", kernel == "math")


def test_a_llama_with_grouped_queries():
    def make(kv_heads):
        text = LlamaConfig(
            vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=kv_heads,
        )  # fmt: skip
        model = LlamaForCausalLM(text)
        ids = torch.zeros(2, 64, dtype=torch.int64)

        def loss():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return model(input_ids=ids, labels=ids, use_cache=False).loss

        return Training(model, torch.optim.AdamW(model.parameters(), fused=True), loss, model.lm_head)

    with gpu_rules(GPUS["a10g"]):
        two, eight = (simulate(lambda heads=heads: make(heads)) for heads in (2, 8))
    assert two.activations < eight.activations
    assert two.parameters == eight.parameters - 4 * 2 * 2 * 64 * (64 - 16)  # of 2 layers, keys and values
