"""Training images mixed in pairs, mixup and cutmix by torchvision, with two weighted labels for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Mixing:
    """Callable on batches. Draws from torch's generator, which every step seeds anew.

    Args:
        mixup: α of the Beta distribution of the shares of two images that are laid over each other; 0 for
            none.
        cutmix: α of the same of the areas of two images of which one is cut into the other; 0 for none. With
            both, each batch takes one or the other.
    """

    def __init__(self, mixup: float, cutmix: float) -> None:
        self.transforms: list[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = []
        if mixup or cutmix:
            from torchvision.transforms import v2  # slow to import, and few runs mix

            kinds = {v2.MixUp: mixup, v2.CutMix: cutmix}
            self.transforms = [kind(alpha=alpha) for kind, alpha in kinds.items() if alpha > 0]

    def __call__(self, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """uint8 [N, C, height, width], classes [N] -> mixed images in float32, classes [N, 2] and their
        shares [N, 2]. Without transforms, and for one image alone: what was given, and None."""
        if not self.transforms or len(images) == 1:
            return images, target, None
        chosen = int(torch.randint(len(self.transforms), ())) if len(self.transforms) > 1 else 0
        # torchvision mixes V-wide labels. The images of the batch as classes of their own are as good, and
        # tell which two were mixed.
        each = torch.eye(len(images), device=images.device)  # [N, N]
        images, mixed = self.transforms[chosen](images.float(), each)
        shares, rows = mixed.topk(2, dim=1)  # [N, 2] each
        return images, target[rows], shares
