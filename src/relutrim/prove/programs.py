"""The last stage of the cascade: trees and linear programs for what bounds and searches leave open.

1. A tree per missing state, many nodes at a time, bounded by steps that need no solver: a thousand or so
   (:mod:`relutrim.prove.early`).
2. For what is left a program each, over the last two layers before the neuron, then over three. Inputs of
   their solutions are where the search goes on from.
3. If any neuron resists: the ranges of the neurons that it depends on are tightened by programs of their own,
   layer by layer, from the first. Each is a smaller problem, and every reader profits.
4. Trees for the rest, all grown in turn: where programs are small or steps too coarse, node by node, each a
   linear program, for a while; then many nodes at a time again, to the end.

Where programs are small the first step is left out: solving them takes no time, and they decide ties too.

All programs of a round start from the same ranges and are merged in order, so the outcome depends on how far
the time reaches, but not on how many run at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from relutrim.bounds.linear import Backward
from relutrim.graph.graph import Node
from relutrim.intervals import Interval
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.layers import too_large
from relutrim.prove.hull.model import Goal
from relutrim.prove.hull.tree import Tree
from relutrim.prove.parallel import spread

if TYPE_CHECKING:
    from relutrim.prove.cascade import Cascade

_DIVE_SECONDS = 5.0
_TIGHTEN_ROUNDS = 4
_TURNS = (8, 32)
"""Nodes of the turns in which trees grow node by node."""
_MORE_TURNS = (128, 512, 2048)
"""Turns node by node where programs are small: a node takes milliseconds there, and mostly they end."""
_FEW = 256
"""Columns of a program that is small."""
TURN_SECONDS = 15.0
"""What a tree has for one such turn, or for one before any program."""
_WIDE_NODES = 64
_COARSE = 1e-5
"""Where trees without programs miss less than this share of what their bounds are made of, programs go on."""
TREE_DEPTH = 4
"""Layers before the neuron that are in the program of a tree."""
KEPT = 16
"""Of more trees than this, what makes going on quicker is not kept from one turn to the next: it takes up to
some hundred megabytes each.
"""
_CHUNK = 32
_ALL = 10**6
_HEAVY = 0.9
"""The share of a layer's weight that is worth tightening."""


@dataclass(frozen=True, order=True)
class Wanted:
    """A proof that ``sign * y >= 0`` for a neuron of a ReLU."""

    relu: str
    neuron: int
    sign: float


