"""The operators, one per file. All but :class:`Relu` are affine."""

from relutrim.network.operators.add import Add
from relutrim.network.operators.base import Affine, Array, Operator, Shape
from relutrim.network.operators.linear import Linear
from relutrim.network.operators.relu import Relu
from relutrim.network.operators.reshape import Reshape
from relutrim.network.operators.scale import Scale

__all__ = ["Add", "Affine", "Array", "Linear", "Operator", "Relu", "Reshape", "Scale", "Shape"]
