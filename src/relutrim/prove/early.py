"""Before any linear program: trees whose nodes are bounded by steps that need no solver, layer by layer.

1. Where very many neurons are open, the upper ends of all ranges of a layer are swept first: each is the root
   of a tree, all in a few batches. Everything behind the layer profits.
2. Then trees for the layer's open neurons, the most promising first: few nodes for each as long as that
   decides any, then more.

No layer takes more than its part of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from relutrim.graph.graph import Node
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.sweep import sweep
from relutrim.prove.hull.tree import Tree
from relutrim.prove.programs import KEPT, TREE_DEPTH, TURN_SECONDS, Programs, Wanted, is_small, written

_TURNS = (16, 64, 256, 1024)
"""Nodes of a tree in each of its turns."""
_TOGETHER = 8
"""So many trees grow before it is asked whether that decides any."""
_MANY = 0.5
"""For each of a layer's ranges so many open neurons in it and behind it make it worth while to sweep it."""
_SWEPT = 64
"""Ends of ranges whose programs are in memory together."""
_SWEEP_DEPTH = 2


@dataclass(eq=False)
class Early:
    """The first step of a stage."""

    stage: Programs

    def run(self) -> None:
        """Layer by layer: what is proved of one makes those behind it easier."""
        stage, deadline = self.stage, self.stage.deadline
        relus = stage.cascade.network.relus
        for number, relu in enumerate(relus):
            if deadline.passed:
                return
            own = deadline.within(deadline.left / (len(relus) - number))
            if number:
                self.sweep(relu, own)
            wanted = [want for want in stage.wanted() if want.relu == relu.name]
            self.trees(wanted, own)
            if not all(map(stage.is_open, wanted)):
                stage.cascade.rebound(relu.inputs[0])

    def sweep(self, relu: Node, own: Deadline) -> None:
        """The upper ends of a layer's ranges that hold both signs, and the lower ones that are wanted.

        A neuron behind it reads what is between 0 and the upper end; the lower end matters little.
        """
        stage, cascade = self.stage, self.stage.cascade
        names = [other.name for other in cascade.network.relus]
        behind = names[names.index(relu.name) :]
        wanted = [want for want in stage.wanted() if want.relu in behind]
        loose = (cascade.loose(relu.inputs[0]) & cascade.decidable(relu)).nonzero()[:, 0].tolist()
        if not loose or len(wanted) < _MANY * len(loose):
            return
        ends = [Wanted(relu.name, neuron, -1.0) for neuron in loose]
        ends += [want for want in wanted if want.relu == relu.name and want.sign > 0]
        stage.phase = f"sweep {relu.name}"
        ranges, device = stage.frozen(), cascade.region.lo.device
        for start in range(0, len(ends), _SWEPT):
            if own.passed:
                break
            trees: list[Tree] = []
            for end in ends[start : start + _SWEPT]:
                if own.passed:
                    break
                # With nothing dropped from their rows, the programs have as much in common as they can.
                like = trees[-1] if trees else None
                tree = stage.planted(ranges, end, _SWEEP_DEPTH, 0.0, like)
                if tree is not None and not is_small(tree):
                    trees.append(tree)
            with suppress(RuntimeError, MemoryError):  # a device without memory, say, decides nothing
                sweep(trees, device, own, stage.jobs)
            for tree in trees:
                written(tree)
                stage.keep(tree)
        cascade.rebound(relu.inputs[0])

    def trees(self, wanted: Sequence[Wanted], own: Deadline) -> None:
        """Trees of these, the most promising first. Turns get longer where short ones decide nothing more."""
        grown: dict[Wanted, Tree | None] = {}
        for nodes in _TURNS:
            left = [want for want in wanted if self.stage.is_open(want)]
            for start in range(0, len(left), _TOGETHER):
                if own.passed:
                    return
                chunk = left[start : start + _TOGETHER]
                new = self.stage.plant(TREE_DEPTH, [want for want in chunk if want not in grown])
                grown |= {want: None if is_small(tree) else tree for want, tree in new}
                trees = [(want, tree) for want in chunk if (tree := grown.get(want)) is not None]
                if trees:
                    seconds = min(TURN_SECONDS, own.left)
                    after = dict(self.stage.turn(trees, nodes, wide=True, seconds=seconds))
                    grown |= {want: after.get(want) for want in chunk}
                if len(grown) > KEPT:
                    for tree in filter(None, grown.values()):
                        tree.rest()
                if all(map(self.stage.is_open, chunk)):
                    break  # what comes behind is less promising still
