"""Augmented images depend on (seed, epoch, image) and on nothing else."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from classifier.augment import DICE, MOVE, Augmentation, redrawn
from classifier.data import training_batches
from sqrtvocab.training import BatchPlan

SIZE = 24


@pytest.fixture
def images():
    return torch.randint(256, (6, 3, SIZE, SIZE), dtype=torch.uint8).contiguous(
        memory_format=torch.channels_last
    )


def test_nothing_is_nothing(images):
    assert Augmentation("none", "none", SIZE, 0)(images, range(6), 0) is images


@pytest.mark.parametrize("kind", ["shift", "standard", "letters"])
@pytest.mark.parametrize("flip", ["none", "both"])
def test_a_function_of_seed_epoch_and_image_alone(images, kind, flip):
    augment = Augmentation(kind, flip, SIZE, seed=5)
    together = augment(images, range(6), epoch=2)
    assert together.shape == images.shape
    assert together.dtype is torch.uint8
    assert together.is_contiguous(memory_format=torch.channels_last)
    order = [4, 1, 5]
    assert torch.equal(augment(images[order], order, epoch=2), together[order])
    assert not torch.equal(augment(images, range(6), epoch=3), together)
    assert not torch.equal(Augmentation(kind, flip, SIZE, seed=6)(images, range(6), epoch=2), together)


def test_images_of_a_batch_are_changed_each_in_its_own_way(images):
    same = images[:1].expand(6, -1, -1, -1).contiguous(memory_format=torch.channels_last)
    changed = Augmentation("shift", "none", SIZE, 0)(same, range(6), 0)
    assert len({image.numpy().tobytes() for image in changed}) > 3


def test_the_trainings_draws_are_left_alone(images):
    before = torch.get_rng_state()
    Augmentation("standard", "both", SIZE, 0)(images, range(6), 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_shift_moves_whole_pixels(images):
    limit = SIZE // 8
    for index, (image, moved) in enumerate(
        zip(images, Augmentation("shift", "none", SIZE, 1)(images, range(6), 0), strict=True)
    ):
        padded = v2.functional.pad(image, [limit] * 4, padding_mode="edge")
        windows = [
            padded[:, top : top + SIZE, left : left + SIZE]
            for top in range(2 * limit + 1)
            for left in range(2 * limit + 1)
        ]
        assert any(torch.equal(moved, window) for window in windows), index


@pytest.mark.parametrize(
    ("flip", "dims"), [("horizontal", [(2,)]), ("vertical", [(1,)]), ("both", [(2,), (1,), (1, 2)])]
)
def test_flips_only_where_asked(flip, dims):
    images = torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8)
    seen = set()
    for image, changed in zip(images, Augmentation("none", flip, 8, 0)(images, range(40), 0), strict=True):
        ways = {(): image, **{dim: image.flip(dim) for dim in dims}}
        seen.add(next(way for way, expected in ways.items() if torch.equal(changed, expected)))
    assert seen == {(), *dims}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("flip", ["none", "horizontal", "vertical", "both"])
@pytest.mark.parametrize("kind", ["none", "shift", "standard", "letters"])
def test_a_whole_batch_at_once_is_what_the_workers_make_of_each_image(picture_batch, kind, flip, channels):
    """What a GPU does with what the workers drew, here on the CPU, against torchvision image by image."""
    images = picture_batch(48, channels)
    augment = Augmentation(kind, flip, SIZE, seed=3)
    expected = augment(images, range(48), epoch=1)
    found = augment.apply(images, augment.draw(range(48), epoch=1))
    assert found.dtype is torch.uint8
    assert found.is_contiguous(memory_format=torch.channels_last)
    if kind != "standard":
        assert torch.equal(found, expected)
        return
    difference = found.double() - expected.double()
    assert difference.abs().max() <= 4  # each of four steps rounds to whole levels, three may stretch by 1.3
    assert difference.abs().mean() < 0.4
    assert difference.mean().abs() < 0.1
    assert (expected.double() - images.double()).abs().mean() > 10  # so that this says something


@pytest.fixture
def picture_batch():
    """`picture_batch(count, channels)`: smooth images, which a hundredth of a pixel does not change."""

    def make(count, channels):
        coarse = 255 * torch.rand(count, channels, 5, 5)
        images = torch.nn.functional.interpolate(coarse, SIZE, mode="bilinear").to(torch.uint8)
        return images.contiguous(memory_format=torch.channels_last)

    return make


def test_workers_change_images_for_the_cpu_and_only_draw_for_other_devices(picture_batch):
    images = picture_batch(8, 3)
    pixels = images.permute(0, 2, 3, 1).numpy()
    held = SimpleNamespace(batch=lambda indices: (pixels[indices], np.array(indices)))
    plan, augment = BatchPlan(8, 4, 1, seed=0), Augmentation("shift", "both", SIZE, seed=3)
    for device in ("cpu", "meta"):
        runtime = SimpleNamespace(device=torch.device(device))
        for found, rows, drawn in training_batches(held, plan, range(2, 4), 0, runtime, augment):
            expected = augment(images[rows], rows.tolist(), epoch=1)  # two steps are an epoch
            assert not torch.equal(expected, images[rows])
            if device == "cpu":
                assert torch.equal(found, expected)
                assert drawn.shape == (4, 0)
            else:
                assert torch.equal(found, images[rows])
                assert torch.equal(augment.apply(found, drawn), expected)


def test_drawing_alone_leaves_the_trainings_draws_alone():
    before = torch.get_rng_state()
    drawn = Augmentation("standard", "both", SIZE, 0).draw(range(6), 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(Augmentation("standard", "both", SIZE, 0).draw([4, 1], 0), drawn[[4, 1]])
    assert Augmentation("none", "none", SIZE, 0).draw(range(6), 0).shape == (6, 0)


def test_grey_images():
    images = torch.randint(256, (3, 1, SIZE, SIZE), dtype=torch.uint8)
    assert Augmentation("standard", "horizontal", SIZE, 0)(images, range(3), 0).shape == images.shape


def bar(width):
    """A dark upright bar in the middle of a white picture."""
    image = torch.full((1, 1, SIZE, SIZE), 255, dtype=torch.uint8)
    image[..., (SIZE - width) // 2 : (SIZE + width) // 2] = 0
    return image


def dice(count, right=0.0, weight=0.0):
    thrown = torch.zeros(count, DICE)
    thrown[:, 4], thrown[:, 6] = right, weight
    return thrown


def test_a_letter_without_dice_stays_as_it_is(images):
    assert torch.equal(redrawn(images, dice(6)), images)


def test_strokes_become_thicker_and_thinner():
    thin, same, thick = (
        (255 - redrawn(bar(6), dice(1, weight=weight)).double()).sum().item() for weight in (-1.0, 0.0, 1.0)
    )
    assert thin < same < thick


def test_a_letter_moves_as_far_as_it_is_told():
    pixels = redrawn(bar(2), dice(1, right=1.0))
    ink = 255.0 - pixels[0, 0].double().mean(0)
    centre = (ink * torch.arange(SIZE)).sum() / ink.sum()
    assert centre == pytest.approx((SIZE - 1) / 2 - MOVE * SIZE / 2, abs=0.02)


def test_a_letter_is_bent_where_a_point_moves():
    thrown = dice(1)
    thrown[0, 7] = 1.0  # the first of the points that move to the right: top left
    before, after = bar(SIZE // 2)[0, 0], redrawn(bar(SIZE // 2), thrown)[0, 0]
    assert not torch.equal(before[: SIZE // 3], after[: SIZE // 3])
    assert torch.equal(before[-2:], after[-2:])
