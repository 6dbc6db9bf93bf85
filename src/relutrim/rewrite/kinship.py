"""Kinship: which slices of which values are made in the same way from the same thing.

A slice that is ``factor`` times some base, up to a small ``gap``, stays that behind a ReLU or a maximum if
the factor is positive, and behind everything that is linear. So it is enough to say how the channels of
a convolution are akin; a sweep through the graph says it of every value behind. Which slices a value has, and
along which axis, is for :mod:`relutrim.rewrite.channels` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.graph.graph import Node
from relutrim.graph.operators import (
    Add,
    Array,
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    Curve,
    MaxPool,
    Mean,
    Relu,
    Reshape,
    Scale,
    Shape,
    Take,
    Transpose,
)
from relutrim.rewrite.channels import Index, Labels
from relutrim.rewrite.draft import Draft, Mask
from relutrim.rewrite.exactness import powers_of_two
from relutrim.rounding import ETA, UNIT

Grid: TypeAlias = npt.NDArray[Any]

_OWN = 2**40
"""Channels from here on are akin to none."""
_CONSTANT = _OWN - 1
"""The channel that is 1 everywhere: a constant is a multiple of it."""
_DIGITS = 2.0**-46
"""A range this narrow, as a share of what lies in it, is what rounding has made of a number."""


@dataclass(frozen=True, eq=False)
class Kin:
    """Per slice: of which channel it is made, in which place, times which factor, up to which gap.

    Slices of one value with the same channel and the same place have the same base. Slices of one place with
    different channels were made from these channels by the same operators.
    """

    channel: Index
    place: Index
    factor: Array
    gap: Array

    @classmethod
    def of(cls, channel: Index) -> Kin:
        """Slices that are these channels, exactly."""
        count = len(channel)
        return cls(channel, np.zeros(count, dtype=np.int64), np.ones(count), np.zeros(count))

    def only(self, keep: Mask, others: Kin) -> Kin:
        """These where ``keep`` says so, and the others elsewhere."""
        return Kin(
            np.where(keep, self.channel, others.channel),
            np.where(keep, self.place, others.place),
            np.where(keep, self.factor, others.factor),
            np.where(keep, self.gap, others.gap),
        )


@dataclass(eq=False)
class Kinship:
    """The kin of every value. ``origin`` says it of nodes that make slices of their own, or None.

    With ``linear``, only what is linear passes anything on: then a slice is also the same combination of
    slices of its place as its channel is of theirs. With ``constants``, slices that are one number are akin.
    """

    draft: Draft
    labels: Labels
    origin: Callable[[Node], Kin | None]
    linear: bool = False
    constants: bool = False
    of: dict[str, Kin] = field(default_factory=dict)
    _count: int = _OWN

    def __post_init__(self) -> None:
        network = self.draft.network
        self.of[network.input.name] = self._own(network.input.name)
        for node in network.nodes:
            found = self._kin(node)
            self.of[node.name] = self._constant(node.name, found) if self.constants else found

    def rows(self, name: str, array: Grid) -> Grid:
        """What each slice of a value holds of an array of the value's shape."""
        count = len(self.labels.slices[name].labels)
        wide = np.moveaxis(array, self.labels.slices[name].axis, 0) if array.ndim else array
        return np.ascontiguousarray(wide).reshape(count, array.size // count if count else 0)

    def reach(self, name: str) -> Array:
        """The largest magnitude in each slice of a value."""
        found: Array = self.rows(name, self.draft.reach(name)[0].numpy()).max(axis=1, initial=0.0)
        return found

    def _constant(self, name: str, others: Kin) -> Kin:
        """Slices that are one number at every entry as multiples of 1."""
        known = self.draft.ranges[name]
        lo, hi = (self.rows(name, end[0].numpy()).astype(np.float64) for end in (known.lo, known.hi))
        if not lo.size:
            return others
        number = lo[:, 0]
        gap = np.maximum(hi.max(axis=1) - number, number - lo.min(axis=1)) * (1 + 2.0**-20)
        keep = ordinary(number) & (gap <= _DIGITS * np.abs(number))
        count = len(number)
        channel, place = np.full(count, _CONSTANT), np.zeros(count, dtype=np.int64)
        return Kin(channel, place, number, gap).only(keep, others)

    def _own(self, name: str) -> Kin:
        """Slices that are akin to none."""
        count = len(self.labels.slices[name].labels)
        self._count += count
        return Kin.of(np.arange(self._count - count, self._count))

    def _kin(self, node: Node) -> Kin:
        network = self.draft.network
        shapes = [network.shapes[name] for name in (*node.inputs, node.name)]
        if not node.inputs or any(not shape or 0 in shape for shape in shapes):
            return self._own(node.name)
        found = self.origin(node)
        if found is None:
            found = self._passed_on(node, [self.of[name] for name in node.inputs])
        return self._own(node.name) if found is None else found

    def _passed_on(self, node: Node, before: list[Kin]) -> Kin | None:
        first, axis = before[0], self.labels.slices[node.inputs[0]].axis
        match node.operator:
            case Relu():
                return self._through_relu(node, first)
            case Scale() as scale:
                return self._scaled(node, scale, first)
            case Curve():
                return None if self.linear else self._alike(node, first, [b""] * len(first.factor))
            case AveragePool():
                return first if axis == 0 else None
            case Mean() as mean:
                return None if axis in mean.axes else first
            case MaxPool():
                return None if self.linear or axis != 0 else _up_to_sign(first, [b""] * len(first.factor))
            case Add():
                return None if self.linear else self._sum(node, before)
            case Reshape() | Transpose() | Take() | Concat():
                return self._moved(node, before)
            case Convolution() as convolution:
                return None if self.linear else self._kernel_per_channel(node, convolution, first)
            case _:
                return None

    def _through_relu(self, node: Node, before: Kin) -> Kin:
        """Slices that stand for the identity, or for 0, at the same positions; where all is linear, for the
        identity at all of them.
        """
        shape = self.draft.network.shapes[node.name]
        identity = self.rows(node.name, self.draft.identity[node.name].reshape(shape))
        zero = self.rows(node.name, self.draft.zero[node.name].reshape(shape))
        if self.linear:
            active: Mask = np.asarray(identity.all(axis=1))
            return before.only(active, self._own(node.name))
        return _up_to_sign(
            before, [one.tobytes() + two.tobytes() for one, two in zip(identity, zero, strict=True)]
        )

    def _scaled(self, node: Node, operator: Scale, before: Kin) -> Kin | None:
        """The same number all over a slice, and no shift; or the very same numbers (a batch norm's, say)."""
        shape = self.draft.network.shapes[node.name]
        numbers = [operator.scale, operator.shift, operator.scale_radius, operator.shift_radius]
        others = self._own(node.name)
        if not self.linear:
            if isinstance(operator, BatchNorm):
                numbers += [operator.gain, operator.bias, operator.mean, operator.variance]
            rows = [self.rows(node.name, np.broadcast_to(array, shape)) for array in numbers]
            marks = [b"".join(own.tobytes() for own in each) for each in zip(*rows, strict=True)]
            others = self._alike(node, before, marks)
        if not operator.exact:
            return others
        scale = self.rows(node.name, np.broadcast_to(operator.scale, shape)).astype(np.float64)
        shift = self.rows(node.name, np.broadcast_to(operator.shift, shape)).astype(np.float64)
        number = scale[:, 0]
        keep = (scale == number[:, None]).all(axis=1) & (number != 0) & ~shift.any(axis=1)
        factor = before.factor * number
        keep &= ordinary(factor)
        size = np.abs(number) * (self.reach(node.inputs[0]) + before.gap)
        gap = (np.abs(number) * before.gap + 4 * UNIT * size) * (1 + 2.0**-20) + 4 * ETA * (1 + size)
        gap = np.where((before.gap == 0) & powers_of_two(number), 0.0, gap)
        return Kin(before.channel, before.place, factor, gap).only(keep, others)

    def _alike(self, node: Node, before: Kin, marks: Sequence[bytes]) -> Kin:
        """Behind what is a function of every entry: slices that are exactly the same stay so where the
        function is, too.
        """
        own = self._own(node.name)
        first: dict[Hashable, int] = {}
        same = zip(before.channel.tolist(), before.place.tolist(), before.factor.tolist(), marks, strict=True)
        for p, (key, gap) in enumerate(zip(same, before.gap.tolist(), strict=True)):
            if gap == 0:
                own.channel[p] = own.channel[first.setdefault(key, p)]
        return own

    def _sum(self, node: Node, before: list[Kin]) -> Kin:
        """Slices that are the same multiples in every term."""
        own = self._own(node.name)
        if len({self.labels.slices[name].axis for name in node.inputs}) > 1:
            return own
        first, reach = before[0], [self.reach(name) for name in node.inputs]
        channel, gap = own.channel.copy(), sum((kin.gap for kin in before), np.zeros(len(own.gap)))
        bases: dict[Hashable, int] = {}
        for p in range(len(own.channel)):
            key = tuple((int(kin.channel[p]), int(kin.place[p])) for kin in before)
            base = bases.setdefault(key, p)
            ratio = first.factor[p] / first.factor[base]
            off = [abs(kin.factor[p] - ratio * kin.factor[base]) / abs(kin.factor[p]) for kin in before]
            if base == p or not all(one <= 8 * UNIT for one in off):
                continue
            channel[p] = channel[base]
            if all(kin.factor[p] == kin.factor[base] for kin in before):
                continue  # the very same sums of the same bases
            for size, kin in zip(reach, before, strict=True):
                gap[p] += 16 * UNIT * (size[p] + kin.gap[p]) + 4 * ETA
        return Kin(channel, own.place, first.factor, gap * (1 + 2.0**-20))

    def _kernel_per_channel(self, node: Node, operator: Convolution, before: Kin) -> Kin | None:
        """Channels that are the same multiples of each other, through kernels and biases that are equal but
        for a multiple of the bias.
        """
        if self.labels.slices[node.inputs[0]].axis != 0 or operator.weight.shape[:2] != (operator.groups, 1):
            return None
        own = self._own(node.name)
        channel, place = own.channel.copy(), own.place.copy()
        factor, gap = own.factor.copy(), own.gap.copy()
        first: dict[Hashable, int] = {}
        for p in range(operator.groups):
            kernel, bias = operator.weight[p], float(operator.bias[p])
            base = first.setdefault((int(before.channel[p]), int(before.place[p]), kernel.tobytes()), p)
            gap[p] = float(np.abs(kernel).sum()) * before.gap[p] * (1 + 2.0**-20) + kernel.size * ETA
            factor[p] = before.factor[p]
            same = before.factor[p] == before.factor[base] and float(operator.bias[base]) == bias
            if same and before.gap[p] == 0:
                gap[p] = 0.0  # the very same kernel on the same multiple
            off = abs(before.factor[p] / before.factor[base] * float(operator.bias[base]) - bias)
            if base != p and off <= 8 * UNIT * abs(bias):
                channel[p] = channel[base]
                gap[p] += 0.0 if same else 16 * UNIT * abs(bias) + 4 * ETA
        return Kin(channel, place, factor, gap)

    def _moved(self, node: Node, before: list[Kin]) -> Kin:
        """Slices whose entries, one for one, are entries of slices that are akin."""
        network, operator = self.draft.network, node.operator
        parts: list[list[Grid]] = []
        for k, (name, kin) in enumerate(zip(node.inputs, before, strict=True)):
            shape, axis = network.shapes[name], self.labels.slices[name].axis
            rest = np.arange(network.size(name) // shape[axis]).reshape(
                tuple(1 if a == axis else n for a, n in enumerate(shape))
            )

            def along(array: Grid, axis: int = axis, shape: Shape = shape) -> Grid:
                return array.reshape(tuple(-1 if a == axis else 1 for a in range(len(shape))))

            spot = (along(kin.place) * rest.size + rest) * len(before) + k
            grids = (along(kin.channel), spot, along(kin.factor), along(kin.gap))
            parts.append([np.broadcast_to(grid, shape) for grid in grids])
        moved = [_move(operator, [part[g] for part in parts]) for g in range(4)]
        channels, spots, factors, gaps = (self.rows(node.name, grid) for grid in moved)
        nothing = channels < 0  # zeros that Take puts there
        one = np.where(nothing, -1, channels).max(axis=1)
        number = np.where(nothing, -np.inf, factors).max(axis=1)
        alike = (nothing | ((channels == one[:, None]) & (factors == number[:, None]))).all(axis=1)
        places: dict[bytes, int] = {}
        place = np.array([places.setdefault(row.tobytes(), len(places)) for row in spots], dtype=np.int64)
        gap = np.where(nothing, 0.0, gaps).max(axis=1)
        own = self._own(node.name)
        keep = alike & ~nothing.all(axis=1)
        return Kin(one, place, np.where(keep, number, 1.0), gap).only(keep, own)


def ordinary(factor: Array) -> Mask:
    """Numbers whose quotients and products neither overflow nor lose digits below."""
    size = np.abs(factor)
    verdict: Mask = (size >= 2.0**-500) & (size <= 2.0**500)
    return verdict


def _up_to_sign(before: Kin, marks: Sequence[bytes]) -> Kin:
    """Behind what is only positively homogeneous: negative multiples are multiples of another base."""
    kinds: dict[Hashable, int] = {}
    channel = [
        kinds.setdefault((c, f > 0, mark), len(kinds))
        for c, f, mark in zip(before.channel.tolist(), before.factor.tolist(), marks, strict=True)
    ]
    return Kin(np.array(channel, dtype=np.int64), before.place, np.abs(before.factor), before.gap)


def _move(operator: object, grids: list[Grid]) -> Grid:
    """A grid as an operator that only moves entries leaves it; -1 where it puts a 0."""
    grid = grids[0]
    match operator:
        case Reshape():
            return np.ascontiguousarray(grid).reshape(operator.after)
        case Transpose():
            return grid.transpose(operator.order)
        case Take():
            for axis, pick in enumerate(operator.picks):
                if pick is not None:
                    taken = np.take(grid, np.maximum(pick, 0), axis=axis)
                    hole = (pick < 0).reshape(tuple(-1 if a == axis else 1 for a in range(grid.ndim)))
                    grid = np.where(hole, -1, taken)
            return grid
        case Concat():
            return np.concatenate(grids, axis=operator.axis)
    raise AssertionError(f"{operator} does not only move entries")
