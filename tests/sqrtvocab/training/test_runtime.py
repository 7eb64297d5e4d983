"""Device, number format and seeds."""

import dataclasses

import pytest
import torch

from sqrtvocab.training import UserError, choose_device, choose_dtype, open_runtime
from sqrtvocab.training.memory import keep_freed_memory


def test_auto_prefers_cuda_then_mps(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto", local_rank=1) == torch.device("cuda", 1)
    with pytest.raises(
        UserError, match=r"--device cuda: local rank 2 has no GPU of its own, there are 2 here"
    ):
        choose_device("auto", local_rank=2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "mps"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"


def test_a_missing_device_is_the_users_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(
        UserError, match=r"--device cuda: torch .* finds no cuda device here; use --device cpu"
    ):
        choose_device("cuda")


@pytest.mark.parametrize(("bf16", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_a_gpu_gets_the_best_format_it_has(monkeypatch, bf16, dtype):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    chosen, reason = choose_dtype("auto", torch.device("cuda"))
    assert chosen is dtype
    assert "bfloat16" in reason


def test_formats_on_the_cpu():
    cpu = torch.device("cpu")
    assert choose_dtype("auto", cpu)[0] is torch.float32
    assert choose_dtype("bf16", cpu) == (torch.bfloat16, "--precision bf16")
    with pytest.raises(UserError, match="--precision fp16"):
        choose_dtype("fp16", cpu)


def test_autocast_and_scaler_follow_the_format(runtime):
    a = torch.ones(2, 2)
    with runtime.autocast():
        assert (a @ a).dtype is torch.float32
    half = dataclasses.replace(runtime, dtype=torch.bfloat16)
    with half.autocast():
        assert (a @ a).dtype is torch.bfloat16
    assert not half.scaler().is_enabled()


def test_draws_depend_on_seed_step_and_rank_only(runtime):
    def draw(**change):
        where = dataclasses.replace(runtime, **{key: change[key] for key in change if key != "step"})
        where.seed_step(change.get("step", 0))
        return torch.rand(3).tolist()

    first = draw()
    torch.rand(100)
    assert draw() == first
    assert len({tuple(draw(**change)) for change in ({}, {"step": 1}, {"rank": 1}, {"seed": 1})}) == 4


def test_one_process_needs_no_group(runtime):
    values = torch.tensor([1.0, 2.0])
    assert torch.equal(runtime.sum(values), values)
    assert torch.equal(runtime.max(values), values)
    assert torch.equal(runtime.gather(values), values)
    assert runtime.any(True)
    assert not runtime.any(False)
    assert runtime.peak_memory() > 10 << 20


@pytest.mark.parametrize(("newest", "trims"), [(2**31 - 1, True), (32 << 20, True), (0, False)])
def test_freed_memory_is_kept_as_far_as_the_c_library_allows(monkeypatch, newest, trims):
    calls = []

    class Library:
        @staticmethod
        def mallopt(option, value):
            calls.append((option, value))
            return int(option == -1 or value <= newest)

    monkeypatch.setattr("ctypes.CDLL", lambda name: Library)
    monkeypatch.setattr("sys.platform", "linux")
    keep_freed_memory()
    assert ((-1, -1) in calls) == trims


def test_opening_seeds_torch_and_describes_itself():
    with open_runtime("cpu", "auto", seed=7) as runtime:
        first = torch.rand(3)
    with open_runtime("cpu", "auto", seed=7):
        assert torch.equal(torch.rand(3), first)
    assert runtime.describe().startswith("cpu, ")
    assert "float32 (" in runtime.describe()
