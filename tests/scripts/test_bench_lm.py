"""The benchmark of language models runs, reports every contender and refuses bad flags in one line."""

import json
from pathlib import Path

import pytest
import torch

from scripts.common.lm_models import (
    Setting,
    Shape,
    as_if_trained,
    make_model,
    make_training,
    simulate_training,
)
from scripts.common.registered import plain_heads
from sqrtvocab.heads.registry import HEADS

PAGE = Path(__file__).parents[2] / "docs" / "lm.md"


@pytest.mark.slow
def test_quick(call, tmp_path):
    result = call("bench_lm", "--quick", "--repeats", 1, "--json", tmp_path / "lm.json")
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "lm.json").read_text())
    peaks, parts = figures["memory"]["peak_bytes"], figures["memory"]["bytes"]
    assert all(sum(parts[name].values()) == peak for name, peak in peaks.items())
    assert peaks["no head"] < peaks["grouped"] < peaks["GPT2LMHeadModel"]
    assert set(figures["training"]["tokens_per_s"]) == set(peaks)
    written = figures["writing"]["ms_per_token"]
    assert set(written) == {
        f"{mode}, batch {n}" for mode in ("greedy", "sampling, top-k 50") for n in (1, 32)
    }
    heads = ("grouped", "grouped-linear", "grouped-low-rank", "adaptive")
    both = {name for head in heads for name in (head, f"{head}, all logits")}
    assert all(set(each) == {"GPT2LMHeadModel", *both} for each in written.values())
    assert "grouped against no head at all" in result.stdout


@pytest.mark.slow
def test_whether_a_shape_fits(call, tmp_path):
    shape = ("--num-layers", 1, "--hidden-size", 64, "--batch-size", 56)
    result = call("bench_lm", "--only", "memory", "--gpu", "t4", *shape, "--json", tmp_path / "lm.json")
    assert result.returncode == 0, result.stderr
    lines = {line.split()[0]: line for line in result.stdout.split("half precision")[0].splitlines() if line}
    assert lines["GPT-2"].endswith("out of memory")  # 56 x 512 x 50,257 floats are 5.4 GiB, three times
    assert all(lines[name].endswith("  fits") for name in ("grouped", "grouped-linear", "grouped-low-rank"))
    figures = json.loads((tmp_path / "lm.json").read_text())["gpu"]
    peaks = figures["settings"]["float32"]["peak_bytes"]
    assert peaks["grouped"] < figures["usable_bytes"] < peaks["GPT-2"]


@pytest.mark.slow
def test_the_page_quotes_the_split_that_is_printed():
    memory = simulate_training("grouped", Shape(), Setting(optimizer="plain"))
    page = " ".join(PAGE.read_text().split())
    gib = {part: f"{size / 2**30:.2f}" for part, size in memory._asdict().items()}
    assert (
        f"Of grouped's {memory.peak / 2**30:.2f} GiB, {gib['activations']} are activations, {gib['logits']} "
        f"logits and what is made of them, {gib['optimiser']} Adam's moments, {gib['parameters']} parameters"
    ) in page
    assert memory.gradients < 0.005 * 2**30


def test_tokens_are_as_frequent_as_words():
    """Of 2,000 classes the first 80 are most tokens, not 4 %: the adaptive head depends on it."""
    targets = []
    training = make_training("adaptive", Shape(2000, 16, 1, 2, 64, 8))
    training.output_layer.register_forward_pre_hook(lambda module, args: targets.append(args[1]))
    training.loss()
    assert 0.45 < (targets[0] < 80).float().mean() < 0.75  # H(80) / H(2000) = 0.61


@pytest.mark.parametrize("name", [name for name in plain_heads() if HEADS[name].sparse_topk])
def test_a_model_as_if_trained_is_sure_of_itself(name):
    """Whatever head writes: the entropy falls, to what text has."""
    model = make_model(name, Shape(2000, 16, 1, 2, 64, 8)).eval()
    ids = torch.randint(2000, (4, 16))

    def entropy():
        with torch.no_grad():
            hidden = model.backbone(input_ids=ids).last_hidden_state
            return float(torch.distributions.Categorical(logits=model.head.log_prob(hidden)).entropy().mean())

    before = entropy()
    as_if_trained(model)
    assert 1 < entropy() < min(before, 5.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", 0), "--repeats must be at least 1"),
        (("--json", "/no/such/folder/x.json"), "--json: no folder /no/such/folder"),
        (("--bogus",), "Unrecognized options: --bogus"),
        (("--gpu", "t4"), "--gpu is about memory, and simulated: say --only memory, too"),
        (
            ("--only", "memory", "--hidden-size", 65),
            "--hidden-size 65 must be a multiple of --num-attention-heads 8",
        ),
    ],
)
def test_bad_flags(call, arguments, message):
    result = call("bench_lm", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
