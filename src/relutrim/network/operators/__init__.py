"""The operators. All but :class:`Relu` and :class:`MaxPool` are affine."""

from relutrim.network.operators.add import Add
from relutrim.network.operators.base import Affine, Array, Operator, Shape
from relutrim.network.operators.convolution import Convolution
from relutrim.network.operators.linear import Linear
from relutrim.network.operators.maxpool import MaxPool
from relutrim.network.operators.moving import Concat, Take, Transpose
from relutrim.network.operators.pool import AveragePool, Mean
from relutrim.network.operators.relu import Relu
from relutrim.network.operators.reshape import Reshape
from relutrim.network.operators.scale import Scale

__all__ = [
    "Add",
    "Affine",
    "Array",
    "AveragePool",
    "Concat",
    "Convolution",
    "Linear",
    "MaxPool",
    "Mean",
    "Operator",
    "Relu",
    "Reshape",
    "Scale",
    "Shape",
    "Take",
    "Transpose",
]
