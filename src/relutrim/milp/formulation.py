"""The paper's formulation (equations 1 to 9): a network as rows of a mixed-integer program.

Per neuron with pre-activation ``y = w v + b`` in ``[-mu, M]``: ``y = x - chi``, ``0 <= x <= M z``,
``0 <= chi <= mu (1 - z)``, ``z`` 0 or 1; so ``x = max(0, y)``. A neuron whose range holds one sign only has
no binary: it is ``x = y``, or 0. ``p <= z`` and ``q <= 1 - z`` count the states nobody has seen yet; they
need not be whole numbers, because nothing keeps them from their largest value (the paper's appendix).

Networks trained with l1 are full of weights of 1e-8, on which the simplex method stalls: the smallest of a
row are dropped, and the row is widened by what they could have added. So every input of the domain still has
its solution, and there may be solutions that no input has; the states of a solution are therefore those that
the network itself shows at the solution's input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from relutrim.bounds.linear import Backward, Pulled
from relutrim.domain.region import Region
from relutrim.graph.graph import Node
from relutrim.graph.operators import Array
from relutrim.intervals import Interval
from relutrim.milp.model import Draft, Flags, Index, Milp
from relutrim.rounding import ETA, gamma

DROPPED = 1e-5
"""What the weights dropped from one row may add up to."""
CUTOFF = 0.9
"""A count of states that is not above this is 0."""
_TINY = 1e-9
"""Solvers drop coefficients below this without a word."""
_SLIGHT = 1e-6
"""In a constraint of the domain, next to entries of 1."""
_FAINT = 1e-4
"""A column that stays below this is at the mercy of a solver's presolve."""
_HUGE = 1e6
"""Beyond this, coefficients and ranges are more than double precision and tolerances go with."""


@dataclass(frozen=True, order=True)
class State:
    """A state of a neuron that nobody has seen: ``on`` is what the paper calls p, off is q."""

    relu: str
    neuron: int
    on: bool


@dataclass(frozen=True, eq=False)
class _Forms:
    """Pre-activations as sparse rows over the columns of a draft: entries, constants, half widths."""

    row: Index
    column: Index
    value: Array
    constant: Array
    radius: Array


class Unmodelled(ValueError):
    """The network cannot be written as such a program, because ranges are not finite."""


