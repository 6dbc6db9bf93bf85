"""Branch and bound on the states of neurons, for one proof goal.

Every leaf is closed by a dual bound that holds in spite of rounding. A tree can be grown a little, left, and
grown on: :class:`Snapshot` is what it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace

import torch
from torch import Tensor

from relutrim.bounds.linear import Backward
from relutrim.graph.operators import Array
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.layers import too_large
from relutrim.prove.hull.model import TIE, Goal, Model
from relutrim.prove.hull.packed import Packed
from relutrim.prove.hull.proof import Leaf, Proof, covers, evaluate, fits
from relutrim.prove.hull.snapshot import INPUTS, Snapshot
from relutrim.prove.hull.thicket import Thicket

_TIED = 16
"""A tree whose goal is most likely a tie is given up when it has so many nodes."""
_LEAVES = 200_000
"""A tree of more leaves is given up: a leaf takes some 15 kB."""
_COARSE = 1e-5
"""Where all open nodes miss less than this share of what their bounds are made of, single precision does not
do any more.
"""


@dataclass(eq=False)
class Tree:
    """One neuron in one direction.

    ``lower`` is a proven lower bound of ``sign * y`` (NaN: none): until the tree is closed, that of its root.
    ``inputs`` are the network inputs where bounds are attained, where the model reaches back so far: what to
    try as witnesses. ``counted`` nodes are in a total already. ``dead`` says that growing on leads nowhere: a
    node with nothing left to split does not close (the smallest value may be 0), or there are too many.
    """

    backward: Backward
    target: str
    neuron: int
    sign: float
    depth: int = 99
    lower: float = math.nan
    nodes: int = 0
    counted: int = 0
    dead: bool = False
    inputs: list[Tensor] = field(default_factory=list)
    proof: Proof | None = None
    ahead: int = 0
    """Nodes that a restored tree has from before; growing it by that many takes no time."""
    goal: Goal | None = None
    like: InitVar[Model | None] = None
    """Another model over these ranges, which may have much of the work done already."""
    watch: Callable[[Tree, bool], None] | None = None
    """Called after every batch of nodes, with False, and by whoever has grown the tree, with True."""

    def __post_init__(self, like: Model | None) -> None:
        goal = self.goal or Goal.of(self.backward, self.target, self.neuron, self.sign, self.depth)
        self.model = Model(self.backward, goal, like)
        self._open: list[dict[int, bool]] = [{}]
        self._leaves: list[Leaf] = []
        self._thicket: Thicket | None = None
        self._fine = False

    @property
    def tied(self) -> bool:
        """Whether what is missing without any split is so little of what the goal is made of that it may be
        all rounding: then the smallest value is 0 most likely, which nobody can prove.
        """
        ends = self.backward.values[self.target]
        known = float((ends.lo if self.sign > 0 else -ends.hi).flatten()[self.neuron])
        least = max(known, self.lower) if self.lower == self.lower else known
        return bool(not self.closed and least >= -TIE * self.model.made_of)

    @property
    def closed(self) -> bool:
        """Whether every leaf is proved: then ``lower`` is at least 0."""
        return not self._open

    def grow(self, nodes: int, deadline: Deadline, device: torch.device, jobs: int = 1) -> None:
        """Work on up to so many more nodes, many at a time."""
        known = min(nodes, self.ahead)
        self.ahead -= known
        until = self.nodes + nodes - known
        while self.nodes < until and not (self.closed or self.dead or deadline.passed):
            thicket = self._thicket or self._frontier(device, deadline)
            if thicket is None:
                return
            before = thicket.nodes
            self._thicket = None  # until what it does is noted, whatever interrupts
            self._leaves += thicket.step(until - self.nodes, deadline, jobs)
            self._open, self._thicket = thicket.open, thicket
            self.nodes += thicket.nodes - before
            for point in thicket.points:
                self._note(point)
            del self.inputs[: -2 * INPUTS]
            if self.closed:
                self.lower = min(leaf.bound for leaf in self._leaves)
                self.proof = Proof.of(self.model, self._leaves)
            elif self.tied and self.nodes >= _TIED:
                self.dead = True
            elif not thicket.fine and (thicket.stuck or -thicket.weakest < _COARSE * self.model.made_of):
                self._thicket, self._fine = None, True
            else:
                self.dead = thicket.stuck or len(self._leaves) > _LEAVES
            if self.watch is not None:
                self.watch(self, False)

    def begin(self, packed: Packed, bound: float) -> None:
        """Know what these multipliers prove without any split, of a tree that has not grown yet."""
        self.nodes += 1
        self._know_root(packed, bound)

    def rest(self) -> None:
        """Let go of what takes much memory and can be made again."""
        self._thicket = None

    def _frontier(self, device: torch.device, deadline: Deadline) -> Thicket | None:
        """The open nodes with multipliers to begin with; None if that closes the tree, or there is nothing to
        split, or the layers are too large.
        """
        if not self.model.both or too_large(self.model):
            self.dead = True
            return None
        self._thicket = Thicket(self.model, self._open, device, deadline, fine=self._fine)
        self._know_root(*self._thicket.root)
        return None if self.closed else self._thicket

    def _know_root(self, packed: Packed, bound: float) -> None:
        """Keep what is proved without any split, if it is better than what was known."""
        if not (bound > self.lower or (math.isnan(self.lower) and not math.isnan(bound))):
            return
        leaf = Leaf({}, bound, packed)
        self.lower, self.proof = bound, Proof.of(self.model, [leaf])
        if bound >= 0:
            self._open, self._leaves = [], [leaf]

    def _note(self, point: Array) -> None:
        found = self.model.input_of(point)
        if found is not None:
            self.inputs.append(found)

    @property
    def snapshot(self) -> Snapshot:
        """The tree as it stands, to be restored some day."""
        first = self.proof.leaves if self.proof is not None and not self.closed else ()
        return Snapshot(
            self.model.goal,
            self.model.ranges,
            tuple((neuron.relu, neuron.entry) for neuron in self.model.neurons),
            tuple(self._leaves),
            tuple(self._open),
            first[0] if first else None,
            torch.cat(
                self.inputs[-INPUTS:] or [self.backward.region.lo.new_zeros(0, self.backward.region.size)]
            ),
            self.nodes,
            self.dead,
        )

    @classmethod
    def restored(cls, backward: Backward, snapshot: Snapshot) -> Tree | None:
        """A tree as it stood, over ranges that hold; None if it is not a tree of this network.

        Nothing is believed: every leaf's bound is evaluated again, and a leaf whose bound is not what it
        should be is open again.
        """
        goal = snapshot.goal
        tree = cls(backward, goal.target, goal.neuron, goal.sign, goal.depth, goal=goal)
        model = tree.model
        first = (snapshot.first,) if snapshot.first is not None else ()
        leaves = (*snapshot.leaves, *first)
        cases = [*(leaf.states for leaf in snapshot.leaves), *snapshot.open]
        if (
            snapshot.neurons != tuple((neuron.relu, neuron.entry) for neuron in model.neurons)
            or any(leaf.states for leaf in first)
            or not all(states.keys() <= set(model.both) for states in snapshot.open)
            or not fits(model, leaves)
            or not covers(cases)
            or not snapshot.inputs_fit(backward.region.size)
        ):
            return None
        again = [
            replace(leaf, bound=bound) for leaf, bound in zip(leaves, evaluate(model, leaves), strict=True)
        ]
        closed = [leaf.bound >= 0 for leaf in again[: len(snapshot.leaves)]]
        tree._leaves = [leaf for leaf, good in zip(again, closed, strict=False) if good]
        tree._open = [
            *({**leaf.states} for leaf, good in zip(again, closed, strict=False) if not good),
            *({**states} for states in snapshot.open),
        ]
        tree.nodes = tree.ahead = snapshot.nodes
        tree.dead = snapshot.dead and all(closed)
        tree.inputs = [point[None] for point in snapshot.inputs.to(backward.region.lo)]
        if tree.closed:
            tree.lower = min(leaf.bound for leaf in tree._leaves)
            tree.proof = Proof.of(model, tree._leaves)
        elif first and not math.isnan(again[-1].bound):
            tree.lower, tree.proof = again[-1].bound, Proof.of(model, [again[-1]])
        return tree
