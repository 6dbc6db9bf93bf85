"""Networks as ordinary PyTorch modules: a plain ``nn.Sequential`` for a chain, else a small graph."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relutrim.errors import UnsupportedError
from relutrim.formats import torch_modules as modules
from relutrim.formats.torch_barriers import barrier
from relutrim.formats.torch_windows import pooling, zeros_around
from relutrim.network import Add, Linear, Network, Operator, Relu, Reshape, Scale, TailStep
from relutrim.network.operators import (
    Array,
    AveragePool,
    Barrier,
    Concat,
    Convolution,
    MaxPool,
    Mean,
    Shape,
    Take,
    Transpose,
)


def build_module(network: Network, *, training: bool = False) -> nn.Module:
    """A module that computes the network, tails included, in the network's dtype.

    It can be trained, copied, pickled and exported like any other. Submodules keep the names of the nodes as
    far as torch allows (see :func:`layer_names`).
    """
    names = layer_names(network)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    dtype = torch.float64 if network.dtype == "float64" else torch.float32
    for node in network:
        try:
            layers[names[node.name]] = _layer(node.operator, dtype, network.shapes[node.inputs[0]])
        except UnsupportedError as error:
            raise error.at(f"node {node.name!r}") from None
    wiring = [(names[node.name], tuple(names.get(read, "") for read in node.inputs)) for node in network]
    ends = [names.get(output.source, "") for output in network.outputs]
    for position, output in enumerate(network.outputs):
        for step in output.tail:
            name = _free_name(step.name, set(layers))
            layers[name] = _tail(step, without_batch=network.input.batch is None)
            wiring.append((name, (ends[position],)))
            ends[position] = name
    before = ["", *layers]
    is_chain = ends == [before[-1]] and wiring == [(name, (before[i],)) for i, name in enumerate(layers)]
    module = nn.Sequential(layers) if is_chain and layers else modules.GraphModel(layers, wiring, ends)
    return module.train(training)


def layer_names(network: Network) -> Mapping[str, str]:
    """Name of the submodule for each node: letters, digits and underscores, and nothing torch itself uses."""
    names: dict[str, str] = {}
    for node in network:
        names[node.name] = _free_name(node.name, set(names.values()))
    return names


_TAKEN = {*dir(nn.Sequential()), *dir(modules.GraphModel({}, [], []))}


def _free_name(wanted: str, used: set[str]) -> str:
    name = re.sub(r"\W", "_", wanted, flags=re.ASCII).strip("_") or "layer"
    candidate, count = name, 0
    while candidate in used or candidate in _TAKEN:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def _layer(operator: Operator, dtype: torch.dtype, shape: Shape) -> nn.Module:
    match operator:
        case Convolution():
            return _convolution(operator, dtype)
        case AveragePool() | MaxPool():
            return pooling(operator, shape)
        case Mean():
            if operator.keep and len(shape) in (2, 3) and operator.axes == tuple(range(1, len(shape))):
                return nn.AdaptiveAvgPool1d(1) if len(shape) == 2 else nn.AdaptiveAvgPool2d(1)
            return modules.Mean([axis + 1 for axis in operator.axes], operator.keep)
        case Take():
            picks = [None if pick is None else [int(place) for place in pick] for pick in operator.picks]
            return modules.Take(picks, shape)
        case Transpose():
            return modules.Permute([0, *(axis + 1 for axis in operator.order)])
        case Concat():
            return modules.Concat(operator.axis + 1)
        case Linear():
            return _linear(operator, dtype)
        case Relu():
            return nn.ReLU()
        case Scale():
            scale = _tensor(operator.scale, dtype) if (operator.scale != 1).any() else None
            shift = _tensor(operator.shift, dtype) if operator.shift.any() else None
            return modules.ScaleShift(scale, shift)
        case Reshape(after=(_,)):
            return nn.Flatten()
        case Reshape():
            return modules.Reshape(operator.after)
        case Add():
            return modules.Sum()
        case Barrier():
            return barrier(operator, dtype)
    raise UnsupportedError(
        f"{operator.kind} cannot be written as a PyTorch module yet; write an .onnx file instead"
    )


def _linear(operator: Linear, dtype: torch.dtype) -> nn.Linear:
    # On the meta device nothing is initialised: no random numbers are drawn, no warning for a width of 0.
    layer = nn.Linear(1, 1, device="meta")
    layer.out_features, layer.in_features = operator.weight.shape
    layer.weight = nn.Parameter(_tensor(operator.weight, dtype))
    layer.bias = nn.Parameter(_tensor(operator.bias, dtype))
    return layer


def _convolution(operator: Convolution, dtype: torch.dtype) -> nn.Module:
    outputs, inputs, *kernel = operator.weight.shape
    symmetric = all(before == behind for before, behind in operator.padding)
    padding = tuple(before for before, _ in operator.padding) if symmetric else (0,) * len(kernel)
    # On the meta device nothing is initialised, and a width of 0 is no error.
    kind: Any = nn.Conv1d if len(kernel) == 1 else nn.Conv2d
    layer: nn.Conv1d | nn.Conv2d = kind(
        1, 1, tuple(kernel), operator.stride, padding, operator.dilation, device="meta"
    )
    layer.out_channels, layer.in_channels = outputs, inputs * operator.groups
    layer.groups = operator.groups
    layer.weight = nn.Parameter(_tensor(operator.weight, dtype))
    layer.bias = nn.Parameter(_tensor(operator.bias, dtype)) if operator.bias.any() else None
    if symmetric:
        return layer
    return nn.Sequential(OrderedDict(pad=zeros_around(operator.padding), convolution=layer))


def _tail(step: TailStep, *, without_batch: bool) -> nn.Module:
    axis = int(step.attributes.get("axis", -1))
    if without_batch and axis >= 0:
        # The file counts its axes without a batch axis; the module has one.
        axis += 1
    match step.kind:
        case "Identity":
            return nn.Identity()
        case "Softmax":
            return nn.Softmax(dim=axis)
        case "LogSoftmax":
            return nn.LogSoftmax(dim=axis)
        case "Sigmoid":
            return nn.Sigmoid()
        case "Tanh":
            return nn.Tanh()
    raise UnsupportedError(
        f"{step.kind} cannot be written as a PyTorch module; write an .onnx file instead",
        where=f"tail {step.name!r}",
    )


def _tensor(values: Array, dtype: torch.dtype) -> Tensor:
    return torch.tensor(np.ascontiguousarray(values), dtype=dtype)
