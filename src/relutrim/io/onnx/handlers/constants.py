"""The Constant node in all its spellings."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, TensorProto

from relutrim.errors import InputError, UnsupportedError
from relutrim.io.onnx.conversion import Call, Operand, handles
from relutrim.io.onnx.tensors import Constant

_SPELLINGS = {
    "value": AttributeProto.TENSOR,
    "value_float": AttributeProto.FLOAT,
    "value_floats": AttributeProto.FLOATS,
    "value_int": AttributeProto.INT,
    "value_ints": AttributeProto.INTS,
}


@handles("Constant", inputs=(0, 0), attributes=(*_SPELLINGS, "sparse_value", "value_string", "value_strings"))
def constant(call: Call) -> Operand:
    """A tensor, a number or a list of numbers."""
    if len(call.node.attribute) != 1:
        raise InputError(
            f"a Constant holds one attribute, not {len(call.node.attribute)}; the file is damaged"
        )
    (attribute,) = call.node.attribute
    if attribute.name not in _SPELLINGS:
        raise UnsupportedError(f"it is given as {attribute.name!r}; export it as a dense tensor of numbers")
    if attribute.type != _SPELLINGS[attribute.name]:
        raise InputError(f"its attribute {attribute.name!r} has the wrong type; the file is damaged")
    if attribute.name == "value":
        return Constant.stored(call.output, attribute.t)
    if attribute.name == "value_float":
        return Constant(call.output, TensorProto.FLOAT, np.array(attribute.f, np.float32))
    if attribute.name == "value_floats":
        return Constant(call.output, TensorProto.FLOAT, np.array(attribute.floats, np.float32))
    if attribute.name == "value_int":
        return Constant(call.output, TensorProto.INT64, np.array(attribute.i, np.int64))
    return Constant(call.output, TensorProto.INT64, np.array(attribute.ints, np.int64))
