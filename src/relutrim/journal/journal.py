"""What a run has found, and what a run that goes on takes from it.

A run that goes on does the same as before in the same order. What is quick is done again: bounds, ranges.
Where a search or a tree comes up that the journal knows, its outcome is taken from there: the inputs that
showed something, the leaves that were closed. Nothing of that is believed. Inputs are run through the network
like any others, and count only inside the domain; leaves have their bounds evaluated anew, over ranges no
tighter than those that hold in this run. A journal can therefore save time, and never make anything true.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relutrim.bounds.linear import Backward
from relutrim.errors import JournalError
from relutrim.intervals import Interval
from relutrim.journal.file import JournalFile
from relutrim.journal.records import Record, RecordError, take, take_array
from relutrim.journal.trees import TreeKey, TreeReader, TreeWriter
from relutrim.prove.hull.tree import Tree

if TYPE_CHECKING:
    from relutrim.prove.stability import Stability

Splits = npt.NDArray[np.int64]


class Journal:
    """The journal of one analysis, in a folder."""

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self._file = JournalFile(folder, header)
        self._guard = threading.Lock()
        self._counts: dict[Any, int] = {}
        self._names: WeakKeyDictionary[Interval, str] = WeakKeyDictionary()
        self._inputs: dict[str, Tensor] = {}
        self._rest: list[Tensor] = []
        self._trees: dict[TreeKey, TreeReader] = {}
        self._values: dict[str, Interval] = {}
        self._written: set[str] = set()
        self._splits: list[tuple[Splits, Splits, Tensor]] = []
        self._failed: JournalError | None = None
        self._found = len(self._file.records)
        self._senseless = 0
        self.ended = False
        for record in self._file.records:
            try:
                self._take(record)
            except (ValueError, TypeError, KeyError, IndexError, OverflowError):
                self._senseless += 1
        self._file.records.clear()

    @property
    def remarks(self) -> list[str]:
        """What a reader of the outcome should know."""
        where = f"journal {self._file.path}"
        found = [f"{where}: {text}" for text in self._file.damage]
        if self._senseless:
            found.append(f"{where}: {self._senseless} records make no sense and were passed over")
        if self._found:
            found.append(f"{where}: went on from {self._found} records of earlier runs")
        return found

    @property
    def replaying(self) -> bool:
        """Whether there is more to take from it."""
        return bool(self._inputs)

    def close(self) -> None:
        """Let others have it."""
        self._file.close()

    def key(self, phase: str) -> str:
        """The name of the next step of a phase."""
        return f"{phase}/{self._count(phase)}"

    def recall(self, key: str, like: Tensor) -> Tensor | None:
        """The inputs that showed something new in a step that was finished; None if it was not."""
        points = self._inputs.pop(key, None)
        return None if points is None else _rows(points, like)

    def rest(self, like: Tensor) -> Tensor:
        """All inputs of steps that have not come up: those of a run that went another way, or of no step."""
        points = [*self._rest, *self._inputs.values()]
        self._rest.clear()
        self._inputs.clear()
        return torch.cat([like.new_zeros(0, len(like)), *(_rows(batch, like) for batch in points)])

    def remember(self, key: str | None, points: Tensor) -> None:
        """That a step is finished, and the inputs that showed something new in it; or just inputs."""
        if key is not None or len(points):
            self._file.append({"kind": "inputs", "key": key, "points": points.cpu().numpy()})

    def overhear(self, points: Tensor) -> None:
        """Remember inputs in the middle of what must not fail; :meth:`raise_failed` says if this did."""
        try:
            self.remember(None, points)
        except JournalError as error:
            self._failed = error

    def raise_failed(self) -> None:
        """Raise what went wrong while nobody could be told."""
        if self._failed is not None:
            raise self._failed

    def tree(self, backward: Backward, goal: tuple[str, int, float, int]) -> Tree | None:
        """A tree for this goal as it stood when it had been begun as often as now; None if there is none.

        Its ranges are those it was begun with, widened to those that hold.
        """
        key: TreeKey = (*goal, self._count(goal))
        reader, tree = self._trees.pop(key, None), None
        if reader is not None:
            # Whatever is wrong with a record, the tree begins again.
            with suppress(ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError):
                tree = self._restored(backward, reader)
        if tree is None:
            return None
        tree.watch = TreeWriter(key, self._file.append, self._keep, known=(tree.nodes, tree.dead))
        return tree

    def watch(self, tree: Tree) -> None:
        """Have a tree that was begun just now written down as it grows."""
        goal = (tree.target, tree.neuron, tree.sign, tree.depth)
        with self._guard:
            number = self._counts[goal] - 1
        tree.watch = TreeWriter((*goal, number), self._file.append, self._keep)

    def splits(self, like: Tensor) -> tuple[Splits, Splits, Tensor]:
        """Which parts of the domain were halved, by number (the halves of k are 2 k and 2 k + 1), along which
        axis, and the inputs that showed something new meanwhile.
        """
        none = np.zeros(0, np.int64)
        places = np.concatenate([none, *(places for places, _, _ in self._splits)])
        axes = np.concatenate([none, *(axes for _, axes, _ in self._splits)])
        points = [_rows(points, like) for _, _, points in self._splits]
        return places, axes, torch.cat([like.new_zeros(0, len(like)), *points])

    def note_splits(self, places: Splits, axes: Splits, points: Tensor) -> None:
        """More parts that were halved, and the inputs that showed something new meanwhile."""
        self._file.append({"kind": "splits", "places": places, "axes": axes, "points": points.cpu().numpy()})

    def end(self, stability: Stability) -> None:
        """That the analysis came to its end, for whoever reads the file; a later run finds out itself."""
        if not self.ended:
            record: Record = {"kind": "end", "layers": [layer.name for layer in stability.layers]}
            for at, layer in enumerate(stability.layers):
                record[f"verdict_{at}"] = layer.verdict.astype(np.int64)
            self._file.append(record)

    def _count(self, of: Any) -> int:
        with self._guard:
            number = self._counts.get(of, 0)
            self._counts[of] = number + 1
        return number

    def _take(self, record: Record) -> None:
        kind = record.get("kind")
        if kind == "inputs":
            points, key = torch.from_numpy(take_array(record, "points", "<f8", 2)), record.get("key")
            if isinstance(key, str):
                self._inputs[key] = points
            else:
                self._rest.append(points)
        elif kind == "value":
            lo, hi = (torch.from_numpy(_array(record, end)) for end in ("lo", "hi"))
            if lo.shape != hi.shape:
                raise RecordError("a range has as many lower ends as upper ones")
            value = Interval(lo, hi)
            self._values[_name(value)] = value
            self._written.add(_name(value))
        elif kind == "tree":
            reader = TreeReader.of(record)
            goal = reader.goal
            number = take(record, "number", int)
            self._trees[goal.target, goal.neuron, goal.sign, goal.depth, number] = reader
        elif kind == "growth":
            target, neuron, sign, depth, number = take(record, "tree", list)
            found = self._trees.get((target, neuron, sign, depth, number))
            if found is not None:
                found.add(record)
        elif kind == "splits":
            places, axes = (take_array(record, name, "<i8", 1) for name in ("places", "axes"))
            if places.shape != axes.shape:
                raise RecordError("every part that was halved was so along one axis")
            points = torch.from_numpy(take_array(record, "points", "<f8", 2))
            self._splits.append((places, axes, points))
        elif kind == "end":
            self.ended = True
        else:
            raise RecordError(f"there are no records of kind {kind!r}")

    def _restored(self, backward: Backward, reader: TreeReader) -> Tree | None:
        ranges = {}
        for name, known in backward.values.items():
            given = self._values.get(reader.ranges.get(name, ""))
            if name == reader.goal.target:
                given = given or known
            if given is None or given.lo.shape != known.lo.shape:
                return None
            ranges[name] = Interval(
                torch.minimum(given.lo.to(known.lo), known.lo), torch.maximum(given.hi.to(known.hi), known.hi)
            )
        snapshot = reader.snapshot(ranges)
        if snapshot is None:
            return None
        return Tree.restored(Backward(backward.network, backward.region, ranges), snapshot)

    def _keep(self, ranges: Mapping[str, Interval]) -> dict[str, str]:
        """The names of ranges, which are written if they are new. Where a value's ranges are as before, they
        have the same name.
        """
        names = {}
        for name, value in ranges.items():
            known = self._names.get(value)
            if known is None:
                known = self._names[value] = _name(value)
            names[name] = known
            with self._guard:
                fresh = known not in self._written
                self._written.add(known)
            if fresh:
                self._file.append(
                    {"kind": "value", "lo": value.lo.cpu().numpy(), "hi": value.hi.cpu().numpy()}
                )
        return names


def _rows(points: Tensor, like: Tensor) -> Tensor:
    """Inputs on the device of ``like``, which is one; none if they are not of its size."""
    return points.to(like) if points.shape[1:] == like.shape else like.new_zeros(0, len(like))


def _array(record: Record, name: str) -> npt.NDArray[Any]:
    value = record.get(name)
    if not isinstance(value, np.ndarray) or value.dtype.str != "<f8":
        raise RecordError(f"the array {name!r} is not there, or not as it should be")
    return value


def _name(value: Interval) -> str:
    digest = hashlib.sha256(repr(tuple(value.lo.shape)).encode())
    for end in (value.lo, value.hi):
        digest.update(end.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
