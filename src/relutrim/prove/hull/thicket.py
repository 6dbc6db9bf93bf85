"""The open nodes of a tree, many at a time: their bounds by gradient steps on the dual.

Children go on from their parents' multipliers. What seems closed is handed over as a leaf with packed
multipliers, and only counts if its bound, evaluated with rounding, says so; everything else is split.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field

import numpy as np
import torch
from torch import Tensor

from relutrim.graph.operators import Array
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.ascent import Start, climb
from relutrim.prove.hull.branching import Experience, Origin
from relutrim.prove.hull.dual import Dual, Multipliers
from relutrim.prove.hull.model import TIE, Model
from relutrim.prove.hull.packed import Packed, packed_bounds
from relutrim.prove.hull.packing import packed
from relutrim.prove.hull.proof import Leaf
from relutrim.prove.hull.stack import Stack, Waiting
from relutrim.prove.parallel import spread

_STEPS = 30
"""Twice as many leave 20 to 30% fewer nodes, which does not pay."""
_ROOT_STEPS = (60, 200)
"""At the root, where the model is small and where it is not."""
_SMALL = 64
"""Neurons of a model that is small."""
_FINE = 3e-4
"""Where the root's bound is a smaller part of what it is made of, single precision does not do."""
_AMPLE = 1e-4
"""Bounds that are a greater part of what they are made of need no more steps: packing cannot take them
away.
"""
_BYTES = {"cpu": 8e6, "cuda": 2e8}
"""What the shares of one batch may take: on a CPU, what its caches hold."""
_MOST_BYTES = 1e8
"""What they may take at most, if that leaves a batch with next to no nodes."""
_HELD = {"cpu": 4e8, "cuda": 4e9}
"""What the multipliers of nodes that wait may take; those that wait longest begin with the root's again."""
_COMPILED = (4_000, 10**7)
"""Shares of a node, or of all nodes so far, that make it worth while to compile the steps: half a second
where that was done before, else five.
"""
_NODES = 1024
_POINTS = 32
"""Nodes of a batch whose points are kept."""
_STALL, _SLOWEST = 0.1, 2.0**-20
"""A node with nothing to split is worked on again, with shorter steps where the last ones closed less than
this share of what is missing, until they are this short.
"""
_BATCHES = 2
"""Batches of one step, whatever the number of jobs: the tree does not depend on it."""


