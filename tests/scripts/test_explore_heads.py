"""Every idea is a distribution, starts from the prior where it says so, and leaves a line in the record."""

import csv
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import tyro

from lm.stories.write import stories
from lm.text.tokenizer import END

SCRIPT = Path(__file__).parents[2] / "scripts" / "explore_heads.py"
V = 300


@pytest.fixture(scope="module")
def explore():
    spec = importlib.util.spec_from_file_location("idea_heads", SCRIPT.with_name("idea_heads.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def setting_of(explore):
    config = SimpleNamespace(hidden_size=16, num_layers=1, num_attention_heads=2, seq_len=8, seed=0)
    counts = torch.randint(0, 1000, (V,), generator=torch.Generator().manual_seed(0))
    return explore.Setting(config, V, counts, None, lambda model: 0.0)


IDEAS = {
    "grouped_linear": lambda e: e.grouped_linear,
    "deep_group": lambda e: e.deep_group,
    "first group": lambda e: e.shortlist(40, "group"),
    "shortlist": lambda e: e.shortlist(40, "outputs"),
    "adapted": lambda e: e.adapted,
    "light": lambda e: e.light,
    "low_rank": lambda e: e.low_rank(3),
    "narrow": lambda e: e.narrow(3),
}


@pytest.mark.parametrize("idea", IDEAS)
def test_probabilities_of_all_classes_sum_to_one(explore, idea):
    head = IDEAS[idea](explore)(setting_of(explore)).head
    hidden = torch.randn(2, 16)

    def probability(row, target):
        return float(torch.exp(-head(row.view(1, 1, 16), torch.tensor([[target]])).loss.detach()))

    for row in hidden:
        assert sum(probability(row, target) for target in range(V)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("idea", [idea for idea in IDEAS if idea != "deep_group"])
def test_a_zero_hidden_state_gives_the_prior(explore, idea):
    setting = setting_of(explore)
    head = IDEAS[idea](explore)(setting).head
    prior = (setting.counts + 1) / (setting.counts + 1).sum()
    targets = torch.arange(0, V, 37)
    losses = [float(head(torch.zeros(1, 1, 16), target.view(1, 1)).loss.detach()) for target in targets]
    torch.testing.assert_close(torch.tensor(losses), -prior[targets].log(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_quick(tmp_path):
    out = tmp_path / "ideas.csv"
    command = [sys.executable, SCRIPT, "--quick", "--out", out]
    for _ in range(2):  # the second time there is nothing to do
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) > 10
        assert all(5 < float(row["loss"]) < 12 for row in rows)
    assert result.stdout == ""
    page = out.with_suffix(".md").read_text()
    assert all(f"| `{row['idea']}` | {row['what']} | 1 | {float(row['loss']):.3f} |" in page for row in rows)


def test_page_takes_the_seeds_together(script):
    explore = script("explore_heads")
    rows = [
        {
            "idea": idea, "what": idea, "data": "text", "training_tokens": "1000", "seed": str(seed),
            "seconds": "9", "loss": str(loss), "head_parameters": "1234", "machine": "a machine",
            **dict.fromkeys([name for name in explore.SETTINGS if name != "seed"], "8"),
        }
        for idea, losses in {"grouped-linear": (4.0, 5.0), "tied": (4.5, 5.5), "other": (3.0,)}.items()
        for seed, loss in enumerate(losses)
    ]  # fmt: skip
    page = explore.document(rows)
    assert "## 8 steps of 64 tokens, learning rate 8\n" in page
    # Student's t for two values is 12.706, their standard error 0.5.
    assert "| `tied` | tied | 2 | 5.000 ± 6.353 | +0.500 ± 0.000 | 9 | 1,234 |" in page
    assert "| `other` | other | 1 | 3.000 | −1.000 | 9 | 1,234 |" in page
    commands = re.findall(r"```bash\npython scripts/explore_heads.py (.*)\n```", page)
    configs = [tyro.cli(explore.Config, args=shlex.split(command)) for command in commands]
    assert configs == [
        explore.Config(data="text", seed=seed, **dict.fromkeys(set(explore.SETTINGS) - {"seed"}, 8))
        for seed in (0, 1)
    ]


def test_an_unknown_idea_is_named():
    result = subprocess.run([sys.executable, SCRIPT, "--ideas", "magic"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "--ideas magic: expected some of grouped-linear" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_hidden_size_that_its_heads_cannot_share(call):
    result = call("explore_heads.py", "--hidden-size", 65)
    said = "explore_heads: --hidden-size 65 must be a multiple of --num-attention-heads 2\n"
    assert (result.returncode, result.stderr) == (2, said)


@pytest.mark.slow
def test_a_folder_keeps_its_slash(call, tmp_path):
    """Rows made before it did are known as they are."""
    (tmp_path / "tinystories").mkdir()
    (tmp_path / "tinystories" / "train.txt").write_text(END.join(stories("train", 60)))
    shape = "--steps 1 --batch-size 1 --seq-len 16 --hidden-size 8 --num-layers 1 --eval-tokens 32"
    flags = ["--data", tmp_path / "tinystories", *shape.split(), "--ideas", "light"]
    out = tmp_path / "ideas.csv"
    assert call("explore_heads.py", *flags, "--out", out).returncode == 0
    before = out.read_text()
    assert "light,tinystories/," in before
    out.write_text(before.replace("tinystories/", "tinystories"))
    again = call("explore_heads.py", *flags, "--out", out)
    assert "light: is in" in again.stderr
    assert "--data tinystories/ --steps 1" in out.with_suffix(".md").read_text()
