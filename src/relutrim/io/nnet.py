"""The text format of the ACAS Xu networks (``.nnet``), read only.

Behind comment lines that start with ``//`` come, one line each: number of layers, inputs, outputs and largest
layer; the layer sizes; a flag nobody uses; the smallest and the largest inputs; means; ranges. The last two
hold one number per input and one for all outputs. Then for each layer the rows of its weight matrix and its
biases, one neuron a line. With ``m, r`` the means and ranges the network computes, from raw inputs,

    y = net((x - m) / r) * r_out + m_out.

The reference evaluator first clips ``x`` to the smallest and largest inputs. Clipping is not part of the
network read here, so the two agree **only where the domain lies within these limits**; they are kept in
``Network.metadata`` as JSON lists ``nnet.input_min`` and ``nnet.input_max``.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np

from relutrim.errors import InputError, RelutrimError
from relutrim.graph import Linear, Network, Node, Operator, Output, Port, Relu, Scale
from relutrim.graph.operators import Array
from relutrim.io.files import read_text


def read_nnet(path: Path) -> Network:
    """The network of an ``.nnet`` file, raw inputs to raw outputs; numbers are read as float64."""
    try:
        return _read(_Lines(read_text(path)))
    except RelutrimError as error:
        raise error if error.where == str(path) else error.at(str(path)) from None


def _read(lines: _Lines) -> Network:
    count, inputs, outputs, _ = lines.whole(4, "number of layers, inputs, outputs, largest layer")
    if count < 1:
        raise lines.error("a network has at least one layer")
    sizes = lines.whole(count + 1, "layer sizes")
    if min(sizes) < 1 or sizes[0] != inputs or sizes[-1] != outputs:
        raise lines.error(f"layer sizes {sizes} do not go with {inputs} inputs and {outputs} outputs")
    lines.skip("unused flag")
    low, high = lines.numbers(inputs, "smallest inputs"), lines.numbers(inputs, "largest inputs")
    if (low > high).any():
        raise lines.error(f"input {int(np.argmax(low > high))} has a smallest value above its largest")
    mean = lines.numbers(inputs + 1, "means of the inputs and of the output")
    spread = lines.numbers(inputs + 1, "ranges of the inputs and of the output")
    if not spread.all():
        raise lines.error("a range of 0 cannot be divided by")

    operators: list[tuple[str, Operator]] = []
    if mean[:-1].any() or (spread[:-1] != 1).any():
        operators.append(("normalise", Scale.normalise(mean[:-1], spread[:-1])))
    for layer, (before, after) in enumerate(pairwise(sizes), start=1):
        what = f"of layer {layer}"
        weight = np.stack([lines.numbers(before, f"weights of neuron {i} {what}") for i in range(after)])
        bias = np.concatenate([lines.numbers(1, f"bias of neuron {i} {what}") for i in range(after)])
        operators.append((f"layer{layer}", Linear(weight, bias)))
        if layer < count:
            operators.append((f"relu{layer}", Relu()))
    if mean[-1] or spread[-1] != 1:
        operators.append(("denormalise", Scale.exactly(spread[-1], mean[-1])))
    lines.finish()

    names = ["input", *(name for name, _ in operators)]
    nodes = (Node(name, operator, (names[i],)) for i, (name, operator) in enumerate(operators))
    limits = {"nnet.input_min": json.dumps(low.tolist()), "nnet.input_max": json.dumps(high.tolist())}
    return Network(Port("input", (inputs,)), tuple(nodes), (Output("output", names[-1]),), "float64", limits)


class _Lines:
    """The lines that matter, one after the other, each with its number in the file."""

    def __init__(self, text: str) -> None:
        numbered = enumerate(text.splitlines(), start=1)
        self._lines = (
            (number, line) for number, line in numbered if line.strip() and not line.lstrip().startswith("//")
        )
        self._number = 0

    def error(self, message: str) -> InputError:
        return InputError(message, where=f"line {self._number}" if self._number else None)

    def skip(self, what: str) -> str:
        number, line = next(self._lines, (0, ""))
        if not number:
            raise InputError(f"the file ends before the {what}; it is not a whole .nnet file")
        self._number = number
        return line

    def numbers(self, count: int, what: str) -> Array:
        fields = [field for field in self.skip(what).split(",") if field.strip()]
        if len(fields) != count:
            raise self.error(f"{len(fields)} number(s) where {count} were expected: {what}")
        try:
            values = [float(field) for field in fields]
        except ValueError as error:
            raise self.error(f"{what}: {error}") from None
        if not all(math.isfinite(value) for value in values):
            raise self.error(f"{what}: NaN or infinity; no statement about such a network can be true")
        return np.array(values)

    def whole(self, count: int, what: str) -> list[int]:
        values = self.numbers(count, what)
        if not (values == np.floor(values)).all() or (np.abs(values) > 2**31).any():
            raise self.error(f"{what}: whole numbers were expected")
        return [int(value) for value in values]

    def finish(self) -> None:
        self._number, _ = next(self._lines, (0, ""))
        if self._number:
            raise self.error("there is more in the file than its header announces")
