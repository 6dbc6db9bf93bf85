"""Windows as torch's modules, whose own padding is the same on both sides."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from relutrim.errors import UnsupportedError
from relutrim.formats.windows import ceil_padding
from relutrim.network.operators import AveragePool, MaxPool, Shape
from relutrim.network.operators.convolution import Padding


def zeros_around(padding: Padding) -> nn.Module:
    """Zero padding of the spatial axes."""
    pads: Any = tuple(number for pair in reversed(padding) for number in pair)
    return nn.ConstantPad1d(pads, 0.0) if len(padding) == 1 else nn.ConstantPad2d(pads, 0.0)


def pooling(operator: AveragePool | MaxPool, shape: Shape) -> nn.Module:
    """The module for values of ``shape``. More padding behind than before is what ceil_mode makes of it."""
    axes = len(operator.kernel)
    dilation = operator.dilation if isinstance(operator, MaxPool) else (1,) * axes
    before = tuple(front for front, _ in operator.padding)
    symmetric: Padding = tuple((front, front) for front in before)
    ceil = operator.padding != symmetric
    counts = isinstance(operator, AveragePool) and operator.count_padding
    as_ceil = ceil_padding(shape[1:], operator.kernel, operator.stride, symmetric, dilation)
    fits = all(2 * front <= kernel for front, kernel in zip(before, operator.kernel, strict=True))
    if not fits or (ceil and (counts or as_ceil != operator.padding)):
        if counts:
            return nn.Sequential(
                OrderedDict(pad=zeros_around(operator.padding), pool=_average(operator, (0,) * axes, False))
            )
        raise UnsupportedError(
            f"pooling with padding {operator.padding} cannot be written as a PyTorch module; write an .onnx "
            "file instead"
        )
    if isinstance(operator, AveragePool):
        return _average(operator, before, ceil)
    kind: Any = nn.MaxPool1d if axes == 1 else nn.MaxPool2d
    made: nn.Module = kind(
        _few(operator.kernel), _few(operator.stride), _few(before), _few(dilation), False, ceil
    )
    return made


def _average(operator: AveragePool | MaxPool, padding: tuple[int, ...], ceil: bool) -> nn.Module:
    kind: Any = nn.AvgPool1d if len(operator.kernel) == 1 else nn.AvgPool2d
    counts = isinstance(operator, AveragePool) and operator.count_padding
    made: nn.Module = kind(_few(operator.kernel), _few(operator.stride), _few(padding), ceil, counts)
    return made


def _few(numbers: tuple[int, ...]) -> int | tuple[int, ...]:
    """One number where they are all the same, as people write it."""
    return numbers[0] if len(set(numbers)) == 1 else numbers
