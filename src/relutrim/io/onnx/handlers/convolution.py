"""Conv and ConvTranspose with constant kernels."""

from __future__ import annotations

import numpy as np

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph.operators import Array, Convolution
from relutrim.graph.origin import Stored
from relutrim.io.onnx.conversion import Call, Operand, handles
from relutrim.io.onnx.handlers.spatial import as_tensor, image, windows
from relutrim.io.transposed import spread_out

_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


@handles("Conv", inputs=(2, 3), attributes=_ATTRIBUTES)
def convolution(call: Call) -> Operand:
    """A convolution with zero padding."""
    value, weight, groups = image(call), _kernel(call), call.integer("group", 1)
    if not 1 <= groups <= weight.shape[0] or weight.shape[0] % groups:
        raise NetworkError(f"{weight.shape[0]} output channels cannot be split into {groups} groups")
    if value.shape[0] != weight.shape[1] * groups:
        raise NetworkError(
            f"a kernel of shape {weight.shape} in {groups} group(s) reads {weight.shape[1] * groups} "
            f"channels and meets a value of shape {value.shape}"
        )
    found = windows(call, value.shape, weight.shape[2:])
    bias, stored = _bias(call, weight.shape[0])
    operator = Convolution(weight, bias, found.stride, found.padding, found.dilation, groups)
    return as_tensor(call, call.emit(operator, value, weight=call.where(weight), **stored))


@handles("ConvTranspose", inputs=(2, 3), attributes=(*_ATTRIBUTES, "output_padding", "output_shape"))
def transposed(call: Call) -> Operand:
    """A transposed convolution: a plain one over a value with zeros between its entries."""
    value, weight, groups = image(call), _kernel(call), call.integer("group", 1)
    axes = len(value.shape) - 1
    if call.text("auto_pad", "NOTSET") != "NOTSET" or call.integer_list("output_shape") is not None:
        raise UnsupportedError(
            "its padding follows from a wanted output shape (auto_pad, output_shape), which runtimes "
            "disagree about; export the model with pads"
        )
    pads = call.integer_list("pads") or (0,) * (2 * axes)
    stride, dilation = (call.integer_list(name) or (1,) * axes for name in ("strides", "dilations"))
    extra = call.integer_list("output_padding") or (0,) * axes
    if len(pads) != 2 * axes:
        raise NetworkError(f"its pads {pads} should be {2 * axes} numbers for {axes} spatial axes")
    if any(more >= step for more, step in zip(extra, stride, strict=False)):
        raise UnsupportedError(
            f"its output_padding {extra} is not less than its strides {stride}, which runtimes refuse; pad "
            "its result instead"
        )
    padding = tuple(zip(pads[:axes], pads[axes:], strict=True))
    bias, stored = _bias(call, weight.shape[1] * groups)
    *before, plain = spread_out(
        value.shape,
        weight,
        lambda _: bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=extra,
        groups=groups,
    )
    kernel = call.where(weight.swapaxes(0, 1), 0.0) if groups == 1 else None
    made = call.emit(plain, call.chain(value, before), weight=kernel, **stored)
    return as_tensor(call, made)


def _kernel(call: Call) -> Array:
    weight = call.weights(1)
    if weight.ndim not in (3, 4):
        raise UnsupportedError(
            f"its kernel has the shape {weight.shape}; relutrim represents convolutions along 1 or 2 axes"
        )
    said = call.integer_list("kernel_shape")
    if said is not None and said != weight.shape[2:]:
        raise NetworkError(f"its kernel_shape {said} is not that of its kernel, {weight.shape}")
    return weight


def _bias(call: Call, outputs: int) -> tuple[Array, dict[str, Stored | None]]:
    """The bias, and where it is stored if there is one."""
    if not call.has(2):
        return np.zeros(max(outputs, 0)), {}
    bias = call.weights(2)
    if bias.shape != (outputs,):
        raise NetworkError(f"its bias of shape {bias.shape} does not go with {outputs} output channels")
    return bias, {"bias": call.where(bias)}
