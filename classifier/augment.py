"""Training images changed a little each time they are seen, by torchvision's transforms and, for letters, by
one of our own that takes a batch at a time.

Every image draws from a generator of its own, seeded by (seed, epoch, image): what becomes of it depends
neither on the batch it is in, nor on ranks or workers, nor on what was drawn before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# torchvision's transforms are imported where they are used: they are slow to import, and shapes need none.

Augment = Literal["none", "shift", "standard", "letters"]
Flip = Literal["none", "horizontal", "vertical", "both"]

# How far letters are changed at most.
TURN = 0.12  # radians: 7 degrees
SLANT = 0.2
STRETCH = 0.2  # log of the factor, in either direction by itself
MOVE = 0.12  # of half the side
BEND, KNOTS = 0.1, 4  # of half the side, at each of 4 x 4 points; smooth between them
WEIGHT = 0.7  # of what making strokes a pixel thicker or thinner on each side would do
DICE = 7 + 2 * KNOTS * KNOTS


class Augmentation:
    """Callable on batches.

    Args:
        kind: shift moves an image by up to an eighth of its side. standard cuts out half of it or more,
            brings that to full size and changes brightness, contrast and saturation. letters turns, slants,
            stretches, bends and moves an image a little and makes dark strokes thicker or thinner.
        flip: mirrors every second image. Not part of `standard`: a mirrored letter is another letter.
        size: side of the images.
        seed: of the run.
    """

    def __init__(self, kind: Augment, flip: Flip, size: int, seed: int) -> None:
        self.letters = kind == "letters"
        self.seed = seed
        self.transform: Callable[[Tensor], Tensor] | None = None
        if kind not in ("shift", "standard") and flip == "none":
            return
        from torchvision.transforms import v2

        steps: list[v2.Transform] = []
        if kind == "shift":
            steps.append(v2.RandomCrop(size, padding=max(1, size // 8), padding_mode="edge"))
        if kind == "standard":
            steps.append(v2.RandomResizedCrop(size, scale=(0.5, 1.0), antialias=True))
            steps.append(v2.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3))
        if flip in ("horizontal", "both"):
            steps.append(v2.RandomHorizontalFlip())
        if flip in ("vertical", "both"):
            steps.append(v2.RandomVerticalFlip())
        self.transform = v2.Compose(steps)

    def __call__(self, images: Tensor, indices: Sequence[int], epoch: int) -> Tensor:
        """uint8 [N, C, size, size] in channels_last -> the same.

        Args:
            indices: [N] the numbers of the images in their set.
            epoch: how often each has been seen before.
        """
        if self.letters:
            dice = [np.random.default_rng([self.seed, epoch, index]).random(DICE) for index in indices]
            images = redrawn(images, torch.from_numpy(2 * np.stack(dice) - 1).float())
        if self.transform is None:
            return images
        before = torch.get_rng_state()
        changed = torch.empty_like(images)
        for n, index in enumerate(indices):
            seed = np.random.SeedSequence([self.seed, epoch, index]).generate_state(1, np.uint64)[0]
            torch.default_generator.manual_seed(int(seed >> np.uint64(1)))
            changed[n] = self.transform(images[n])
        torch.set_rng_state(before)
        return changed


def redrawn(images: Tensor, dice: Tensor) -> Tensor:
    """Letters as another hand might draw them: uint8 [N, C, size, size] -> the same.

    Args:
        dice: [N, 7 + 32] from -1 to 1: turn, slant, width, height, right, down, weight of strokes; then how
            far 4 x 4 points move to the right and down.
    """
    turn, slant, width, height, right, down, weight = dice[:, :7, None, None].unbind(1)  # [N, 1, 1] each
    wide, high = (STRETCH * width).exp(), (STRETCH * height).exp()
    cos, sin = (TURN * turn).cos(), (TURN * turn).sin()
    size = images.shape[-1]
    line = (torch.arange(size) + 0.5) * (2 / size) - 1
    y, x = line[:, None], line[None, :]
    # By products and sums, not by `affine_grid`, whose matrix product rounds as the size of the batch has it.
    u = wide * (x + SLANT * slant * y)  # [N, size, size]
    v = high * y
    grid = torch.stack([cos * u - sin * v + MOVE * right, sin * u + cos * v + MOVE * down], -1)
    knots = dice[:, 7:].reshape(-1, 2, KNOTS, KNOTS)
    bend = F.interpolate(knots, (size, size), mode="bicubic", align_corners=True)  # [N, 2, size, size]
    grid = grid + BEND * bend.permute(0, 2, 3, 1)
    pixels = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    weight = WEIGHT * weight.unsqueeze(1)  # [N, 1, 1, 1]
    sign = torch.where(weight > 0, -1.0, 1.0)  # the largest of the negative is the least: the darkest
    edge = sign * F.max_pool2d(sign * pixels, 3, stride=1, padding=1)
    changed = pixels.lerp(edge, weight.abs()).round_().clamp_(0, 255).to(torch.uint8)
    return changed.contiguous(memory_format=torch.channels_last)
