"""The last stage of the cascade: branch and bound for what bounds and searches leave open.

Every missing state is a proof goal with a tree of its own. Layer by layer, because what is proved of one
makes those behind it easier:

1. Where very many neurons are open, the upper ends of all ranges of a layer are swept first: each is the root
   of a tree, all in a few batches. Everything behind the layer profits.
2. Then trees for the layer's goals, the most promising first: few nodes for each as long as that decides any,
   then more. No layer takes more than its part of the time.

Then trees for the rest of all layers, all grown in turn, with ever more nodes in a turn, until none is left
that can still lead anywhere. After every turn the search for witnesses goes on, from the inputs where the
trees' bounds are attained among others.

All trees of a turn start from the same ranges and are merged in order, so the outcome depends on how far the
time reaches, but not on how many run at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch

from relutrim.bounds.linear import Backward
from relutrim.graph.graph import Node
from relutrim.intervals import Interval
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.layers import too_large
from relutrim.prove.hull.model import Goal
from relutrim.prove.hull.sweep import sweep
from relutrim.prove.hull.tree import Tree
from relutrim.prove.parallel import spread

if TYPE_CHECKING:
    from relutrim.prove.cascade import Cascade

_DEPTH = 4
"""Layers before the neuron that are in the model of a tree."""
_LESS_DEPTH = (2, 1)
"""So many where the layers would take too much memory."""
_ALL = 10**6
_TURNS = (16, 64, 256, 1024)
"""Nodes of a tree in each of its turns, layer by layer."""
_TURN_SECONDS = 15.0
"""The longest that a tree has for one of these."""
_FIRST = 64
"""Nodes in the first turn for all layers; every other one has four times as many as the one before."""
_TOGETHER = 8
"""So many trees grow before it is asked whether that decides any."""
_KEPT = 16
"""Of more trees than this, multipliers are not kept from one turn to the next: they take up to some hundred
megabytes each.
"""
_MANY = 0.5
"""For each of a layer's ranges so many open neurons in it and behind it make it worth while to sweep it."""
_SWEPT = 64
"""Ends of ranges whose models are in memory together."""
_SWEEP_DEPTH = 2


@dataclass(frozen=True, order=True)
class ProofGoal:
    """A proof that ``sign * y >= 0`` for a neuron of a ReLU."""

    relu: str
    neuron: int
    sign: float


Trees: TypeAlias = list[tuple[ProofGoal, Tree]]


