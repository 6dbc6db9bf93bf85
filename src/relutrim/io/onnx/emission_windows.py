"""How convolutions, poolings and means are spelt in ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from relutrim.graph import Node
from relutrim.graph.operators import AveragePool, BatchNorm, Convolution, MaxPool, Mean
from relutrim.graph.operators.convolution import Padding
from relutrim.io.onnx.emission import Emission, spells


@spells(Convolution)
def convolution(emission: Emission, node: Node, operator: Convolution) -> None:
    """Conv, with a bias where there is one."""
    name = emission.tensor(node.name)
    inputs = [emission.weights(f"{name}.weight", operator.weight)]
    if operator.bias.any():
        inputs.append(emission.weights(f"{name}.bias", operator.bias))
    attributes = _windows(*operator.windows)
    if operator.groups != 1:
        attributes["group"] = operator.groups
    emission.on_images(node, "Conv", inputs, attributes)


@spells(BatchNorm)
def batch_norm(emission: Emission, node: Node, operator: BatchNorm) -> None:
    """BatchNormalization, with its own numbers."""
    name, channels = emission.tensor(node.name), emission.network.shapes[node.name][0]
    numbers = (operator.gain, operator.bias, operator.mean, operator.variance)
    inputs = [
        emission.weights(f"{name}.{kind}", np.broadcast_to(array.reshape(-1), (channels,)))
        for kind, array in zip(("gain", "bias", "mean", "variance"), numbers, strict=True)
    ]
    emission.on_images(node, "BatchNormalization", inputs, {"epsilon": operator.epsilon})


@spells(AveragePool)
def average_pool(emission: Emission, node: Node, operator: AveragePool) -> None:
    """AveragePool."""
    attributes = _windows(operator.kernel, operator.stride, operator.padding)
    if operator.count_padding:
        attributes["count_include_pad"] = 1
    emission.on_images(node, "AveragePool", [], attributes)


@spells(MaxPool)
def max_pool(emission: Emission, node: Node, operator: MaxPool) -> None:
    """MaxPool."""
    attributes = _windows(operator.kernel, operator.stride, operator.padding, operator.dilation)
    emission.on_images(node, "MaxPool", [], attributes)


@spells(Mean)
def mean(emission: Emission, node: Node, operator: Mean) -> None:
    """GlobalAveragePool where it says the same, else ReduceMean."""
    rank = len(emission.network.shapes[node.inputs[0]])
    if emission.batched and operator.keep and rank in (2, 3) and operator.axes == tuple(range(1, rank)):
        emission.steps(node, [("GlobalAveragePool", [], {})])
        return
    axes, keep = tuple(axis + emission.batched for axis in operator.axes), {"keepdims": int(operator.keep)}
    if emission.opset < 18:
        emission.steps(node, [("ReduceMean", [], {"axes": axes, **keep})])
    else:
        listed = emission.shape(f"{emission.tensor(node.name)}.axes", axes)
        emission.steps(node, [("ReduceMean", [listed], keep)])


def _windows(
    kernel: tuple[int, ...], stride: tuple[int, ...], padding: Padding, dilation: tuple[int, ...] = ()
) -> dict[str, Any]:
    said = {"kernel_shape": list(kernel), "strides": list(stride)}
    pads = [before for before, _ in padding] + [behind for _, behind in padding]
    if any(pads):
        said["pads"] = pads
    if any(step != 1 for step in dilation):
        said["dilations"] = list(dilation)
    return said
