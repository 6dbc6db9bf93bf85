"""The linear program for one neuron: the relaxation of everything it reads, and the cuts that sharpen it.

Per unstable neuron ``x`` with pre-activation ``y = w v + b`` in ``[L, U]`` and state ``z`` in [0, 1]:
``x >= y``, ``x <= y - L (1 - z)``, ``x <= U z``; active neurons are ``x = y``, inactive ones are left out.
Only the neurons that the target depends on are in the program. Weights too small to matter are dropped from a
row, and the row is widened by what they could have added: trained with l1, most weights are such, and they
slow the simplex down.

The hull's inequality for a subset ``I`` of the inputs is, with ``L'``, ``U'`` the ends of each input at which
``w_i v_i`` is smallest and largest,
``x <= sum_I w_i v_i - (1 - z) sum_I w_i L'_i + z (b + sum_not_I w_i U'_i)``; the most violated one takes
exactly the ``i`` with ``w_i v_i < w_i (L'_i (1 - z) + U'_i z)``.

Every row holds for the true values of every input of the domain: coefficients are taken as they are, and ends
are rounded outward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from relutrim.bounds.linear import Backward
from relutrim.network.operators import Array
from relutrim.prove.hull.program import Index, Program, Row
from relutrim.rounding import ETA, gamma

_OVERFLOW = np.errstate(over="ignore", invalid="ignore")
"""What overflows makes useless rows and NaN bounds, never false ones."""
_DROPPED = 1e-3
"""What the weights dropped from one row may add up to, as a share of what the bound is to gain."""


@dataclass(frozen=True, eq=False)
class _Neuron:
    """A neuron of the program: its columns (``state`` is -1 if it is active) and its pre-activation."""

    column: int
    state: int
    inputs: Index
    weights: Array
    bias: float
    radius: float
    lo: float
    hi: float


@dataclass(eq=False)
class Model:
    """``min sign * y`` of one neuron over the relaxation of what it reads."""

    backward: Backward
    target: str
    neuron: int
    sign: float
    program: Program = field(init=False)
    _neurons: list[_Neuron] = field(default_factory=list, init=False)
    _lo: list[float] = field(default_factory=list, init=False)
    _hi: list[float] = field(default_factory=list, init=False)
    _columns: dict[str, dict[int, int]] = field(default_factory=dict, init=False)
    _droppable: float = field(init=False)
    _base: int = field(init=False)
    slack: float = field(init=False)

    @_OVERFLOW
    def __post_init__(self) -> None:
        ends = self.backward.values[self.target]
        missing = abs(float((ends.lo if self.sign > 0 else ends.hi).flatten()[self.neuron]))
        self._droppable = min(max(_DROPPED * missing, 1e-10), 1e-5)
        goal = self._pre_activations(self.target, [self.neuron])[0]
        wanted: dict[str, set[int]] = {}
        _want(wanted, goal[0])
        rows: list[tuple[str, int, dict[str, tuple[Index, Array]], float, float]] = []
        for relu in reversed(self.backward.network.relus):
            pre = relu.inputs[0]
            upper = self.backward.values[pre].hi.flatten()
            entries = sorted(i for i in wanted.pop(relu.name, ()) if not float(upper[i]) <= 0)
            for entry, (forms, bias, radius) in zip(
                entries, self._pre_activations(pre, entries), strict=True
            ):
                rows.append((relu.name, entry, forms, bias, radius))
                _want(wanted, forms)
        source = self.backward.network.input.name
        box = self.backward.values[source]
        for entry in sorted(wanted.pop(source, ())):
            self._column(source, entry, float(box.lo.flatten()[entry]), float(box.hi.flatten()[entry]))
        program_rows = self._region_rows(source)
        for name, entry, forms, bias, radius in reversed(rows):
            program_rows += self._add_neuron(name, entry, forms, bias, radius)
        cost = np.zeros(len(self._lo))
        inputs, weights = self._gather(goal[0])
        cost[inputs] = self.sign * weights
        self.program = Program(
            np.array(self._lo), np.array(self._hi), cost, self.sign * goal[1], program_rows
        )
        self.slack = goal[2]
        self._base = len(program_rows)

    def purge(self, duals: Array) -> None:
        """Drop cuts that carry no dual."""
        self.program.purge(self._base, duals)

    @_OVERFLOW
    def separate(self, point: Array) -> int:
        """Add for each unstable neuron the hull inequality that ``point`` violates most; how many were
        added.
        """
        cuts = [cut for neuron in self._neurons if neuron.state >= 0 and (cut := self._cut(neuron, point))]
        self.program.add(cuts)
        return len(cuts)

    def split(self, states: dict[int, bool]) -> None:
        """Fix the states of some neurons, given by their number; all others are free."""
        ends: dict[int, tuple[float, float]] = {}
        for number, on in states.items():
            neuron = self._neurons[number]
            ends[neuron.state] = (1.0, 1.0) if on else (0.0, 0.0)
            ends[neuron.column] = (0.0, neuron.hi if on else 0.0)
        self.program.narrow(ends)

    @_OVERFLOW
    def to_branch(self, point: Array, duals: Array) -> int | None:
        """The number of the neuron whose relaxation costs most at ``point``, None if every state is
        decided.
        """
        weights = np.abs(self.program.downstream(duals))
        best, chosen = 0.0, None
        for number, neuron in enumerate(self._neurons):
            if neuron.state >= 0 and self.program.lo[neuron.state] < self.program.hi[neuron.state]:
                y = float(neuron.weights @ point[neuron.inputs]) + neuron.bias
                gap = float(point[neuron.column]) - max(0.0, y)
                score = abs(gap) * float(weights[neuron.column])
                if score > best:
                    best, chosen = score, number
        return chosen

    def input_of(self, point: Array) -> torch.Tensor:
        """The network input in a solution; inputs that play no part lie at their lower ends."""
        region = self.backward.region
        x = region.lo.clone()
        for entry, column in self._columns.get(self.backward.network.input.name, {}).items():
            x[entry] = float(point[column])
        return x[None]

    def _pre_activations(
        self, target: str, entries: list[int]
    ) -> list[tuple[dict[str, tuple[Index, Array]], float, float]]:
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
            dropped = int(np.searchsorted(adds_up, self._droppable, side="right"))
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
        self._columns.setdefault(name, {})[entry] = len(self._lo) - 1
        return len(self._lo) - 1

    def _gather(self, forms: dict[str, tuple[Index, Array]]) -> tuple[Index, Array]:
        """The columns and weights of a form; entries without a column are always 0."""
        columns: list[int] = []
        weights: list[float] = []
        for name, (indices, values) in forms.items():
            known = self._columns.get(name, {})
            for index, value in zip(indices.tolist(), values.tolist(), strict=True):
                if index in known:
                    columns.append(known[index])
                    weights.append(value)
        return np.array(columns, dtype=np.int64), np.array(weights)

    def _add_neuron(
        self, name: str, entry: int, forms: dict[str, tuple[Index, Array]], bias: float, radius: float
    ) -> list[Row]:
        pre = self.backward.values[self.backward.network[name].inputs[0]]
        lo, hi = float(pre.lo.flatten()[entry]), float(pre.hi.flatten()[entry])
        inputs, weights = self._gather(forms)
        column = self._column(name, entry, max(lo, 0.0), hi)
        row = np.append(inputs, column), np.append(-weights, 1.0)
        above = Row(*row, _down(bias - radius), np.inf, column)
        if lo >= 0:
            self._neurons.append(_Neuron(column, -1, inputs, weights, bias, radius, lo, hi))
            return [Row(*row, _down(bias - radius), _up(bias + radius), column)]
        state = len(self._lo)
        self._lo.append(0.0)
        self._hi.append(1.0)
        self._neurons.append(_Neuron(column, state, inputs, weights, bias, radius, lo, hi))
        end = _up(_up(bias + radius) - lo)
        below = Row(np.append(row[0], state), np.append(row[1], -lo), -np.inf, end, column)
        off = Row(np.array([column, state]), np.array([1.0, -hi]), -np.inf, 0.0, column)
        return [above, below, off]

    def _region_rows(self, source: str) -> list[Row]:
        """The domain's own constraints, where all inputs they weigh have columns."""
        region, known = self.backward.region, self._columns.get(source, {})
        rows = []
        for weights, lower, upper in zip(
            region.rows.cpu().numpy(), region.lower_ends.tolist(), region.upper_ends.tolist(), strict=True
        ):
            used = np.flatnonzero(weights)
            if all(int(i) in known for i in used):
                rows.append(Row(np.array([known[int(i)] for i in used]), weights[used], lower, upper))
        return rows

    def _cut(self, neuron: _Neuron, point: Array) -> Row | None:
        w, v = neuron.weights, point[neuron.inputs]
        z, x = point[neuron.state], point[neuron.column]
        lo, hi = np.array(self._lo)[neuron.inputs], np.array(self._hi)[neuron.inputs]
        smallest, largest = np.where(w > 0, w * lo, w * hi), np.where(w > 0, w * hi, w * lo)
        chosen = w * v < smallest * (1 - z) + largest * z
        inside, outside = smallest[chosen], largest[~chosen]
        slack = gamma(len(w) + 4)
        # Rounded so that the cut stays true at z = 0 (where only the first matters) and at z = 1.
        low = _down(float(inside.sum()) - slack * float(np.abs(inside).sum()) - len(w) * ETA)
        high = float(outside.sum()) + slack * float(np.abs(outside).sum()) + len(w) * ETA
        slope = low + (neuron.bias + neuron.radius + high)
        slope = _up(slope + slack * (abs(low) + abs(neuron.bias) + neuron.radius + abs(high)))
        excess = x - (float((w * v)[chosen].sum()) - low + slope * z)
        if not excess > 1e-7 * (1 + abs(x)):
            return None
        columns = np.concatenate([neuron.inputs[chosen], [neuron.column, neuron.state]])
        return Row(columns, np.concatenate([-w[chosen], [1.0, -slope]]), -np.inf, -low, neuron.column)


def _want(wanted: dict[str, set[int]], forms: dict[str, tuple[Index, Array]]) -> None:
    for name, (indices, _) in forms.items():
        wanted.setdefault(name, set()).update(indices.tolist())


def _up(value: float) -> float:
    return float(np.nextafter(value, np.inf))


def _down(value: float) -> float:
    return float(np.nextafter(value, -np.inf))
