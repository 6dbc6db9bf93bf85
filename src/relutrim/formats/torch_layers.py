"""Modules that are read as a whole, each as calls to a :class:`~relutrim.formats.building.Builder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from relutrim.errors import UnsupportedError
from relutrim.formats import torch_modules as modules
from relutrim.formats.building import BATCH, Builder, Value
from relutrim.formats.calls import HANDLERS

Layer: TypeAlias = Callable[[Builder, str, Any, Value], object]


def array(tensor: Tensor) -> Any:
    """The numbers of a tensor."""
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"it holds a {tensor.layout} tensor; call .to_dense() on it first")
    return tensor.detach().cpu().numpy()


def _optional(tensor: Tensor | None) -> Any:
    return None if tensor is None else array(tensor)


def _batch_norm(b: Builder, name: str, m: nn.BatchNorm1d, x: Value) -> Value:
    statistics = _optional(m.running_mean), _optional(m.running_var)
    return b.batch_norm(name, x, _optional(m.weight), _optional(m.bias), *statistics, epsilon=m.eps)


def _scale_shift(b: Builder, name: str, m: modules.ScaleShift, x: Value) -> Value:
    scale = 1.0 if m.scale is None else array(m.scale)
    return b.scale(name, x, scale, 0.0 if m.shift is None else array(m.shift))


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: lambda b, name, m, x: b.linear(name, x, array(m.weight), _optional(m.bias)),
    nn.ReLU: lambda b, name, m, x: HANDLERS["relu"](b, name, x, inplace=m.inplace),
    nn.Flatten: lambda b, name, m, x: b.flatten(name, x, m.start_dim, m.end_dim),
    nn.Unflatten: lambda b, name, m, x: HANDLERS["unflatten"](b, name, x, m.dim, m.unflattened_size),
    nn.Identity: lambda b, name, m, x: x,
    nn.Dropout: lambda b, name, m, x: x,
    nn.BatchNorm1d: _batch_norm,
    nn.Softmax: lambda b, name, m, x: HANDLERS["softmax"](b, name, x, m.dim),
    nn.LogSoftmax: lambda b, name, m, x: HANDLERS["log_softmax"](b, name, x, m.dim),
    nn.Sigmoid: lambda b, name, m, x: b.tail(name, "Sigmoid", x),
    nn.Tanh: lambda b, name, m, x: b.tail(name, "Tanh", x),
    modules.ScaleShift: _scale_shift,
    modules.Reshape: lambda b, name, m, x: b.reshape(name, x, [BATCH, *m.shape]),
}


def layer_of(module: nn.Module) -> Layer | None:
    """How to read a module, unless a subclass computes something else."""
    for kind, layer in LAYERS.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return layer
    return None
