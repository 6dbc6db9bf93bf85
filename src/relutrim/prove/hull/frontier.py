"""The range of a neuron, tightened by a few cases: the weakest case is split, again and again.

A tree that is to be closed goes down where it is nearest to that; here there is nothing to close, and every
case counts alike. What is proved is the least of all cases' bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count as numbers_from

import torch
from torch import Tensor

from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.ascent import climb
from relutrim.prove.hull.dual import Dual, Multipliers
from relutrim.prove.hull.layers import too_large
from relutrim.prove.hull.model import Model
from relutrim.prove.hull.packed import packed_bounds
from relutrim.prove.hull.packing import packed
from relutrim.prove.hull.proof import Leaf, Proof

_STEPS = (100, 60)
"""At the root, and for other cases."""
_AT_ONCE = 8
"""So many of the weakest cases are split at a time."""
_CPU = torch.device("cpu")
_BYTES = 4 * 10**6
"""What the leaves of a range may take; there may be a thousand ranges."""
_SHARES = 2 * 10**6
"""With more shares than this, cases take too much memory."""


@dataclass(eq=False)
class _Case:
    """States, multipliers, the bound they give, and which neuron to split, -1 for none."""

    states: dict[int, bool]
    batch: list[Multipliers]
    bound: float
    split: int


def raised(model: Model, nodes: int, deadline: Deadline) -> Proof | None:
    """A lower bound of the model's goal from so many cases; None where there is nothing to work on, or no
    time.

    On the CPU: the batches are small.
    """
    if not model.neurons or deadline.passed or too_large(model):
        return None
    dual = Dual(model, _CPU, torch.float32)
    places = tuple(level.places for level in dual.levels)
    shares = sum(own.size for own in places)
    if shares > _SHARES:
        return None
    nodes = min(nodes, _BYTES // max(1, shares))
    first = [_plain(level.places.shape, level.hi, level.lo) for level in dual.levels]
    (root,) = _solved(dual, first, [{}], _STEPS[0], deadline)
    uses = dual.run(root.batch, _marks(dual, [{}])).uses
    dual.scales = [
        torch.maximum(use.weights.abs(), use.weights.abs().mean()).clamp(min=1e-30) for use in uses
    ]
    cases = [root]
    while len(cases) < nodes and not deadline.passed:
        cases.sort(key=lambda case: case.bound)
        weakest = [case for case in cases[:_AT_ONCE] if case.split >= 0]
        if not weakest or weakest[0] is not cases[0]:
            break
        children = [{**case.states, case.split: on} for case in weakest for on in (False, True)]
        batch = [_together([case.batch[i] for case in weakest]).repeated(2) for i in range(len(first))]
        solved = _solved(dual, batch, children, _STEPS[1], deadline)
        cases = [case for case in cases if case not in weakest] + solved
    leaves = packed(dual, places, [_together([case.batch[i] for case in cases]) for i in range(len(first))])
    layers = [level.layer for level in dual.levels]
    bounds = packed_bounds(model, [case.states for case in cases], leaves, layers)
    if any(map(math.isnan, bounds)):
        return None
    found = zip(cases, bounds, leaves, strict=True)
    return Proof.of(model, [Leaf(case.states, bound, packed=leaf) for case, bound, leaf in found])


def _plain(shape: tuple[int, ...], hi: Tensor, lo: Tensor) -> Multipliers:
    count = shape[0]
    mix = hi.new_zeros(4, count, 1)
    mix[0], mix[1] = hi.clamp(min=0), (-lo).clamp(min=0)
    mix[3] = (mix[0] + mix[1]) / 2
    mix[2] = (mix.sum(0) <= 0).to(mix.dtype)
    mix /= mix.sum(0)
    return Multipliers(
        hi.new_full((count, 1), 0.5), mix, hi.new_zeros(count, 1), hi.new_full((*shape, 1), 0.5)
    )


def _solved(
    dual: Dual, batch: list[Multipliers], states: list[dict[int, bool]], steps: int, deadline: Deadline
) -> list[_Case]:
    marks = _marks(dual, states)
    found = climb(dual, batch, marks, steps, math.inf, deadline)
    gaps = dual.gaps(found.batch, marks, dual.run(found.batch, marks).uses, found.point)
    highest, chosen = (part.tolist() for part in gaps.max(0))
    numbers = [number for level in dual.levels for number in level.layer.numbers]
    return [
        _Case(
            case,
            [own[slice(at, at + 1)] for own in found.batch],
            bound,
            numbers[chosen[at]] if highest[at] > 0 else -1,
        )
        for at, case, bound in zip(numbers_from(), states, found.bound.tolist())
    ]


def _marks(dual: Dual, states: list[dict[int, bool]]) -> list[Tensor]:
    return [torch.from_numpy(level.layer.marks(states)) for level in dual.levels]


def _together(parts: list[Multipliers]) -> Multipliers:
    pairs = zip(*(own.parts for own in parts), strict=True)
    return Multipliers(*(torch.cat(pair, -1) for pair in pairs))
