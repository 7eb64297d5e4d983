"""The benchmark of language models runs, reports every contender and refuses bad flags in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_lm.py"


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.slow
def test_quick(tmp_path):
    result = run("--quick", "--repeats", 1, "--json", tmp_path / "lm.json")
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
    heads = ("grouped", "grouped-linear", "grouped-low-rank")
    both = {name for head in heads for name in (head, f"{head}, all logits")}
    assert all(set(each) == {"GPT2LMHeadModel", *both} for each in written.values())
    assert "grouped against no head at all" in result.stdout


@pytest.mark.slow
def test_whether_a_shape_fits(tmp_path):
    shape = ("--num-layers", 1, "--hidden-size", 64, "--batch-size", 56)
    result = run("--only", "memory", "--gpu", "t4", *shape, "--json", tmp_path / "lm.json")
    assert result.returncode == 0, result.stderr
    lines = {line.split()[0]: line for line in result.stdout.split("half precision")[0].splitlines() if line}
    assert lines["GPT-2"].endswith("out of memory")  # 56 x 512 x 50,257 floats are 5.4 GiB, three times
    assert all(lines[name].endswith("  fits") for name in ("grouped", "grouped-linear", "grouped-low-rank"))
    figures = json.loads((tmp_path / "lm.json").read_text())["gpu"]
    peaks = figures["settings"]["float32"]["peak_bytes"]
    assert peaks["grouped"] < figures["usable_bytes"] < peaks["GPT-2"]


@pytest.mark.slow
def test_the_page_quotes_the_split_that_is_printed(script):
    models = script("lm_models")
    memory = models.simulate_training("grouped", models.Shape(), models.Setting(optimizer="plain"))
    page = " ".join((SCRIPT.parents[1] / "docs" / "lm.md").read_text().split())
    gib = {part: f"{size / 2**30:.2f}" for part, size in memory._asdict().items()}
    assert (
        f"Of grouped's {memory.peak / 2**30:.2f} GiB, {gib['activations']} are activations, {gib['logits']} "
        f"logits and what is made of them, {gib['optimiser']} Adam's moments, {gib['parameters']} parameters"
    ) in page
    assert memory.gradients < 0.005 * 2**30


def test_tokens_are_as_frequent_as_words(script):
    """Of the adaptive head's 2,000 classes the first 80 are the shortlist: most tokens, not 4 %."""
    models = script("lm_models")
    targets = []
    training = models.make_training("adaptive", models.Shape(2000, 16, 1, 2, 64, 8))
    training.output_layer.register_forward_pre_hook(lambda module, args: targets.append(args[1]))
    training.loss()
    assert 0.45 < (targets[0] < 80).float().mean() < 0.75  # H(80) / H(2000) = 0.61


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
def test_bad_flags(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
