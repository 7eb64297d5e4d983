"""`train_classifier` does not make the host wait for a GPU; see tests/gpu."""

import pytest
import torch
from pretend import pretended_gpu, trainers_on_it

from classifier import cli
from classifier.augment import Augmentation
from sqrtvocab.training import read_metrics


def train_there():
    with trainers_on_it():
        return cli.train_main()


@pytest.mark.parametrize("flip", ["none", "both"])
@pytest.mark.parametrize("kind", ["shift", "standard", "letters"])
def test_augmentation_never_waits(kind, flip):
    augment = Augmentation(kind, flip, 16, seed=0)
    images = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8)
    drawn = augment.draw(range(5), epoch=0)
    want = augment.apply(images, drawn)
    with pretended_gpu() as (device, watch):
        with watch.forbid():
            there = images.to(device, non_blocking=True), drawn.to(device, non_blocking=True)
            found = augment.apply(*there)
        assert found.device == device
        assert torch.equal(found.cpu(), want)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        ["--precision", "fp32"],
        ["--precision", "fp16"],
        ["--augment", "standard", "--flip", "both"],
        ["--augment", "letters"],
    ],
    ids=" ".join,
)
def test_a_training_step_never_waits(forked, tiny_flags, tmp_path, kind):
    steps = ["--max-steps", "4", "--eval-every", "2"]
    flags = [*tiny_flags, *steps, *kind, "--out", tmp_path / "run"]
    result = forked(train_there, flags, tmp_path, {}).wait()
    assert result.code == 0, result.err
    assert [row["step"] for row in read_metrics(tmp_path / "run/metrics.jsonl")] == [2, 2, 4, 4]
