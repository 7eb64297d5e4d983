"""Training images changed a little each time they are seen, by torchvision's transforms.

Every image draws from a generator of its own, seeded by (seed, epoch, image): what becomes of it depends
neither on the batch it is in, nor on ranks or workers, nor on what was drawn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2

Augment = Literal["none", "shift", "standard"]
Flip = Literal["none", "horizontal", "vertical", "both"]


class Augmentation:
    """Callable on batches.

    Args:
        kind: shift moves an image by up to an eighth of its side. standard cuts out half of it or more,
            brings that to full size and changes brightness, contrast and saturation.
        flip: mirrors every second image. Not part of `standard`: a mirrored letter is another letter.
        size: side of the images.
        seed: of the run.
    """

    def __init__(self, kind: Augment, flip: Flip, size: int, seed: int) -> None:
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
        self.transform = v2.Compose(steps) if steps else None
        self.seed = seed

    def __call__(self, images: Tensor, indices: Sequence[int], epoch: int) -> Tensor:
        """uint8 [N, C, size, size] in channels_last -> the same.

        Args:
            indices: [N] the numbers of the images in their set.
            epoch: how often each has been seen before.
        """
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