@dataclass(eq=False)
class Programs:
    """One run of the stage, on the state of a cascade."""

    cascade: Cascade
    deadline: Deadline
    jobs: int = 1
    among: frozenset[tuple[str, int]] | None = None
    """Only these neurons of ReLUs, where given."""
    phase: str = field(default="", init=False)
    """What a journal calls the steps that are on."""
    _stuck: set[Wanted] = field(default_factory=set, init=False)
    """What trees without programs cannot prove: they are at an end, or all but there and too coarse."""
    _tied: set[Wanted] = field(default_factory=set, init=False)
    """What has its smallest value at 0, but for rounding: no other tree would prove it."""

    def roots(self) -> list[tuple[Wanted, Tree]]:
        """Only what takes no branching; the rest."""
        self._roots(2)
        return self._roots(3)

    def run(self) -> None:
        """Until everything is decided, nothing leads on, or time is up."""
        from relutrim.prove.early import Early

        Early(self).run()
        open_ = self.roots()
        if open_:
            self._tighten(open_)
            self._trees()

    def wanted(self) -> list[Wanted]:
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
            want = Wanted(name, neuron, -sign)
            gap = abs(float((pre.hi if sign > 0 else pre.lo).flatten()[neuron]))
            found.append((self._to_go(want, gap), want))
        return [want for _, want in sorted(found)]

    def _to_go(self, wanted: Wanted, gap: float) -> float:
        """The share of the way from what inputs have shown that a bound has to go, if it misses 0 by this."""
        seen = self.cascade.witnesses.seen[wanted.relu]
        met = abs(float((seen.lowest if wanted.sign > 0 else seen.highest)[wanted.neuron]))
        return gap / (gap + met) if 0 < gap + met < math.inf else 1.0

    def is_open(self, wanted: Wanted) -> bool:
        """Whether the neuron is undecided and no input has shown that there is no such proof."""
        cascade = self.cascade
        seen = cascade.witnesses.seen[wanted.relu]
        shown = (seen.inactive if wanted.sign > 0 else seen.active)[wanted.neuron] >= 0
        return bool(cascade.undecided(cascade.network[wanted.relu])[wanted.neuron]) and not bool(shown)

    def _roots(self, depth: int) -> list[tuple[Wanted, Tree]]:
        """The roots of missing states' programs, while they lead anywhere, and a search from their inputs."""
        self.phase = f"roots {depth}"
        found: list[tuple[Wanted, Tree]] = []

        def done(wanted: Wanted, tree: Tree | None) -> None:
            if tree is not None:
                found.append((wanted, tree))
                self.keep(tree)

        wanted = self.wanted()
        for start in range(0, len(wanted), _CHUNK):
            make = partial(self._root, self.frozen(), depth=depth, seconds=self._share(len(wanted) - start))
            chunk = wanted[start : start + _CHUNK]
            spread(make, chunk, self.jobs, self.deadline, done)
            if all(self.is_open(want) for want in chunk):
                break  # what comes behind is less promising still
        self._search([tree for want, tree in found if self.is_open(want)])
        return [(want, tree) for want, tree in found if self.is_open(want)]

    def _share(self, count: int) -> float:
        """With a limit, a fair part of half of what is left for each of so many."""
        return max(0.5, self.jobs * self.deadline.left / (2 * max(1, count)))

    def frozen(self) -> Backward:
        """The ranges as they are now, for all programs of a round: proofs of some do not reach the others.

        On the CPU, where the programs are.
        """
        values = {k: Interval(v.lo.cpu(), v.hi.cpu()) for k, v in self.cascade.values.items()}
        return Backward(self.cascade.network, self.cascade.problem.region(), values)

    def _root(self, backward: Backward, wanted: Wanted, depth: int, seconds: float) -> Tree | None:
        deadline = self.deadline.within(seconds)
        tree = self.planted(backward, wanted, depth)
        if tree is not None:
            if _grown(tree, 1, deadline) and not tree.closed and not tree.dived:
                with suppress(RuntimeError):  # a solver that breaks decides nothing
                    tree.dive(min(deadline.left, _DIVE_SECONDS))
            written(tree)
        return tree

    def planted(
        self,
        backward: Backward,
        wanted: Wanted,
        depth: int,
        droppable: float | None = None,
        like: Tree | None = None,
    ) -> Tree | None:
        """A tree over these ranges, as far as a journal has it; None where there can be none. Without
        ``droppable`` its program is as precise as what is missing to a proof asks for; with a tree that is
        ``like`` it, it is there sooner.
        """
        goal = (self.cascade.network[wanted.relu].inputs[0], wanted.neuron, wanted.sign, depth)
        journal = self.cascade.journal
        tree = None if journal is None else journal.tree(backward, goal)
        try:
            own = None if droppable is None else Goal(*goal, droppable)
            tree = tree or Tree(backward, *goal, goal=own, like=None if like is None else like.model)
        except RuntimeError:  # a solver that breaks decides nothing
            return None
        if journal is not None and tree.watch is None:
            journal.watch(tree)
        return tree

    def keep(self, tree: Tree) -> None:
        """Note what a tree has proved, and try its inputs."""
        fresh, tree.counted = tree.nodes - tree.counted, tree.nodes
        self.cascade.prove(tree.target, tree.neuron, tree.sign, tree.lower, tree.proof, fresh)
        like = self.cascade.region.lo
        points = torch.cat([like.new_zeros(0, len(like)), *(x.to(like) for x in tree.inputs)])
        self.cascade.look(self.phase, lambda: self.cascade.region.project(points), cheap=True)
        self.cascade.report("programs")

    def _search(self, trees: Sequence[Tree]) -> None:
        """For all missing states at once: from the inputs that programs propose, and from others than before
        among those that were kept.
        """
        if self.deadline.passed:
            return
        points = [tree.inputs[-1] for tree in trees if tree.inputs]
        if points:
            start = self.cascade.region.project(torch.cat(points).to(self.cascade.region.lo))
            self.cascade.hunt.thoroughly(start, f"{self.phase} search")
        if any(not is_small(tree) for tree in trees):
            self.cascade.hunt.again(f"{self.phase} restarts")

    def _tighten(self, roots: Sequence[tuple[Wanted, Tree]]) -> None:
        """Ranges of the neurons that open ones depend on, one layer after the other."""
        weights = self._weights(roots)
        for relu in self.cascade.network.relus[1:]:
            if self.deadline.passed or not self.wanted():
                return
            chosen = self._heaviest(relu, weights)
            if chosen:
                self.phase = f"tighten {relu.name}"
                make = partial(self._range, self.frozen(), depth=2, seconds=self._share(len(chosen)))
                spread(make, chosen, self.jobs, self.deadline, self._keep_of)
                self.cascade.rebound(relu.inputs[0])

    def _keep_of(self, _: Wanted, tree: Tree | None) -> None:
        if tree is not None:
            self.keep(tree)

    def _weights(self, roots: Sequence[tuple[Wanted, Tree]]) -> dict[Wanted, float]:
        """What the ends of other neurons' ranges are worth to the open ones, in units of what those miss."""
        weights: dict[Wanted, float] = {}
        for wanted, tree in roots:
            if self.is_open(wanted) and tree.root is not None and tree.lower < 0:
                for relu, entry, sign, gain in tree.model.weight_of_ends(*tree.root):
                    end = Wanted(relu, entry, sign)
                    weights[end] = weights.get(end, 0.0) + gain / -tree.lower
        return weights

    def _heaviest(self, relu: Node, weights: dict[Wanted, float]) -> list[Wanted]:
        """The ends of a layer that carry most of its weight, heaviest first."""
        loose = self.cascade.loose(relu.inputs[0])
        own = {end: w for end, w in weights.items() if end.relu == relu.name and bool(loose[end.neuron])}
        chosen, sum_, total = [], 0.0, sum(own.values())
        for end in sorted(own, key=lambda end: (-own[end], end.neuron, end.sign)):
            if not sum_ < _HEAVY * total:
                break
            chosen.append(end)
            sum_ += own[end]
        return chosen

    def _range(self, backward: Backward, wanted: Wanted, depth: int, seconds: float) -> Tree | None:
        tree = self.planted(backward, wanted, depth)
        if tree is not None:
            _grown(tree, 1, self.deadline.within(seconds), (_TIGHTEN_ROUNDS, 0))
            written(tree)
        return tree

    def _trees(self) -> None:
        """Branch and bound for all that is left, in turns: node by node for a while, where programs are small
        (so that it is quick) or steps lead nowhere; then many nodes at a time over more layers.
        """
        trees = self.plant(3, self.wanted())
        self._node_by_node([(want, tree) for want, tree in trees if self._needs_programs(want, tree)])
        known = self._stuck.copy()
        wanted = [want for want in self.wanted() if want not in self._tied]
        trees, nodes = self.plant(TREE_DEPTH, wanted), _WIDE_NODES
        while trees and not self.deadline.passed:
            trees = self.turn(trees, nodes, wide=True)
            nodes *= 4
        self._node_by_node(self.plant(3, [want for want in self.wanted() if want in self._stuck - known]))

    def _needs_programs(self, wanted: Wanted, tree: Tree) -> bool:
        return is_small(tree) or too_large(tree.model) or wanted in self._stuck

    def _node_by_node(self, trees: list[tuple[Wanted, Tree]]) -> None:
        for nodes in _TURNS:
            trees = self.turn(trees, nodes, seconds=TURN_SECONDS) if trees else []
        trees = [(wanted, tree) for wanted, tree in trees if is_small(tree)]
        for nodes in _MORE_TURNS:
            trees = self.turn(trees, nodes, seconds=TURN_SECONDS) if trees else []

    def plant(self, depth: int, wanted: Sequence[Wanted]) -> list[tuple[Wanted, Tree]]:
        """Trees of these, over the ranges as they are now."""
        ranges = self.frozen()
        trees: list[tuple[Wanted, Tree]] = []
        for want in wanted:
            if self.deadline.passed:  # a tree takes time to plant, and there may be hundreds
                return []
            tree = self.planted(ranges, want, depth)
            if tree is not None:
                trees.append((want, tree))
        return trees

    def turn(
        self,
        trees: list[tuple[Wanted, Tree]],
        nodes: int,
        *,
        seconds: float = math.inf,
        wide: bool = False,
    ) -> list[tuple[Wanted, Tree]]:
        """Grow every tree by so many nodes, and search on from what they propose; what is still open.

        A tree that leads nowhere is planted again with all layers. A ``wide`` turn takes many nodes of a tree
        at once, on the cascade's device, and has jobs left over work on the same tree.
        """
        self.phase = f"{'wide ' if wide else ''}turn of {nodes}"
        share = min(seconds, self._share(len(trees)) if len(trees) > self.jobs else math.inf)
        device, helpers = self.cascade.region.lo.device, max(1, self.jobs // len(trees))

        def grow(pair: tuple[Wanted, Tree]) -> Tree:
            tree, deadline = pair[1], self.deadline.within(share)
            if not tree.ahead:
                tree.inputs.clear()
            if not wide:
                _grown(tree, nodes, deadline)
            else:
                _spread(tree, nodes, deadline, device, helpers)
                if len(trees) > KEPT:
                    tree.rest()
            written(tree)
            return tree

        spread(grow, trees, self.jobs, self.deadline, lambda _, tree: self.keep(tree))
        self._search([tree for wanted, tree in trees if self.is_open(wanted)])
        left: list[tuple[Wanted, Tree | None]] = []
        ranges = self.frozen()
        for wanted, tree in trees:
            if self.is_open(wanted):
                if wide and (tree.dead or -tree.weakest < _COARSE * tree.model.made_of):
                    self._stuck.add(wanted)
                if not tree.dead:
                    left.append((wanted, tree))
                elif tree.depth < len(self.cascade.network.relus) and not self.deadline.passed:
                    left.append((wanted, self.planted(ranges, wanted, _ALL)))
                elif tree.tied:
                    self._tied.add(wanted)
        return [(wanted, tree) for wanted, tree in left if tree is not None]


def _spread(tree: Tree, nodes: int, deadline: Deadline, device: torch.device, jobs: int) -> None:
    try:
        tree.spread(nodes, deadline, device, jobs)
    except (RuntimeError, MemoryError):  # a device without memory, say, decides nothing
        tree.dead = True


def is_small(tree: Tree) -> bool:
    """Whether its program is solved in no time."""
    return len(tree.model.program.lo) <= _FEW


def written(tree: Tree) -> None:
    """Have what a tree has become written down, where there is a journal."""
    if tree.watch is not None:
        tree.watch(tree, True)


def _grown(tree: Tree, nodes: int, deadline: Deadline, rounds: tuple[int, int] | None = None) -> bool:
    try:
        if rounds is None:
            tree.grow(nodes, deadline)
        else:
            tree.grow(nodes, deadline, rounds)
    except RuntimeError:  # a solver that breaks decides nothing
        tree.dead = True
        return False
    return not math.isnan(tree.lower)
