"""The Constant node in all its spellings."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, TensorProto, helper

from relutrim.errors import InputError, UnsupportedError
from relutrim.io.onnx.conversion import Call, Operand, handles
from relutrim.io.onnx.tensors import Constant

_NUMBERS = {
    "value_float": (AttributeProto.FLOAT, TensorProto.FLOAT),
    "value_floats": (AttributeProto.FLOATS, TensorProto.FLOAT),
    "value_int": (AttributeProto.INT, TensorProto.INT64),
    "value_ints": (AttributeProto.INTS, TensorProto.INT64),
}


@handles(
    "Constant",
    inputs=(0, 0),
    attributes=("value", *_NUMBERS, "sparse_value", "value_string", "value_strings"),
)
def constant(call: Call) -> Operand:
    """A tensor, a number or a list of numbers."""
    if len(call.node.attribute) != 1:
        raise InputError(
            f"a Constant holds one attribute, not {len(call.node.attribute)}; the file is damaged"
        )
    (attribute,) = call.node.attribute
    if attribute.name not in ("value", *_NUMBERS):
        raise UnsupportedError(f"it is given as {attribute.name!r}; export it as a dense tensor of numbers")
    wanted, kind = _NUMBERS.get(attribute.name, (AttributeProto.TENSOR, TensorProto.UNDEFINED))
    if attribute.type != wanted:
        raise InputError(f"its attribute {attribute.name!r} has the wrong type; the file is damaged")
    if attribute.name == "value":
        return Constant.stored(call.output, attribute.t)
    numbers = np.array(helper.get_attribute_value(attribute), helper.tensor_dtype_to_np_dtype(kind))
    return Constant(call.output, kind, numbers)
