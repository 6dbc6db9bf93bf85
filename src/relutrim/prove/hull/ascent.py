"""Better multipliers for a batch of nodes: gradient steps on their bounds, and inequalities that cut off
where the bounds are attained.

Mixtures are stepped as they are, clipped at 0 and scaled to a sum of 1, not as a softmax: an inequality that
is out of use comes back in one step, where a softmax would take dozens. Pushes are in units of what a neuron
weighs at the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.dual import FIRST_CUT, Dual, Level, Multipliers, Use

_LEAN, _MIX, _PUSH = 0.03, 0.1, 0.1
"""The first step's lengths."""
_DECAY = 0.94
_BISECTIONS = 9
_SEEDED = 1e-3
"""The share that a new inequality has at first."""
_VIOLATED = 1e-6


class Climb(NamedTuple):
    """The best bounds, the multipliers they come from, and where they are attained, on average."""

    bound: Tensor
    batch: list[Multipliers]
    point: Tensor


def climb(
    dual: Dual,
    batch: Sequence[Multipliers],
    states: Sequence[Tensor],
    steps: int,
    enough: float,
    deadline: Deadline,
) -> Climb:
    """So many steps, fewer if every bound is enough or time is up."""
    with torch.inference_mode(False), torch.enable_grad():
        batch = [
            Multipliers(own.lean.clone(), own.mix.clone(), own.push.clone(), own.chosen) for own in batch
        ]
        groups = [[own.lean for own in batch], [own.mix for own in batch], [own.push for own in batch]]
        stepped = [part.requires_grad_() for group in groups for part in group]
        optimiser = torch.optim.Adam(
            [{"params": g, "lr": rate} for g, rate in zip(groups, (_LEAN, _MIX, _PUSH), strict=True)],
            betas=(0.9, 0.98),
        )
        hulls = dual.prepared(batch)
        best, kept = dual.cost.new_full((len(states[0]),), -torch.inf), [part.detach() for part in stepped]
        total, summed = torch.zeros_like(dual.cost[dual.free]), 0
        for number in range(steps):
            found = dual.run(batch, states, hulls)
            bound = found.bound.detach()
            better = bound > best
            best = torch.where(better, bound, best)
            kept = [
                torch.where(better.view(-1, *[1] * (part.dim() - 1)), part.detach(), mine)
                for mine, part in zip(kept, stepped, strict=True)
            ]
            if 2 * number >= steps - 1 or number == 0:
                total, summed = total + found.corner, summed + 1
            if number == steps - 1 or deadline.passed or bool((best > enough).all()):
                break
            for part, slope in zip(stepped, torch.autograd.grad(-found.bound.sum(), stepped), strict=True):
                part.grad = slope
            optimiser.step()
            with torch.no_grad():
                for own in batch:
                    own.lean.clamp_(0, 1)
                    own.push.clamp_(min=0)
                    own.mix.clamp_(min=0)
                    own.mix /= own.mix.sum(1, keepdim=True).clamp(min=1e-12)
            for group in optimiser.param_groups:
                group["lr"] *= _DECAY
        third = len(batch)
        result = [
            Multipliers(lean, mix, push, own.chosen)
            for lean, mix, push, own in zip(
                kept[:third], kept[third : 2 * third], kept[2 * third :], batch, strict=True
            )
        ]
        return Climb(best, result, total / summed)


@torch.no_grad()
def look(
    dual: Dual, batch: Sequence[Multipliers], states: Sequence[Tensor], point: Tensor
) -> tuple[Tensor, list[Multipliers]]:
    """What each neuron's relaxation costs where the bounds are attained, ``[nodes, all neurons]``, -1 if
    there is nothing to split; and multipliers that have inequalities against it, in place of those least in
    use.
    """
    uses = dual.run(batch, states, dual.prepared(batch)).uses
    values = point.new_zeros(len(point), len(dual.cost))
    values[:, dual.free] = point
    costs, sharper = [], []
    for level, own, state, use in zip(dual.levels, batch, states, uses, strict=True):
        reads = values[:, level.inputs]
        y = reads @ level.weight.T + level.bias
        split = (state != 0) | ~level.both
        most = torch.minimum(_most(level, own, use, reads, y), level.hi)
        relaxed = (use.weights < 0) & ~split
        chosen, height = _sharpest(level, reads)
        sharper.append(_with(own, chosen, relaxed & (height < most - _VIOLATED), use.shares))
        least = y.clamp(min=0)
        x = torch.where(relaxed, torch.maximum(most, least), torch.where(state < 0, 0, least))
        values[:, level.columns] = torch.where(level.both, x, y)
        costs.append(torch.where(split, -1, (x - least).abs() * use.weights.abs()))
    return torch.cat(costs, 1), sharper


def _most(level: Level, own: Multipliers, use: Use, reads: Tensor, y: Tensor) -> Tensor:
    """What the mixture says that each neuron is at most."""
    shares = use.shares
    constants, _ = level.hull(own.chosen)
    cuts = torch.einsum("bkni,ni,bi->bkn", own.chosen.to(reads.dtype), level.weight, reads) + constants
    most = shares[:, 0] * (y - level.lo) + shares[:, 2] * level.hi + (shares[:, FIRST_CUT:] * cuts).sum(1)
    return most + use.slope.clamp(min=0)


def _sharpest(level: Level, reads: Tensor) -> tuple[Tensor, Tensor]:
    """The two subsets, one of a rising inequality and one of a falling, between which the hull over each
    neuron is highest, ``[nodes, 2, neurons, inputs]``, and how high it is there.

    The least of all inequalities is a concave function of ``z``; its slope tells on which side the top is.
    """
    terms = level.weight * reads[:, None]
    left = terms.new_zeros(terms.shape[:2])
    right = terms.new_ones(terms.shape[:2])

    def subset(z: Tensor) -> Tensor:
        return terms < level.smallest + (level.largest - level.smallest) * z[..., None]

    for _ in range(_BISECTIONS):
        middle = (left + right) / 2
        rising = level.hull(subset(middle))[1] > 0
        left, right = torch.where(rising, middle, left), torch.where(rising, right, middle)
    chosen = torch.stack([subset(left), subset(right)], 1)
    constant, slope = level.hull(chosen)
    sums = torch.where(chosen, terms[:, None], 0).sum(-1) + constant
    middle = ((left + right) / 2)[:, None]
    return chosen, (sums + slope * middle).amin(1)


def _with(own: Multipliers, chosen: Tensor, wanted: Tensor, shares: Tensor) -> Multipliers:
    """The multipliers with new subsets where they are wanted."""
    mix, subsets = own.mix.clone(), own.chosen.clone()
    least = shares[:, FIRST_CUT:].argsort(1)[:, :2]
    for number in range(2):
        slot = least[:, number : number + 1]
        at = slot[..., None].expand(-1, -1, -1, subsets.shape[-1])
        fresh = torch.where(wanted[:, None, :, None], chosen[:, number : number + 1], subsets.gather(1, at))
        subsets.scatter_(1, at, fresh)
        held = mix.gather(1, slot + FIRST_CUT)
        mix.scatter_(1, slot + FIRST_CUT, torch.where(wanted[:, None], _SEEDED, held))
    return Multipliers(own.lean, mix, own.push, subsets)
