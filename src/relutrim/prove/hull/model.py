"""The relaxation for one neuron: everything it depends on, as columns between ends.

Per neuron with pre-activation ``y = w v + b`` in ``[lo, hi]`` there is a column for its output ``max(0, y)``.
Only the neurons that the target depends on are there, and of those only ``depth`` layers: what lies before
them is free within its range, which costs little where the ranges are tight and makes everything many times
smaller. The maxima of max pooling are free in the same way. Weights too small to matter are dropped from a
neuron's pre-activation, which is widened by what they could have added: trained with l1, most weights are
such.

Coefficients are taken as they are, and ends are rounded outward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from relutrim.bounds.linear import Backward
from relutrim.graph.operators import Array
from relutrim.intervals import Interval
from relutrim.rounding import ETA, gamma

Index: TypeAlias = npt.NDArray[np.int64]
States: TypeAlias = Mapping[int, bool]
"""Neurons of a model, by number, whose states are fixed: True is on."""
TIE = 1e-11
"""Values that are a smaller part of what they are made of may be 0 as well."""
_OVERFLOW = np.errstate(over="ignore", invalid="ignore")
"""What overflows makes NaN bounds, never false ones."""
_LARGEST = 2 * 10**7
"""A layer whose weights would take more numbers than this is not in the model."""
_DROPPED = 1e-3
"""What the weights dropped from one neuron may add up to, as a share of what the bound is to gain."""


@dataclass(frozen=True, eq=False)
class Goal:
    """``min sign * y`` of one neuron, over so many layers before it, with weights dropped that add up to
    ``droppable`` at most.
    """

    target: str
    neuron: int
    sign: float
    depth: int
    droppable: float

    @classmethod
    def of(cls, backward: Backward, target: str, neuron: int, sign: float, depth: int) -> Goal:
        """As precise as what is missing to a proof asks for."""
        ends = backward.values[target]
        missing = abs(float((ends.lo if sign > 0 else ends.hi).flatten()[neuron]))
        return cls(target, neuron, sign, depth, min(max(_DROPPED * missing, 1e-10), 1e-5))


_Forms: TypeAlias = dict[str, tuple[Index, Array]]
"""A linear form by the values it reads: flat indices and weights."""


@dataclass(frozen=True, eq=False)
class Neuron:
    """A neuron of a model: where it is in the network, its column, and its pre-activation, which is between
    ``lo`` and ``hi`` and off by at most ``radius``.
    """

    relu: str
    entry: int
    column: int
    inputs: Index
    weights: Array
    bias: float
    radius: float
    lo: float
    hi: float

    @property
    def both(self) -> bool:
        """Whether it has both states."""
        return not self.lo >= 0


@dataclass(eq=False)
class Model:
    """The relaxation of a goal; the same goal and the same ranges make the same one.

    The goal is at least ``cost . v + offset - slack`` for the values ``v`` of its columns. ``ranges`` are
    those it was built from: what is known may get tighter while the model is in use. With a model that is
    ``like`` it, of another goal over the same ranges, much of the work is done already.
    """

    backward: Backward
    goal: Goal
    like: InitVar[Model | None] = None
    ranges: dict[str, Interval] = field(init=False)
    cost: Array = field(init=False)
    offset: float = field(init=False)
    slack: float = field(init=False)
    neurons: list[Neuron] = field(default_factory=list, init=False)
    columns: dict[str, Index] = field(default_factory=dict, init=False)
    """For each value the columns of its entries, -1 where an entry has none."""
    _lo: list[float] = field(default_factory=list, init=False)
    _hi: list[float] = field(default_factory=list, init=False)

    @_OVERFLOW
    def __post_init__(self, like: Model | None) -> None:
        self.ranges = dict(self.backward.values)
        ((forms, bias, radius),) = self._pre_activations(self.goal.target, [self.goal.neuron])
        self._reads = {name: frozenset(indices.tolist()) for name, (indices, _) in forms.items()}
        if like is not None and self._is_like(like):
            self.ranges, self.neurons, self.columns = like.ranges, like.neurons, like.columns
            self._lo, self._hi = like._lo, like._hi
        else:
            self._build(forms)
        inputs, weights = self._gather(forms)
        self.cost = np.zeros(len(self._lo))
        self.cost[inputs] = self.goal.sign * weights
        self.offset, self.slack = self.goal.sign * bias, radius
        self.ends = np.array(self._lo), np.array(self._hi)

    def _is_like(self, other: Model) -> bool:
        """Whether all of a model but the goal's own weights is the same."""
        mine, its = self.goal, other.goal
        return (
            self.backward is other.backward
            and self._reads == other._reads
            and (mine.target, mine.depth, mine.droppable) == (its.target, its.depth, its.droppable)
        )

    def _build(self, forms: _Forms) -> None:
        """Everything that a goal of these forms depends on: its columns and its neurons."""
        network, values = self.backward.network, self.backward.values
        wanted: dict[str, set[int]] = {}
        distance: dict[str, int] = {}
        _want(wanted, distance, forms, 1)
        widest = max(map(network.size, network.shapes))
        modelled: list[tuple[str, int, _Forms, float, float]] = []
        for relu in reversed(network.relus):
            if relu.name not in wanted:
                continue
            pre = values[relu.inputs[0]]
            upper = pre.hi.flatten()
            entries = sorted(i for i in wanted.pop(relu.name) if not float(upper[i]) <= 0)
            if not entries:
                continue
            if distance[relu.name] > self.goal.depth or len(entries) * widest > _LARGEST:
                for i in entries:
                    self._column(relu.name, i, max(0.0, float(pre.lo.flatten()[i])), float(upper[i]))
                continue
            for entry, (reads, shift, off) in zip(
                entries, self._pre_activations(relu.inputs[0], entries), strict=True
            ):
                modelled.append((relu.name, entry, reads, shift, off))
                _want(wanted, distance, reads, distance[relu.name] + 1)
        # The input, and maxima: nothing before them is in the model.
        for name in sorted(wanted):
            lower, upper = values[name].lo.flatten(), values[name].hi.flatten()
            for entry in sorted(wanted[name]):
                self._column(name, entry, float(lower[entry]), float(upper[entry]))
        for item in reversed(modelled):
            self._add_neuron(*item)

    @property
    @_OVERFLOW
    def made_of(self) -> float:
        """The sum of the magnitudes that the goal is made of."""
        reach = np.maximum(*map(np.abs, self.ends))
        return float(np.abs(self.cost) @ reach) + abs(self.offset)

    @property
    def both(self) -> list[int]:
        """The numbers of the neurons that have both states."""
        return [number for number, neuron in enumerate(self.neurons) if neuron.both]

    def input_of(self, point: Array) -> torch.Tensor | None:
        """The network input of a point, None if the model does not reach back to it; inputs that play
        no part lie at their lower ends.
        """
        entries, columns = self.input_columns
        if not len(entries):
            return None
        x = self.backward.region.lo.clone()
        x[torch.as_tensor(entries, device=x.device)] = torch.as_tensor(point[columns], device=x.device)
        return x[None]

    @property
    def input_columns(self) -> tuple[Index, Index]:
        """The network's inputs that have columns, and these. No neuron reads any of the others."""
        own = self.columns.get(self.backward.network.input.name, np.zeros(0, np.int64))
        entries = np.flatnonzero(own >= 0)
        return entries, own[entries]

    def _pre_activations(self, target: str, entries: list[int]) -> list[tuple[_Forms, float, float]]:
        """Per entry: what it reads (name -> indices and weights), its bias, and how far off that can be."""
        device = self.backward.region.lo.device
        pulled = self.backward.affine(target, torch.tensor(entries, dtype=torch.int64, device=device))
        names = list(pulled.forms)
        sizes = [self.backward.network.size(name) for name in names]
        forms = np.concatenate(
            [pulled.forms[name].cpu().numpy() for name in names] or [np.zeros((len(entries), 0))], axis=1
        )
        reach = np.concatenate(
            [self.backward.values[name].magnitude.flatten().cpu().numpy() for name in names] or [np.zeros(0)]
        )
        starts = np.cumsum([0, *sizes])
        found = []
        for row, bias, radius in zip(forms, pulled.constant.tolist(), pulled.radius.tolist(), strict=True):
            share = np.abs(row) * reach
            order = np.argsort(share)
            adds_up = np.cumsum(share[order])
            dropped = int(np.searchsorted(adds_up, self.goal.droppable, side="right"))
            keep = np.sort(order[dropped:])
            lost = float(adds_up[dropped - 1]) * (1 + gamma(len(row))) + len(row) * ETA if dropped else 0.0
            reads = {
                name: (keep[(keep >= a) & (keep < b)] - a, row[keep[(keep >= a) & (keep < b)]])
                for name, a, b in zip(names, starts[:-1], starts[1:], strict=True)
            }
            found.append((reads, float(bias), (radius + lost) * (1 + 2.0**-40)))
        return found

    def _column(self, name: str, entry: int, lo: float, hi: float) -> int:
        self._lo.append(lo)
        self._hi.append(hi)
        if name not in self.columns:
            self.columns[name] = np.full(self.backward.network.size(name), -1, dtype=np.int64)
        self.columns[name][entry] = len(self._lo) - 1
        return len(self._lo) - 1

    def _gather(self, forms: _Forms) -> tuple[Index, Array]:
        """The columns and weights of a form; entries without a column are always 0."""
        known = [(self.columns[name][at], own) for name, (at, own) in forms.items() if name in self.columns]
        columns = np.concatenate([np.zeros(0, np.int64), *(at for at, _ in known)])
        weights = np.concatenate([np.zeros(0), *(own for _, own in known)])
        return columns[columns >= 0], weights[columns >= 0]

    def _add_neuron(self, name: str, entry: int, forms: _Forms, bias: float, radius: float) -> None:
        pre = self.backward.values[self.backward.network[name].inputs[0]]
        lo, hi = float(pre.lo.flatten()[entry]), float(pre.hi.flatten()[entry])
        inputs, weights = self._gather(forms)
        column = self._column(name, entry, max(lo, 0.0), hi)
        self.neurons.append(Neuron(name, entry, column, inputs, weights, bias, radius, lo, hi))


def _want(wanted: dict[str, set[int]], distance: dict[str, int], forms: _Forms, away: int) -> None:
    for name, (indices, _) in forms.items():
        wanted.setdefault(name, set()).update(indices.tolist())
        distance[name] = min(distance.get(name, away), away)
