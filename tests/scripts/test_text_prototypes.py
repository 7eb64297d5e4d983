"""`text_prototypes`: a trained head and prototypes of contexts, on the same tokens."""

import json
import math

import pytest

from lm import cli

TINY = (
    "--data stories:60 --tokenizer train:300 --hidden-size 16 --num-layers 1 --num-attention-heads 2 "
    "--seq-len 32 --batch-size 8 --max-steps 30 --lr 0.01 --eval-every 30 --eval-tokens 2048 "
    "--sample-every 0 --device cpu --head flat"
)


@pytest.fixture
def run(forked, tmp_path):
    flags = (*TINY.split(), "--cache", tmp_path / "cache", "--out", tmp_path / "run")
    result = forked(cli.train_main, flags, tmp_path, {}).wait()
    assert result.code == 0, result.err
    return tmp_path / "run"


def test_both_heads_are_scored_on_the_same_tokens(call, run, tmp_path):
    flags = ("--tokens", 8_192, "--eval-tokens", 2_048, "--json", tmp_path / "out.json")
    result = call("text_prototypes", run, *flags)
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["scored"] + figures["left out"] == 2_048
    assert figures["scored"] > 2_000
    own = json.loads((run / "best" / "state.json").read_text())["metrics"]["loss/validation"]
    assert figures["the run's own head"][0] == pytest.approx(own, abs=0.05)  # the few left out are rare
    assert figures["prototypes"][0] < math.log(300)
    assert f"{figures['prototypes'][0]:8.3f} nats" in result.stdout


def test_too_little_text(call, run):
    result = call("text_prototypes", run, "--tokens", 1)
    assert result.returncode == 2
    assert "--tokens 1: less than a window of 32 besides 4,096" in result.stderr
