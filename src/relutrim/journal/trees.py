"""Trees in a journal: written as they grow, a piece at a time, and put together again.

A tree has one record that begins it and one for everything that has been added since the last: new cuts, new
closed leaves, inputs met, the nodes that wait. Pieces say how many cuts and leaves came before, so where one
is lost, those behind it are left out, and the tree is what it was before the loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from relutrim.intervals import Interval
from relutrim.journal.records import (
    Record,
    RecordError,
    cut_fields,
    cuts_in,
    goal_fields,
    goal_in,
    leaf_fields,
    leaves_in,
    state_fields,
    states_in,
    take,
    take_array,
)
from relutrim.prove.hull.cuts import Cut
from relutrim.prove.hull.growth import INPUTS, Growth
from relutrim.prove.hull.model import Goal
from relutrim.prove.hull.proof import Leaf, distinct_cuts
from relutrim.prove.hull.tree import Tree

TreeKey: TypeAlias = tuple[str, int, float, int, int]
"""The target, the neuron, the sign, the depth, and how many trees of the same had been planted before."""
_SECONDS = 2.0
"""A tree that grows is written this often."""


@dataclass(eq=False)
class TreeWriter:
    """Writes one tree. ``keep`` writes the ranges of a tree, where they are new, and returns their names."""

    key: TreeKey
    append: Callable[[Record], None]
    keep: Callable[[Mapping[str, Interval]], dict[str, str]]
    known: tuple[int, bool, bool] = (0, False, False)
    """Nodes, dead and dived as they are written already."""
    _cuts: dict[int, int] = field(default_factory=dict)
    _held: list[Cut] = field(default_factory=list)
    _leaves: int = 0
    _first: Leaf | None = None
    _input: Tensor | None = None
    """The last input that was written."""
    _root: bool = False
    _begun: bool = False
    _last: float = field(default_factory=time.monotonic)

    def __call__(self, tree: Tree, whole: bool) -> None:
        """Write what is new, if there is anything; in the middle of growing only now and then."""
        state = (tree.nodes, tree.dead, tree.dived)
        if state == self.known or not (whole or time.monotonic() - self._last >= _SECONDS):
            return
        growth = tree.growth
        if not self._begun:
            self.append(self._beginning(growth))
            self._begun = True
        met = next((at for at, x in enumerate(reversed(tree.inputs)) if x is self._input), len(tree.inputs))
        self.append(self._piece(growth, min(met, INPUTS)))
        self._input = tree.inputs[-1] if tree.inputs else None
        self.known, self._last = state, time.monotonic()

    def _beginning(self, growth: Growth) -> Record:
        names = sorted({relu for relu, _ in growth.neurons})
        place = {name: at for at, name in enumerate(names)}
        return {
            "kind": "tree",
            "number": self.key[-1],
            **goal_fields(growth.goal),
            "ranges": self.keep(growth.ranges),
            "relus": names,
            "neuron_relus": np.array([place[relu] for relu, _ in growth.neurons], dtype=np.int64),
            "neuron_entries": np.array([entry for _, entry in growth.neurons], dtype=np.int64),
        }

    def _piece(self, growth: Growth, inputs: int) -> Record:
        leaves = list(growth.leaves[self._leaves :])
        first = growth.first if growth.first is not self._first else None
        listed = [*leaves, *([first] if first is not None else [])]
        fresh = [cut for cut in (*distinct_cuts(listed), *growth.cuts) if id(cut) not in self._cuts]
        before = len(self._held)
        for cut in fresh:
            if id(cut) not in self._cuts:
                self._cuts[id(cut)] = len(self._held)
                self._held.append(cut)  # so that no other cut gets its id
        record: Record = {
            "kind": "growth",
            "tree": list(self.key),
            "leaves_before": self._leaves,
            "cuts_before": before,
            "first": first is not None,
            "nodes": growth.nodes,
            "dead": growth.dead,
            "dived": growth.dived,
            "failures": growth.failures,
            "ranked": np.array(growth.ranked, dtype=np.int64),
            **cut_fields(self._held[before:]),
            **leaf_fields(listed, self._cuts),
            **state_fields("open", growth.open),
            "pool": np.array([self._cuts[id(cut)] for cut in growth.cuts], dtype=np.int64),
            "inputs": growth.inputs[len(growth.inputs) - inputs :].cpu().numpy(),
        }
        if growth.root is not None and not self._root:
            record["point"], record["duals"] = growth.root
            self._root = True
        self._leaves += len(leaves)
        self._first = growth.first
        return record


@dataclass(eq=False)
class TreeReader:
    """Puts one tree together from its records."""

    goal: Goal
    ranges: dict[str, str]
    neurons: tuple[tuple[str, int], ...]
    cuts: list[Cut] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    first: Leaf | None = None
    last: Record | None = None
    inputs: list[np.ndarray] = field(default_factory=list)
    root: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(cls, record: Record) -> TreeReader:
        """From the record that begins a tree."""
        names = take(record, "relus", list)
        relus = take_array(record, "neuron_relus", "<i8", 1).tolist()
        entries = take_array(record, "neuron_entries", "<i8", 1).tolist()
        if len(relus) != len(entries) or any(not 0 <= at < len(names) for at in relus):
            raise RecordError("the neurons of a tree are not as they should be")
        neurons = tuple((str(names[at]), entry) for at, entry in zip(relus, entries, strict=True))
        return cls(goal_in(record), take(record, "ranges", dict), neurons)

    def add(self, record: Record) -> None:
        """The next piece; one that does not follow is left out."""
        if record.get("leaves_before") != len(self.leaves) or record.get("cuts_before") != len(self.cuts):
            return
        cuts = [*self.cuts, *cuts_in(record)]
        leaves = leaves_in(record, cuts)
        states_in(record, "open")
        inputs = take_array(record, "inputs", "<f8", 2)
        take_array(record, "ranked", "<i8", 1)
        kinds = {"nodes": int, "failures": int, "dead": bool, "dived": bool, "first": bool}
        for name, kind in kinds.items():
            take(record, name, kind)
        if any(not 0 <= at < len(cuts) for at in take_array(record, "pool", "<i8", 1).tolist()):
            raise RecordError("a program has a cut that there is not")
        root = self.root
        if "point" in record:
            root = take_array(record, "point", "<f8", 1), take_array(record, "duals", "<f8", 1)
        if record["first"]:
            self.first = leaves.pop()
        self.cuts, self.root, self.last = cuts, root, record
        self.leaves += leaves
        self.inputs = [*self.inputs, *inputs][-INPUTS:]

    def growth(self, ranges: Mapping[str, Interval]) -> Growth | None:
        """The tree as it stood; None if not a single piece is there."""
        if self.last is None:
            return None
        opened = states_in(self.last, "open")
        return Growth(
            self.goal,
            ranges,
            self.neurons,
            tuple(self.leaves),
            tuple(opened),
            self.first if opened else None,
            self.root,
            tuple(self.cuts[at] for at in self.last["pool"].tolist()),
            torch.from_numpy(np.stack(self.inputs) if self.inputs else self.last["inputs"]),
            max(0, self.last["nodes"]),
            self.last["dead"],
            self.last["dived"],
            tuple(self.last["ranked"].tolist()),
            max(0, self.last["failures"]),
        )
