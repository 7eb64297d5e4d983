"""No head makes the host wait for a GPU, neither in a training step nor in decoding; see tests/gpu."""

import pytest
import torch
from pretend import WaitError, pretended_gpu
from torch import nn

from sqrtvocab import Partition

D, V, N = 8, 60, 24
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.01}
WAITING = ("loop", "segments")  # kernels that are for the CPU, and say so


@pytest.fixture(
    params=[pytest.param(d, marks=pytest.mark.slow if d.itemsize < 4 else ()) for d in DTYPES], ids=str
)
def dtype(request):
    return request.param


def test_the_pretended_gpu_notices_waits_and_mixed_devices():
    with pretended_gpu() as (device, watch), watch.forbid():
        values = torch.arange(6, device=device)
        assert values.device.type == "pretend"
        for wait in (
            lambda: values.sum().item(),
            lambda: values.nonzero(),
            lambda: values[values > 3],
            lambda: values.tolist(),
            lambda: values.cpu(),
            lambda: torch.ones(3).to(device),
            lambda: values.repeat_interleave(values),
        ):
            with pytest.raises(WaitError):
                wait()
        with pytest.raises(AssertionError, match="on the device and on the CPU"):
            values + torch.ones(6)
        assert len(watch.waits) == 7
        values[values > 3] = 0  # no mask is read for that
        torch.ones(3).to(device, non_blocking=True)
        assert len(watch.waits) == 7


def test_a_training_step_never_waits(make, dtype):
    head = make(D, V, Partition.random(V)).to(dtype)
    if getattr(head, "kernel", None) in WAITING:
        pytest.skip("a kernel for the CPU")
    hidden, target = torch.randn(N, D, dtype=dtype), torch.randint(V, (N,))
    target[0] = -100
    want = head(hidden, target, label_smoothing=0.1).loss.item()
    with pretended_gpu() as (device, watch):
        head.to(device)
        rows, classes = hidden.to(device).requires_grad_(), target.to(device)
        optimizer = torch.optim.AdamW(head.parameters(), fused=True)
        for _ in range(2):  # in the first step the optimiser makes its state
            with watch.forbid():
                loss = head(rows, classes, label_smoothing=0.1).loss
                loss.backward()
                nn.utils.clip_grad_norm_(head.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        losses = loss.item()
    assert losses < want
    assert losses == pytest.approx(want, abs=0.2 + TOLERANCE[dtype])


def test_the_loss_there_is_the_loss_here(make, dtype):
    head = make(D, V, Partition.random(V)).to(dtype)
    if getattr(head, "kernel", None) in WAITING:
        pytest.skip("a kernel for the CPU")
    hidden, target = torch.randn(N, D, dtype=dtype), torch.randint(V, (N,))
    want = head(hidden, target).loss.detach()
    with pretended_gpu() as (device, _):
        got = head.to(device)(hidden.to(device), target.to(device)).loss.cpu()
    torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_decoding_never_waits(make):
    head = make(D, V, Partition.random(V))
    hidden = torch.randn(N, D)
    want = head.topk(hidden, 5)
    with pretended_gpu() as (device, watch):
        head.to(device)
        rows = hidden.to(device)
        with watch.forbid():
            found = head.topk(rows, 5)
            head.predict(rows)
            head.log_prob(rows)
            for options in ({}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.9, "min_p": 0.1}):
                drawn = head.sample(rows, **options)
        got = tuple(part.cpu() for part in found)
        assert 0 <= drawn.amin().item() <= drawn.amax().item() < V
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
