"""Batches: the data lies on the device once, and within an epoch nothing waits for the host.

Every seed has its own order of the rows, and its own augmentation, in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relutrim.errors import InputError
from relutrim.paper.augment import DRAWS, augment, draw
from relutrim.paper.dataset import Array, Dataset
from relutrim.paper.draws import generator
from relutrim.paper.recipe import Recipe


class Rows:
    """How the networks see rows: between 0 and 1, and normalised if that is wanted."""

    def __init__(self, dataset: Dataset, recipe: Recipe, device: torch.device) -> None:
        self.pixels, self.shape = dataset.pixels, dataset.shape
        view = (-1, 1, 1) if len(self.shape) == 3 else (-1,)
        self.moments = tuple(torch.tensor(m, device=device).view(view) for m in dataset.statistics)
        self.normalize = recipe.normalize

    def raw(self, x: Tensor) -> Tensor:
        """Stored numbers as numbers: a byte is a 255th."""
        return x.float() / 255 if self.pixels else x

    def seen(self, x: Tensor) -> Tensor:
        """What the networks see of raw rows."""
        if not self.normalize:
            return x
        mean, std = self.moments
        return (x - mean) / std


class Feed:
    """The training rows in the order of the epoch, a batch at a time, for every seed."""

    def __init__(self, dataset: Dataset, recipe: Recipe, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds, self.device = tuple(seeds), device
        self.rows = Rows(dataset, recipe, device)
        self.x, self.y = as_tensor(dataset.x_train, device), as_tensor(dataset.y_train, device)
        self.length = len(self.x)
        # Kept in place, so that a recorded step (CUDA graphs) finds each epoch's order where the last was.
        self.order = torch.zeros(len(seeds), self.length, dtype=torch.int64, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.draws: Tensor | None = None
        if recipe.augments(dataset.name):
            if len(dataset.shape) != 3 or not dataset.pixels:
                raise InputError(
                    f"augmentation is for pictures; rows of {dataset.name} have shape {dataset.shape}"
                    f"{'' if dataset.pixels else ' and are no pixels'}; use --no-augment"
                )
            self.draws = torch.zeros(len(seeds), self.length, DRAWS, device=device)

    def start(self, epoch: int) -> None:
        """Begin an epoch."""
        orders = [torch.randperm(self.length, generator=generator(s, "order", epoch)) for s in self.seeds]
        self.order.copy_(torch.stack(orders))
        if self.draws is not None:
            draws = [draw(self.length, generator(seed, "augment", epoch)) for seed in self.seeds]
            self.draws.copy_(torch.stack(draws))
        self.position.zero_()

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """The next ``size`` rows ``(seeds, size, ...)`` and their labels."""
        places = self.position + torch.arange(size, device=self.device)
        chosen = self.order[:, places]
        x = self.rows.raw(self.x[chosen])
        if self.draws is not None:
            moved = augment(x.flatten(0, 1), self.draws[:, places].flatten(0, 1))
            x = moved.view(x.shape)
        self.position += size
        return self.rows.seen(x), self.y[chosen]


def as_tensor(array: Array, device: torch.device) -> Tensor:
    """An array on the device; read-only ones are copied, since torch knows no such thing."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
