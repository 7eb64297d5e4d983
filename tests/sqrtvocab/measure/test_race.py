"""A race reports the contenders that finish and says why another did not."""

import time

import pytest
import torch

from sqrtvocab.measure.race import race


def sleeper(seconds):
    def step():
        torch.zeros(1_000)
        time.sleep(seconds)

    return step


def failing():
    raise ValueError("no such model\nand more")


@pytest.mark.slow
def test_a_race(capfd):
    entries = {"fast": (sleeper, (0.01,)), "slow": (sleeper, (0.2,)), "broken": (failing, ())}
    results = race(entries, repeats=1, threads=1, device="cpu", title="test", preload=())
    assert list(results) == ["fast", "slow"]
    assert 0.01 <= results["fast"].seconds < results["slow"].seconds
    assert results["fast"].turns == 1
    assert results["fast"].peak >= 4_000
    assert "test: broken: ValueError: no such model" in capfd.readouterr().err
