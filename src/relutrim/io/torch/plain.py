"""Functions of each number alone that ATen has under one name and without parameters, read and written."""

from __future__ import annotations

from relutrim.graph.operators import Operator, Relu
from relutrim.graph.operators.curves import Atan, Erf, HardSwish, Mish, Silu

PLAIN: dict[str, type[Operator]] = {
    "relu": Relu,
    "silu": Silu,
    "hardswish": HardSwish,
    "mish": Mish,
    "erf": Erf,
    "atan": Atan,
}
