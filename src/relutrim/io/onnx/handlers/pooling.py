"""AveragePool, MaxPool, and their global forms."""

from __future__ import annotations

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph.operators import AveragePool, MaxPool, Mean
from relutrim.io.onnx.conversion import Call, Operand, Value, handles
from relutrim.io.onnx.handlers.spatial import Windows, as_tensor, image, windows
from relutrim.io.windows import ceil_padding

_ATTRIBUTES = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


@handles("AveragePool", inputs=(1, 1), attributes=(*_ATTRIBUTES, "count_include_pad"))
def average_pool(call: Call) -> Operand:
    """The mean of each window."""
    value = image(call)
    found = _windows(call, value)
    if any(step != 1 for step in found.dilation):
        raise UnsupportedError(
            f"it averages windows with dilations {found.dilation}; relutrim represents windows without gaps"
        )
    count = bool(call.integer("count_include_pad", 0))
    padding = _padding(call, value, found)
    if count and padding != found.padding:
        raise UnsupportedError(
            "its last window reaches beyond the padding (ceil_mode) and padding counts (count_include_pad), "
            "which runtimes compute differently; export the model with ceil_mode=0"
        )
    made = call.emit(AveragePool(found.kernel, found.stride, padding, count), value)
    return as_tensor(call, made)


@handles("MaxPool", inputs=(1, 1), attributes=(*_ATTRIBUTES, "storage_order"))
def max_pool(call: Call) -> Operand:
    """The largest entry of each window."""
    value = image(call)
    found = _windows(call, value)
    padding = _padding(call, value, found)
    made = call.emit(MaxPool(found.kernel, found.stride, padding, found.dilation), value)
    return as_tensor(call, made)


@handles("GlobalAveragePool", inputs=(1, 1))
def global_average_pool(call: Call) -> Operand:
    """The mean of each channel."""
    value = _with_space(image(call))
    return as_tensor(call, call.emit(Mean(tuple(range(1, len(value.shape))), keep=True), value))


@handles("GlobalMaxPool", inputs=(1, 1))
def global_max_pool(call: Call) -> Operand:
    """The largest entry of each channel."""
    value = _with_space(image(call))
    space = value.shape[1:]
    if len(space) > 2:
        raise UnsupportedError(f"it has {len(space)} spatial axes; relutrim represents windows along 1 or 2")
    axes = len(space)
    return as_tensor(call, call.emit(MaxPool(space, (1,) * axes, ((0, 0),) * axes, (1,) * axes), value))


def _with_space(value: Value) -> Value:
    if len(value.shape) < 2 or 0 in value.shape[1:]:
        raise NetworkError(f"it pools a value of shape {value.shape}, which has no entries along its space")
    return value


def _windows(call: Call, value: Value) -> Windows:
    kernel = call.integer_list("kernel_shape")
    if kernel is None:
        raise NetworkError("it does not say how large its windows are (kernel_shape)")
    return windows(call, value.shape, kernel)


def _padding(call: Call, value: Value, found: Windows) -> tuple[tuple[int, int], ...]:
    """The padding, with that of ceil_mode."""
    space, padding = value.shape[1:], found.padding
    if call.integer("ceil_mode", 0):
        padding = ceil_padding(space, found.kernel, found.stride, padding, found.dilation)
        rest = [
            (size + before + behind - d * (k - 1) - 1) % step
            for size, k, step, (before, behind), d in zip(
                space, found.kernel, found.stride, found.padding, found.dilation, strict=True
            )
        ]
        if padding == found.padding and any(rest):
            raise UnsupportedError(
                "its last window would begin behind the value (ceil_mode), which runtimes treat differently; "
                "export the model with ceil_mode=0"
            )
    return padding
