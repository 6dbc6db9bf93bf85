"""The Lagrangian of a neuron's program, for many nodes of its tree at once, as a few matrix products.

Going from the goal back to the input, every neuron ``x = max(0, y)`` with weight ``A`` is replaced by what it
is at least:

- where ``A > 0``, by ``lean * y`` with a lean in [0, 1];
- where ``A < 0``, by a mixture of what it is at most: ``y - L (1 - z)``, ``U z``, ``U``, and inequalities of
  its convex hull (:mod:`relutrim.prove.hull.cuts`), up to :data:`SLOTS` of the node's own. The state ``z`` is
  then where the mixture is largest: at 1 if its slope is positive, else at 0;
- a state that the node fixes to be on adds ``-push * y``, one that it fixes to be off is ``push * y``, with
  any push of at least 0.

What is left is a linear function over the box where the program begins, and its smallest value is a bound of
the goal, whatever leans, mixtures and pushes are: they are multipliers of the program's rows in another form.
Numbers here are as precise as they happen to be, and nothing rests on them: the multipliers are handed to a
:class:`~relutrim.prove.hull.proof.Leaf`, whose bound is evaluated with rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relutrim.prove.hull.model import Model
from relutrim.prove.hull.program import Index

SLOTS = 4
"""Inequalities of its hull that a neuron of a node can have."""
FIRST_CUT = 3
"""Where a mixture's inequalities begin, behind ``y - L (1 - z)``, ``U z`` and ``U``."""


