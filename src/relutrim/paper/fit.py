"""One epoch after the other for all networks of a batch at once.

The step is written out rather than left to ``torch.optim``, because each network has its own penalty, and
because nothing in it may wait for the host: the learning rate, the place in the epoch and the sum of the
losses are tensors on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from relutrim.paper.architecture import Architecture, Kind
from relutrim.paper.dataset import Dataset
from relutrim.paper.feed import Feed
from relutrim.paper.recipe import Recipe
from relutrim.paper.recording import recorded
from relutrim.paper.stack import Stack


class Fit:
    """Networks of one architecture, a pair of penalty and seed each, on their way through the epochs."""

    def __init__(
        self,
        architecture: Architecture,
        dataset: Dataset,
        recipe: Recipe,
        networks: Sequence[tuple[float, int]],
        device: torch.device,
    ) -> None:
        seeds = [seed for _, seed in networks]
        own = sorted(set(seeds))
        self.recipe, self.device, self.epoch = recipe, device, 0
        self.flat = architecture.kind is not Kind.LENET
        self.rebuilds = architecture.kind is Kind.AUTOENCODER
        layers = architecture.layers(dataset.shape, dataset.classes)
        self.stack = Stack(layers, seeds, device, recipe.begins(architecture.kind))
        self.feed = Feed(dataset, recipe, own, device)
        self.seed_of = torch.tensor([own.index(seed) for seed in seeds], device=device)
        self.l1 = torch.tensor([l1 for l1, _ in networks], device=device)
        self.rate = torch.zeros((), device=device)
        self.loss = torch.zeros(len(networks), device=device)
        self.velocity = {key: torch.zeros_like(value) for key, value in self.stack.parameters.items()}
        self._quick_step: Callable[[], None] | None = None

    def run_epoch(self) -> Tensor:
        """Train for one epoch; the mean loss of each network over it, still on the device."""
        with reproducible():
            self.feed.start(self.epoch)
            self.rate.fill_(self.recipe.rate(self.epoch))
            self.loss.zero_()
            full, rest = divmod(self.feed.length, self.recipe.batch_size)
            if full and self._quick_step is None:
                self._quick_step = recorded(
                    lambda: self.step(self.recipe.batch_size), self.mutable, self.device
                )
            for _ in range(full):
                assert self._quick_step is not None
                self._quick_step()
            if rest:
                self.step(rest)
        self.epoch += 1
        return self.loss / self.feed.length

    def step(self, size: int) -> None:
        """One step of every network on the next ``size`` rows."""
        parameters = self.stack.parameters
        x, y = self.feed.batch(size)
        if self.flat:
            x = x.flatten(2)
        x, y = self._spread(x), self._spread(y)
        with torch.enable_grad():
            losses = losses_of(self.stack.forward(x, training=True), x if self.rebuilds else y)
            gradients = torch.autograd.grad(losses.mean(1).sum(), list(parameters.values()))
        with torch.no_grad():
            self.loss += losses.detach().sum(1)
            for (key, weight), gradient in zip(parameters.items(), gradients, strict=True):
                velocity = self.velocity[key].mul_(self.recipe.momentum).add_(gradient)
                if key in self.stack.penalised:
                    penalty = self.l1.view(-1, *[1] * (weight.dim() - 1))
                    velocity.addcmul_(weight.sign(), penalty)
                weight.addcmul_(velocity, -self.rate)

    def _spread(self, rows: Tensor) -> Tensor:
        """From an axis of seeds to one of networks."""
        if len(rows) == 1:
            return rows.expand(len(self.seed_of), *rows.shape[1:])
        return rows[self.seed_of]

    def mutable(self) -> list[Tensor]:
        """Everything that a step changes."""
        return [
            *self.stack.parameters.values(),
            *self.stack.buffers.values(),
            *self.velocity.values(),
            self.feed.position,
            self.loss,
        ]

    def state(self) -> dict[str, Tensor]:
        """What has to be kept to go on later, beside the number of the epoch; on the CPU."""
        named = {
            **{f"parameter:{key}": value for key, value in self.stack.parameters.items()},
            **{f"buffer:{key}": value for key, value in self.stack.buffers.items()},
            **{f"velocity:{key}": value for key, value in self.velocity.items()},
        }
        return {key: value.detach().cpu().clone() for key, value in named.items()}

    @torch.no_grad()
    def restore(self, epoch: int, state: dict[str, Tensor]) -> None:
        """Go on from where :meth:`state` was called, after ``epoch`` epochs."""
        groups = {"parameter": self.stack.parameters, "buffer": self.stack.buffers, "velocity": self.velocity}
        for key, value in state.items():
            group, _, name = key.partition(":")
            groups[group][name].copy_(value)
        self.epoch = epoch


def losses_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of every network on every row: the negative log-likelihood of labels, or the mean squared
    difference to other rows.
    """
    if targets.dim() == 3:
        return (outputs - targets).square().mean(2)
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


@contextmanager
def reproducible() -> Iterator[None]:
    """The same numbers each time on a GPU, and all of float32's digits: no choice of algorithms by timing, no
    TF32. The caller's settings come back.
    """
    precision = torch.get_float32_matmul_precision()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