@dataclass(eq=False)
class Formulation:
    """The rows of all ReLUs that ``relus`` depend on, and of these themselves.

    ``ranges`` hold every pre-activation; the constants M and mu come from them.
    """

    backward: Backward
    ranges: Mapping[str, Interval]
    relus: Sequence[str]
    draft: Draft = field(default_factory=Draft, init=False)
    _columns: dict[str, Index] = field(default_factory=dict, init=False)
    _rows: list[tuple[Index, _Forms, Array]] = field(default_factory=list, init=False)
    _binaries: dict[str, Index] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        network, region = self.backward.network, self.backward.region
        needed = self._needed()
        lo, hi = region.lo.cpu().numpy(), region.hi.cpu().numpy()
        self.inputs = self.draft.add_columns(lo, hi)
        self._columns[network.input.name] = self.inputs
        self._constraints, lower, upper = _constraints(region)
        at, entry = np.nonzero(self._constraints)
        self.draft.add_rows([(at, self.inputs[entry], self._constraints[at, entry])], lower, upper)
        for relu in network.relus:
            if relu.name in needed:
                self._add(relu)

    def states(self, wanted: Sequence[State]) -> Milp:
        """The program that shows as many of these states at once as it can; its marks count them."""
        draft = self.draft.copy()
        count = len(wanted)
        marks = draft.add_columns(np.zeros(count), np.ones(count))
        binaries = np.array([self._binaries[s.relu][s.neuron] for s in wanted], dtype=np.int64)
        on = np.array([s.on for s in wanted], dtype=bool)
        every, ones = np.arange(count), np.ones(count)
        draft.add_rows(
            [(every, marks, ones), (every, binaries, np.where(on, -1.0, 1.0))],
            np.full(count, -np.inf),
            np.where(on, 0.0, 1.0),
        )
        cost = np.zeros(draft.columns)
        cost[marks] = 1.0
        return draft.finish(cost, self.inputs, marks, cutoff=CUTOFF)

    def neuron(self, state: State) -> Milp:
        """The program whose value is how far a neuron gets into a state: ``max y`` or ``max -y``."""
        pre = self.backward.network[state.relu].inputs[0]
        forms = self._forms(self._affine(pre, np.array([state.neuron])))
        sign = 1.0 if state.on else -1.0
        cost = np.zeros(self.draft.columns)
        np.add.at(cost, forms.column, sign * forms.value)
        offset = float(sign * forms.constant[0] + forms.radius[0])
        return self.draft.finish(cost, self.inputs, np.zeros(0, dtype=np.int64), offset=offset)

    def sensitivity(self, model: Milp, tolerance: float) -> float:
        """How far the value of a program of one neuron can move if every row, every whole number and every
        reduced cost is off by the tolerance: what it adds at a neuron, times what the weights behind make of
        it. Values count with their size, not their width, because that is what a solver's own roundings go
        with; and a side of 0 on which a neuron gets nowhere may be taken for none, whatever the tolerance.
        Where there are huge numbers, solvers err without any bound.
        """
        if max(float(np.abs(part).max(initial=0.0)) for part in (model.value, model.hi, model.cost)) > _HUGE:
            return np.inf
        gain = np.abs(model.cost)
        size = np.abs(model.lo) + np.abs(model.hi)
        moved = tolerance * float(size.sum())
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            for x, forms, sides in reversed(self._rows):
                faint = np.where(sides < _FAINT, sides, 0.0)
                moved += float((gain[x] * (faint + tolerance * (1 + sides)).sum(0)).sum())
                np.add.at(gain, forms.column, np.abs(forms.value) * gain[x][forms.row])
            moved += tolerance * float((gain[self.inputs] * (1 + size[self.inputs])).sum())
            # What a constraint is worth is what its slowest input must make up for.
            worth = np.where(self._constraints != 0, gain[self.inputs] / np.abs(self._constraints), 0.0)
            moved += tolerance * float(worth.max(1, initial=0.0).sum())
        return moved

    @property
    def pre_activations(self) -> list[str]:
        """What the modelled ReLUs read."""
        return [self.backward.network[name].inputs[0] for name in self._binaries]

    def binaries(self, on: Mapping[str, torch.Tensor]) -> Array:
        """The values of all binaries, in the order of their columns, from which pre-activations are on."""
        known = [
            (columns[columns >= 0], flags.flatten().cpu().numpy()[columns >= 0])
            for columns, flags in zip(
                self._binaries.values(), (on[name] for name in self.pre_activations), strict=True
            )
        ]
        order = np.argsort(np.concatenate([columns for columns, _ in known]))
        return np.concatenate([flags for _, flags in known]).astype(np.float64)[order]

    def binary(self, state: State) -> int:
        """The place of a neuron's binary among all of them."""
        column = self._binaries[state.relu][state.neuron]
        return sum(int(((columns >= 0) & (columns < column)).sum()) for columns in self._binaries.values())

    def _needed(self) -> set[str]:
        """The ReLUs asked for and, from last to first, what they read."""
        needed = set(self.relus)
        for relu in reversed(self.backward.network.relus):
            if relu.name in needed:
                needed.update(self._affine(relu.inputs[0], np.zeros(0, dtype=np.int64)).forms)
        return needed

    def _affine(self, target: str, entries: Index) -> Pulled:
        device = self.backward.region.lo.device
        return self.backward.affine(target, torch.as_tensor(entries, device=device))

    def _add(self, relu: Node) -> None:
        """Columns and rows of one ReLU."""
        pre = self.ranges[relu.inputs[0]]
        lo, hi = (end.flatten().cpu().numpy() for end in (pre.lo, pre.hi))
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            raise Unmodelled(f"neurons of {relu.name!r} have no finite range")
        kept = np.flatnonzero(hi > 0)
        loose = lo[kept] < 0
        forms = self._forms(self._affine(relu.inputs[0], kept))
        x = self.draft.add_columns(np.maximum(lo[kept], 0.0), hi[kept])
        self._columns[relu.name] = np.full(lo.size, -1)
        self._columns[relu.name][kept] = x
        big, mu = hi[kept][loose], -lo[kept][loose]
        chi = self.draft.add_columns(np.zeros(mu.size), mu)
        z = self.draft.add_columns(np.zeros(mu.size), np.ones(mu.size), whole=True)
        self._binaries[relu.name] = np.full(lo.size, -1)
        self._binaries[relu.name][kept[loose]] = z
        every, ones = np.arange(kept.size), np.ones(kept.size)
        which = np.flatnonzero(loose)
        self.draft.add_rows(
            [(every, x, ones), (which, chi, -ones[loose]), (forms.row, forms.column, -forms.value)],
            forms.constant - forms.radius,
            forms.constant + forms.radius,
        )
        self._rows.append((x, forms, np.abs([lo[kept], hi[kept]])))
        few, ones = np.arange(mu.size), np.ones(mu.size)
        nothing = np.full(mu.size, -np.inf)
        self.draft.add_rows([(few, x[loose], ones), (few, z, -big)], nothing, np.zeros(mu.size))
        self.draft.add_rows([(few, chi, ones), (few, z, mu)], nothing, mu)

    def _magnitude(self, name: str) -> Array:
        return self.ranges[name].magnitude.flatten().cpu().numpy()

    def _forms(self, pulled: Pulled) -> _Forms:
        """Affine forms over the columns, without what is too small to matter."""
        names = list(pulled.forms)
        none = np.zeros((len(pulled.constant), 0))
        dense = np.concatenate([none, *(pulled.forms[name].cpu().numpy() for name in names)], axis=1)
        columns = np.concatenate([np.zeros(0, dtype=np.int64), *(self._columns[name] for name in names)])
        reach = np.concatenate([np.zeros(0), *(self._magnitude(name) for name in names)])
        dense, columns, reach = dense[:, columns >= 0], columns[columns >= 0], reach[columns >= 0]
        share = np.abs(dense) * reach
        small = _smallest(share, DROPPED) | (np.abs(dense) < _TINY)
        lost = np.where(small, share, 0.0).sum(1) * (1 + gamma(share.shape[1])) + share.shape[1] * ETA
        radius = pulled.radius.cpu().numpy() + lost
        row, at = np.nonzero(~small)
        if not (np.isfinite(dense).all() and np.isfinite(radius).all()):
            raise Unmodelled("weights or their rounding errors overflow")
        return _Forms(row, columns[at], dense[row, at], pulled.constant.cpu().numpy(), radius)


