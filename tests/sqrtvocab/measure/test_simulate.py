"""Simulated memory is the memory that the computation really takes."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config

from lm.model import CompressedLM, CompressedLMConfig
from sqrtvocab import make_head
from sqrtvocab.measure import allocated_by
from sqrtvocab.measure.gpu import GPU, GPUS, gpu_rules
from sqrtvocab.measure.simulate import AGREES_WITHIN, Training, simulate

N, D, V = 256, 64, 1000


def make_training(optimizer="plain", rows=N):
    model = nn.Sequential(nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, V))
    adam = torch.optim.AdamW(model.parameters(), foreach=False, fused=optimizer == "fused")
    inputs, target = torch.zeros(rows, D), torch.zeros(rows, dtype=torch.int64)
    return Training(model, adam, lambda: F.cross_entropy(model(inputs), target), model[2])


def really(make, device="cpu"):
    """What making it and two steps allocate."""

    def run():
        training = make()
        training.step()
        training.step()

    return allocated_by(run, device).peak


@pytest.mark.parametrize("optimizer", ["plain", "fused"])
def test_the_peak_of_a_training_step(optimizer):
    real = really(lambda: make_training(optimizer))
    assert simulate(lambda: make_training(optimizer)).peak == pytest.approx(real, rel=1e-4)


def test_the_parts_add_up_to_what_can_be_counted_by_hand():
    memory = simulate(make_training)
    weights = 4 * (D * 512 + 512 + 512 * V + V)
    assert memory.parameters == weights
    # Adam's two moments, and the temporary for the largest weight: the peak is in the optimiser's step.
    assert memory.optimiser >= 2 * weights
    assert memory.gradients == weights


def test_logits_are_told_from_activations():
    rows = 16 * N  # so many that the peak is where the logits are
    memory = simulate(lambda: make_training(rows=rows))
    # The softmax, the gradient of the loss by it, and the gradient of the logits; the loss and its divisor.
    assert memory.logits == 3 * 4 * rows * V + 8
    # The batch, the targets and what the ReLU hands on.
    assert memory.activations == 4 * rows * D + 8 * rows + 4 * rows * 512
    assert memory.gradients == 0


def test_rounding():
    def make():
        model = nn.Linear(3, 1)
        return Training(model, torch.optim.SGD(model.parameters()), lambda: model(torch.zeros(1, 3)).sum())

    assert simulate(make, round_to=512).parameters == 2 * 512  # weight and bias


SMALL = {"vocab_size": 6000, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128}
LARGE = {"vocab_size": 30_000, "n_embd": 512, "n_layer": 4, "n_head": 8, "n_positions": 256}


def gpt2(
    head,
    device="cpu",
    size=SMALL,
    batch=4,
    checkpoint=False,
    optimizer="fused",
    dropout=0.0,
    attention="sdpa",
    autocast=False,
):
    """A GPT-2 with one of our heads in the proportions of the paper's: logits wider than all else."""
    with torch.device(device):
        text = GPT2Config(
            **size, bos_token_id=0, eos_token_id=0, resid_pdrop=dropout, embd_pdrop=dropout,
            attn_pdrop=dropout, attn_implementation=attention,
        )  # fmt: skip
        model = CompressedLM(CompressedLMConfig(text_config=text, head=head)).train()
        ids = torch.zeros(batch, size["n_positions"], dtype=torch.int64)
    if checkpoint:
        model.activation_checkpointing_enable({"use_reentrant": False})
    adam = torch.optim.AdamW(model.parameters(), fused=optimizer == "fused", foreach=False)

    def loss():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            return model(input_ids=ids, labels=ids).loss

    return Training(model, adam, loss, model.head)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("head", ["flat", "grouped", "grouped-linear"])
def test_a_language_model_on_the_cpu(head, checkpoint):
    for optimizer in ("plain", "fused"):

        def make(optimizer=optimizer):
            return gpt2(head, checkpoint=checkpoint, optimizer=optimizer)

        assert simulate(make).peak == pytest.approx(really(make), rel=AGREES_WITHIN)


@pytest.mark.parametrize("head", ["flat", "grouped"])
def test_dropout_of_cuda_on_the_cpu(head):
    """The CPU, too, has CUDA's operator for dropout, but not its attention kernels."""

    def make():
        return gpt2(head, dropout=0.1, attention="eager")

    with gpu_rules(GPUS["a10g"]):
        assert simulate(make).peak == pytest.approx(really(make), rel=AGREES_WITHIN)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", [{}, {"dropout": 0.1}, {"autocast": True}], ids=str)
