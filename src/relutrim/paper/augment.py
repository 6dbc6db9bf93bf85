"""The paper's augmentation of CIFAR, for a whole batch at once.

Mirrored with probability 1/2; turned by up to 10 degrees, scaled by 0.8 to 1.2 and sheared along x by up to
10 degrees about the centre, nearest neighbour, black outside (one map for all of them, so that a picture is
sampled once); then brightness, contrast, saturation and hue, each by a factor between 0.8 and 1.2, in this
order. What is random about it is drawn for an epoch at a time, on the CPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

DRAWS = 8
"""Numbers per picture: the map from places in the new picture to places in the old, and the four factors."""

_ANGLE = math.radians(10)
_FACTOR = 0.2
_GREY = (0.299, 0.587, 0.114)


def draw(rows: int, generator: torch.Generator) -> Tensor:
    """The random numbers for ``rows`` pictures, one row of :data:`DRAWS` each."""
    u = torch.rand(rows, 8, generator=generator, dtype=torch.float64)
    mirror = torch.where(u[:, 0] < 0.5, -1.0, 1.0)
    angle, shear = ((2 * u[:, at] - 1) * _ANGLE for at in (1, 2))
    scale = 1 + (2 * u[:, 3] - 1) * _FACTOR
    cos, sin, tan = angle.cos(), angle.sin(), shear.tan()
    # The picture is mirrored, sheared, turned and scaled, in this order; a new place looks back the other
    # way: mirror [[1, -tan], [0, 1]] [[cos, sin], [-sin, cos]] / scale.
    back = torch.stack(
        [mirror * (cos + tan * sin) / scale, mirror * (sin - tan * cos) / scale, -sin / scale, cos / scale], 1
    )
    return torch.cat([back, 1 + (2 * u[:, 4:] - 1) * _FACTOR], 1).float()


def augment(pictures: Tensor, draws: Tensor) -> Tensor:
    """New pictures for ``pictures`` (rows, channels, height, width) between 0 and 1."""
    rows, channels = pictures.shape[:2]
    there = torch.cat([draws[:, :4].view(rows, 2, 2), draws.new_zeros(rows, 2, 1)], 2)
    grid = F.affine_grid(there, list(pictures.shape), align_corners=False)
    x = F.grid_sample(pictures, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    brightness, contrast, saturation, hue = (factor.view(-1, 1, 1, 1) for factor in draws[:, 4:].unbind(1))
    x = (x * brightness).clamp(0, 1)
    x = _blend(x, _grey(x).mean((1, 2, 3), keepdim=True), contrast)
    if channels != 3:  # no colours to change
        return x
    return _scale_hue(_blend(x, _grey(x), saturation), hue)


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] != 3:
        return x
    return sum((w * x[:, at : at + 1] for at, w in enumerate(_GREY)), torch.zeros_like(x[:, :1]))


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (x * factor + other * (1 - factor)).clamp(0, 1)


def _scale_hue(x: Tensor, factor: Tensor) -> Tensor:
    """The same pictures with their hue, a number between 0 and 1, times ``factor``.

    With v the largest and c the spread of a pixel's colours, colour n (5, 3, 1 for red, green, blue) of a hue
    h is ``v - c clamp(min(k, 4 - k), 0, 1)`` where ``k = (n + 6 h) mod 6``.
    """
    v, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    c = v - low
    red, green, blue = (x[:, at : at + 1] for at in range(3))
    safe = torch.where(c > 0, c, 1.0)
    sixths = torch.where(
        v == red,
        (green - blue) / safe,
        torch.where(v == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixths = (sixths.remainder(6) * factor).remainder(6)
    k = (_offsets(x) + sixths).remainder(6)
    return v - c * torch.minimum(k, 4 - k).clamp(0, 1)


def _offsets(x: Tensor) -> Tensor:
    """5, 3, 1, made on the device itself: a copy from the host would be a wait in every batch."""
    return torch.arange(5, 0, -2, device=x.device, dtype=x.dtype).view(1, 3, 1, 1)
