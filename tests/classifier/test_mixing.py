"""mixup and cutmix: pairs of labels that mean what torchvision's V-wide ones mean."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torchvision.transforms import v2

from classifier.mixing import Mixing
from classifier.model import make_classifier
from sqrtvocab import Partition


def batch(count=6):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, 12, 10), dtype=torch.uint8, generator=generator)
    return images, torch.tensor([3, 1, 4, 1, 5, 0])[:count]


@pytest.mark.parametrize(("kind", "flags"), [(v2.MixUp, (0.3, 0.0)), (v2.CutMix, (0.0, 0.7))])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_as_the_dense_labels_of_torchvision(kind, flags, seed):
    images, target = batch()
    torch.manual_seed(seed)
    mixed, classes, shares = Mixing(*flags)(images, target)
    torch.manual_seed(seed)
    expected, dense = kind(alpha=max(flags), num_classes=7)(images.float(), target)
    assert torch.equal(mixed, expected)
    found = torch.zeros(6, 7).scatter_add(1, classes, shares)
    torch.testing.assert_close(found, dense, rtol=0, atol=1e-6)
    assert shares.shape == (6, 2)


def test_nothing_asked_for_nothing_changed():
    images, target = batch()
    before = torch.get_rng_state()
    assert Mixing(0.0, 0.0)(images, target) == (images, target, None)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_image_cannot_be_mixed():
    images, target = batch(1)
    assert Mixing(1.0, 0.0)(images, target)[2] is None


def test_both_take_turns():
    images, target = batch()
    mixing, kinds = Mixing(1.0, 1.0), set()
    for seed in range(20):
        torch.manual_seed(seed)
        mixed = mixing(images, target)[0]
        kinds.add(bool((mixed == mixed.round()).all()))  # cutmix leaves whole numbers
    assert kinds == {True, False}


@pytest.mark.slow
def test_a_resumed_run_is_the_same_to_the_bit(train, tmp_path):
    flags = ["--mixup", 0.4, "--cutmix", 1.0, "--eval-every", 2]
    assert train(*flags, "--max-steps", 4, "--out", tmp_path / "whole").code == 0
    assert train(*flags, "--max-steps", 2, "--out", tmp_path / "parts").code == 0
    again = train(*flags, "--max-steps", 4, "--out", tmp_path / "parts", "--resume", "auto")
    assert again.code == 0, again.err
    whole, parts = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    other = train("--max-steps", 5, "--out", tmp_path / "parts", "--resume", "auto")
    assert other.code == 2
    assert "mixup is 0.4 there and 0.0 here; cutmix is 1.0 there and 0.0 here" in other.err


def test_the_loss_is_that_of_the_mixture():
    torch.manual_seed(0)
    model = make_classifier("grouped", Partition(7, 3)).eval()
    images, target = torch.randint(0, 256, (6, 3, 100, 100), dtype=torch.uint8), batch()[1]
    mixed, classes, shares = Mixing(1.0, 0.0)(images, target)
    loss = model(mixed, classes, shares).loss
    dense = torch.zeros(6, 7).scatter_add(1, classes, shares)
    expected = F.cross_entropy(model.head.log_prob(model.encoder(mixed)), dense)
    torch.testing.assert_close(loss, expected)
