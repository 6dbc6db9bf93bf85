"""How each operator of a network is spelt in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from relutrim.errors import UnsupportedError
from relutrim.graph import Add, Fresh, Gelu, Linear, Network, Node, Operator, Reshape, Scale
from relutrim.graph.operators import Shape
from relutrim.io.sizes import stored

_USUAL, _WITH_GELU = (17, 8), (20, 9)
"""Operator set and IR version: as old as can be, and the first that have the operator Gelu. Spelt out it
would need the root of 2, which no file can hold.
"""

_SINCE = {"Sum": 8, "Erf": 9, "HardSwish": 14, "Gelu": 20}
"""The first operator set that has an operator as it is written here; of all others, 7."""


class Emission:
    """The nodes and tensors of an ONNX graph in the making; ``names`` are the tensors that values are.

    Nodes for a model that there is are written in its operator set ``opset``; ``fresh`` gives them names
    that are not in use there, and ``stock`` are tensors that it holds already, by what they hold.
    """

    def __init__(
        self,
        network: Network,
        names: Mapping[str, str],
        opset: int | None = None,
        fresh: Callable[[str], str] | None = None,
        stock: Mapping[Content, str] | None = None,
    ) -> None:
        self.network = network
        self.batched = network.input.batch is not None
        young = any(isinstance(node.operator, Gelu) and node.operator.spelt is None for node in network)
        usual, self.ir_version = _WITH_GELU if young else _USUAL
        self.opset = usual if opset is None else opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._names = names
        self._taken = {*names.values(), *(output.name for output in network.outputs)}
        self._fresh, self._stock = fresh, dict(stock or {})

    def tensor(self, value: str) -> str:
        """The tensor that a value of the network is."""
        return self._names[value]

    def rank(self, value: str) -> int:
        """How many axes a value has in the file."""
        return len(self.network.shapes[value]) + self.batched

    def fresh(self, stem: str) -> str:
        """A tensor name that is not in use."""
        return free(stem, self._taken) if self._fresh is None else self._fresh(stem)

    def weights(self, name: str, numbers: npt.NDArray[np.float64]) -> str:
        """Store numbers in the network's type."""
        return self._store(name, stored(numbers, self.network.dtype))

    def shape(self, name: str, sizes: Shape) -> str:
        """Store a shape."""
        return self._store(name, np.array(sizes, np.int64))

    def indices(self, name: str, numbers: npt.NDArray[np.int64]) -> str:
        """Store indices of an axis, which is never so long that 32 bits would not do."""
        return self._store(name, numbers.astype(np.int32))

    def _store(self, name: str, array: npt.NDArray[Any]) -> str:
        known = self._stock.get(content(array))
        if known is not None:
            return known
        name = self.fresh(name)
        self.initializers.append(numpy_helper.from_array(array, name))
        if self.network.shared:  # what several nodes read of one tensor is stored once
            self._stock[content(array)] = name
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> None:
        """Add a node, named after what it makes."""
        if self.opset < _SINCE.get(kind, 7):
            raise UnsupportedError(
                f"operator set {self.opset} has no {kind}; export the model with a newer one"
            )
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))

    def on_images(self, node: Node, kind: str, inputs: list[str], attributes: dict[str, Any]) -> None:
        """A node on (batch, channels, *space); where there is no batch axis, one is put there for it."""
        steps: list[tuple[str, list[str], dict[str, Any]]] = [(kind, inputs, attributes)]
        if not self.batched:
            named, inner = {"axes": [0]}, list[str]()
            if self.opset >= 13:
                named, inner = {}, [self.shape(f"{self.tensor(node.name)}.batch_axis", (0,))]
            steps = [("Unsqueeze", inner, named), *steps, ("Squeeze", inner, named)]
        self.steps(node, steps)

    def steps(self, node: Node, steps: list[tuple[str, list[str], dict[str, Any]]]) -> None:
        """Nodes in a row from the first input of ``node`` to its result: (kind, more inputs, attributes)."""
        current, result = self.tensor(node.inputs[0]), self.tensor(node.name)
        for index, (kind, inputs, attributes) in enumerate(steps):
            made = result if index == len(steps) - 1 else self.fresh(f"{result}/{kind.lower()}")
            self.node(kind, [current, *inputs], made, **attributes)
            current = made


Content: TypeAlias = tuple[str, Shape, bytes]
"""What a tensor holds: type, shape, numbers."""


def content(array: npt.NDArray[Any]) -> Content:
    """What tells an array from others."""
    return array.dtype.str, array.shape, array.tobytes()


