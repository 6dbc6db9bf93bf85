"""Branch and bound on the states of neurons, over one linear program that is cut ever sharper.

Every leaf is closed by a Lagrangian bound that holds in spite of rounding, or by a ray that proves it empty.
Cuts are made from the ranges that hold on the whole domain, so they serve every node. A tree can be grown a
little, left, and grown on.
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
from relutrim.prove.hull.growth import INPUTS, Growth
from relutrim.prove.hull.layers import too_large
from relutrim.prove.hull.model import TIE, Goal, Model
from relutrim.prove.hull.packed import Packed
from relutrim.prove.hull.proof import Leaf, Proof, covers, evaluate, fits
from relutrim.prove.hull.thicket import Thicket

_ROUNDS = (14, 2)
"""Rounds of cuts at the root and at other nodes."""
_STALL = 0.03
"""Rounds of cuts go on while each closes at least this share of what is missing."""
_PURGE = 3
"""Every so many rounds, cuts that carry no dual go."""
_LEAVES = 200_000
"""A tree of more leaves is given up: a leaf takes some 15 kB."""
_GROWN = 20_000
"""The same for one that grows node by node: there, a leaf takes about 100 kB."""
_FAILURES = 16
"""Nodes of a tree that may come without a solution before it is given up."""


@dataclass(eq=False)
class Tree:
    """One neuron in one direction.

    ``lower`` is a proven lower bound of ``sign * y`` (NaN: none): until the tree is closed, that of its root.
    ``inputs`` are the network inputs of solutions, where the program reaches back so far: what to try as
    witnesses. ``counted`` nodes are in a total already. ``dead`` says that growing on leads nowhere.
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
    root: tuple[Array, Array] | None = None
    proof: Proof | None = None
    dived: bool = False
    tied: bool = False
    """Whether it is dead because the smallest value is 0 but for rounding, which nobody can prove."""
    weakest: float = -math.inf
    """About how far its open nodes have come, after steps without a solver; nothing rests on it."""
    ahead: int = 0
    """Nodes that a tree which was planted again has from before; growing it by that many takes no time."""
    goal: Goal | None = None
    like: InitVar[Model | None] = None
    """Another program over these ranges, which may have much of the work done already."""
    watch: Callable[[Tree, bool], None] | None = None
    """Called behind every node, with False, and by whoever has grown the tree, with True."""

    def __post_init__(self, like: Model | None) -> None:
        goal = self.goal or Goal.of(self.backward, self.target, self.neuron, self.sign, self.depth)
        self.model = Model(self.backward, goal, like)
        self._open: list[dict[int, bool]] = [{}]
        self._leaves: list[Leaf] = []
        self._ranked: list[int] = []
        self._failures = 0
        self._thicket: Thicket | None = None

    @property
    def closed(self) -> bool:
        """Whether every leaf is proved: then ``lower`` is at least 0."""
        return not self._open

    def grow(self, nodes: int, deadline: Deadline, rounds: tuple[int, int] = _ROUNDS) -> None:
        """Solve up to so many more nodes."""
        known = min(nodes, self.ahead)
        self.ahead -= known
        for _ in range(nodes - known):
            if self.closed or self.dead or deadline.passed:
                return
            self._thicket = None  # its multipliers are of the nodes as they were
            states = self._open.pop()
            try:
                self._solve(states, rounds, deadline)
            except BaseException:  # a node that is not finished stays open
                self._open.append(states)
                self.dead = True
                raise
            if self.watch is not None:
                self.watch(self, False)

    def spread(self, nodes: int, deadline: Deadline, device: torch.device, jobs: int = 1) -> None:
        """Work on up to so many more nodes, many at a time; node by node where the program is too large for
        that.
        """
        if too_large(self.model):
            self.grow(nodes, deadline)
            self.dead = self.dead or len(self._leaves) > _GROWN
            return
        known = min(nodes, self.ahead)
        self.ahead -= known
        if self._thicket is None:
            if not self.model.both:  # nothing to split
                self.dead = True
                return
            self._thicket = Thicket(self.model, self._open, device, deadline)
        thicket, until = self._thicket, self.nodes + nodes - known
        while self.nodes < until and not (self.closed or self.dead or deadline.passed):
            before = thicket.nodes
            self._thicket = None  # until what it does is noted, whatever interrupts
            self._leaves += thicket.step(until - self.nodes, deadline, jobs)
            self._open, self.dead = thicket.open, thicket.stuck or len(self._leaves) > _LEAVES
            self._thicket = thicket
            self.nodes += thicket.nodes - before
            self.weakest = thicket.weakest
            for point in thicket.points:
                self._note(point)
            del self.inputs[: -2 * INPUTS]
            if self.closed:
                self._conclude()
            if self.watch is not None:
                self.watch(self, False)

    def begin(self, packed: Packed, bound: float) -> None:
        """Know what these multipliers prove without any split, of a tree that has not grown yet."""
        self.nodes += 1
        if math.isnan(bound):
            return
        leaf = Leaf({}, bound, packed=packed)
        self.lower, self.proof = bound, Proof.of(self.model, [leaf])
        if bound >= 0:
            self._open, self._leaves = [], [leaf]

    def rest(self) -> None:
        """Let go of what takes much memory and can be made again."""
        self._thicket = None

    def _solve(self, states: dict[int, bool], rounds: tuple[int, int], deadline: Deadline) -> None:
        self.model.split(states)
        leaf, last = self._cut_and_solve(states, rounds[bool(states)], deadline)
        # Ask the solver too: its clock need not be ours.
        late = last is None and (deadline.passed or self.model.program.late)
        if not states:
            self.lower, self.root = leaf.bound, last
            self.proof = Proof.of(self.model, [leaf]) if leaf.bound > -math.inf else None
        if leaf.bound >= 0:
            self.nodes += 1
            self._leaves.append(leaf)
            if self.closed:
                self._conclude()
            return
        if late:  # not solved, so it does not count
            self._open.append(states)
            return
        self.nodes += 1
        ranked = self._ranked
        if last is not None:
            self.model.purge(last[1])
        else:
            self._failures += 1
            if ranked:  # without a solution, what costs most elsewhere, or any other
                ranked = [*ranked, *self.model.both]
        branch = next((number for number in ranked if number not in states), None)
        if branch is None or self._failures > _FAILURES:
            self._open.append(states)
            self.dead = not deadline.passed
            # With nothing left to split, the solution is one of the network itself.
            rounding = TIE * self.model.made_of
            self.tied = self.dead and last is not None and not ranked and leaf.bound >= -rounding
            return
        self._open += [{**states, branch: False}, {**states, branch: True}]

    def dive(self, seconds: float) -> None:
        """From the root's solution, fix every state to what it leans to: the input that is best then is often
        a witness.
        """
        if self.root is None:
            return
        self.model.split(self.model.leanings(self.root[0]))
        solved = self.model.program.solve(seconds)
        self.dived = not self.model.program.late
        if solved is not None:
            self._note(solved[0])

    def _conclude(self) -> None:
        self.lower = min(leaf.bound for leaf in self._leaves)
        self.proof = Proof.of(self.model, self._leaves)

    def _cut_and_solve(
        self, states: dict[int, bool], rounds: int, deadline: Deadline
    ) -> tuple[Leaf, tuple[Array, Array] | None]:
        """The best bound over rounds of cuts, infinite if there is no point at all; the last solution."""
        model, program = self.model, self.model.program
        best = Leaf(states, math.nan)
        last = None
        for number in range(rounds):
            if deadline.passed:
                break
            if last is not None and number % _PURGE == 0:
                model.purge(last[1])
            last = program.solve(min(deadline.left, 1e6), model.enough if states else math.inf)
            if last is None:
                if program.infeasible() and program.ray is not None:
                    return Leaf.closed(model, states, math.inf, program.ray), None
                return best, None
            bound = model.bound(last[1])
            if not bound >= 0:
                self._note(last[0])
                self._ranked = model.to_branch(*last)
            stalled = bound - best.bound < _STALL * abs(best.bound)
            if bound > best.bound or math.isnan(best.bound):
                best = Leaf.closed(model, states, bound, last[1])
            if best.bound >= 0 or stalled or not model.separate(last[0]):
                break
        return best, last

    def _note(self, point: Array) -> None:
        found = self.model.input_of(point)
        if found is not None:
            self.inputs.append(found)

    @property
    def growth(self) -> Growth:
        """The tree as it stands, to be planted again some day."""
        first = self.proof.leaves if self.proof is not None and not self.closed else ()
        return Growth(
            self.model.goal,
            self.model.ranges,
            tuple((neuron.relu, neuron.entry) for neuron in self.model.neurons),
            tuple(self._leaves),
            tuple(self._open),
            first[0] if first else None,
            None if self.root is None else (self.root[0], self.root[1][: self.model.base]),
            tuple(self.model.cuts),
            torch.cat(
                self.inputs[-INPUTS:] or [self.backward.region.lo.new_zeros(0, self.backward.region.size)]
            ),
            self.nodes,
            self.dead,
            self.dived,
            tuple(self._ranked),
            self._failures,
        )

    @classmethod
    def planted(cls, backward: Backward, grown: Growth) -> Tree | None:
        """A tree as it stood, over ranges that hold; None if it is not a tree of this network.

        Nothing is believed: every leaf's bound is evaluated anew, and a leaf whose bound is not what it
        should be is open again. Points and multipliers of the root are only where searches go on from.
        """
        goal = grown.goal
        tree = cls(backward, goal.target, goal.neuron, goal.sign, goal.depth, goal=goal)
        model = tree.model
        first = (grown.first,) if grown.first is not None else ()
        leaves = (*grown.leaves, *first)
        cases = [*(leaf.states for leaf in grown.leaves), *grown.open]
        if (
            grown.neurons != tuple((neuron.relu, neuron.entry) for neuron in model.neurons)
            or any(leaf.states for leaf in first)
            or not fits(model, [*leaves, *(Leaf(states, math.nan) for states in grown.open)], grown.cuts)
            or not covers(cases)
            or not {*grown.ranked} <= {*model.both}
            or not grown.points_fit(len(model.program.lo), model.base, backward.region.size)
        ):
            return None
        bounds = evaluate(model, leaves)
        again = [replace(leaf, bound=bound) for leaf, bound in zip(leaves, bounds, strict=True)]
        model.split({})
        model.keep(grown.cuts)
        closed = [leaf.bound >= 0 for leaf in again[: len(grown.leaves)]]
        tree._leaves = [leaf for leaf, good in zip(again, closed, strict=False) if good]
        tree._open = [
            *({**leaf.states} for leaf, good in zip(again, closed, strict=False) if not good),
            *({**states} for states in grown.open),
        ]
        tree.nodes = tree.ahead = grown.nodes
        tree.root, tree.dived = grown.root, grown.dived
        tree.dead = grown.dead and all(closed)
        tree._ranked, tree._failures = list(grown.ranked), grown.failures
        tree.inputs = [point[None] for point in grown.inputs.to(backward.region.lo)]
        if tree.closed:
            tree._conclude()
        elif first:
            tree.lower = again[-1].bound
            tree.proof = Proof.of(model, [again[-1]]) if tree.lower > -math.inf else None
        return tree
