"""One network as a ``torch.nn.Module``, with the names that :class:`~relutrim.paper.stack.Stack` uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from relutrim.paper.architecture import WINDOW, Layer, Op, parse_architecture
from relutrim.paper.stack import NORM_EPS


def module_of(layers: Sequence[Layer]) -> nn.Sequential:
    """A module with these layers, its weights still to be loaded; in eval mode."""
    with torch.random.fork_rng(devices=[]):  # new layers draw weights, and not from the caller's numbers
        return nn.Sequential(_parts(layers)).eval()


def _parts(layers: Sequence[Layer]) -> OrderedDict[str, nn.Module]:
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    spatial = any(layer.op is Op.CONV for layer in layers)
    for layer in layers:
        match layer.op:
            case Op.LINEAR:
                parts[layer.name] = nn.Linear(layer.inputs, layer.outputs)
            case Op.CONV:
                parts[layer.name] = nn.Conv2d(layer.inputs, layer.outputs, WINDOW)
            case Op.NORM:
                norm = nn.BatchNorm2d if spatial else nn.BatchNorm1d
                parts[layer.name] = norm(layer.outputs, eps=NORM_EPS)
            case Op.RELU:
                parts[layer.name] = nn.ReLU()
            case Op.MAX_POOL:
                parts[layer.name] = nn.MaxPool2d(2)
            case Op.AVG_POOL:
                parts[layer.name] = nn.AvgPool2d(2)
            case Op.FLATTEN:
                parts[layer.name] = nn.Flatten()
                spatial = False
    return parts


def lenet() -> tuple[nn.Module, tuple[int, ...]]:
    """LeNet for CIFAR-10, as ``--arch relutrim.paper.modules:lenet`` wants it."""
    return _cifar10("lenet")


def lenet_bn() -> tuple[nn.Module, tuple[int, ...]]:
    """The same with batch normalisation and average pooling."""
    return _cifar10("lenet-bn")


def _cifar10(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    shape = (3, 32, 32)
    return module_of(parse_architecture(name).layers(shape, 10)), shape