@dataclass(eq=False)
class TreeSearch:
    """One run of the stage, on the state of a cascade."""

    cascade: Cascade
    deadline: Deadline
    jobs: int = 1
    among: frozenset[tuple[str, int]] | None = None
    """Only these neurons of ReLUs, where given."""
    phase: str = field(default="", init=False)
    """What a journal calls the steps that are on."""
    _exhausted: set[ProofGoal] = field(default_factory=set, init=False)
    """What a tree over all layers cannot prove: mostly, the smallest value is 0 but for rounding."""

    def run(self) -> None:
        """Until everything is decided, no tree leads on, or time is up."""
        self.by_layer()
        left = [goal for goal in self.goals() if goal not in self._exhausted]
        trees, nodes = self.trees_for(_DEPTH, left), _FIRST
        while trees and not self.deadline.passed:
            trees = self.turn(trees, nodes)
            nodes *= 4

    def briefly(self) -> None:
        """Only what takes few nodes."""
        trees = self.trees_for(_DEPTH, self.goals())
        if trees:
            self.turn(trees, _TURNS[0])

    def goals(self) -> list[ProofGoal]:
        """What is missing, the most promising first: where the bound has least of its way to what inputs
        have shown to go.
        """
        targets = self.cascade.missing()
        found = []
        for name, neuron, sign in zip(
            targets.relu, targets.index.tolist(), targets.sign.tolist(), strict=True
        ):
            if self.among is not None and (name, neuron) not in self.among:
                continue
            pre = self.cascade.values[self.cascade.network[name].inputs[0]]
            goal = ProofGoal(name, neuron, -sign)
            gap = abs(float((pre.hi if sign > 0 else pre.lo).flatten()[neuron]))
            found.append((self._to_go(goal, gap), goal))
        return [goal for _, goal in sorted(found)]

    def _to_go(self, goal: ProofGoal, gap: float) -> float:
        """The share of the way from what inputs have shown that a bound has to go, if it misses 0 by this."""
        seen = self.cascade.witnesses.seen[goal.relu]
        met = abs(float((seen.lowest if goal.sign > 0 else seen.highest)[goal.neuron]))
        return gap / (gap + met) if 0 < gap + met < math.inf else 1.0

    def is_open(self, goal: ProofGoal) -> bool:
        """Whether the neuron is undecided and no input has shown that there is no such proof."""
        cascade = self.cascade
        seen = cascade.witnesses.seen[goal.relu]
        shown = (seen.inactive if goal.sign > 0 else seen.active)[goal.neuron] >= 0
        return bool(cascade.undecided(cascade.network[goal.relu])[goal.neuron]) and not bool(shown)

    # Layer by layer.

    def by_layer(self) -> None:
        """Each layer in its part of the time."""
        relus = self.cascade.network.relus
        for number, relu in enumerate(relus):
            if self.deadline.passed:
                return
            own = self.deadline.within(self.deadline.left / (len(relus) - number))
            if number:
                self.sweep(relu, own)
            goals = [goal for goal in self.goals() if goal.relu == relu.name]
            self.trees_of_layer(goals, own)
            if not all(map(self.is_open, goals)):
                self.cascade.rebound(relu.inputs[0])

    def sweep(self, relu: Node, own: Deadline) -> None:
        """The upper ends of a layer's ranges that hold both signs, and the lower ones that are goals.

        A neuron behind it reads what is between 0 and the upper end; the lower end matters little.
        """
        cascade = self.cascade
        names = [other.name for other in cascade.network.relus]
        behind = names[names.index(relu.name) :]
        goals = [goal for goal in self.goals() if goal.relu in behind]
        loose = (cascade.loose(relu.inputs[0]) & cascade.decidable(relu)).nonzero()[:, 0].tolist()
        if not loose or len(goals) < _MANY * len(loose):
            return
        ends = [ProofGoal(relu.name, neuron, -1.0) for neuron in loose]
        ends += [goal for goal in goals if goal.relu == relu.name and goal.sign > 0]
        self.phase = f"sweep {relu.name}"
        ranges, device = self.frozen(), cascade.region.lo.device
        for start in range(0, len(ends), _SWEPT):
            trees: list[Tree] = []
            for end in ends[start : start + _SWEPT]:
                if own.passed:
                    break
                # With nothing dropped from their rows, the models have as much in common as they can.
                trees.append(self.tree_for(ranges, end, _SWEEP_DEPTH, 0.0, trees[-1] if trees else None))
            with suppress(RuntimeError, MemoryError):  # a device without memory, say, decides nothing
                sweep(trees, device, own, self.jobs)
            for tree in trees:
                _write(tree)
                self.keep(tree)
        cascade.rebound(relu.inputs[0])

    def trees_of_layer(self, goals: Sequence[ProofGoal], own: Deadline) -> None:
        """Trees of these, the most promising first. Turns get longer where short ones decide nothing more."""
        grown: dict[ProofGoal, Tree | None] = {}
        for nodes in _TURNS:
            left = [goal for goal in goals if self.is_open(goal)]
            for start in range(0, len(left), _TOGETHER):
                if own.passed:
                    return
                chunk = left[start : start + _TOGETHER]
                grown |= dict(self.trees_for(_DEPTH, [goal for goal in chunk if goal not in grown]))
                trees = [(goal, tree) for goal in chunk if (tree := grown.get(goal)) is not None]
                if trees:
                    after = dict(self.turn(trees, nodes, min(_TURN_SECONDS, own.left)))
                    grown |= {goal: after.get(goal) for goal in chunk}
                if len(grown) > _KEPT:
                    for tree in filter(None, grown.values()):
                        tree.rest()
                if all(map(self.is_open, chunk)):
                    break  # what comes behind is less promising still

    # Trees.

    def trees_for(self, depth: int, goals: Sequence[ProofGoal]) -> Trees:
        """Trees of these, over the ranges as they are now."""
        ranges = self.frozen()
        trees: Trees = []
        for goal in goals:
            if self.deadline.passed:  # a tree takes time to build, and there may be hundreds
                return []
            trees.append((goal, self.tree_for(ranges, goal, depth)))
        return trees

    def tree_for(
        self,
        backward: Backward,
        goal: ProofGoal,
        depth: int,
        droppable: float | None = None,
        like: Tree | None = None,
    ) -> Tree:
        """A tree over these ranges, as far as a journal has it, of fewer layers where they would take too
        much memory. Without ``droppable`` its model is as precise as what is missing to a proof asks for;
        with a tree that is ``like`` it, it is there sooner.
        """
        tree = self._tree(backward, goal, depth, droppable, like)
        for less in _LESS_DEPTH:
            if less < depth and too_large(tree.model):
                tree = self._tree(backward, goal, less, droppable, like)
        return tree

    def _tree(
        self, backward: Backward, goal: ProofGoal, depth: int, droppable: float | None, like: Tree | None
    ) -> Tree:
        key = (self.cascade.network[goal.relu].inputs[0], goal.neuron, goal.sign, depth)
        journal = self.cascade.journal
        tree = None if journal is None else journal.tree(backward, key)
        if tree is None:
            own = None if droppable is None else Goal(*key, droppable)
            tree = Tree(backward, *key, goal=own, like=None if like is None else like.model)
            if journal is not None:
                journal.watch(tree)
        return tree

    def turn(self, trees: Trees, nodes: int, seconds: float = math.inf) -> Trees:
        """Grow every tree by so many nodes, and search on from where their bounds are attained; what is still
        open. A tree that leads nowhere begins again with all layers. Jobs left over share a tree.
        """
        self.phase = f"turn of {nodes}"
        share = min(seconds, self._share(len(trees)) if len(trees) > self.jobs else math.inf)
        device, helpers = self.cascade.region.lo.device, max(1, self.jobs // len(trees))

        def grow(pair: tuple[ProofGoal, Tree]) -> Tree:
            tree = pair[1]
            if not tree.ahead:
                tree.inputs.clear()
            try:
                tree.grow(nodes, self.deadline.within(share), device, helpers)
            except (RuntimeError, MemoryError):  # a device without memory, say, decides nothing
                tree.dead = True
            if len(trees) > _KEPT:
                tree.rest()
            _write(tree)
            return tree

        spread(grow, trees, self.jobs, self.deadline, lambda _, tree: self.keep(tree))
        self._search([tree for goal, tree in trees if self.is_open(goal)])
        return self._left(trees)

    def _left(self, trees: Trees) -> Trees:
        """Those whose goals are open and that can still lead somewhere, or others in their place."""
        left: Trees = []
        ranges = self.frozen()
        for goal, tree in trees:
            if not self.is_open(goal):
                continue
            if not tree.dead:
                left.append((goal, tree))
                continue
            again = None
            more = tree.depth < len(self.cascade.network.relus) and not tree.tied
            if more and not self.deadline.passed:
                again = self.tree_for(ranges, goal, _ALL)
            if again is not None and again.depth > tree.depth:
                left.append((goal, again))
            else:
                self._exhausted.add(goal)
        return left

    def keep(self, tree: Tree) -> None:
        """Note what a tree has proved, and try its inputs."""
        fresh, tree.counted = tree.nodes - tree.counted, tree.nodes
        self.cascade.prove(tree.target, tree.neuron, tree.sign, tree.lower, tree.proof, fresh)
        like = self.cascade.region.lo
        points = torch.cat([like.new_zeros(0, len(like)), *(x.to(like) for x in tree.inputs)])
        self.cascade.look(self.phase, lambda: self.cascade.region.project(points), cheap=True)
        self.cascade.report("trees")

    def frozen(self) -> Backward:
        """The ranges as they are now, for all trees of a turn: proofs of some do not reach the others.

        On the CPU, where the models are.
        """
        values = {k: Interval(v.lo.cpu(), v.hi.cpu()) for k, v in self.cascade.values.items()}
        return Backward(self.cascade.network, self.cascade.problem.region(), values)

    def _share(self, count: int) -> float:
        """With a limit, a fair part of half of what is left for each of so many."""
        return max(0.5, self.jobs * self.deadline.left / (2 * max(1, count)))

    def _search(self, trees: Sequence[Tree]) -> None:
        """For all missing states at once: from the inputs that trees propose, and from others than before
        among those that were kept.
        """
        if self.deadline.passed or not trees:
            return
        points = [tree.inputs[-1] for tree in trees if tree.inputs]
        if points:
            start = self.cascade.region.project(torch.cat(points).to(self.cascade.region.lo))
            self.cascade.hunt.thoroughly(start, f"{self.phase} search")
        self.cascade.hunt.again(f"{self.phase} restarts")


def _write(tree: Tree) -> None:
    """Have what a tree has become written down, where there is a journal."""
    if tree.watch is not None:
        tree.watch(tree, True)
