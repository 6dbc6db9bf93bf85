"""Functions of each number alone."""

from __future__ import annotations

from relutrim.io.onnx.conversion import Call, Operand, handles
from relutrim.io.onnx.functions import FUNCTIONS
from relutrim.io.tails import TAILS


def function(call: Call) -> Operand:
    """A line of the table; what holds numbers that its operator refuses is opaque."""
    line = FUNCTIONS[call.node.op_type]
    if call.final and call.node.op_type in TAILS:
        return call.step(call.node.op_type)
    numbers = [
        call.text(name, default) if isinstance(default, str) else call.number(name, default)
        for name, default in line.parameters.items()
    ]
    return call.finite(lambda: line.read(call.emit, call.value(0), numbers))


for _kind, _line in FUNCTIONS.items():
    handles(_kind, inputs=(1, 1), attributes=(*_line.parameters,))(function)
