"""Trees in a journal: written as they grow, a piece at a time, and put together again.

A tree has one record that begins it and one for everything that has been added since the last: new closed
leaves, inputs met, the nodes that wait. Pieces say how many leaves came before, so where one is lost, those
behind it are left out, and the tree is what it was before the loss.
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
    goal_fields,
    goal_in,
    leaf_fields,
    leaves_in,
    state_fields,
    states_in,
    take,
    take_array,
)
from relutrim.prove.hull.model import Goal
from relutrim.prove.hull.proof import Leaf
from relutrim.prove.hull.snapshot import INPUTS, Snapshot
from relutrim.prove.hull.tree import Tree

TreeKey: TypeAlias = tuple[str, int, float, int, int]
"""The target, the neuron, the sign, the depth, and how many trees of the same had been begun before."""
_SECONDS = 2.0
"""A tree that grows is written this often."""


@dataclass(eq=False)
class TreeWriter:
    """Writes one tree. ``keep`` writes the ranges of a tree, where they are new, and returns their names."""

    key: TreeKey
    append: Callable[[Record], None]
    keep: Callable[[Mapping[str, Interval]], dict[str, str]]
    known: tuple[int, bool] = (0, False)
    """Nodes and whether the tree is dead, as they are written already."""
    _leaves: int = 0
    _first: Leaf | None = None
    _input: Tensor | None = None
    """The last input that was written."""
    _begun: bool = False
    _last: float = field(default_factory=time.monotonic)

    def __call__(self, tree: Tree, whole: bool) -> None:
        """Write what is new, if there is anything; in the middle of growing only now and then."""
        state = (tree.nodes, tree.dead)
        if state == self.known or not (whole or time.monotonic() - self._last >= _SECONDS):
            return
        snapshot = tree.snapshot
        if not self._begun:
            self.append(self._beginning(snapshot))
            self._begun = True
        met = next((at for at, x in enumerate(reversed(tree.inputs)) if x is self._input), len(tree.inputs))
        self.append(self._piece(snapshot, min(met, INPUTS)))
        self._input = tree.inputs[-1] if tree.inputs else None
        self.known, self._last = state, time.monotonic()

    def _beginning(self, snapshot: Snapshot) -> Record:
        names = sorted({relu for relu, _ in snapshot.neurons})
        place = {name: at for at, name in enumerate(names)}
        return {
            "kind": "tree",
            "number": self.key[-1],
            **goal_fields(snapshot.goal),
            "ranges": self.keep(snapshot.ranges),
            "relus": names,
            "neuron_relus": np.array([place[relu] for relu, _ in snapshot.neurons], dtype=np.int64),
            "neuron_entries": np.array([entry for _, entry in snapshot.neurons], dtype=np.int64),
        }

    def _piece(self, snapshot: Snapshot, inputs: int) -> Record:
        leaves = snapshot.leaves[self._leaves :]
        fresh = snapshot.first if snapshot.first is not self._first else None
        first = [] if fresh is None else [fresh]
        record: Record = {
            "kind": "growth",
            "tree": list(self.key),
            "leaves_before": self._leaves,
            "first": bool(first),
            "nodes": snapshot.nodes,
            "dead": snapshot.dead,
            **leaf_fields([*leaves, *first]),
            **state_fields("open", snapshot.open),
            "inputs": snapshot.inputs[len(snapshot.inputs) - inputs :].cpu().numpy(),
        }
        self._leaves += len(leaves)
        self._first = snapshot.first
        return record


@dataclass(eq=False)
class TreeReader:
    """Puts one tree together from its records."""

    goal: Goal
    ranges: dict[str, str]
    neurons: tuple[tuple[str, int], ...]
    leaves: list[Leaf] = field(default_factory=list)
    first: Leaf | None = None
    last: Record | None = None
    inputs: list[np.ndarray] = field(default_factory=list)

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
        if record.get("leaves_before") != len(self.leaves):
            return
        leaves = leaves_in(record)
        states_in(record, "open")
        inputs = take_array(record, "inputs", "<f8", 2)
        for name, kind in {"nodes": int, "dead": bool, "first": bool}.items():
            take(record, name, kind)
        if record["first"]:
            self.first = leaves.pop()
        self.last = record
        self.leaves += leaves
        self.inputs = [*self.inputs, *inputs][-INPUTS:]

    def snapshot(self, ranges: Mapping[str, Interval]) -> Snapshot | None:
        """The tree as it stood; None if not a single piece is there."""
        if self.last is None:
            return None
        opened = states_in(self.last, "open")
        return Snapshot(
            self.goal,
            ranges,
            self.neurons,
            tuple(self.leaves),
            tuple(opened),
            self.first if opened else None,
            torch.from_numpy(np.stack(self.inputs) if self.inputs else self.last["inputs"]),
            max(0, self.last["nodes"]),
            self.last["dead"],
        )
