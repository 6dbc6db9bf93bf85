"""ONNX's functions of each number alone. A line with an operator of the graph reads and writes it."""

from __future__ import annotations

from relutrim.graph.operators import Relu
from relutrim.graph.operators.curves import Atan, Elu, Erf, Gelu, HardSwish, Mish, Sigmoid, Softplus, Tanh
from relutrim.io import piecewise
from relutrim.io.activations import Function, celu, elu

FUNCTIONS = {
    "Relu": Function(Relu),
    "Sigmoid": Function(Sigmoid),
    "Tanh": Function(Tanh),
    "Softplus": Function(Softplus),
    "HardSwish": Function(HardSwish),
    "Erf": Function(Erf),
    "Atan": Function(Atan),
    "Mish": Function(Mish),
    "Elu": Function(Elu, alpha=1.0),
    "Selu": Function(elu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Celu": Function(celu, alpha=1.0),
    "Gelu": Function(Gelu, approximate="none"),
    "LeakyRelu": Function(piecewise.leaky_relu, alpha=0.01),
    "HardSigmoid": Function(piecewise.hard_sigmoid, alpha=0.2, beta=0.5),
    "Shrink": Function(piecewise.shrink, bias=0.0, lambd=0.5),
    "Abs": Function(piecewise.absolute),
    "Neg": Function(piecewise.negative),
}
