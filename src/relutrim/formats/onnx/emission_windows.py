"""How convolutions, poolings and means are spelt in ONNX."""

from __future__ import annotations

from typing import Any

from relutrim.formats.onnx.emission import Emission, spells
from relutrim.network import Node
from relutrim.network.operators import AveragePool, Convolution, MaxPool, Mean
from relutrim.network.operators.convolution import Padding


@spells(Convolution)
def convolution(emission: Emission, node: Node, operator: Convolution) -> None:
    """Conv, with a bias where there is one."""
    name = emission.tensor(node.name)
    inputs = [emission.weights(f"{name}.weight", operator.weight)]
    if operator.bias.any():
        inputs.append(emission.weights(f"{name}.bias", operator.bias))
    attributes = _windows(operator.weight.shape[2:], operator.stride, operator.padding)
    if any(step != 1 for step in operator.dilation):
        attributes["dilations"] = list(operator.dilation)
    if operator.groups != 1:
        attributes["group"] = operator.groups
    emission.on_images(node, "Conv", inputs, attributes)


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
    attributes = _windows(operator.kernel, operator.stride, operator.padding)
    if any(step != 1 for step in operator.dilation):
        attributes["dilations"] = list(operator.dilation)
    emission.on_images(node, "MaxPool", [], attributes)


@spells(Mean)
def mean(emission: Emission, node: Node, operator: Mean) -> None:
    """GlobalAveragePool where it says the same, else ReduceMean."""
    rank = len(emission.network.shapes[node.inputs[0]])
    if emission.batched and operator.keep and rank in (2, 3) and operator.axes == tuple(range(1, rank)):
        emission.steps(node, [("GlobalAveragePool", [], {})])
        return
    axes = [axis + emission.batched for axis in operator.axes]
    emission.steps(node, [("ReduceMean", [], {"axes": axes, "keepdims": int(operator.keep)})])


def _windows(kernel: tuple[int, ...], stride: tuple[int, ...], padding: Padding) -> dict[str, Any]:
    pads = [before for before, _ in padding] + [behind for _, behind in padding]
    return {"kernel_shape": list(kernel), "strides": list(stride)} | ({"pads": pads} if any(pads) else {})