@dataclass(eq=False)
class Thicket:
    """``open`` are the states of the nodes that wait, the next ones last; ``points`` are where the bounds of
    the last step's nodes are attained, one a row, by columns of the model, the weakest last.
    """

    model: Model
    open: list[dict[int, bool]]
    device: torch.device
    deadline: InitVar[Deadline]
    """Where it passes, the root's multipliers stay as they are."""
    nodes: int = 0
    points: Array = field(init=False)
    stuck: bool = False
    """Whether a node is open that has nothing to split, and steps of any length gain next to nothing there:
    mostly, its smallest value is 0.
    """
    fine: bool = field(default=False, kw_only=True)
    """Whether steps have double precision: in any case, or because the root asks for it."""
    root: tuple[Packed, float] = field(init=False)
    """The root's multipliers, and the bound that they prove."""

    @np.errstate(over="ignore", invalid="ignore")
    def __post_init__(self, deadline: Deadline) -> None:
        made_of = self.model.made_of
        if not np.isfinite(made_of):
            raise RuntimeError("what overflows proves nothing")
        for dtype, share in ((torch.float32, 1e-6), (torch.float64, TIE))[self.fine :]:
            self._dual, self._enough = Dual(self.model, self.device, dtype), share * made_of
            self._ample = max(self._enough, _AMPLE * made_of)
            bound, first = self._first(deadline)
            if -bound > _FINE * made_of:
                break
        self.fine = dtype == torch.float64
        self._places = tuple(level.places for level in self._dual.levels)
        (pack,) = packed(self._dual, self._places, first)
        self.root = pack, self._proved([{}], [pack])[0]
        self._numbers = [number for level in self._dual.levels for number in level.layer.numbers]
        self._origins: list[Origin | None] = [None] * len(self.open)
        self._experience = Experience(len(self._numbers))
        self.width = width_of(self._dual)
        kind, number = self.device.type, torch.finfo(self._dual.dtype).bits // 8
        node = number * sum(part.numel() for own in first for part in own.parts)
        held = max(_BATCHES * self.width, int(_HELD.get(kind, 4e8) // node))
        self._stack = Stack(Waiting(first, self._dual.cost.new_ones(1)), held)

    @property
    def weakest(self) -> float:
        """About what the goal is at least, over all open nodes: the smallest bound of their parents."""
        return min((origin.bound for origin in self._origins if origin is not None), default=-np.inf)

    @property
    def _compiled(self) -> bool:
        shares = self._dual.shares
        return shares > _COMPILED[0] or self.nodes * shares > _COMPILED[1]

    def step(self, most: int, deadline: Deadline, jobs: int = 1) -> list[Leaf]:
        """Work on up to so many nodes, in batches, of which several can run at once; the leaves that are
        closed. Nodes that time does not reach, or that an error interrupts, wait on.
        """
        before = (self.open, self._origins, self._stack.copy(), self.nodes, self.stuck)
        self.points = np.zeros((0, len(self.model.ends[0])))
        count = min(most, _BATCHES * self.width, len(self.open))
        states, self.open = self.open[-count:], self.open[:-count]
        origins, self._origins = self._origins[-count:], self._origins[:-count]
        waiting = self._stack.take(count)
        chunks = [slice(at, at + self.width) for at in range(0, count, self.width)]
        closed: list[Leaf] = []
        begun, compiled = 0, self._compiled

        def work(chunk: slice) -> _Worked:
            with one_thread():
                return self._work(states[chunk], waiting[chunk], deadline, compiled=compiled)

        def done(chunk: slice, worked: _Worked) -> None:
            nonlocal begun
            begun += 1
            closed.extend(worked.closed)
            self._experience.note(zip(origins[chunk], worked.bounds, strict=True))
            if worked.states:
                self._note(worked)
                before = [origins[chunk][i] for i in worked.left]
                if worked.whole:
                    self._split(worked, before)
                else:
                    self._put(worked.states, before, worked.waiting)
            if worked.whole:
                self.nodes += len(states[chunk])

        try:
            spread(work, chunks, jobs, deadline, done)
        except BaseException:
            self.open, self._origins, self._stack, self.nodes, self.stuck = before
            raise
        for chunk in chunks[begun:]:
            self._put(states[chunk], origins[chunk], waiting[chunk])
        return closed

    def _work(
        self, states: list[dict[int, bool]], waiting: Waiting, deadline: Deadline, *, compiled: bool
    ) -> _Worked:
        marks = self._marks(states)
        start = Start(waiting.batch, marks, waiting.paces)
        found = climb(self._dual, start, _STEPS, self._ample, deadline, compiled=compiled)
        leaves = self._leaves(found.batch, states, marks, found.bound > self._enough)
        closed = [leaf for leaf in leaves if leaf is not None]
        left = [i for i, leaf in enumerate(leaves) if leaf is None]
        at = torch.tensor(left, dtype=torch.int64, device=self.device)
        batch, point = [own[at] for own in found.batch], found.point[:, at]
        marks = [mark[:, at] for mark in marks]
        costs = found.bound.new_zeros(0, 0)
        if left:
            costs = self._dual.gaps(batch, marks, self._dual.run(batch, marks).uses, point)
        return _Worked(
            found.bound.tolist(),
            closed,
            left,
            [states[i] for i in left],
            Waiting(batch, found.pace[at]),
            found.bound[at],
            costs,
            point,
            whole=not deadline.passed,
        )

    def _split(self, worked: _Worked, before: Sequence[Origin | None]) -> None:
        """Put two nodes on the stack for each that is left, those next to being closed on top."""
        costs, bounds = worked.costs.double().cpu().numpy(), worked.bound.tolist()
        scores = self._experience.scores(costs)
        chosen, highest = scores.argmax(0), scores.max(0)
        order = [i for i in worked.bound.argsort().tolist() if highest[i] >= 0]
        both = [(i, int(chosen[i]), on) for i in order for on in (False, True)]
        children = [{**worked.states[i], self._numbers[neuron]: on} for i, neuron, on in both]
        origins = [Origin(bounds[i], neuron, on, float(costs[neuron, i])) for i, neuron, on in both]
        at = torch.tensor(order, dtype=torch.int64, device=self.device)
        self._put(children, origins, worked.waiting[at].repeated(2))
        fixed = [i for i in range(len(worked.states)) if not highest[i] >= 0]
        if fixed:  # every state is, and yet it is not closed: on top, for another time
            at = torch.tensor(fixed, device=self.device)
            stalled = torch.tensor([_stalled(bounds[i], before[i]) for i in fixed], device=self.device)
            again = worked.waiting[at]
            again = Waiting(again.batch, torch.where(stalled, again.paces / 4, again.paces))
            tied = worked.bound[at] >= -TIE * self.model.made_of
            self.stuck |= bool((stalled & (tied | (again.paces < _SLOWEST))).any())
            origins = [Origin.again(bounds[i]) for i in fixed]
            self._put([worked.states[i] for i in fixed], origins, again)

    def _put(self, states: list[dict[int, bool]], origins: Sequence[Origin | None], waiting: Waiting) -> None:
        self.open, self._origins = [*self.open, *states], [*self._origins, *origins]
        self._stack.put(waiting)

    def _note(self, worked: _Worked) -> None:
        order = worked.bound.argsort(descending=True)[-_POINTS:]
        points = np.zeros((len(order), len(self.model.ends[0])))
        points[:, self._dual.free.cpu().numpy()] = worked.point[:, order].double().cpu().numpy().T
        self.points = np.concatenate([self.points, points])

    def _marks(self, cases: Sequence[dict[int, bool]]) -> list[Tensor]:
        """1, -1 and 0 for on, off and free, ``[neurons, nodes]`` for each level."""
        return [torch.as_tensor(level.layer.marks(cases), device=self.device) for level in self._dual.levels]

    def _first(self, deadline: Deadline) -> tuple[float, list[Multipliers]]:
        """The root's bound and multipliers.

        Pushes get their units here: what each neuron weighs at the root, or all of a layer on average.
        """
        marks = self._marks([{}])
        first = [level.middling() for level in self._dual.levels]
        with one_thread():
            pace = self._dual.cost.new_ones(1)
            steps = _ROOT_STEPS[len(self.model.neurons) > _SMALL]
            start = Start(first, marks, pace)
            found = climb(self._dual, start, steps, self._ample, deadline, compiled=self._compiled)
        first = found.batch
        uses = self._dual.run(first, marks).uses
        self._dual.scales = [
            torch.maximum(use.weights.abs(), use.weights.abs().mean()).clamp(min=1e-30) for use in uses
        ]
        return float(found.bound), first

    def _leaves(
        self,
        batch: Sequence[Multipliers],
        states: Sequence[dict[int, bool]],
        marks: Sequence[Tensor],
        likely: Tensor,
    ) -> list[Leaf | None]:
        """Leaves with a proven bound of at least 0, where one is likely; None for others."""
        found: list[Leaf | None] = [None] * len(states)
        which = likely.nonzero().flatten()
        numbers = which.tolist()
        if numbers:
            cases = [states[i] for i in numbers]
            exact = self._dual.with_leans_at_ends(
                [own[which] for own in batch], [own[:, which] for own in marks]
            )
            packs = packed(self._dual, self._places, exact)
            bounds = self._proved(cases, packs)
            for number, case, leaf, bound in zip(numbers, cases, packs, bounds, strict=True):
                if bound >= 0:
                    found[number] = Leaf(case, bound, leaf)
        return found

    def _proved(self, cases: Sequence[dict[int, bool]], packs: Sequence[Packed]) -> list[float]:
        return packed_bounds(self.model, cases, packs, [level.layer for level in self._dual.levels])


@dataclass(frozen=True, eq=False)
class _Worked:
    """What became of a batch: the bounds of all nodes, leaves, and the nodes that are ``left``, with where
    their bounds are attained and what their neurons cost there. Not ``whole`` if time was up.
    """

    bounds: list[float]
    closed: list[Leaf]
    left: list[int]
    states: list[dict[int, bool]]
    waiting: Waiting
    bound: Tensor
    costs: Tensor
    point: Tensor
    whole: bool


def _stalled(bound: float, before: Origin | None) -> bool:
    """Whether a node with nothing to split has come next to nothing further since the last time."""
    if before is None or not before.repeated:
        return False
    return not bound - before.bound > _STALL * max(0.0, -before.bound)


def width_of(dual: Dual) -> int:
    """So many nodes are a batch."""
    most = _BYTES.get(dual.device.type, 8e6)
    number = torch.finfo(dual.dtype).bits // 8
    size = max(1, number * dual.shares)
    width = min(max(most // size, 16), _NODES)
    return int(max(1, min(width, max(most, _MOST_BYTES) // size)))


@contextmanager
def one_thread() -> Iterator[None]:
    """The products are small: threads would wait for one another most of the time.

    A thread that is new takes the number that was set last, by whatever thread: only the first of several at
    once sees what it was before.
    """
    with _THREADS.lock:
        if not _THREADS.inside:
            _THREADS.usual = torch.get_num_threads()
        _THREADS.inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _THREADS.lock:
            _THREADS.inside -= 1
            torch.set_num_threads(_THREADS.usual)


@dataclass(eq=False)
class _Threads:
    """How many blocks are in :func:`one_thread`, and how many threads torch had before the first."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    inside: int = 0
    usual: int = 1


_THREADS = _Threads()
