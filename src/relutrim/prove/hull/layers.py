"""The neurons of a model, layer by layer, as matrices: what passes over many nodes at once work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relutrim.graph.operators import Array
from relutrim.prove.hull.model import Index, Model

_LARGEST = 10**7
"""Programs whose layers have more entries than this, zeros among them, are not written as matrices: each
entry takes some 40 bytes as long as the model is in use, and as many again for a moment.
"""


@dataclass(frozen=True, eq=False)
class Layer:
    """The neurons of one ReLU in a model. ``numbers`` are theirs in the model; ``read`` are the columns
    that they read, and ``weight`` has a column for each of those. ``smallest`` and ``largest`` are the ends
    of each ``w_i v_i``. ``both`` says which neurons have both states.
    """

    numbers: list[int]
    columns: Index
    read: Index
    weight: Array
    bias: Array
    radius: Array
    lo: Array
    hi: Array
    both: np.ndarray
    smallest: Array
    largest: Array

    @classmethod
    def of(cls, model: Model, relu: str) -> Layer:
        """Those of a ReLU."""
        numbers = [i for i, neuron in enumerate(model.neurons) if neuron.relu == relu]
        neurons = [model.neurons[i] for i in numbers]
        read = np.unique(np.concatenate([neuron.inputs for neuron in neurons]))
        weight = np.zeros((len(neurons), len(read)))
        for row, neuron in zip(weight, neurons, strict=True):
            row[np.searchsorted(read, neuron.inputs)] = neuron.weights
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows proves nothing
            low, high = (weight * ends[read] for ends in model.ends)
        return cls(
            numbers,
            np.array([neuron.column for neuron in neurons]),
            read,
            weight,
            np.array([neuron.bias for neuron in neurons]),
            np.array([neuron.radius for neuron in neurons]),
            np.array([neuron.lo for neuron in neurons]),
            np.array([neuron.hi for neuron in neurons]),
            np.array([neuron.both for neuron in neurons]),
            np.minimum(low, high),
            np.maximum(low, high),
        )

    def heaviest(self, least: float, spare: float) -> Index:
        """For each neuron the places of the inputs whose terms can vary most, ``[neurons, k]``.

        As many as it takes for the others to add up to a share ``least`` of the neuron's range, but not more
        than ``spare`` times what it takes on average.
        """
        width = self.largest - self.smallest
        order = np.argsort(-width, axis=1, kind="stable")
        behind = np.cumsum(np.take_along_axis(width, order, 1)[:, ::-1], axis=1)[:, ::-1]
        counts = (behind > least * (self.hi - self.lo)[:, None]).sum(1)
        most = min(int(counts.max(initial=0)), int(np.ceil(spare * counts.mean()))) if len(counts) else 0
        return order[:, : max(1, most)]

    def marks(self, cases: Sequence[dict[int, bool]]) -> np.ndarray:
        """1, -1 and 0 for on, off and free, ``[neurons, nodes]``."""
        place = {number: at for at, number in enumerate(self.numbers)}
        marks = np.zeros((len(self.numbers), len(cases)), dtype=np.int8)
        for node, case in enumerate(cases):
            for number, on in case.items():
                if number in place:
                    marks[place[number], node] = 1 if on else -1
        return marks


def layers_of(model: Model) -> list[Layer]:
    """All of them, the first first."""
    return [Layer.of(model, name) for name in dict.fromkeys(neuron.relu for neuron in model.neurons)]


def too_large(model: Model) -> bool:
    """Whether the layers would take too much memory as matrices: those of convolutions are mostly zeros."""
    inputs: dict[str, list[Index]] = {}
    for neuron in model.neurons:
        inputs.setdefault(neuron.relu, []).append(neuron.inputs)
    return sum(len(own) * len(np.unique(np.concatenate(own))) for own in inputs.values()) > _LARGEST


def free_columns(model: Model) -> Index:
    """The columns where a model begins: those of no neuron."""
    owned = {neuron.column for neuron in model.neurons}
    return np.array([c for c in range(len(model.ends[0])) if c not in owned], dtype=np.int64)


def without(matrix: Array, places: Index) -> Array:
    """The matrix without the entries at these places, one row of them for each of its rows."""
    found = matrix.copy()
    np.put_along_axis(found, places, 0.0, axis=1)
    return found
