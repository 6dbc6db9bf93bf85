"""Steps on a CPU, compiled: what dual.py and way.py do operation by operation, in one pass over the shares.

Shares are nearly all there is to a batch, and an operation on them takes as long as memory takes. Here a step
reads them twice and writes them once, and leaves out neurons that no node of the batch has relaxed. Nothing
rests on the numbers.

A term ``w_i v_i`` goes from its least value to its largest as ``t_i`` goes from 0 to 1. Inputs without a
share of their own have one half. So ``sum a_i (w_i v_i - least_i)`` over all inputs is half of
``y - b - sum least_i``, and ``sum (a_i - 1/2) width_i t_i`` over those with a share of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
import torch
from torch import Tensor

from relutrim.graph.operators import Array
from relutrim.prove.hull.dual import Dual, Level, Multipliers
from relutrim.prove.hull.model import Index
from relutrim.prove.hull.way import Look, Rates

Function = TypeVar("Function", bound=Callable[..., Any])

_FASTER = {"nsz", "arcp", "contract", "afn", "reassoc"}
"""Sums may be taken in any order; what is not a number stays that."""


def _compiled(function: Function) -> Function:
    options = {"nogil": True, "fastmath": _FASTER, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # there is no place to keep what was compiled
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


class _Fixed(NamedTuple):
    """A level: ``[neurons]``, and from ``place`` on ``[neurons, k]``, of inputs with a share of their own."""

    bias: Array
    lo: Array
    hi: Array
    both: np.ndarray
    unit: Array
    """Of pushes."""
    least: Array
    """The sum of the least values of all terms."""
    rest: Array
    """Half of that of terms without a share of their own."""
    high: Array
    columns: Index
    """Of the neurons, in the model."""
    place: Index
    """Which of what the level reads a term has."""
    column: Index
    """The same in the model."""
    falls: np.ndarray
    """Whether a term falls with its input."""
    weight: Array
    small: Array
    """The least value of a term."""
    width: Array


class _Own(NamedTuple):
    """Multipliers, and how fast they move: the shares, and all others (lean, mixture and push, one behind the
    other), with what the squares of their slopes are on average.
    """

    lean: Array
    mix: Array
    push: Array
    share: Array
    speed: Array
    speeds: Array
    squares: Array


class _Use(NamedTuple):
    """What came of a level, ``[neurons, nodes]``, as in :class:`relutrim.prove.hull.dual.Use`. ``low`` and
    ``wide`` are ``sum a_i least_i`` and ``sum a_i width_i``; half of ``cut`` is in ``through`` already.
    """

    weights: Array
    below: Array
    state: Array
    slope: Array
    cut: Array
    through: Array
    low: Array
    wide: Array


class _Numbers(NamedTuple):
    """In the precision of the steps: any other would make double what it meets. ``momentum`` and ``squares``
    are what is new of an average with every step, the last four the lengths of steps.
    """

    zero: float
    half: float
    one: float
    tiny: float
    momentum: float
    squares: float
    lean: float
    mix: float
    push: float
    share: float


@_compiled
def _add_up(fixed: _Fixed, share: Array, use: _Use) -> None:
    neurons, own, nodes = share.shape
    for j in range(neurons):
        low, wide = use.low[j], use.wide[j]
        low[:] = 0
        wide[:] = 0
        for q in range(own):
            a, small, width = share[j, q], fixed.small[j, q], fixed.width[j, q]
            for i in range(nodes):
                low[i] += small * a[i]
                wide[i] += width * a[i]


@_compiled
def _replace(
    fixed: _Fixed,
    own: _Own,
    states: np.ndarray,
    use: _Use,
    weights: Array,
    bound: Array,
    numbers: _Numbers,
) -> None:
    """Replace a level's neurons: what they come to in the bound, and how they weigh what they read."""
    neurons, nodes = states.shape
    zero, one, half = numbers.zero, numbers.one, numbers.half
    for j in range(neurons):
        bias, lo, hi, both = fixed.bias[j], fixed.lo[j], fixed.hi[j], fixed.both[j]
        unit, rest, high = fixed.unit[j], fixed.rest[j], fixed.high[j]
        weight = weights[fixed.columns[j]]
        for i in range(nodes):
            at, state = weight[i], states[j, i]
            on, off = state > 0, state < 0
            near, flat, cut = own.mix[0, j, i], own.mix[1, j, i], own.mix[3, j, i]
            slope = bias + high + rest - use.wide[j, i]
            rise = near * lo + flat * hi + cut * slope
            up = on or rise > zero
            most = own.mix[2, j, i] * hi - cut * (use.low[j, i] + rest) - near * lo + (rise if up else zero)
            below = zero if off or not both else min(at, zero)
            push = own.push[j, i] * unit
            straight = max(at, zero) * own.lean[j, i] + below * near - (push if on else zero)
            through = (push if off else straight) if both else at
            bound[i] += below * most + through * bias
            use.weights[j, i] = at
            use.state[j, i] = one if up else zero
            use.slope[j, i] = slope
            use.below[j, i] = below
            use.cut[j, i] = below * cut
            use.through[j, i] = through + half * below * cut


