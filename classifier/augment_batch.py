"""Augmentation of a whole batch at once, on any device, by a table of what was drawn for each image.

torchvision's transforms take one image at a time. On a GPU that is thousands of kernels for a batch, slower
than the loader's workers; here it is about thirty, and nothing waits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Columns of the table.
CROP = slice(0, 4)  # top and left, may be outside; height and width, brought to full size
COLOURS = tuple(
    slice(start, start + 3) for start in (4, 7, 10)
)  # in order: factor, is contrast, is saturation
FLIPS = slice(13, 15)  # whether horizontally, whether vertically
_GREY = (0.2989, 0.587, 0.114)  # torchvision's


def cropped(images: Tensor, table: Tensor) -> Tensor:
    """The square at CROP, which is of full size (beyond the edge of the image: the pixels at the edge), then
    FLIPS. uint8 [N, C, size, size], [N, columns] -> images of the same shape, in channels_last."""
    size = images.shape[-1]
    top, left = table[:, CROP].long()[:, :2].unsqueeze(-1).unbind(1)  # [N, 1] each
    line = torch.arange(size, device=images.device)
    x, y = _flipped((left + line).clamp(0, size - 1), (top + line).clamp(0, size - 1), table)  # [N, size]
    number = torch.arange(len(images), device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[number, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)


def resized_and_coloured(images: Tensor, table: Tensor) -> Tensor:
    """The rectangle at CROP brought to full size, FLIPS, COLOURS one after the other. Same shapes."""
    size = images.shape[-1]
    top, left, height, width = table[:, CROP].unsqueeze(-1).unbind(1)  # [N, 1] each
    line = torch.arange(size, device=images.device) + 0.5
    x = left + torch.minimum((line * (width / size) - 0.5).clamp(min=0), width - 1)  # [N, size] in pixels
    y = top + torch.minimum((line * (height / size) - 0.5).clamp(min=0), height - 1)
    x, y = _flipped(x, y, table)
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), -1)  # [N, size, size, 2]
    grid = (2 * grid + 1) / size - 1
    pixels = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False).round_()
    for columns in COLOURS:
        pixels = _blended(pixels, table[:, columns])
    return pixels.to(torch.uint8).contiguous(memory_format=torch.channels_last)


def _flipped(x: Tensor, y: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    horizontally, vertically = table[:, FLIPS].bool().unsqueeze(-1).unbind(1)  # [N, 1] each
    return torch.where(horizontally, x.flip(1), x), torch.where(vertically, y.flip(1), y)


def _blended(pixels: Tensor, colour: Tensor) -> Tensor:
    """factor·image + (1 − factor)·other, where other is black for brightness, the mean grey of an image for
    contrast, and the image in grey for saturation, which a grey image does not have."""
    factor, is_contrast, is_saturation = colour[:, :, None, None, None].unbind(1)  # [N, 1, 1, 1] each
    if pixels.shape[1] == 1:
        grey, factor = pixels, torch.where(is_saturation > 0, 1.0, factor)
    else:
        red, green, blue = pixels.split(1, 1)  # [N, 1, size, size] each
        grey = (_GREY[0] * red + _GREY[1] * green + _GREY[2] * blue).floor_()
    other = is_contrast * grey.mean((1, 2, 3), keepdim=True) + is_saturation * grey
    return (factor * pixels + (1 - factor) * other).clamp_(0, 255).floor_()
