"""The inequalities of a single neuron's convex hull, made where a solution violates them.

For a neuron ``x = max(0, y)``, ``y = w v + b``, with state ``z``, and a subset ``I`` of its inputs, with
``L'``, ``U'`` the ends of each input at which ``w_i v_i`` is smallest and largest:
``x <= sum_I w_i v_i - (1 - z) sum_I w_i L'_i + z (b + sum_not_I w_i U'_i)``. The most violated one takes
exactly the ``i`` with ``w_i v_i < w_i (L'_i (1 - z) + U'_i z)`` (Anderson et al. 2020).

Where ``I`` holds more than half of the inputs, the sum over it is written as ``y - b`` minus the others:
the same inequality with fewer entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relutrim.graph.operators import Array
from relutrim.prove.hull.program import Index, Row
from relutrim.rounding import ETA, gamma

Mask = npt.NDArray[np.bool_]
_VIOLATED = 1e-7


@dataclass(frozen=True, eq=False)
class Neuron:
    """A neuron of a program: where it is in the network, its columns, and its pre-activation.

    ``state`` and ``total`` are the columns of ``z`` and ``y``, both -1 if the neuron is active.
    """

    relu: str
    entry: int
    column: int
    state: int
    total: int
    inputs: Index
    weights: Array
    bias: float
    radius: float
    lo: float
    hi: float


@dataclass(frozen=True, eq=False)
class Cut:
    """The neuron's number in its program, and which of its inputs are in ``I``."""

    neuron: int
    chosen: Mask


def most_violated(neuron: Neuron, point: Array, lo: Array, hi: Array) -> Mask | None:
    """The subset whose inequality cuts most off at ``point``; None if none does."""
    smallest, largest = _ends(neuron, lo, hi)
    z = point[neuron.state]
    chosen = neuron.weights * point[neuron.inputs] < smallest * (1 - z) + largest * z
    row = cut_row(neuron, chosen, lo, hi)
    excess = float(row.values @ point[row.columns]) - row.upper
    return chosen if excess > _VIOLATED * (1 + abs(point[neuron.column])) else None


def cut_row(neuron: Neuron, chosen: Mask, lo: Array, hi: Array) -> Row:
    """The inequality, true for every input of the domain as the ends are rounded outward.

    ``lo``, ``hi`` are the ranges of all columns on the whole domain.
    """
    w, count = neuron.weights, len(neuron.weights)
    smallest, largest = _ends(neuron, lo, hi)
    inside, outside = smallest[chosen], largest[~chosen]
    slack = gamma(count + 4)
    # Rounded so that the cut stays true at z = 0 (where only the first matters) and at z = 1.
    low = _down(float(inside.sum()) - slack * float(np.abs(inside).sum()) - count * ETA)
    high = float(outside.sum()) + slack * float(np.abs(outside).sum()) + count * ETA
    slope = low + (neuron.bias + neuron.radius + high)
    slope = _up(slope + slack * (abs(low) + abs(neuron.bias) + neuron.radius + abs(high)))
    if 2 * int(chosen.sum()) <= count:
        columns = np.concatenate([neuron.inputs[chosen], [neuron.column, neuron.state]])
        return Row(columns, np.concatenate([-w[chosen], [1.0, -slope]]), -np.inf, -low, neuron.column)
    # sum_I w v <= y - b + radius - sum_not_I w v.
    others = ~chosen
    columns = np.concatenate([neuron.inputs[others], [neuron.column, neuron.state, neuron.total]])
    end = _up(_up(-low - neuron.bias) + neuron.radius)
    return Row(columns, np.concatenate([w[others], [1.0, -slope, -1.0]]), -np.inf, end, neuron.column)


def _ends(neuron: Neuron, lo: Array, hi: Array) -> tuple[Array, Array]:
    w, low, high = neuron.weights, lo[neuron.inputs], hi[neuron.inputs]
    return np.where(w > 0, w * low, w * high), np.where(w > 0, w * high, w * low)


def _up(value: float) -> float:
    return float(np.nextafter(value, np.inf))


def _down(value: float) -> float:
    return float(np.nextafter(value, -np.inf))