@_compiled
def _pull(
    fixed: _Fixed, share: Array, use: _Use, read: Index, reads: Array, weights: Array, half: float
) -> None:
    """Add what a level weighs of what it reads: ``reads``, and what shares other than one half make of it."""
    neurons, own, nodes = share.shape
    for m in range(len(read)):
        weight, more = weights[read[m]], reads[m]
        for i in range(nodes):
            weight[i] += more[i]
    for j in range(neurons):
        cut = use.cut[j]
        if not cut.any():
            continue
        for q in range(own):
            weight, a, term = weights[fixed.column[j, q]], share[j, q], fixed.weight[j, q]
            for i in range(nodes):
                weight[i] += (a[i] - half) * term * cut[i]


@_compiled
def _read(values: Array, read: Index, low: Array, span: Array, reads: Array, part: Array) -> None:
    """What a level reads, and where that is in its range."""
    for m in range(len(read)):
        value, own, share, least, width = values[read[m]], reads[m], part[m], low[m], span[m]
        for i in range(len(value)):
            own[i] = value[i]
            share[i] = (value[i] - least) / width


@_compiled
def _move_shares(
    fixed: _Fixed, own: _Own, use: _Use, part: Array, length: Array, sums: Array, numbers: _Numbers
) -> None:
    """A step of the shares. ``sum (a_i - 1/2) width_i t_i`` is from before it, ``low`` and ``wide`` are from
    behind it.
    """
    neurons, many, nodes = own.share.shape
    zero, half, one = numbers.zero, numbers.half, numbers.one
    for j in range(neurons):
        if not use.below[j].any():
            continue
        state, total, low, wide = use.state[j], sums[j], use.low[j], use.wide[j]
        total[:] = 0
        low[:] = 0
        wide[:] = 0
        for q in range(many):
            p, a, speed = part[fixed.place[j, q]], own.share[j, q], own.speed[j, q]
            small, width = fixed.small[j, q], fixed.width[j, q]
            begin, sign = (one, -one) if fixed.falls[j, q] else (zero, one)
            for i in range(nodes):
                t = begin + sign * p[i]
                total[i] += (a[i] - half) * width * t
                fast = speed[i] + numbers.momentum * (state[i] - t - speed[i])
                speed[i] = fast
                moved = min(max(a[i] + fast * (numbers.share * length[i]), zero), one)
                a[i] = moved
                low[i] += small * moved
                wide[i] += width * moved


@_compiled
def _adam(own: _Own, kind: int, j: int, i: int, rise: float, numbers: _Numbers) -> float:
    """A step, but for its length."""
    speed, square = own.speeds[kind, j, i], own.squares[kind, j, i]
    speed += numbers.momentum * (rise - speed)
    square += numbers.squares * (rise * rise - square)
    own.speeds[kind, j, i] = speed
    own.squares[kind, j, i] = square
    return speed / (np.sqrt(square) + numbers.tiny)  # type: ignore[no-any-return]