def _constraints(region: Region) -> tuple[Array, Array, Array]:
    """The domain's own rows and their ends, each scaled by a power of 2 to entries of at most 1. Where some
    of them are so small beside it that a solver's tolerances decide, the row is widened instead.
    """
    rows, lo, hi, lower, upper = (
        part.cpu().numpy()
        for part in (region.rows, region.lo, region.hi, region.lower_ends, region.upper_ends)
    )
    with np.errstate(over="ignore", under="ignore"):
        _, power = np.frexp(np.abs(rows).max(1, initial=0.0))
        rows = np.ldexp(rows, -power[:, None])
        lower, upper = np.ldexp(lower, -power), np.ldexp(upper, -power)
    reach = np.maximum(np.abs(lo), np.abs(hi))
    small = (rows != 0) & (np.abs(rows) < _SLIGHT)
    lost = (np.where(small, np.abs(rows), 0.0) @ reach) * (1 + gamma(reach.size)) + ETA * (2 + reach.sum())
    widened = small.any(1)
    lower = np.where(widened, np.nextafter(lower - lost, -np.inf), lower)
    upper = np.where(widened, np.nextafter(upper + lost, np.inf), upper)
    return np.where(small, 0.0, rows), lower, upper


def _smallest(share: Array, total: float) -> Flags:
    """Per row the smallest entries that add up to no more than ``total``."""
    order = np.argsort(share, axis=1)
    adds_up = np.cumsum(np.take_along_axis(share, order, axis=1), axis=1)
    small = np.zeros(share.shape, dtype=bool)
    np.put_along_axis(small, order, adds_up <= total, axis=1)
    return small
