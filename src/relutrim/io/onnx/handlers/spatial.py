"""What convolutions and poolings share: values as (channels, *space), and windows as attributes say them."""

from __future__ import annotations

from dataclasses import dataclass

from relutrim.errors import InputError, NetworkError, UnsupportedError
from relutrim.graph.operators import Shape
from relutrim.graph.operators.convolution import Padding
from relutrim.io.onnx.conversion import Call, Value
from relutrim.io.windows import check_steps, check_windows, same_padding


def image(call: Call, index: int = 0) -> Value:
    """An input as (channels, *space). Where the file has no batch axis, the first axis must have length 1."""
    value = call.value(index)
    if call.batched:
        if not value.shape:
            raise NetworkError("it reads a tensor without channels")
        return value
    if len(value.shape) < 2 or value.shape[0] != 1:
        raise UnsupportedError(
            f"it reads a tensor of shape {value.shape} in a model whose first axis is no batch; relutrim "
            "represents that only for a first axis of 1"
        )
    return call.reshaped(value, value.shape[1:])


def as_tensor(call: Call, made: Value) -> Value:
    """The way back from (channels, *space) to the tensor of the file."""
    return made if call.batched else call.reshaped(made, (1, *made.shape))


@dataclass(frozen=True)
class Windows:
    """Where the windows lie along each spatial axis."""

    kernel: Shape
    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]


def windows(call: Call, shape: Shape, kernel: Shape) -> Windows:
    """Strides, dilations and padding of a node that reads a value of ``shape``, checked."""
    axes = len(shape) - 1
    stride, dilation = (call.integer_list(name) or (1,) * axes for name in ("strides", "dilations"))
    pads, way = call.integer_list("pads"), call.text("auto_pad", "NOTSET")
    check_steps(axes, kernel, stride, dilation)
    if way == "NOTSET":
        pads = (0,) * (2 * axes) if pads is None else pads
        if len(pads) != 2 * axes:
            raise NetworkError(f"its pads {pads} should be {2 * axes} numbers for {axes} spatial axes")
        padding: Padding = tuple(zip(pads[:axes], pads[axes:], strict=True))
    elif pads is not None and any(pads):
        raise InputError(f"it has both auto_pad={way} and pads {pads}, of which ONNX allows one")
    elif way == "VALID":
        padding = ((0, 0),) * axes
    elif way in ("SAME_UPPER", "SAME_LOWER"):
        if any(step != 1 for step in dilation):
            raise UnsupportedError(
                f"it has auto_pad={way} and dilations {dilation}, which runtimes refuse together; export "
                "the model with pads"
            )
        padding = same_padding(shape[1:], kernel, stride, dilation, upper=way == "SAME_UPPER")
    else:
        raise InputError(f"its auto_pad is {way!r}, which ONNX does not know; the file is damaged")
    check_windows(shape, kernel, stride, padding, dilation)
    return Windows(kernel, stride, padding, dilation)
