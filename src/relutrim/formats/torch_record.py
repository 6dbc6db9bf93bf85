"""What a module computes, recorded by ``torch.fx`` on a copy of it."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from relutrim.errors import InputError, UnsupportedError
from relutrim.formats import torch_modules as modules
from relutrim.formats.torch_layers import layer_of


class Root(nn.Module):
    """The module with one argument; what else it takes keeps its default."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        """Call the module."""
        return self.module(x)


def private_copy(module: nn.Module) -> nn.Module:
    """A copy on the CPU in eval mode, with the hooks that compute weights replaced by the weights."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor) or tensor.is_meta:
            raise InputError(
                "it holds no numbers yet; run the module once or load its weights first",
                where=f"tensor {name!r}",
            )
    memo: dict[int, Any] = {}
    for part in module.modules():
        # Weight norm and pruning leave computed tensors behind, which torch refuses to copy.
        tensors = (value for value in vars(part).values() if isinstance(value, Tensor))
        memo.update({id(tensor): tensor.detach().clone() for tensor in tensors if not tensor.is_leaf})
    try:
        private = copy.deepcopy(module, memo).cpu()
    except Exception as error:
        raise UnsupportedError(
            f"the module cannot be copied ({error}), and relutrim works on nothing but a copy of it"
        ) from error
    for name, part in private.named_modules():
        part.training = False
        if "forward" in vars(part):
            raise UnsupportedError(
                "its forward method was replaced on this one object; define a class instead",
                where=described(name, part),
            )
        for key, hook in list(part._forward_pre_hooks.items()):
            if isinstance(hook, WeightNorm | SpectralNorm | prune.BasePruningMethod):
                hook(part, None)
                del part._forward_pre_hooks[key]
        if part._forward_hooks or part._forward_pre_hooks:
            raise UnsupportedError(
                "it has forward hooks, which may change what it computes; remove them or make them part of "
                "forward()",
                where=described(name, part),
            )
    return private


def record(root: Root) -> fx.Graph:
    """The operations of the module."""
    try:
        return _Tracer().trace(root)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedError(
            f"torch.fx cannot record the module ({reason}); its forward() must take one tensor and not "
            "decide by the values in it. Rewrite that part, or export the model to ONNX and pass the file"
        ) from error


def described(name: str, module: nn.Module) -> str:
    """A module for an error message."""
    return f"module {name!r} ({type(module).__name__})" if name else f"the module ({type(module).__name__})"


class _Tracer(fx.Tracer):
    """Stops at the modules read as a whole, and at all other modules of torch, whose parts say less."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.Sequential | fx.GraphModule):
            return False
        # Where forward is defined counts, not the class: parametrised modules get a class of their own.
        home = type(m).forward.__module__
        return (
            layer_of(m) is not None
            or isinstance(m, modules.Sum | modules.Concat)
            or home.startswith(("torch.nn", "torch.ao.nn"))
        )
