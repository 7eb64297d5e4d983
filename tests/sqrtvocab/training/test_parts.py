"""Schedule, tally, requests to stop and accumulation."""

import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sqrtvocab.training import (
    BatchPlan,
    RunError,
    StopRequests,
    Tally,
    UserError,
    exchange_gradients,
    exit_code,
    learning_rate,
    open_runtime,
    share_of_mean,
)

# ---- learning rate


def test_constant_stays_and_cosine_falls_to_nothing():
    assert [learning_rate(step, peak=0.1, total_steps=5) for step in range(5)] == [0.1] * 5
    rates = [learning_rate(step, peak=0.1, total_steps=100, schedule="cosine") for step in range(100)]
    assert rates[0] == 0.1
    assert rates == sorted(rates, reverse=True)
    assert math.isclose(rates[50], 0.05)
    assert 0 < rates[-1] < 1e-4


def test_warmup_rises_to_the_peak():
    rates = [learning_rate(step, peak=1.0, total_steps=9, warmup_steps=4) for step in range(6)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


# ---- tally


def test_sums_since_the_last_fetch(runtime):
    tally = Tally(("loss", "items"), runtime)
    tally.add(1, torch.tensor(1.5), torch.tensor(2))
    tally.add(2, torch.tensor(2.0, requires_grad=True), torch.tensor(3))
    assert tally.fetch() == {"loss": 3.5, "items": 5}
    assert tally.fetch() == {"loss": 0, "items": 0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_step_that_is_not_finite_is_named(runtime, bad):
    tally = Tally(("loss",), runtime)
    for step, loss in enumerate([1.0, 2.0, bad, 3.0, bad], start=10):
        tally.add(step, torch.tensor(loss))
    with pytest.raises(RunError, match=r"not finite at step 12; the last good checkpoint is kept"):
        tally.fetch()


# ---- requests to stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_the_second_acts(number, capfd):
    before = signal.getsignal(number)
    with StopRequests() as stop:
        assert signal.getsignal(number) is before  # until the first step Ctrl-C just ends the command
        stop.catch_signals()
        assert stop.reason is None
        os.kill(os.getpid(), number)
        assert stop.reason == f"{number.name} received"
        assert capfd.readouterr().err.startswith(f"{number.name} received: finishing the step, ")
        assert signal.getsignal(number) is before
    assert signal.getsignal(number) is before


def test_the_clock_runs_out():
    assert StopRequests(1e-9).reason == "--max-minutes 1e-09 reached"
    assert StopRequests(60).reason is None


# ---- accumulation


@pytest.mark.parametrize("cuts", [[12], [5, 5, 2], [1] * 12])
def test_micro_batches_of_any_size_give_the_gradient_of_the_whole(runtime, cuts):
    torch.manual_seed(0)
    model = nn.Linear(6, 4).double()
    x, target = torch.randn(12, 6).double(), torch.randint(0, 4, (12,))
    nn.functional.cross_entropy(model(x), target).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for part, labels in zip(x.split(cuts), target.split(cuts), strict=True):
        with exchange_gradients(model, now=True):
            loss_sum = nn.functional.cross_entropy(model(part), labels, reduction="sum")
            share_of_mean(loss_sum, items=12, runtime=runtime).backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-12)


def two_ranks(rank: int, port: int, folder: Path) -> None:
    """One of two processes that share 7 items: 4 and 3, in micro-batches of at most 2."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with open_runtime("cpu", "fp32", seed=0) as runtime:
        model = DistributedDataParallel(nn.Linear(6, 4).double())
        x, target = data()
        plan = BatchPlan(7, 2, 2, seed=0, rank=rank, world_size=2)
        batches = list(plan.batches(0, 1))
        for k, batch in enumerate(batches, start=1):
            with exchange_gradients(model, now=k == len(batches)):
                loss_sum = nn.functional.cross_entropy(model(x[batch]), target[batch], reduction="sum")
                share_of_mean(loss_sum, plan.items(0), runtime).backward()
        tally = Tally(("loss",), runtime)
        tally.add(1, loss_sum)
        torch.save(
            {
                "gradients": [parameter.grad for parameter in model.parameters()],
                "gathered": runtime.gather(torch.arange(rank + 1)),
                "any": (runtime.any(rank == 1), runtime.any(False)),
                "tally": (tally.fetch()["loss"], loss_sum.item()),
            },
            folder / f"{rank}.pt",
        )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(7, 6, generator=generator).double(), torch.randint(0, 4, (7,), generator=generator)


def test_two_ranks_give_the_gradient_of_the_whole_batch(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=two_ranks, args=(rank, port, tmp_path)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        assert process.exitcode == 0
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]

    torch.manual_seed(0)
    model = nn.Linear(6, 4).double()
    x, target = data()
    nn.functional.cross_entropy(model(x), target).backward()
    for result in results:
        for found, parameter in zip(result["gradients"], model.parameters(), strict=True):
            torch.testing.assert_close(found, parameter.grad, rtol=1e-12, atol=1e-12)
        assert result["gathered"].tolist() == [0, 0, 1]
        assert result["any"] == (True, False)
        assert result["tally"][0] == pytest.approx(sum(other["tally"][1] for other in results))


# ---- exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [(UserError("--x: bad"), 2), (RunError("it broke"), 1), (OSError(28, "No space left"), 1), (None, 0)],
)
@pytest.mark.parametrize(("rank", "says"), [("0", "prog: "), ("3", "prog: rank 3: ")])
def test_exit_codes(capsys, monkeypatch, error, code, rank, says):
    monkeypatch.setenv("RANK", rank)

    def command():
        if error:
            raise error

    assert exit_code("prog", command) == code
    assert capsys.readouterr().err == (f"{says}{error}\n" if error else "")


@pytest.mark.parametrize("body", ["print('x' * 10**6)", "print('x')", "print('x', flush=True)"])
def test_nobody_reads_on(body):
    """`command | head` ends without a word, whether the pipe breaks in the command or after it."""
    code = (
        "import sys; from sqrtvocab.training import exit_code\n"
        "print('ready', file=sys.stderr, flush=True); sys.stdin.read()\n"
        f"sys.exit(exit_code('prog', lambda: {body}))"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as process:
        assert process.stderr.readline() == "ready\n"
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_another_broken_pipe_is_told(capsys):
    def command():
        raise BrokenPipeError("of a worker")

    assert exit_code("prog", command) == 1
    assert capsys.readouterr().err == "prog: of a worker\n"


def test_a_mistake_of_ours_shows_where_it_is(capsys):
    assert exit_code("prog", lambda: [][0]) == 1
    assert "IndexError" in capsys.readouterr().err
