"""Training images changed a little each time they are seen, by torchvision's transforms and, for letters, by
one of our own that takes a batch at a time.

On the CPU the loader's workers do it. For any other device they only draw, and the device changes the batch
once it is there. Either way every image draws from a generator of its own, seeded by (seed, epoch, image):
what becomes of it depends neither on the batch it is in, nor on ranks or workers, nor on what was drawn
before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from classifier import augment_batch

if TYPE_CHECKING:
    from torchvision.transforms import v2

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
        self.kind, self.flip, self.size, self.seed = kind, flip, size, seed
        self.padding = max(1, size // 8)
        self.crop: v2.RandomCrop | v2.RandomResizedCrop | None = None
        self.colours: v2.ColorJitter | None = None
        self.flips: list[v2.Transform] = []
        if kind not in ("shift", "standard") and flip == "none":
            return
        from torchvision.transforms import v2

        if kind == "shift":
            self.crop = v2.RandomCrop(size, padding=self.padding, padding_mode="edge")
        if kind == "standard":
            self.crop = v2.RandomResizedCrop(size, scale=(0.5, 1.0), antialias=True)
            self.colours = v2.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3)
        if flip in ("horizontal", "both"):
            self.flips.append(v2.RandomHorizontalFlip())
        if flip in ("vertical", "both"):
            self.flips.append(v2.RandomVerticalFlip())

    @property
    def steps(self) -> list[v2.Transform]:
        """torchvision's transforms, in order."""
        return [step for step in (self.crop, self.colours, *self.flips) if step is not None]

    def __call__(self, images: Tensor, indices: Sequence[int], epoch: int) -> Tensor:
        """uint8 [N, C, size, size] in channels_last, on the CPU -> the same.

        Args:
            indices: [N] the numbers of the images in their set.
            epoch: how often each has been seen before.
        """
        if self.kind == "letters":
            images = redrawn(images, self._dice(indices, epoch))
        if not self.steps:
            return images
        changed = torch.empty_like(images)
        for n in self._each_seeded(indices, epoch):
            image = images[n]
            for step in self.steps:
                image = step(image)
            changed[n] = image
        return changed

    def draw(self, indices: Sequence[int], epoch: int) -> Tensor:
        """[N, ·] what `__call__` would draw for these images, as `apply` takes it; no columns if nothing is
        to be done."""
        parts = [torch.empty(len(indices), 0)]
        if self.kind == "letters":
            parts.append(self._dice(indices, epoch))
        if self.steps:
            parts.append(torch.tensor([self._draw_one() for _ in self._each_seeded(indices, epoch)]))
        return torch.cat(parts, 1)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """The same as `__call__`, from what was drawn [N, ·] on the device of the images, all at once; pixels
        of `standard` differ by a level or two, for devices round each in their own way."""
        if self.kind == "letters":
            images, drawn = redrawn(images, drawn[:, :DICE]), drawn[:, DICE:]
        if not drawn.shape[1]:
            return images
        change = augment_batch.cropped if self.colours is None else augment_batch.resized_and_coloured
        return change(images, drawn)

    def _dice(self, indices: Sequence[int], epoch: int) -> Tensor:
        """[N, DICE] from -1 to 1."""
        dice = [np.random.default_rng([self.seed, epoch, index]).random(DICE) for index in indices]
        return torch.from_numpy(2 * np.stack(dice) - 1).float()

    def _each_seeded(self, indices: Sequence[int], epoch: int) -> Iterator[int]:
        """Places of the images, while torch's generator is that of each; afterwards it is as it was."""
        before = torch.get_rng_state()
        for n, index in enumerate(indices):
            seed = np.random.SeedSequence([self.seed, epoch, index]).generate_state(1, np.uint64)[0]
            torch.default_generator.manual_seed(int(seed >> np.uint64(1)))
            yield n
        torch.set_rng_state(before)

    def _draw_one(self) -> list[float]:
        """The numbers that torchvision's transforms would draw now, in the columns of `augment_batch`."""
        crop, colours = [0.0, 0.0, self.size, self.size], [[1.0, 0.0, 0.0]] * 3
        blank = [torch.empty(1, self.size, self.size, device="meta")]
        if self.crop is not None:
            found = self.crop.make_params(blank)
            outside = self.padding if self.kind == "shift" else 0
            crop = [found["top"] - outside, found["left"] - outside, found["height"], found["width"]]
        if self.colours is not None:
            found = self.colours.make_params(blank)
            kinds = (
                [found["brightness_factor"], 0.0, 0.0],
                [found["contrast_factor"], 1.0, 0.0],
                [found["saturation_factor"], 0.0, 1.0],
            )
            colours = [kinds[kind] for kind in found["fn_idx"].tolist() if kind < 3]  # 3 would be the hue
        thrown = [float(torch.rand(1) < 0.5) for _ in self.flips]
        by_name = {
            "none": [0.0, 0.0],
            "horizontal": [*thrown, 0.0],
            "vertical": [0.0, *thrown],
            "both": thrown,
        }
        return [*crop, *(value for colour in colours for value in colour), *by_name[self.flip]]


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
    line = (torch.arange(size, device=images.device) + 0.5) * (2 / size) - 1
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
