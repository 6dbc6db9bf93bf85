"""The prover's proofs as plain lists: what a certificate stores, in terms that depend on no model.

A proof of :mod:`relutrim.prove.hull` numbers neurons and columns as its model happens to. Here a neuron is
the ReLU's name and its entry, and a leaf is a set of neurons' states and of multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from relutrim.certificate.packing import packed_levels
from relutrim.prove.hull.proof import Proof

if TYPE_CHECKING:
    from relutrim.bounds.linear import Backward
    from relutrim.graph.operators import Array
    from relutrim.prove.parts import PartsProof

Entry: TypeAlias = tuple[str, int]
"""A value's name and a flat index."""


@dataclass(frozen=True)
class LeafRecord:
    """States, and a piece of bytes for each level."""

    states: dict[Entry, bool]
    packed: list[bytes]


@dataclass(frozen=True, eq=False)
class LevelRecord:
    """Neurons of a ReLU, and for each the values with shares of their own."""

    relu: str
    entries: list[int]
    values: list[list[Entry]]


@dataclass(frozen=True, eq=False)
class TreeRecord:
    """A bound of ``sign *`` an entry of ``target``."""

    target: str
    entry: int
    sign: int
    leaves: list[LeafRecord] = field(default_factory=list)
    levels: list[LevelRecord] = field(default_factory=list)

    @property
    def packed_size(self) -> int:
        """How many bytes the pieces of all leaves take."""
        return sum(len(piece) for leaf in self.leaves for piece in leaf.packed)


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
    places = {
        int(own[entry]): (name, entry)
        for name, own in model.columns.items()
        for entry in np.flatnonzero(own >= 0).tolist()
    }
    record = TreeRecord(proof.target, proof.neuron, int(proof.sign))
    layers, columns, pieces = packed_levels(model, proof.leaves)
    for layer, own in zip(layers, columns, strict=True):
        neurons = [model.neurons[number] for number in layer.numbers]
        values = [[places[column] for column in row] for row in own.tolist()]
        record.levels.append(LevelRecord(neurons[0].relu, [neuron.entry for neuron in neurons], values))
    for leaf, own_pieces in zip(proof.leaves, pieces, strict=True):
        states = {(model.neurons[n].relu, model.neurons[n].entry): bool(on) for n, on in leaf.states.items()}
        record.leaves.append(LeafRecord(states, own_pieces))
    return record
