"""Batch normalisation with frozen statistics."""

from __future__ import annotations

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph import BatchNorm
from relutrim.io.onnx.conversion import Call, Operand, handles


@handles("BatchNormalization", inputs=(5, 5), attributes=("epsilon", "momentum", "spatial", "training_mode"))
def batch_normalization(call: Call) -> Operand:
    """``gain * (x - mean) / sqrt(variance + epsilon) + bias`` along axis 1."""
    if call.integer("training_mode", 0) or any(call.node.output[1:]):
        raise UnsupportedError("it is in training mode, so its result depends on the whole batch")
    value = call.value(0)
    rank = len(value.shape) + call.batched
    if rank < 2:
        raise UnsupportedError(f"it normalises a tensor with {rank} axis; axis 1 must be there")
    if not call.integer("spatial", 1) and rank > 2:
        raise UnsupportedError("it keeps one mean per entry (spatial=0), which ONNX dropped")
    channels = value.shape[0 if call.batched else 1]
    parameters = [call.weights(index) for index in range(1, 5)]
    for index, parameter in enumerate(parameters, start=1):
        if parameter.shape != (channels,):
            raise NetworkError(
                f"the tensor {call.node.input[index]!r} of shape {parameter.shape} does not go with "
                f"{channels} channels"
            )
    shaped = [parameter.reshape(channels, *(1,) * (rank - 2)) for parameter in parameters]
    gain, bias, mean, variance = shaped
    epsilon = call.number("epsilon", 1e-5)
    operator = call.finite(lambda: BatchNorm.of(gain, bias, mean, variance, epsilon))
    names = ("gain", "bias", "mean", "variance")
    return call.emit(operator, value, **dict(zip(names, map(call.where, shaped), strict=True)))