def free(stem: str, taken: set[str]) -> str:
    """A name like ``stem`` that is not taken; it is from now on."""
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


SPELLINGS: dict[type[Operator], Callable[[Emission, Node, Any], None]] = {}
"""How each operator is written."""


def emit(emission: Emission, node: Node) -> None:
    """Write one node of a network."""
    spell = SPELLINGS.get(type(node.operator))
    if isinstance(node.operator, Fresh):
        raise UnsupportedError(
            "only the model itself knows how it is computed, so it cannot be written as ONNX; export the "
            "model to ONNX yourself (torch.onnx.export) and take that file instead"
        )
    if spell is None:
        raise UnsupportedError(f"the operator {node.operator.kind} cannot be written as ONNX")
    spell(emission, node, node.operator)


def spells(
    kind: type[Operator],
) -> Callable[[Callable[[Emission, Node, Any], None]], Callable[[Emission, Node, Any], None]]:
    """Register how an operator is written."""

    def register(spell: Callable[[Emission, Node, Any], None]) -> Callable[[Emission, Node, Any], None]:
        if kind in SPELLINGS:
            raise ValueError(f"there already is a spelling of {kind.__name__}")
        SPELLINGS[kind] = spell
        return spell

    return register


@spells(Linear)
def linear(emission: Emission, node: Node, operator: Linear) -> None:
    """Gemm on matrices, MatMul and Add on everything else."""
    name = emission.tensor(node.name)
    if emission.rank(node.inputs[0]) == 2:
        weight = emission.weights(f"{name}.weight", operator.weight)
        bias = emission.weights(f"{name}.bias", operator.bias)
        emission.steps(node, [("Gemm", [weight, bias], {"alpha": 1.0, "beta": 1.0, "transB": 1})])
        return
    steps: list[tuple[str, list[str], dict[str, Any]]] = []
    steps.append(("MatMul", [emission.weights(f"{name}.weight", operator.weight.T)], {}))
    if operator.bias.any():
        steps.append(("Add", [emission.weights(f"{name}.bias", operator.bias)], {}))
    emission.steps(node, steps)


@spells(Scale)
def scale(emission: Emission, node: Node, operator: Scale) -> None:
    """Mul and Add, each only where it does something; or Div."""
    name = emission.tensor(node.name)
    steps: list[tuple[str, list[str], dict[str, Any]]] = []
    divisor = operator.divisor(emission.network.dtype)
    if divisor is not None:
        return emission.steps(node, [("Div", [emission.weights(f"{name}.divisor", divisor)], {})])
    if (operator.scale != 1).any():
        steps.append(("Mul", [emission.weights(f"{name}.scale", operator.scale)], {}))
    if operator.shift.any():
        steps.append(("Add", [emission.weights(f"{name}.shift", operator.shift)], {}))
    return emission.steps(node, steps or [("Identity", [], {})])


@spells(Reshape)
def reshape(emission: Emission, node: Node, operator: Reshape) -> None:
    """Identity, Flatten or Reshape, whichever says least."""
    name = emission.tensor(node.name)
    if operator.before == operator.after:
        emission.steps(node, [("Identity", [], {})])
    elif emission.batched and len(operator.after) == 1:
        emission.steps(node, [("Flatten", [], {"axis": 1})])
    elif 0 in operator.after:
        _empty_reshape(emission, node, operator)
    else:
        # A leading 0 copies the batch axis, whatever its length.
        sizes = ((0,) if emission.batched else ()) + operator.after
        emission.steps(node, [("Reshape", [emission.shape(f"{name}.shape", sizes)], {})])


def _empty_reshape(emission: Emission, node: Node, operator: Reshape) -> None:
    """A tensor without numbers: 0 must mean 0, so that only a batch of known length can be named."""
    batch = emission.network.input.batch
    if isinstance(batch, str):
        raise UnsupportedError(
            f"an empty value cannot be given the shape {operator.after} with an open batch axis; remove it "
            "from the network"
        )
    sizes = (() if batch is None else (batch,)) + operator.after
    shape = emission.shape(f"{emission.tensor(node.name)}.shape", sizes)
    emission.steps(node, [("Reshape", [shape], {"allowzero": 1})])


@spells(Add)
def add(emission: Emission, node: Node, operator: Add) -> None:
    """Add for two values, Sum for more."""
    others = [emission.tensor(name) for name in node.inputs[1:]]
    emission.steps(node, [({1: "Identity", 2: "Add"}.get(operator.count, "Sum"), others, {})])
