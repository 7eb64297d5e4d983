"""A race reports the contenders that finish and says why another did not."""

import time

import pytest

from sqrtvocab.measure.race import race


def sleeper(seconds):
    return lambda: time.sleep(seconds)


def failing():
    raise ValueError("no such model\nand more")


@pytest.mark.slow
def test_a_race(capfd):
    entries = {"fast": (sleeper, (0.01,)), "slow": (sleeper, (0.2,)), "broken": (failing, ())}
    seconds = race(entries, repeats=1, threads=1, device="cpu", title="test", preload=())
    assert list(seconds) == ["fast", "slow"]
    assert 0.01 <= seconds["fast"] < seconds["slow"]
    assert "test: broken: ValueError: no such model" in capfd.readouterr().err
