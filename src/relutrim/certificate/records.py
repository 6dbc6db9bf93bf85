"""The prover's proofs as plain lists: what a certificate stores, in terms that depend on no program.

A proof of :mod:`relutrim.prove.hull` numbers rows, neurons and columns as its program happens to. Here a row
is a neuron (the ReLU's name and its entry) and a kind, a cut is a neuron and a set of named values, and a
leaf is a set of neurons' states and of multipliers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from relutrim.certificate.check.hull import KINDS
from relutrim.certificate.packing import packed_levels
from relutrim.prove.hull.proof import Leaf, Proof

if TYPE_CHECKING:
    from relutrim.bounds.linear import Backward
    from relutrim.graph.operators import Array
    from relutrim.prove.hull.model import Model
    from relutrim.prove.parts import PartsProof

Entry: TypeAlias = tuple[str, int]
"""A value's name and a flat index."""

EQUATION, ABOVE, BELOW, DOMAIN = map(KINDS.index, ("equation", "above", "below", "domain"))
ACTIVE = -1
"""A row ``x - a v`` of a neuron that is always on: to the checker its equation and ``x = y``."""


@dataclass(frozen=True)
class CutRecord:
    """A neuron, and the values in the subset of its cut, or (``outside``) those that are not."""

    neuron: Entry
    listed: tuple[Entry, ...]
    outside: bool


@dataclass(frozen=True)
class LeafRecord:
    """States, and multipliers by the row's number (cuts come behind all rows), a ray if it is ``empty``; or a
    piece of bytes for each level.
    """

    states: dict[Entry, bool]
    duals: dict[int, float]
    empty: bool
    packed: list[bytes] | None = None


@dataclass(frozen=True, eq=False)
class LevelRecord:
    """Neurons of a ReLU, and for each the values with shares of their own."""

    relu: str
    entries: list[int]
    values: list[list[Entry]]


@dataclass(frozen=True, eq=False)
class TreeRecord:
    """A bound of ``sign *`` an entry of ``target``. A domain row's entry is its number."""

    target: str
    entry: int
    sign: int
    rows: list[tuple[Entry, int]] = field(default_factory=list)
    cuts: list[CutRecord] = field(default_factory=list)
    leaves: list[LeafRecord] = field(default_factory=list)
    levels: list[LevelRecord] = field(default_factory=list)

    @property
    def packed_size(self) -> int:
        """How many bytes the pieces of all leaves take."""
        return sum(len(piece) for leaf in self.leaves for piece in leaf.packed or ())


@dataclass(frozen=True, eq=False)
class PartsRecord:
    """A bound of ``sign *`` an entry of ``target`` on boxes (parts, inputs) that fill the domain's."""

    target: str
    entry: int
    sign: int
    lo: Array
    hi: Array


Record: TypeAlias = TreeRecord | PartsRecord


def recorded(proof: Proof | PartsProof, backward: Backward) -> Record:
    """A proof in plain terms; ``backward`` is over the network and region it is about."""
    if isinstance(proof, Proof):
        return _tree(proof, backward)
    ends = (end.cpu().numpy().astype(np.float64) for end in (proof.lo, proof.hi))
    return PartsRecord(proof.target, proof.neuron, int(proof.sign), *ends)


def _tree(proof: Proof, backward: Backward) -> TreeRecord:
    from relutrim.bounds.linear import Backward as Pass
    from relutrim.intervals import Interval
    from relutrim.prove.hull.model import Model

    like = backward.region.lo
    ranges = {name: Interval(ends.lo.to(like), ends.hi.to(like)) for name, ends in proof.ranges.items()}
    model = Model(Pass(backward.network, backward.region, ranges), proof.goal)
    named = _rows(model)
    places = {
        int(own[entry]): (name, entry)
        for name, own in model.columns.items()
        for entry in np.flatnonzero(own >= 0).tolist()
    }
    record = TreeRecord(proof.target, proof.neuron, int(proof.sign))
    at: dict[tuple[Entry, int], int] = {}

    def row(which: tuple[Entry, int]) -> int:
        if which not in at:
            at[which] = len(record.rows)
            record.rows.append(which)
        return at[which]

    cuts = proof.cuts
    for leaf in proof.leaves:  # all rows first: cuts are numbered behind them
        for number, dual in leaf.rows.items():
            for which in _meant(*named[number], dual):
                row(which)
    for cut in cuts:
        neuron = model.neurons[cut.neuron]
        outside = 2 * int(cut.chosen.sum()) > len(cut.chosen)
        listed = neuron.inputs[~cut.chosen if outside else cut.chosen]
        own = (neuron.relu, neuron.entry)
        record.cuts.append(CutRecord(own, tuple(places[int(column)] for column in listed), outside))
        if outside:
            row((own, EQUATION))
    packed = iter(_levels(record, model, [leaf for leaf in proof.leaves if leaf.packed is not None], places))
    number_of = {id(cut): number for number, cut in enumerate(cuts)}
    for leaf in proof.leaves:
        duals: dict[int, float] = {}
        for number, dual in leaf.rows.items():
            for which in _meant(*named[number], dual):
                duals[row(which)] = duals.get(row(which), 0.0) + dual
        for cut, dual in leaf.cuts:
            number = number_of[id(cut)]
            duals[len(record.rows) + number] = dual
            if record.cuts[number].outside:  # the program's row is the cut minus the neuron's equation
                equation = row((record.cuts[number].neuron, EQUATION))
                duals[equation] = duals.get(equation, 0.0) - dual
        states = {(model.neurons[n].relu, model.neurons[n].entry): bool(on) for n, on in leaf.states.items()}
        pieces = None if leaf.packed is None else next(packed)
        record.leaves.append(LeafRecord(states, duals, math.isinf(leaf.bound), pieces))
    return record


def _levels(
    record: TreeRecord, model: Model, leaves: list[Leaf], places: dict[int, Entry]
) -> list[list[bytes]]:
    """Name the layers that packed leaves replace in the record; the leaves' pieces."""
    if not leaves:
        return []
    layers, columns, pieces = packed_levels(model, leaves)
    for layer, own in zip(layers, columns, strict=True):
        neurons = [model.neurons[number] for number in layer.numbers]
        values = [[places[column] for column in row] for row in own.tolist()]
        record.levels.append(LevelRecord(neurons[0].relu, [neuron.entry for neuron in neurons], values))
    return pieces


def _meant(entry: Entry, kind: int, dual: float) -> list[tuple[Entry, int]]:
    """The checker's rows whose sum, times the multiplier, is a row of the program."""
    if kind != ACTIVE:
        return [(entry, kind)]
    return [(entry, EQUATION), (entry, ABOVE if dual > 0 else BELOW)]


def _rows(model: Model) -> list[tuple[Entry, int]]:
    """What each row of a program is about."""
    region = model.backward.region
    known = model.columns.get(model.backward.network.input.name, np.full(region.size, -1))
    found: list[tuple[Entry, int]] = []
    for number, weights in enumerate(region.rows.cpu().numpy()):
        used = np.flatnonzero(weights)
        if len(used) and bool((known[used] >= 0).all()):
            found.append((("", number), DOMAIN))
    for neuron in model.neurons:
        kinds = range(4) if neuron.state >= 0 else (ACTIVE,)
        found += [((neuron.relu, neuron.entry), kind) for kind in kinds]
    return found
