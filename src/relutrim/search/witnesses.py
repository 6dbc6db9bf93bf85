"""Inputs seen so far, and which states of which neurons they prove possible.

A state counts when the sign of the pre-activation is certain: the float64 value is farther from 0 than a
forward pass on any input of the domain can be wrong. Every input updates all neurons of all layers.

In deep networks that radius is useless, and where inputs have no end there is none. There it is computed for
the inputs that are looked at: for a batch at once; for each input by itself where they have no end, with what
is not certain counted as 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from relutrim.bounds.interval import forward_radius
from relutrim.domain.region import Region
from relutrim.graph.graph import Network
from relutrim.intervals import Interval, flat
from relutrim.memory import AMPLE, MemoryBudget
from relutrim.prove.deadline import Deadline
from relutrim.search.climb import Targets, grouped

_CHUNK, _CHUNK_BYTES, _VALUE_BYTES = 8192, 64 * 2**20, 256 * 2**20
"""How many inputs are looked at together at most, what one value of so many may take, and what all that ReLUs
read of them may.
"""
_FIRST, _FIRST_WORK, _PIECE_SECONDS = 2, 2**27, 0.1
"""Where time is limited it begins with so many inputs, or as many as take so many multiplications; then twice
as many each time as long as that takes less.
"""
_START_BYTES = 256 * 2**20
_USELESS = 1e-6
"""A radius for the whole domain that hides states."""


@dataclass(eq=False)
class Seen:
    """For one ReLU: per neuron the witness (a row of the pool, -1 for none) of each state, the extremes met,
    and where (numbers of :class:`Starts`).
    """

    active: Tensor
    inactive: Tensor
    highest: Tensor
    lowest: Tensor
    highest_at: Tensor
    lowest_at: Tensor

    @property
    def both(self) -> Tensor:
        """Neurons with a witness for each state."""
        return (self.active >= 0) & (self.inactive >= 0)


class Starts:
    """Promising inputs by number. Memory is bounded: at last, a new input takes the place of the oldest, and
    who points there gets another place to start from, which is as good as any.
    """

    def __init__(self, like: Tensor, size: int, memory: MemoryBudget) -> None:
        self._most = max(1, memory.share(_START_BYTES) // (8 * max(1, size)))
        self._points = like.new_zeros(1, size)
        self._next = 0

    def put(self, points: Tensor) -> Tensor:
        """The numbers of new inputs."""
        numbers = (self._next + torch.arange(len(points), device=points.device)) % self._most
        self._next = (self._next + len(points)) % self._most
        if len(points):
            needed = int(numbers.max()) + 1
            if needed > len(self._points):
                grown = min(self._most, max(needed, 2 * len(self._points)))
                more = self._points.new_zeros(grown - len(self._points), self._points.shape[1])
                self._points = torch.cat([self._points, more])
            self._points[numbers] = points
        return numbers

    def __getitem__(self, numbers: Tensor) -> Tensor:
        return self._points[numbers]


class Witnesses:
    """The pool of inputs that showed something new, and what they showed."""

    def __init__(
        self,
        network: Network,
        region: Region,
        radii: dict[str, Tensor],
        memory: MemoryBudget = AMPLE,
    ) -> None:
        self.network = network
        self.region = region
        self.radii = {relu.name: radii[relu.inputs[0]].flatten() for relu in network.relus}
        self._own = any(bool((radius > _USELESS).any()) for radius in self.radii.values())
        if not region.bounded:
            somewhere = network.run(region.minimisers(region.lo.new_zeros(1, region.size)))
            for relu in network.relus:  # what depends on values from nowhere is NaN
                known = ~somewhere[relu.inputs[0]].isnan().flatten()
                self.radii[relu.name] = torch.where(known, 0.0, torch.inf).to(region.lo)
        self.pool: list[Tensor] = []
        self.noted: Callable[[Tensor], None] | None = None
        """Told of every input that enters the pool."""
        self._size = 0
        self.starts = Starts(region.lo, region.size, memory)
        self.seen = {name: _nothing(radius) for name, radius in self.radii.items()}
        widest = max([network.input.size, *(network.size(node.name) for node in network.nodes)])
        read = max(1, sum(network.size(relu.name) for relu in network.relus))
        self._first = max(_FIRST, _FIRST_WORK // max(1, network.multiply_adds, read))
        chunk, values = memory.share(_CHUNK_BYTES), memory.share(_VALUE_BYTES)
        self.chunk = max(1, min(_CHUNK, chunk // (8 * widest), values // (8 * read)))

    def observe(self, points: Tensor, deadline: Deadline | None = None) -> int:
        """Run inputs through the network and note new states; inputs not provably in the domain are passed
        over, and so are all but the first ones where time is up.

        Returns how many inputs counted.
        """
        counted, start = 0, 0
        limited = deadline is not None and deadline.limited
        rows = min(self._first, self.chunk) if limited else self.chunk
        while start < len(points):
            began, chunk = time.monotonic(), points[start : start + rows]
            inside = chunk[self.region.inside(chunk)]
            counted += len(inside)
            if len(inside):
                self._note(inside)
            if deadline is not None and deadline.passed:
                break
            start += len(chunk)
            if limited and time.monotonic() - began < _PIECE_SECONDS:
                rows = min(2 * rows, self.chunk)
        return counted

    def _note(self, points: Tensor) -> None:
        values, radii = self._values(points)
        useful: dict[int, int] = {}
        noted: list[tuple[Tensor, Tensor, Tensor]] = []
        for relu in self.network.relus:
            seen, y = self.seen[relu.name], flat(values[relu.inputs[0]])
            if not y.shape[1]:
                continue
            # NaN and overflow show nothing, whatever the radius says, and hide nothing that other rows show.
            finite, infinite = y.isfinite(), torch.full_like(y, torch.inf)
            high, high_row = y.where(finite, -infinite).max(0)
            low, low_row = y.where(finite, infinite).min(0)
            radius = radii.get(relu.inputs[0], self.radii[relu.name])
            on, off = high > radius, low < -radius
            never_on, never_off = seen.active < 0, seen.inactive < 0
            up = (high > seen.highest) & never_on & ~on
            down = (low < seen.lowest) & never_off & ~off
            self._raise(seen, points, up, high_row, down, low_row)
            seen.highest, seen.lowest = torch.fmax(seen.highest, high), torch.fmin(seen.lowest, low)
            for witness, new, row in (
                (seen.active, on & never_on, high_row),
                (seen.inactive, off & never_off, low_row),
            ):
                neurons = new.nonzero()[:, 0]
                places = [useful.setdefault(at, self._size + len(useful)) for at in row[neurons].tolist()]
                noted.append((witness, neurons, torch.tensor(places, dtype=torch.int64, device=y.device)))
        if useful:
            # The pool first: an interruption in between leaves an input nobody points to, never a pointer to
            # nothing.
            self.pool.append(points[list(useful)])
            self._size = sum(map(len, self.pool))
            for witness, neurons, rows in noted:
                witness[neurons] = rows
            if self.noted is not None:
                self.noted(self.pool[-1])

    def _values(self, points: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What a forward pass computes, and radii for this batch where those of the domain are useless.
        Without ends, values that may be wrong by as much are 0, and NaN where nobody knows.
        """
        names = [relu.inputs[0] for relu in self.network.relus]
        if self.region.bounded and not self._own:
            return self.network.run(points, until=names), {}
        if self.region.bounded:
            kept, hull, wanted = dict[str, Tensor](), dict[str, Interval](), {*names}
            for name, y in self.network.steps(points):
                hull[name] = Interval(y.amin(0, keepdim=True), y.amax(0, keepdim=True))
                if name in wanted:
                    kept[name] = y
            return kept, {name: r.flatten() for name, r in forward_radius(self.network, hull).items()}
        values = self.network.run(points)
        radii = forward_radius(self.network, {name: Interval(y, y) for name, y in values.items()})
        for name in names:
            value, radius = values[name], radii[name]
            unsure = torch.where(value.isfinite() & radius.isfinite(), 0.0, torch.nan)
            values[name] = torch.where(value.abs() > radius, value, unsure)
        return values, {}

    def _raise(
        self, seen: Seen, points: Tensor, up: Tensor, high_row: Tensor, down: Tensor, low_row: Tensor
    ) -> None:
        """Remember the extreme inputs of states that are still missing: the best places to search on from."""
        rows = torch.cat([high_row[up], low_row[down]])
        if len(rows):
            used, place = torch.unique(rows, return_inverse=True)
            numbers = self.starts.put(points[used])[place]
            count = int(up.sum())
            seen.highest_at[up], seen.lowest_at[down] = numbers[:count], numbers[count:]

    def certain(self, targets: Targets) -> Tensor:
        """How far from 0 each target's pre-activation has to be for its sign to count."""
        found = targets.starts.new_zeros(len(targets))
        for name, rows in grouped(targets).items():
            found[rows] = self.radii[name][targets.index[rows]]
        return found

    def inputs(self) -> Tensor:
        """The pool as one tensor; witnesses index its rows."""
        return self.since(0)

    def latest(self, count: int) -> Tensor:
        """So many of the pool's inputs, the last ones."""
        rows, batches = 0, len(self.pool)
        while batches and rows < count:
            batches -= 1
            rows += len(self.pool[batches])
        return self.since(batches)[-count:]

    def since(self, batches: int) -> Tensor:
        """The inputs behind the first so many batches of the pool."""
        return torch.cat([self.region.lo.new_zeros(0, self.region.size), *self.pool[batches:]])


def _nothing(radius: Tensor) -> Seen:
    none = torch.full(radius.shape, -1, dtype=torch.int64, device=radius.device)
    infinite = torch.full_like(radius, torch.inf)
    return Seen(none, none.clone(), -infinite, infinite, torch.zeros_like(none), torch.zeros_like(none))
