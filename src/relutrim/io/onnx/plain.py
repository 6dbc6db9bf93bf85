"""Functions of each number alone that ONNX has under one name and without parameters, read and written."""

from __future__ import annotations

from relutrim.graph.operators import Operator, Relu
from relutrim.graph.operators.curves import Atan, Erf, HardSwish, Softplus

PLAIN: dict[str, type[Operator]] = {
    "Relu": Relu,
    "Softplus": Softplus,
    "HardSwish": HardSwish,
    "Erf": Erf,
    "Atan": Atan,
}
