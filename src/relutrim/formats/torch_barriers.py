"""Functions that are not piecewise linear as PyTorch modules."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from relutrim.errors import UnsupportedError
from relutrim.formats.calls_barriers import THRESHOLD
from relutrim.formats.torch_modules import Erf as ErfModule
from relutrim.network import (
    Barrier,
    Elu,
    Erf,
    Gelu,
    HardSwish,
    Mish,
    Operator,
    Sigmoid,
    Silu,
    Softmax,
    Softplus,
    Tanh,
)

_PLAIN: dict[type[Operator], Callable[[], nn.Module]] = {
    Sigmoid: nn.Sigmoid,
    Tanh: nn.Tanh,
    Erf: ErfModule,
    Gelu: nn.GELU,
    Silu: nn.SiLU,
    HardSwish: nn.Hardswish,
    Mish: nn.Mish,
}


def barrier(operator: Barrier, dtype: torch.dtype) -> nn.Module:
    """The module that computes a barrier."""
    match operator:
        case Softmax():
            return nn.Softmax(dim=operator.axis + 1)
        case Elu():
            return nn.ELU(operator.alpha)
        case Softplus():
            return nn.Softplus(threshold=THRESHOLD[str(dtype).removeprefix("torch.")])
    if type(operator) not in _PLAIN:
        raise UnsupportedError(f"{operator.kind} cannot be written as a PyTorch module; write .onnx instead")
    return _PLAIN[type(operator)]()