@_compiled
def _move(
    fixed: _Fixed,
    own: _Own,
    states: np.ndarray,
    use: _Use,
    y: Array,
    sums: Array,
    length: Array,
    numbers: _Numbers,
    values: Array,
) -> None:
    """The values of a level's neurons, and a step of everything but the shares."""
    neurons, nodes = states.shape
    zero, one, half = numbers.zero, numbers.one, numbers.half
    for j in range(neurons):
        bias, lo, hi, both = fixed.bias[j], fixed.lo[j], fixed.hi[j], fixed.both[j]
        unit, least = fixed.unit[j], fixed.least[j]
        value = values[fixed.columns[j]]
        for i in range(nodes):
            before, at, state, up = y[j, i], use.weights[j, i], states[j, i], use.state[j, i]
            on, off = state > 0, state < 0
            a, b, c, d = own.mix[0, j, i], own.mix[1, j, i], own.mix[2, j, i], own.mix[3, j, i]
            near, flat = before - lo * (one - up), hi * up
            cut = half * (before - bias - least) + sums[j, i] + up * use.slope[j, i]
            mixed = a * near + b * flat + c * hi + d * cut
            lean, push, below = own.lean[j, i], own.push[j, i], use.below[j, i]
            x = zero if off else (lean * before if at > zero else mixed)
            value[i] = x if both else before

            # What has no slope, and never had one, stays.
            if at > zero or own.squares[0, j, i] > zero:
                far = length[i] * numbers.lean
                lean += far * _adam(own, 0, j, i, max(at, zero) * before if both else zero, numbers)
                own.lean[j, i] = min(max(lean, zero), one)
            if state != 0 or own.squares[5, j, i] > zero:
                far = length[i] * numbers.push
                rise = unit * (-before if on else (before if off else zero))
                push += far * _adam(own, 5, j, i, rise, numbers)
                own.push[j, i] = max(push, zero)
            squares = (
                own.squares[1, j, i] + own.squares[2, j, i] + own.squares[3, j, i] + own.squares[4, j, i]
            )
            if below < zero or squares > zero:
                far = length[i] * numbers.mix
                a = max(a + far * _adam(own, 1, j, i, below * (near - mixed), numbers), zero)
                b = max(b + far * _adam(own, 2, j, i, below * (flat - mixed), numbers), zero)
                c = max(c + far * _adam(own, 3, j, i, below * (hi - mixed), numbers), zero)
                d = max(d + far * _adam(own, 4, j, i, below * (cut - mixed), numbers), zero)
                whole = max(a + b + c + d, numbers.tiny)
                own.mix[0, j, i] = a / whole
                own.mix[1, j, i] = b / whole
                own.mix[2, j, i] = c / whole
                own.mix[3, j, i] = d / whole


