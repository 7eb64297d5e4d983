"""A head of one's own, in one class and one line: trainers, evaluation, generate(), compare_heads know it."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import classifier.train  # noqa: F401  (here, so that the forked processes need not import them)
import lm.train  # noqa: F401
from classifier import cli as images
from lm import cli as text
from lm.model import CompressedLM
from scripts import compare_heads
from scripts.common.runs import train_in_this_process
from sqrtvocab import HEADS, Head


class CosineHead(Head):
    """P(class) = softmax(s · cos(w, h) + b), with a learnt s."""

    def __init__(self, in_features, num_classes, validate=False, device=None, dtype=None):
        super().__init__(in_features, num_classes, validate)
        self.vectors = nn.Parameter(torch.empty(num_classes, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_classes, device=device, dtype=dtype))
        self.sharpness = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.vectors)
        nn.init.zeros_(self.bias)
        nn.init.constant_(self.sharpness, 5.0)

    def _log_prob(self, hidden):
        cosine = F.linear(F.normalize(hidden, dim=-1), F.normalize(self.vectors, dim=-1))
        return F.log_softmax((self.sharpness * cosine + self.bias).float(), dim=-1)

    def _set_prior(self, log_prior):
        self.bias.copy_(log_prior)


IMAGES = (
    "--only", "shape=circle,star", "--only", "pattern=solid", "--only", "rotation=0", "--only", "size=large",
    "--only", "texture=none", "--only", "opacity=1.0", "--only", "border=solid", "--only", "colour=red,blue",
    "--batch-size", "6", "--accumulate", "1", "--workers", "0", "--eval-images", "4",
)  # fmt: skip
TEXT = (
    "--data", "stories:30", "--tokenizer", "train:300", "--hidden-size", "16", "--num-layers", "1",
    "--num-attention-heads", "2", "--seq-len", "16", "--batch-size", "4", "--eval-tokens", "64",
    "--sample-every", "0",
)  # fmt: skip


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(HEADS, "cosine", CosineHead)


@pytest.fixture
def run(forked, tmp_path):
    def call(main, *argv):
        result = forked(main, argv, tmp_path, {"SQRTVOCAB_CACHE": str(tmp_path / "cache")}).wait()
        assert result.code == 0, result.err
        return result

    return call


@pytest.mark.parametrize(
    ("train", "evaluate", "flags"),
    [(images.train_main, images.eval_main, IMAGES), (text.train_main, text.eval_main, TEXT)],
    ids=["train_classifier", "train_lm"],
)
def test_it_trains_resumes_and_is_evaluated(run, train, evaluate, flags, tmp_path):
    common = ("--head", "cosine", "--prior", "--schedule", "constant", "--eval-every", "2", *flags)
    told = run(train, *common, "--max-steps", "4", "--out", tmp_path / "whole").err
    assert "cosine, " in told
    run(train, *common, "--max-steps", "2", "--out", tmp_path / "half")
    run(train, *common, "--max-steps", "4", "--out", tmp_path / "half", "--resume", "auto")
    weights = [(tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("whole", "half")]
    assert weights[0] == weights[1]
    run(evaluate, tmp_path / "whole")
    (written,) = (tmp_path / "whole").glob("eval*.json")
    assert json.loads(written.read_text())["head"] == "cosine"


def test_it_generates(run, tmp_path):
    run(text.train_main, "--head", "cosine", "--max-steps", "2", "--out", tmp_path / "run", *TEXT)
    model = CompressedLM.from_pretrained(tmp_path / "run" / "best").eval()
    prompt = torch.tensor([[3, 1, 4]])
    written = model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=None)
    for place in range(3, 8):  # greedily, by the dense logits
        assert written[0, place] == model(written[:, :place]).logits[0, -1].argmax()


def test_it_is_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("SQRTVOCAB_CACHE", str(tmp_path / "cache"))
    config = compare_heads.LmFlags(
        quick=True,
        threads=1,
        contenders=("cosine", "grouped-linear"),
        out=tmp_path / "out",
        runs=tmp_path / "runs",
    )
    compare_heads.main(config, train_in_this_process)
    page = (tmp_path / "out" / "heads_lm.md").read_text()
    assert "| `cosine` |" in page
    assert "| `grouped-linear` |" in page
