"""What is not piecewise linear and stands within the network: read as it is, and written as it is."""

from __future__ import annotations

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.graph import Elu, Gelu, Mish, Node, Scale, Softmax
from relutrim.graph.origin import Origin
from relutrim.io.inner import inner
from relutrim.io.onnx.conversion import BatchAxisError, Call, Conversion, Operand, Tail, Value, handles
from relutrim.io.onnx.plain import PLAIN

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@handles(*PLAIN, inputs=(1, 1))
def plain(call: Call) -> Operand:
    """A function of each number alone, without parameters."""
    return call.emit(PLAIN[call.node.op_type](), call.value(0))


@handles("Mish", inputs=(1, 1))
def mish(call: Call) -> Operand:
    """``x tanh(softplus(x))``, which is written as that."""
    return call.emit(Mish(), call.value(0))


@handles("Elu", inputs=(1, 1), attributes=("alpha",))
def elu(call: Call) -> Operand:
    """``x`` where positive, else ``alpha (exp(x) - 1)``."""
    alpha = call.number("alpha", 1.0)
    return call.emit(call.finite(lambda: Elu(alpha)), call.value(0))


@handles("Selu", inputs=(1, 1), attributes=("alpha", "gamma"))
def selu(call: Call) -> Operand:
    """``gamma`` times an Elu."""
    alpha, gamma = call.number("alpha", _SELU_ALPHA), call.number("gamma", _SELU_GAMMA)
    curve = call.finite(lambda: Elu(alpha))
    return call.chain(call.value(0), [curve, Scale.exactly(gamma)])


@handles("Celu", inputs=(1, 1), attributes=("alpha",))
def celu(call: Call) -> Operand:
    """``alpha elu(x / alpha)``."""
    alpha = call.number("alpha", 1.0)
    if alpha == 1:
        return call.emit(Elu(), call.value(0))
    if not alpha > 0:
        raise UnsupportedError(f"its alpha is {alpha}; only positive ones make a function that rises")
    return call.chain(call.value(0), [Scale.divide(np.asarray(alpha)), Elu(), Scale.exactly(alpha)])


@handles("Gelu", inputs=(1, 1), attributes=("approximate",))
def gelu(call: Call) -> Operand:
    """``x / 2 (1 + erf(x / sqrt(2)))``."""
    if (how := call.text("approximate", "none")) != "none":
        raise UnsupportedError(f"it is the approximation {how!r}, which relutrim does not represent")
    return call.emit(Gelu(), call.value(0))


def within(graph: Conversion, name: str) -> None:
    """Make nodes of a tail that something reads: it is no tail then."""
    tail = graph.tensors.get(name)
    if not isinstance(tail, Tail):
        return
    value = tail.source
    for step in tail.steps:
        made = graph.tensors.get(step.name)
        if isinstance(made, Value):
            value = made
        elif step.kind == "Identity":
            graph.settle(step.name, value, set(), step.name)
            value = Value(step.name, value.shape)
        else:
            operator = inner(step, len(value.shape), batched=graph.batched, origin=tail.origin)
            if isinstance(operator, Softmax) and operator.axis < 0:
                raise BatchAxisError(f"it reads what {tail.origin} makes, a softmax along the batch axis")
            graph.nodes[step.name] = Node(step.name, operator, (value.name,), Origin((step.name,)))
            graph.given[step.name] = frozenset()
            graph.shapes[step.name] = value.shape
            value = Value(step.name, value.shape)
            graph.tensors[step.name] = value
