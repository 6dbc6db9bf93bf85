"""Tensors stored in a model file, checked before numpy allocates anything for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from relutrim.errors import InputError, UnsupportedError

FLOATS = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"}
"""The types weights may have: their numbers are float64 numbers too."""

BATCH_SIZE = 12345 - 2**63
"""Stands for an open batch size among the sizes that a constant lists. It is no size; where a file holds the
number itself, that is taken for unknown, too.
"""

MOST_AXES = 32
"""What numpy allows in every supported version."""

_LONGEST_EMPTY = 2**24
"""How long an axis of a tensor without numbers may be; it costs nothing in the file, but memory here."""

# Element type -> (bytes per element in raw_data, the field that holds elements otherwise).
STORED = {
    TensorProto.FLOAT: (4, "float_data"),
    TensorProto.DOUBLE: (8, "double_data"),
    TensorProto.INT64: (8, "int64_data"),
    TensorProto.INT32: (4, "int32_data"),
    TensorProto.BOOL: (1, "int32_data"),
}


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that does not depend on the input. ``kind`` is its ONNX element type."""

    name: str
    kind: int
    tensor: onnx.TensorProto | npt.NDArray[Any]

    @classmethod
    def stored(cls, name: str, tensor: onnx.TensorProto) -> Constant:
        """A tensor of the file; it is decoded when it is first needed, so unused ones may be anything."""
        return cls(name, tensor.data_type, tensor)

    @cached_property
    def array(self) -> npt.NDArray[Any]:
        """The numbers."""
        if isinstance(self.tensor, np.ndarray):
            return self.tensor
        return decode(self.tensor, self.name)

    @property
    def type_name(self) -> str:
        """The element type in words."""
        return type_name(self.kind)


def type_name(kind: int) -> str:
    """An ONNX element type in words."""
    if kind in FLOATS:
        return FLOATS[kind]
    if kind in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(kind)).lower()
    return f"of the unknown type {kind}"


def decode(tensor: onnx.TensorProto, name: str) -> npt.NDArray[Any]:
    """The numbers of a stored tensor; its shape must agree with how much data there is."""
    where = f"tensor {name!r}"
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise UnsupportedError("its data lies in another file", where=where)
    if tensor.HasField("segment"):
        raise UnsupportedError("it is stored in segments", where=where)
    if tensor.data_type not in STORED:
        raise UnsupportedError(f"it is {type_name(tensor.data_type)}", where=where)
    shape = tuple(int(size) for size in tensor.dims)
    if len(shape) > MOST_AXES or any(size < 0 for size in shape):
        raise InputError(
            f"its shape {shape[:MOST_AXES]} is not one a tensor can have; the file is damaged", where=where
        )
    if not math.prod(shape) and max(shape) > _LONGEST_EMPTY:
        raise InputError(f"it holds no numbers, yet has the shape {shape}; the file is damaged", where=where)
    width, field = STORED[tensor.data_type]
    others = [name for name in _DATA_FIELDS if name != field and len(getattr(tensor, name))]
    raw = tensor.HasField("raw_data")
    held = len(tensor.raw_data) / width if raw else len(getattr(tensor, field))
    if others or (raw and len(getattr(tensor, field))):
        raise InputError("its data is stored twice over; the file is damaged", where=where)
    if held != math.prod(shape):
        raise InputError(
            f"its shape {shape} needs {math.prod(shape)} numbers and {held:g} are stored; the file is "
            "damaged",
            where=where,
        )
    array: npt.NDArray[Any] = np.asarray(numpy_helper.to_array(tensor))
    return array


_DATA_FIELDS = sorted({field for _, field in STORED.values()} | {"uint64_data", "string_data"})
