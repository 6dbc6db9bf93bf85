"""The open nodes of a tree, many at a time: their bounds by gradient steps, not by a linear program each.

Children go on from their parents' multipliers. What seems closed is handed over as a leaf with multipliers of
the program's rows, and only counts if its bound, evaluated with rounding, says so; everything else is split.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from relutrim.network.operators import Array
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.ascent import climb, look
from relutrim.prove.hull.cuts import Cut
from relutrim.prove.hull.dual import FIRST_CUT, SLOTS, Dual, Multipliers, Use
from relutrim.prove.hull.model import Model
from relutrim.prove.hull.proof import Leaf, evaluate
from relutrim.prove.parallel import spread

_STEPS = (30, 30)
"""Steps before and after new inequalities."""
_FINE = 3e-4
"""Where the root's bound is a smaller part of what it is made of, single precision does not do."""
_BYTES = {"cpu": 3e7, "cuda": 1e9}
"""What the inequalities of one batch may take."""
_NODES = 1024
_POINTS = 32
"""Nodes of a batch whose points are kept."""
_BATCHES = 2
"""Batches of one step, whatever the number of jobs: the tree does not depend on it."""


@dataclass(eq=False)
class Thicket:
    """``open`` are the states of the nodes that wait, the next ones last; ``points`` are where the bounds of
    the last step's nodes are attained, one a row, by columns of the program, the weakest last.
    """

    model: Model
    root: Leaf
    open: list[dict[int, bool]]
    device: torch.device
    nodes: int = 0
    points: Array = field(init=False)
    stuck: bool = False
    """Whether a node is open that has nothing to split."""
    _known: dict[tuple[int, bytes], Cut] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.model.program
        made_of = float(np.abs(program.cost) @ np.maximum(*map(np.abs, self.model.ends))) + abs(
            program.offset
        )
        fine = not -self.root.bound > _FINE * made_of
        self._dual = Dual(self.model, self.device, torch.float64 if fine else torch.float32)
        self._enough = (1e-11 if fine else 1e-6) * made_of
        first = self._first()
        uses = self._dual.run(first, self._states([{}]), self._dual.prepared(first)).uses
        self._dual.scales = [
            torch.maximum(use.weights[0].abs(), use.weights.abs().mean()).clamp(min=1e-30) for use in uses
        ]
        self._exact = Dual(self.model, self.device, torch.float64)
        self._exact.scales = [scale.double() for scale in self._dual.scales]
        self._stack = [own.repeated(len(self.open)) for own in first]
        # Where all weights were dropped as too small to matter, there is no inequality to store.
        size = max(1, sum(SLOTS * level.weight.numel() for level in self._dual.levels))
        size *= torch.finfo(self._dual.dtype).bits // 8
        self.width = int(min(max(_BYTES.get(self.device.type, 3e7) // size, 8), _NODES))

    def step(self, most: int, deadline: Deadline, jobs: int = 1) -> list[Leaf]:
        """Work on up to so many nodes, in batches, of which several can run at once; the leaves that are
        closed. Nodes that time does not reach, or that an error interrupts, wait on.
        """
        before = (self.open, self._stack, self.nodes, self.stuck)
        self.points = np.zeros((0, len(self.model.ends[0])))
        count = min(most, _BATCHES * self.width, len(self.open))
        states, self.open = self.open[-count:], self.open[:-count]
        stack = [own[-count:] for own in self._stack]
        self._stack = [own[:-count] for own in self._stack]
        chunks = [slice(at, at + self.width) for at in range(0, count, self.width)]
        closed: list[Leaf] = []
        begun = 0

        def work(chunk: slice) -> _Worked:
            with _one_thread():
                return self._work(states[chunk], [own[chunk] for own in stack], deadline)

        def done(chunk: slice, worked: _Worked) -> None:
            nonlocal begun
            begun += 1
            closed.extend(worked.closed)
            if worked.states:
                self._note(worked)
                self._split(worked) if worked.whole else self._put(worked.states, worked.batch)
            if worked.whole:
                self.nodes += len(states[chunk])

        try:
            spread(work, chunks, jobs, deadline, done)
        except BaseException:
            self.open, self._stack, self.nodes, self.stuck = before
            raise
        for chunk in chunks[begun:]:
            self._put(states[chunk], [own[chunk] for own in stack])
        return closed

    def _work(
        self, states: list[dict[int, bool]], batch: Sequence[Multipliers], deadline: Deadline
    ) -> _Worked:
        closed: list[Leaf] = []
        bound = costs = point = torch.zeros(0)
        for steps in _STEPS:
            marks = self._states(states)
            found = climb(self._dual, batch, marks, steps, self._enough, deadline)
            leaves = self._leaves(found.batch, states, (found.bound > self._enough).cpu())
            closed += [leaf for leaf in leaves if leaf is not None]
            left = [i for i, leaf in enumerate(leaves) if leaf is None]
            states, at = [states[i] for i in left], torch.tensor(left, dtype=torch.int64, device=self.device)
            batch, bound, point = [own[at] for own in found.batch], found.bound[at], found.point[at]
            if not states:
                break
            costs, batch = look(self._dual, batch, [mark[at] for mark in marks], point)
            if deadline.passed:
                return _Worked(closed, states, list(batch), bound, costs, point, whole=False)
        return _Worked(closed, states, list(batch), bound, costs, point, whole=True)

    def _split(self, worked: _Worked) -> None:
        """Put two nodes on the stack for each that is left, those next to being closed on top."""
        numbers = [number for level in self._dual.levels for number in level.numbers]
        highest, chosen = (part.tolist() for part in worked.costs.max(1))
        order = [i for i in worked.bound.argsort().tolist() if highest[i] >= 0]
        fixed = [i for i in range(len(worked.states)) if not highest[i] >= 0]
        if fixed:  # every state is, and yet it is not closed
            self.stuck = True
            at = torch.tensor(fixed, device=self.device)
            self._put([worked.states[i] for i in fixed], [own[at] for own in worked.batch])
        children = [{**worked.states[i], numbers[chosen[i]]: on} for i in order for on in (False, True)]
        at = torch.tensor(order, dtype=torch.int64, device=self.device)
        self._put(children, [own[at].repeated(2) for own in worked.batch])

    def _put(self, states: list[dict[int, bool]], batch: list[Multipliers]) -> None:
        self.open = [*self.open, *states]
        self._stack = [own.behind(under) for own, under in zip(batch, self._stack, strict=True)]

    def _note(self, worked: _Worked) -> None:
        order = worked.bound.argsort(descending=True)[-_POINTS:]
        points = np.zeros((len(order), len(self.model.ends[0])))
        points[:, self._dual.free.cpu().numpy()] = worked.point[order].double().cpu().numpy()
        self.points = np.concatenate([self.points, points])

    def _states(self, cases: Sequence[Mapping[int, bool]]) -> list[Tensor]:
        """1, -1 and 0 for on, off and free, ``[nodes, neurons]`` for each level."""
        marks = np.zeros((len(cases), len(self.model.neurons)), dtype=np.int8)
        for row, case in zip(marks, cases, strict=True):
            row[list(case)] = [1 if on else -1 for on in case.values()]
        return [torch.as_tensor(marks[:, level.numbers], device=self.device) for level in self._dual.levels]

    def _first(self) -> list[Multipliers]:
        """The root's multipliers, from those that its program ended with."""
        found = []
        at = _first_rows(self.model)
        cuts: dict[int, list[tuple[float, Cut]]] = {}
        for cut, dual in self.root.cuts:
            cuts.setdefault(cut.neuron, []).append((dual, cut))
        for level in self._dual.levels:
            count, width = level.weight.shape
            lean, mix = np.zeros((1, count)), np.zeros((1, FIRST_CUT + SLOTS, count))
            chosen = np.zeros((1, SLOTS, count, width), dtype=bool)
            for i, number in enumerate(level.numbers):
                neuron = self.model.neurons[number]
                if neuron.state < 0:
                    mix[0, 0, i] = 1.0
                    continue
                row = at[neuron.column]
                above, *below = (self.root.rows.get(row + k, 0.0) for k in (1, 2, 3))
                own = sorted(cuts.get(number, []), key=lambda pair: pair[0])[:SLOTS]
                for slot, (dual, cut) in enumerate(own):
                    chosen[0, slot, i, level.places[i]] = cut.chosen
                    mix[0, FIRST_CUT + slot, i] = max(0.0, -dual)
                mix[0, :2, i] = [max(0.0, -dual) for dual in below]
                lean[0, i] = 1.0 if above > 0 else 0.0
                if not mix[0, :, i].sum() > 0:
                    mix[0, :2, i] = neuron.hi, -neuron.lo
            found.append(self._as_multipliers(lean, mix, chosen))
        return self._leaning(found, at)

    def _leaning(self, batch: list[Multipliers], at: Mapping[int, int]) -> list[Multipliers]:
        """Leans, and shares of ``U``, as parts of the weights that neurons have then."""
        uses = self._dual.run(batch, self._states([{}]), self._dual.prepared(batch)).uses
        for level, own, use in zip(self._dual.levels, batch, uses, strict=True):
            for i, number in enumerate(level.numbers):
                neuron, weight = self.model.neurons[number], float(use.weights[0, i])
                row = at[neuron.column]
                if neuron.state >= 0 and weight > 0:
                    own.lean[0, i] = min(1.0, max(0.0, self.root.rows.get(row + 1, 0.0) / weight))
                elif neuron.state >= 0 and weight < 0:
                    own.mix[0, 2, i] = max(0.0, -weight - float(own.mix[0, :, i].sum()))
        for own in batch:
            own.mix /= own.mix.sum(1, keepdim=True).clamp(min=1e-12)
        return batch

    def _as_multipliers(self, lean: Array, mix: Array, chosen: np.ndarray) -> Multipliers:
        dtype, device = self._dual.dtype, self.device
        lean_, mix_ = (torch.as_tensor(part, dtype=dtype, device=device) for part in (lean, mix))
        return Multipliers(lean_, mix_, torch.zeros_like(lean_), torch.as_tensor(chosen, device=device))

    def _leaves(
        self, batch: Sequence[Multipliers], states: Sequence[dict[int, bool]], likely: Tensor
    ) -> list[Leaf | None]:
        """Leaves with a proven bound of at least 0, where one is likely; None for others."""
        found: list[Leaf | None] = [None] * len(states)
        which = likely.nonzero().flatten()
        if len(which):
            at = which.to(self.device)
            drafts = self.as_leaves([own[at] for own in batch], [states[i] for i in which.tolist()])
            for number, leaf in zip(which.tolist(), drafts, strict=True):
                (bound,) = evaluate(self.model, [leaf])
                if bound >= 0:
                    found[number] = replace(leaf, bound=bound)
        return found

    def as_leaves(self, batch: Sequence[Multipliers], states: Sequence[dict[int, bool]]) -> list[Leaf]:
        """Leaves with these multipliers, whatever their bounds are."""
        exact = self._exact
        own = [part.to(exact.dtype) for part in batch]
        uses = exact.run(own, self._states(states), exact.prepared(own)).uses
        pushes = [part.push * scale for part, scale in zip(own, exact.scales, strict=True)]
        sides = list(zip(own, uses, pushes, strict=True))
        return [
            self._leaf(case, [_numbers(node, *side) for side in sides]) for node, case in enumerate(states)
        ]

    def _leaf(self, states: dict[int, bool], levels: Sequence[_Numbers]) -> Leaf:
        """The multipliers of the program's rows that leans, mixtures and pushes come to."""
        at = _first_rows(self.model)
        rows: dict[int, float] = {}
        cuts: list[tuple[Cut, float]] = []
        for level, side in zip(self._dual.levels, levels, strict=True):
            for i, number in enumerate(level.numbers):
                neuron = self.model.neurons[number]
                row, through = at[neuron.column], float(side.through[i])
                if neuron.state < 0:
                    rows[row] = through
                    continue
                on = states.get(number)
                above = 0.0 if on is False else through + (float(side.push[i]) if on else 0.0)
                through += float(side.parts[0, i])
                for slot in range(SLOTS):
                    dual = float(side.parts[FIRST_CUT + slot, i])
                    if dual < 0:
                        chosen = side.chosen[slot, i, level.places[i]]
                        cuts.append((self._cut(number, chosen), dual))
                        if 2 * int(chosen.sum()) > len(chosen):  # its row has the sum in it
                            through += dual
                rows[row], rows[row + 1] = through, above
                rows[row + 2], rows[row + 3] = float(side.parts[0, i]), float(side.parts[1, i])
        return Leaf(states, 0.0, {row: dual for row, dual in rows.items() if dual != 0}, cuts)

    def _cut(self, number: int, chosen: np.ndarray) -> Cut:
        """One object for each inequality, however many leaves have it."""
        key = (number, np.packbits(chosen).tobytes())
        return self._known.setdefault(key, Cut(number, chosen))


@dataclass(frozen=True, eq=False)
class _Worked:
    """What became of a batch: leaves, and the nodes that are left, with where their bounds are attained and
    what their neurons cost there. Not ``whole`` if time was up.
    """

    closed: list[Leaf]
    states: list[dict[int, bool]]
    batch: list[Multipliers]
    bound: Tensor
    costs: Tensor
    point: Tensor
    whole: bool


@contextmanager
def _one_thread() -> Iterator[None]:
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
    """How many blocks are in :func:`_one_thread`, and how many threads torch had before the first."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    inside: int = 0
    usual: int = 1


_THREADS = _Threads()


@dataclass(frozen=True, eq=False)
class _Numbers:
    """One node's side of a level."""

    parts: Array
    through: Array
    push: Array
    chosen: np.ndarray


def _numbers(node: int, own: Multipliers, use: Use, push: Tensor) -> _Numbers:
    parts, through, pushed = (part[node].cpu().numpy() for part in (use.parts, use.through, push))
    return _Numbers(parts, through, pushed, own.chosen[node].cpu().numpy())


def _first_rows(model: Model) -> dict[int, int]:
    """By a neuron's column: where its rows begin."""
    first: dict[int, int] = {}
    for at, row in enumerate(model.program.rows[: model.base]):
        first.setdefault(row.owner, at)
    return first
