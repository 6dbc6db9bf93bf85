"""How functions that are not piecewise linear are spelt in ONNX of opset 17."""

from __future__ import annotations

from typing import Any

import numpy as np

from relutrim.formats.onnx.emission import Emission, spells
from relutrim.network import (
    Elu,
    Erf,
    Gelu,
    HardSwish,
    Mish,
    Node,
    Operator,
    Sigmoid,
    Silu,
    Softmax,
    Softplus,
    Tanh,
)


def _plain(kind: type[Operator]) -> None:
    """A function that ONNX has under the same name."""

    @spells(kind)
    def spell(emission: Emission, node: Node, operator: Operator) -> None:
        emission.steps(node, [(operator.kind, [], {})])


for _kind in (Sigmoid, Tanh, Erf, Softplus, HardSwish):
    _plain(_kind)


@spells(Softmax)
def softmax(emission: Emission, node: Node, operator: Softmax) -> None:
    """Softmax; the file counts the batch axis."""
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
    """``x (1 + erf(x / sqrt(2))) / 2``: the operator is younger than the opset."""
    x, name = emission.tensor(node.inputs[0]), emission.tensor(node.name)
    root, one, half = (
        emission.weights(f"{name}.{word}", np.array(number))
        for word, number in (("root", np.sqrt(2.0)), ("one", 1.0), ("half", 0.5))
    )
    steps: list[tuple[str, list[str], dict[str, Any]]] = [
        ("Div", [root], {}),
        ("Erf", [], {}),
        ("Add", [one], {}),
        ("Mul", [x], {}),
        ("Mul", [half], {}),
    ]
    emission.steps(node, steps)
