"""The operators. All but :class:`Relu`, :class:`MaxPool` and the barriers are affine."""

from relutrim.graph.operators.add import Add
from relutrim.graph.operators.affine import Affine
from relutrim.graph.operators.barrier import Barrier, Curve
from relutrim.graph.operators.base import Array, Operator, Shape
from relutrim.graph.operators.convolution import Convolution
from relutrim.graph.operators.curves import Elu, Erf, Gelu, HardSwish, Mish, Sigmoid, Silu, Softplus, Tanh
from relutrim.graph.operators.fresh import Fresh
from relutrim.graph.operators.linear import Linear
from relutrim.graph.operators.maxpool import MaxPool
from relutrim.graph.operators.moving import Concat, Reshape, Take, Transpose
from relutrim.graph.operators.pool import AveragePool, Mean
from relutrim.graph.operators.relu import Relu
from relutrim.graph.operators.scale import BatchNorm, Scale
from relutrim.graph.operators.softmax import Softmax

__all__ = [
    "Add",
    "Affine",
    "Array",
    "AveragePool",
    "Barrier",
    "BatchNorm",
    "Concat",
    "Convolution",
    "Curve",
    "Elu",
    "Erf",
    "Fresh",
    "Gelu",
    "HardSwish",
    "Linear",
    "MaxPool",
    "Mean",
    "Mish",
    "Operator",
    "Relu",
    "Reshape",
    "Scale",
    "Shape",
    "Sigmoid",
    "Silu",
    "Softmax",
    "Softplus",
    "Take",
    "Tanh",
    "Transpose",
]