@dataclass(frozen=True, eq=False)
class Level:
    """The neurons of one ReLU in a program. ``numbers`` are theirs in the model, ``places`` say for each of
    them which of the level's ``inputs`` it reads. ``smallest`` and ``largest`` are the ends of ``w_i v_i``.
    """

    numbers: list[int]
    places: list[Index]
    columns: Tensor
    inputs: Tensor
    weight: Tensor
    bias: Tensor
    lo: Tensor
    hi: Tensor
    both: Tensor
    smallest: Tensor
    largest: Tensor

    def hull(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Constant and slope of the inequalities of these subsets, ``[..., neurons, inputs]``."""
        low = torch.where(chosen, self.smallest, 0).sum(-1)
        high = torch.where(chosen, 0, self.largest).sum(-1)
        return -low, low + self.bias + high


@dataclass(eq=False)
class Multipliers:
    """Of a batch of nodes at one level: lean and push ``[nodes, neurons]``, mixture ``[nodes, 3 + SLOTS,
    neurons]`` (nonnegative, of any sum), and the subsets ``[nodes, SLOTS, neurons, inputs]``.
    """

    lean: Tensor
    mix: Tensor
    push: Tensor
    chosen: Tensor

    def __getitem__(self, index: Tensor | slice) -> Multipliers:
        return Multipliers(self.lean[index], self.mix[index], self.push[index], self.chosen[index])

    def repeated(self, times: int) -> Multipliers:
        """Every node so many times in a row."""
        parts = (self.lean, self.mix, self.push, self.chosen)
        return Multipliers(*(part.repeat_interleave(times, 0) for part in parts))

    def to(self, dtype: torch.dtype) -> Multipliers:
        """In another precision."""
        return Multipliers(self.lean.to(dtype), self.mix.to(dtype), self.push.to(dtype), self.chosen)

    def behind(self, other: Multipliers) -> Multipliers:
        """Other nodes, and then these."""
        return Multipliers(
            torch.cat([other.lean, self.lean]),
            torch.cat([other.mix, self.mix]),
            torch.cat([other.push, self.push]),
            torch.cat([other.chosen, self.chosen]),
        )


class Use(NamedTuple):
    """What a level's neurons were replaced by: their weights ``A``, the parts of each mixture (times A where
    it is in use), its slope, and the weight of each ``y``.
    """

    weights: Tensor
    parts: Tensor
    shares: Tensor
    slope: Tensor
    through: Tensor


class Pass(NamedTuple):
    """The bounds of a batch, what each level came to, first level first, and the corner of the box where the
    bound is attained.
    """

    bound: Tensor
    uses: list[Use]
    corner: Tensor


class Dual:
    """The Lagrangian of a model, on a device, in a precision."""

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self.model, self.device, self.dtype = model, device, dtype
        low, high = model.ends
        self.lo, self.hi = self._tensor(low), self._tensor(high)
        self.cost, self.offset = self._tensor(model.program.cost), float(model.program.offset)
        owned = {c for n in model.neurons for c in (n.column, n.state, n.total)}
        free = [column for column in range(len(low)) if column not in owned]
        self.free = torch.tensor(free, dtype=torch.int64, device=device)
        self.levels = [self._level(name) for name in dict.fromkeys(n.relu for n in model.neurons)]
        self.scales = [torch.ones(len(level.numbers), dtype=dtype, device=device) for level in self.levels]

    def prepared(self, batch: Sequence[Multipliers]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Constants, slopes and weights of the batch's own inequalities, which stay while others change."""
        return [
            (*level.hull(own.chosen), own.chosen * level.weight)
            for level, own in zip(self.levels, batch, strict=True)
        ]

    def run(
        self,
        batch: Sequence[Multipliers],
        states: Sequence[Tensor],
        hulls: Sequence[tuple[Tensor, Tensor, Tensor]],
    ) -> Pass:
        """``states`` are 1 (on), -1 (off) or 0 (free), ``[nodes, neurons]`` for each level."""
        count = len(states[0])
        weights = self.cost.expand(count, -1)
        bound = self.cost.new_full((count,), self.offset)
        uses = []
        for level, scale, own, state, (constants, slopes, cuts) in zip(
            *(reversed(part) for part in (self.levels, self.scales, batch, states, hulls)), strict=True
        ):
            at = weights[:, level.columns]
            on, off = state > 0, state < 0
            shares = own.mix / own.mix.sum(1, keepdim=True).clamp(min=1e-12)
            slope = shares[:, 0] * level.lo + shares[:, 1] * level.hi
            slope = slope + (shares[:, FIRST_CUT:] * slopes).sum(1)
            constant = (
                shares[:, 0] * (level.bias - level.lo)
                + shares[:, 2] * level.hi
                + (shares[:, FIRST_CUT:] * constants).sum(1)
            )
            below = torch.where(off | ~level.both, 0, at.clamp(max=0))
            parts = below[:, None] * shares
            bound = bound + (below * (constant + torch.where(on, slope, slope.clamp(min=0)))).sum(1)
            push = own.push * scale
            straight = at.clamp(min=0) * own.lean - torch.where(on, push, 0)
            through = torch.where(level.both, torch.where(off, push, straight), at)
            bound = bound + (through * level.bias).sum(1)
            reads = (through + parts[:, 0]) @ level.weight
            flat = parts[:, FIRST_CUT:].reshape(count, 1, -1)
            reads = reads + torch.bmm(flat, cuts.reshape(count, flat.shape[2], -1))[:, 0]
            weights = weights.index_add(1, level.inputs, reads)
            uses.append(Use(at, parts, shares, slope, through))
        left = weights[:, self.free]
        corner = torch.where(left > 0, self.lo[self.free], self.hi[self.free])
        return Pass(bound + (left * corner).sum(1), uses[::-1], corner.detach())

    def _level(self, relu: str) -> Level:
        numbers = [i for i, neuron in enumerate(self.model.neurons) if neuron.relu == relu]
        neurons = [self.model.neurons[i] for i in numbers]
        read = np.unique(np.concatenate([neuron.inputs for neuron in neurons]))
        places = [np.searchsorted(read, neuron.inputs) for neuron in neurons]
        weight = np.zeros((len(neurons), len(read)))
        for row, place, neuron in zip(weight, places, neurons, strict=True):
            row[place] = neuron.weights
        low, high = (weight * ends[read] for ends in self.model.ends)
        return Level(
            numbers,
            places,
            torch.tensor([neuron.column for neuron in neurons], device=self.device),
            torch.tensor(read, device=self.device),
            self._tensor(weight),
            self._tensor([neuron.bias for neuron in neurons]),
            self._tensor([neuron.lo for neuron in neurons]),
            self._tensor([neuron.hi for neuron in neurons]),
            torch.tensor([neuron.state >= 0 for neuron in neurons], device=self.device),
            self._tensor(np.minimum(low, high)),
            self._tensor(np.maximum(low, high)),
        )

    def _tensor(self, values: object) -> Tensor:
        return torch.as_tensor(values, dtype=self.dtype, device=self.device)
