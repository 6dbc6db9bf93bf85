"""Modules that are read as a whole, each as calls to a :class:`~relutrim.formats.building.Builder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from relutrim.errors import UnsupportedError
from relutrim.formats import building_moving as moving
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


def _batch_norm(b: Builder, name: str, m: nn.BatchNorm1d | nn.BatchNorm2d, x: Value) -> Value:
    statistics = _optional(m.running_mean), _optional(m.running_var)
    return b.batch_norm(name, x, _optional(m.weight), _optional(m.bias), *statistics, epsilon=m.eps)


def _scale_shift(b: Builder, name: str, m: modules.ScaleShift, x: Value) -> Value:
    scale = 1.0 if m.scale is None else array(m.scale)
    return b.scale(name, x, scale, 0.0 if m.shift is None else array(m.shift))


def _conv(b: Builder, name: str, m: nn.Conv1d | nn.Conv2d, x: Value) -> object:
    padding: Any = m.padding
    if m.padding_mode != "zeros":
        around = m._reversed_padding_repeated_twice
        x = moving.pad(b, f"{name}_pad", x, around, m.padding_mode, None)
        padding = 0
    rest = (m.stride, padding, m.dilation, m.groups)
    return HANDLERS["conv2d"](b, name, x, array(m.weight), _optional(m.bias), *rest)


def _conv_transpose(b: Builder, name: str, m: nn.ConvTranspose1d | nn.ConvTranspose2d, x: Value) -> object:
    rest = (m.stride, m.padding, m.output_padding, m.groups, m.dilation)
    return HANDLERS["conv_transpose2d"](b, name, x, array(m.weight), _optional(m.bias), *rest)


def _max_pool(b: Builder, name: str, m: nn.MaxPool1d | nn.MaxPool2d, x: Value) -> object:
    kind = "max_pool1d" if isinstance(m, nn.MaxPool1d) else "max_pool2d"
    rest = (m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)
    return HANDLERS[kind](b, name, x, m.kernel_size, *rest)


def _avg_pool(b: Builder, name: str, m: nn.AvgPool1d | nn.AvgPool2d, x: Value) -> object:
    kind = "avg_pool1d" if isinstance(m, nn.AvgPool1d) else "avg_pool2d"
    rest = (m.stride, m.padding, m.ceil_mode, m.count_include_pad, getattr(m, "divisor_override", None))
    return HANDLERS[kind](b, name, x, m.kernel_size, *rest)


def _adaptive(kind: str) -> Layer:
    return lambda b, name, m, x: HANDLERS[kind](
        b, name, x, m.output_size, return_indices=getattr(m, "return_indices", False)
    )


def _pad(mode: str) -> Layer:
    return lambda b, name, m, x: moving.pad(b, name, x, m.padding, mode, getattr(m, "value", None))


def _same(b: Builder, name: str, m: nn.Module, x: Value) -> Value:
    return x


def _mean(b: Builder, name: str, m: modules.Mean, x: Value) -> object:
    return HANDLERS["mean"](b, name, x, m.dims, m.keepdim)


def _take(b: Builder, name: str, m: modules.Take, x: Value) -> Value:
    picks = {axis: np.array(pick, np.int64) for axis, pick in enumerate(m.picks) if pick is not None}
    return moving.pick(b, name, x, picks, view=False)


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.ConvTranspose1d: _conv_transpose,
    nn.ConvTranspose2d: _conv_transpose,
    nn.MaxPool1d: _max_pool,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool1d: _avg_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool1d: _adaptive("adaptive_avg_pool1d"),
    nn.AdaptiveAvgPool2d: _adaptive("adaptive_avg_pool2d"),
    nn.AdaptiveMaxPool1d: _adaptive("adaptive_max_pool1d"),
    nn.AdaptiveMaxPool2d: _adaptive("adaptive_max_pool2d"),
    nn.ConstantPad1d: _pad("constant"),
    nn.ConstantPad2d: _pad("constant"),
    nn.ReflectionPad1d: _pad("reflect"),
    nn.ReflectionPad2d: _pad("reflect"),
    nn.ReplicationPad1d: _pad("replicate"),
    nn.ReplicationPad2d: _pad("replicate"),
    nn.ReLU6: lambda b, name, m, x: HANDLERS["relu6"](b, name, x, m.inplace),
    nn.Hardtanh: lambda b, name, m, x: HANDLERS["hardtanh"](b, name, x, m.min_val, m.max_val, m.inplace),
    nn.LeakyReLU: lambda b, name, m, x: HANDLERS["leaky_relu"](b, name, x, m.negative_slope, m.inplace),
    nn.PReLU: lambda b, name, m, x: HANDLERS["prelu"](b, name, x, array(m.weight)),
    nn.Hardsigmoid: lambda b, name, m, x: HANDLERS["hardsigmoid"](b, name, x, m.inplace),
    nn.Linear: lambda b, name, m, x: b.linear(name, x, array(m.weight), _optional(m.bias)),
    nn.ReLU: lambda b, name, m, x: HANDLERS["relu"](b, name, x, inplace=m.inplace),
    nn.Flatten: lambda b, name, m, x: b.flatten(name, x, m.start_dim, m.end_dim),
    nn.Unflatten: lambda b, name, m, x: HANDLERS["unflatten"](b, name, x, m.dim, m.unflattened_size),
    nn.Identity: _same,
    nn.Dropout: _same,
    nn.Dropout1d: _same,
    nn.Dropout2d: _same,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Softmax: lambda b, name, m, x: HANDLERS["softmax"](b, name, x, m.dim),
    nn.LogSoftmax: lambda b, name, m, x: HANDLERS["log_softmax"](b, name, x, m.dim),
    nn.Sigmoid: lambda b, name, m, x: b.tail(name, "Sigmoid", x),
    nn.Tanh: lambda b, name, m, x: b.tail(name, "Tanh", x),
    nn.Softplus: lambda b, name, m, x: HANDLERS["softplus"](b, name, x, m.beta, m.threshold),
    nn.ELU: lambda b, name, m, x: HANDLERS["elu"](b, name, x, m.alpha, m.inplace),
    nn.SELU: lambda b, name, m, x: HANDLERS["selu"](b, name, x, m.inplace),
    nn.CELU: lambda b, name, m, x: HANDLERS["celu"](b, name, x, m.alpha, m.inplace),
    nn.GELU: lambda b, name, m, x: HANDLERS["gelu"](b, name, x, m.approximate),
    nn.SiLU: lambda b, name, m, x: HANDLERS["silu"](b, name, x, m.inplace),
    nn.Hardswish: lambda b, name, m, x: HANDLERS["hardswish"](b, name, x, m.inplace),
    nn.Mish: lambda b, name, m, x: HANDLERS["mish"](b, name, x, m.inplace),
    modules.Erf: lambda b, name, m, x: HANDLERS["erf"](b, name, x),
    modules.ScaleShift: _scale_shift,
    modules.Mean: _mean,
    modules.Take: _take,
    modules.Permute: lambda b, name, m, x: moving.permute(b, name, x, m.dims),
    modules.Reshape: lambda b, name, m, x: b.reshape(name, x, [BATCH, *m.shape]),
}


def layer_of(module: nn.Module) -> Layer | None:
    """How to read a module, unless a subclass computes something else."""
    for kind, layer in LAYERS.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return layer
    return None