@pytest.mark.parametrize("head", ["flat", "grouped", "grouped-linear"])
def test_a_language_model_on_a_gpu(head, options):
    def make(device):
        return gpt2(head, device, LARGE, batch=16, **options)

    make("cuda").step()  # cuBLAS now has its workspaces, which stay and are none of the step's
    gc.collect()
    torch.cuda.empty_cache()
    with gpu_rules(GPU("here", 0, torch.cuda.get_device_capability())):
        memory = simulate(lambda: make("cpu"), round_to=512)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    allocated = really(lambda: make("cuda"), "cuda")
    reserved = torch.cuda.max_memory_reserved() - before
    inside = 16 * 2**20  # of what operators hold only while they work: the unseen part
    assert memory.peak > 30 * inside  # so that it matters little
    assert 0.97 * memory.peak <= allocated <= 1.03 * memory.peak + inside
    assert reserved >= 0.97 * memory.peak


def test_what_would_not_fit():
    def make():
        model = nn.Linear(2**20, 2**18, bias=False)  # a terabyte
        return Training(
            model, torch.optim.SGD(model.parameters()), lambda: model(torch.zeros(1, 2**20)).sum()
        )

    memory = simulate(make)
    assert memory.parameters == memory.gradients == 2**40


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [64, 1000, 4096])
def test_the_adaptive_head_takes_at_most_so_much(rows, dtype):
    """Its tails are scored inside one operator; with every class in the last tail that is all of it."""
    classes = 6000

    def make():
        model = nn.Sequential(nn.Linear(D, D), make_head("adaptive", D, classes))
        hidden, target = torch.zeros(rows, D), torch.full((rows,), classes - 1)

        def loss():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                return model[1](model[0](hidden), target).loss

        return Training(model, torch.optim.SGD(model.parameters(), foreach=False), loss, model[1])

    memory, real = simulate(make), really(make)
    assert memory.peak == pytest.approx(real, rel=AGREES_WITHIN)
    assert memory.logits > real / 2


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD])
@pytest.mark.parametrize("samples", [100, 2000])  # the peak is in the loss, or where the optimiser steps
def test_sparse_gradients(samples, optimizer):
    """Those of the rows that a step meets: exact if no two are of one class, at most so much else."""
    width, classes = 4 * D, 50 * V  # so many that hardly a drawn one is the batch's, too

    def make(is_each_another):
        head = make_head("sampled", width, classes, samples=samples)
        hidden = torch.zeros(N, width, requires_grad=True)
        target = torch.arange(N) if is_each_another else torch.zeros(N, dtype=torch.int64)
        steps = optimizer(head.give_sparse_gradients(), lr=0.1)
        return Training(head, steps, lambda: head(hidden, target).loss, head)

    memory = simulate(lambda: make(True))
    assert memory.peak == pytest.approx(really(lambda: make(True)), rel=AGREES_WITHIN)
    assert simulate(lambda: make(False)) == memory
    assert really(lambda: make(False)) < memory.peak
    if samples == 2000 and optimizer is torch.optim.SparseAdam:
        rows = samples + N
        # Their numbers and values, and the same of the shifts, whose turn it is after the rows.
        assert memory.gradients == rows * (8 + 4 * width) + rows * (8 + 4)


def test_a_frozen_backbone():
    rows = 16 * N

    def make():
        training = make_training(rows=rows)
        training.model[0].requires_grad_(False)
        return training

    memory = simulate(make)
    assert memory.peak == pytest.approx(really(make), rel=1e-4)
    assert memory.logits >= 3 * 4 * rows * V
    assert memory.optimiser == 2 * 4 * (512 * V + V) + 2 * 4  # two moments and the step of weight and bias


def test_an_output_layer_called_by_keyword():
    def make(keyword):
        training = make_training(rows=16 * N)
        first, relu, last = training.model
        inputs, target = torch.zeros(16 * N, D), torch.zeros(16 * N, dtype=torch.int64)

        def loss():
            hidden = relu(first(inputs))
            return F.cross_entropy(last(input=hidden) if keyword else last(hidden), target)

        return training._replace(loss=loss)

    assert simulate(lambda: make(True)) == simulate(lambda: make(False))


def test_a_simulated_gpu_has_the_kernel_that_a_real_one_would_take():
    """Tiles gather a matrix for each; one grouped product needs none of that."""

    def make():
        head = make_head("grouped-linear", D, V, dtype=torch.bfloat16)
        rows = torch.zeros(N, D, dtype=torch.bfloat16, requires_grad=True)
        adam = torch.optim.SGD(head.parameters())
        return Training(head, adam, lambda: head(rows, torch.zeros(N, dtype=torch.int64)).loss)

    peaks = {}
    for name in ("t4", "h100"):
        with gpu_rules(GPUS[name]):
            peaks[name] = simulate(make).peak
    tiles = (N + 31 * 15) // 16  # of 16 rows, each with a matrix of 40 members
    assert peaks["t4"] - peaks["h100"] > 2 * tiles * 40 * D
