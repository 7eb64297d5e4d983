"""Training with sparse gradients and drawn classes: resumed to the bit, refused where it makes no sense."""

import pytest

import classifier.train  # noqa: F401  (here, so that the forked processes need not import them)
import lm.train  # noqa: F401
from classifier import cli as images
from lm import cli as text

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


@pytest.fixture
def run(forked, tmp_path):
    def call(main, *argv, code=0):
        result = forked(main, argv, tmp_path, {"SQRTVOCAB_CACHE": str(tmp_path / "cache")}).wait()
        assert result.code == code, result.err
        return result

    return call


@pytest.mark.parametrize(
    ("train", "flags"),
    [
        pytest.param(images.train_main, (*IMAGES, "--samples", "1", "--accumulate", "2"), id="images"),
        pytest.param(text.train_main, (*TEXT, "--samples", "30"), id="text", marks=pytest.mark.slow),
    ],
)
def test_resumed_it_is_as_if_never_stopped(run, train, flags, tmp_path):
    common = (*flags, "--head", "sampled", "--schedule", "constant", "--eval-every", "2")
    told = run(train, *common, "--max-steps", "4", "--out", tmp_path / "whole").err
    assert "drawn for a batch" in told
    run(train, *common, "--max-steps", "2", "--out", tmp_path / "half")
    run(train, *common, "--max-steps", "4", "--out", tmp_path / "half", "--resume", "auto")
    weights = [(tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("whole", "half")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(("train", "flags"), [(images.train_main, IMAGES), (text.train_main, TEXT)])
def test_more_draws_or_buckets_than_classes_are_refused(run, train, flags, tmp_path):
    for head, option in (("sampled", "samples"), ("mach", "buckets")):
        told = run(train, *flags, "--head", head, f"--{option}", "999", "--out", tmp_path / "r", code=2).err
        assert f"--head {head}: {option} must be at most num_classes" in told
        assert len(told.strip().splitlines()) <= 3


def test_other_draws_are_another_run(run, tmp_path):
    common = (*IMAGES, "--head", "sampled", "--eval-every", "2", "--out", tmp_path / "r", "--max-steps", "2")
    run(images.train_main, *common, "--samples", "2")
    told = run(images.train_main, *common, "--samples", "3", "--resume", "auto", code=2).err
    assert "samples is 2 there and 3 here" in told