class Fused:
    """A :class:`relutrim.prove.hull.way.Way`."""

    def __init__(
        self, dual: Dual, batch: Sequence[Multipliers], states: Sequence[Tensor], rates: Rates
    ) -> None:
        self.batch = [own.clone() for own in batch]
        self._dual = dual
        self._states = [state.contiguous().numpy() for state in states]
        self._fixed = [_fixed(level, unit) for level, unit in zip(dual.levels, dual.scales, strict=True)]
        self._read = [level.read.numpy() for level in dual.levels]
        self._nodes = states[0].shape[1]
        kind = dual.cost.numpy().dtype.type
        kept = (1 - rates.momentum, 1 - rates.squares)
        self._numbers = _Numbers(*map(kind, (0, 0.5, 1, 1e-12, *kept, *rates.lengths)))
        self._own = [self._owned(own) for own in self.batch]
        self._uses = [_Use(*(self._zeros(len(fixed.bias)) for _ in range(8))) for fixed in self._fixed]
        for fixed, mine, use in zip(self._fixed, self._own, self._uses, strict=True):
            _add_up(fixed, mine.share, use)
        self._weights, self._values = (torch.from_numpy(self._zeros(len(dual.cost))) for _ in range(2))
        self._corner = torch.zeros_like(dual.low)
        self._length, self._steady = (torch.from_numpy(self._zeros()) for _ in range(2))

    def look(self) -> Look:
        """The bounds where the multipliers are."""
        found = self._look(self._own, self._uses)
        self._corner = found.corner
        return found

    def bound_of(self, batch: Sequence[Multipliers]) -> Tensor:
        """Those of others."""
        own, uses = [self._owned(level) for level in batch], []
        for fixed, mine, use in zip(self._fixed, own, self._uses, strict=True):
            uses.append(use._replace(low=np.zeros_like(use.low), wide=np.zeros_like(use.wide)))
            _add_up(fixed, mine.share, uses[-1])
        return self._look(own, uses).bound

    def measure(self, length: Tensor, steady: Tensor) -> None:
        """Say how long the next step is, for each node: of shares, and of all others."""
        self._length.copy_(length)
        self._steady.copy_(steady)

    def move(self) -> None:
        """Take a step from where the last look was."""
        values, length, steady = (part.numpy() for part in (self._values, self._length, self._steady))
        values[self._dual.free.numpy()] = self._corner.numpy()
        parts = zip(
            self._dual.levels, self._fixed, self._own, self._states, self._uses, self._read, strict=True
        )
        for level, fixed, own, states, use, read in parts:
            reads, part, sums = self._zeros(len(read)), self._zeros(len(read)), np.zeros_like(use.low)
            _read(values, read, level.low[:, 0].numpy(), level.span[:, 0].numpy(), reads, part)
            y = torch.addmm(level.bias, level.weight, torch.from_numpy(reads)).numpy()
            _move_shares(fixed, own, use, part, length, sums, self._numbers)
            _move(fixed, own, states, use, y, sums, steady, self._numbers, values)

    def _look(self, every: Sequence[_Own], uses: Sequence[_Use]) -> Look:
        dual = self._dual
        self._weights.copy_(dual.cost.expand_as(self._weights))
        bound = dual.offset.expand(self._nodes).clone()
        weights = self._weights.numpy()
        parts = zip(dual.levels, self._fixed, every, self._states, uses, self._read, strict=True)
        for level, fixed, own, states, use, read in reversed(list(parts)):
            _replace(fixed, own, states, use, weights, bound.numpy(), self._numbers)
            reads = (level.weight.T @ torch.from_numpy(use.through)).numpy()
            _pull(fixed, own.share, use, read, reads, weights, self._numbers.half)
        least, corner = dual.least(self._weights[dual.free])
        return Look(bound + least, corner)

    def _owned(self, own: Multipliers) -> _Own:
        lean, mix, push, share = (part.contiguous().numpy() for part in own.parts)
        speeds, squares = (np.zeros((6, *lean.shape), lean.dtype) for _ in range(2))
        return _Own(lean, mix, push, share, np.zeros_like(share), speeds, squares)

    def _zeros(self, *rows: int) -> Array:
        return np.zeros((*rows, self._nodes), self._dual.cost.numpy().dtype)


@np.errstate(over="ignore", invalid="ignore")
def _fixed(level: Level, unit: Tensor) -> _Fixed:
    layer = level.layer

    def plain(part: Tensor) -> Array:
        return np.ascontiguousarray(part.numpy())

    return _Fixed(
        bias=plain(level.bias[:, 0]),
        lo=plain(level.lo[:, 0]),
        hi=plain(level.hi[:, 0]),
        both=layer.both,
        unit=plain(unit[:, 0]),
        least=layer.smallest.sum(1).astype(level.bias.numpy().dtype),
        rest=plain(level.rest_low[:, 0]),
        high=plain(level.high[:, 0]),
        columns=layer.columns,
        place=np.ascontiguousarray(level.places),
        column=layer.read[level.places],
        falls=np.take_along_axis(layer.weight, level.places, 1) < 0,
        weight=plain(level.terms[:, :, 0]),
        small=plain(level.ends[:, 0]),
        width=plain(level.width[:, 0]),
    )
