"""The operators. All but :class:`Relu`, :class:`MaxPool` and the barriers are affine."""

from relutrim.network.operators.add import Add
from relutrim.network.operators.barrier import Barrier, Curve
from relutrim.network.operators.base import Affine, Array, Operator, Shape
from relutrim.network.operators.convolution import Convolution
from relutrim.network.operators.curves import Elu, Erf, Gelu, HardSwish, Mish, Sigmoid, Silu, Softplus, Tanh
from relutrim.network.operators.linear import Linear
from relutrim.network.operators.maxpool import MaxPool
from relutrim.network.operators.moving import Concat, Take, Transpose
from relutrim.network.operators.pool import AveragePool, Mean
from relutrim.network.operators.relu import Relu
from relutrim.network.operators.reshape import Reshape
from relutrim.network.operators.scale import Scale
from relutrim.network.operators.softmax import Softmax

__all__ = [
    "Add",
    "Affine",
    "Array",
    "AveragePool",
    "Barrier",
    "Concat",
    "Convolution",
    "Curve",
    "Elu",
    "Erf",
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
