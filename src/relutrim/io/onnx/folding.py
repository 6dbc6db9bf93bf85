"""Sizes computed from sizes: what exporters spell out in nodes, carried out on constants where nothing can
round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto

from relutrim.errors import UnsupportedError
from relutrim.io.onnx.conversion import Call, Conversion
from relutrim.io.onnx.tensors import BATCH_SIZE, Constant

_Array: TypeAlias = npt.NDArray[Any]
_NUMBERS: dict[str, Callable[..., _Array]] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}
_TRUTHS: dict[str, Callable[..., _Array]] = {
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
}
_INTEGERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)


def folded(call: Call) -> Constant | None:
    """What a node makes of integers that are constants; None if it does something else."""
    kind = call.node.op_type
    given = [call.graph.tensors.get(name) for name in call.node.input]
    known = [one for one in given if isinstance(one, Constant) and one.kind in _INTEGERS]
    if not known or len(known) < len(given) or kind not in (*_NUMBERS, *_TRUTHS, "Div", "Where"):
        return None
    arrays = [one.array for one in known]
    if any((array == BATCH_SIZE).any() for array in arrays):
        raise UnsupportedError("it computes with the batch size, which is open")
    call.graph.room.take(np.broadcast_shapes(*(array.shape for array in arrays)), "it makes a constant")
    if kind == "Where":
        return Constant(call.output, known[1].kind, np.where(*arrays))
    if kind == "Div":
        if (arrays[0] < 0).any() or (arrays[1] <= 0).any():
            raise UnsupportedError("it divides integers that are not positive, which it may round up or down")
        return Constant(call.output, known[0].kind, np.asarray(arrays[0] // arrays[1]))
    if kind in _TRUTHS:
        return Constant(call.output, TensorProto.BOOL, np.asarray(_TRUTHS[kind](*arrays)))
    return Constant(call.output, known[0].kind, np.asarray(_NUMBERS[kind](*arrays)))


def picks_first(conversion: Conversion, node: NodeProto, sizes: str) -> bool:
    """Whether a node takes nothing but the first of the sizes that it reads."""
    given = [conversion.tensors.get(name) for name in node.input[1:]]
    lists = [one.array.reshape(-1).tolist() for one in given if isinstance(one, Constant)]
    if list(node.input).count(sizes) != 1 or node.input[0] != sizes or len(lists) < len(given):
        return False
    if node.op_type == "Gather":
        return set(lists[0]) == {0}
    return node.op_type == "Slice" and lists in ([[0], [1]], [[0], [1], [0]], [[0], [1], [0], [1]])
