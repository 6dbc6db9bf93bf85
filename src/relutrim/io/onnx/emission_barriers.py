"""How functions that are not piecewise linear are spelt in ONNX of opset 17."""

from __future__ import annotations

from typing import Any

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.graph import Elu, Gelu, Mish, Node, Operator, Silu, Softmax
from relutrim.io.activations import table
from relutrim.io.onnx.emission import SPELLINGS, Emission, spells
from relutrim.io.onnx.functions import FUNCTIONS


@spells(Softmax)
def softmax(emission: Emission, node: Node, operator: Softmax) -> None:
    """Softmax; the file counts the batch axis. Before opset 13 it runs along all axes from one on."""
    if emission.opset < 13 and operator.axis + emission.batched != emission.rank(node.name) - 1:
        raise UnsupportedError(f"a Softmax along one axis of several is not in operator set {emission.opset}")
    emission.steps(node, [("Softmax", [], {"axis": operator.axis + emission.batched})])


@spells(Elu)
def elu(emission: Emission, node: Node, operator: Elu) -> None:
    """Elu. Attributes are float32 whatever the file's type is: a factor that this would round is a weight,
    of a PRelu behind the plain function.
    """
    if float(np.float32(operator.alpha)) == operator.alpha:
        emission.steps(node, [("Elu", [], {"alpha": operator.alpha})])
        return
    alpha = emission.weights(f"{emission.tensor(node.name)}.alpha", np.array([operator.alpha]))
    emission.steps(node, [("Elu", [], {"alpha": 1.0}), ("PRelu", [alpha], {})])


@spells(Silu)
def silu(emission: Emission, node: Node, operator: Silu) -> None:
    """``x sigmoid(x)``."""
    x = emission.tensor(node.inputs[0])
    emission.steps(node, [("Sigmoid", [], {}), ("Mul", [x], {})])


@spells(Mish)
def mish(emission: Emission, node: Node, operator: Mish) -> None:
    """``x tanh(softplus(x))``: the operator is younger than the opset."""
    x = emission.tensor(node.inputs[0])
    emission.steps(node, [("Softplus", [], {}), ("Tanh", [], {}), ("Mul", [x], {})])


@spells(Gelu)
def gelu(emission: Emission, node: Node, operator: Gelu) -> None:
    """Gelu, or ``x (1 + erf(x / root)) / 2`` with the number that it was read with."""
    if operator.spelt is None:
        _function(emission, node, operator)
        return
    x, name = emission.tensor(node.inputs[0]), emission.tensor(node.name)
    kind, number = operator.spelt
    root, one, half = (
        emission.weights(f"{name}.{word}", np.array(number))
        for word, number in (("root", number), ("one", 1.0), ("half", 0.5))
    )
    steps: list[tuple[str, list[str], dict[str, Any]]] = [
        (kind, [root], {}),
        ("Erf", [], {}),
        ("Add", [one], {}),
        ("Mul", [x], {}),
        ("Mul", [half], {}),
    ]
    emission.steps(node, steps)


def _function(emission: Emission, node: Node, operator: Operator) -> None:
    """What a line of the table says."""
    kind = _NAMES[type(operator)]
    said = FUNCTIONS[kind].written(operator)
    for name, number in said.items():
        if not isinstance(number, str) and float(np.float32(number)) != number:
            raise UnsupportedError(f"a file has float32 for the {name} of {kind}, which rounds {number}")
    emission.steps(node, [(kind, [], said)])


_NAMES = table(FUNCTIONS)
for _kind in _NAMES:
    SPELLINGS.setdefault(_kind, _function)
