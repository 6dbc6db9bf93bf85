"""Modules, recorded by ``torch.export`` on a private copy in eval mode.

1. What counts is inference: dropout is the identity, batch normalisation uses its running statistics.
2. A weight that is itself computed (a parametrisation, weight norm, pruning, any expression over parameters)
   counts as the numbers torch computes for it.
3. It is recorded with two rows, and with any number of rows where its ``forward`` allows that.
4. A recording can miss what Python does beside tensors. Therefore the network read is compared with the
   module on random inputs before it is returned, as far as no opaque node comes in between.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from relutrim.errors import InputError, UnsupportedError
from relutrim.graph import Network
from relutrim.io.torch.compare import compare
from relutrim.io.torch.program import functional, quiet, reason
from relutrim.io.torch.read import Reading, read
from relutrim.io.torch.record import ROWS, Program, with_remarks

Examples: TypeAlias = Tensor | Sequence[Tensor]

_PASS_SHAPE = (
    "pass input_shape=(...), the shape of one input without the batch axis, or example_input=, or let the "
    "factory named by --arch return (module, shape)"
)


@dataclass(frozen=True, eq=False)
class Recording:
    """What was recorded: the program, as torch and as relutrim have it, how that is read, and the inputs that
    it was recorded with, of which the first is the network's.
    """

    exported: ExportedProgram
    program: Program
    reading: Reading
    examples: tuple[Tensor, ...]


def read_module(
    module: nn.Module, input_shape: tuple[int, ...] | None = None, *, example_input: Examples | None = None
) -> Network:
    """The network a module computes in eval mode.

    ``input_shape`` is the shape of one input, without the batch axis; ``example_input`` is a batch of inputs,
    or a tuple of all that ``forward()`` takes: the first is the network's, of the others nothing is known.
    Without both a flat input is assumed, as wide as the first linear layer.
    """
    return record(module, input_shape, example_input=example_input).reading.network


def record(
    module: nn.Module, input_shape: tuple[int, ...] | None = None, *, example_input: Examples | None = None
) -> Recording:
    """A module's program and network; the module itself is left alone."""
    if not isinstance(module, nn.Module):
        raise InputError(f"a torch.nn.Module is needed, not {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError("TorchScript modules are not read; pass the nn.Module it was made from")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        private = private_copy(module)
        every = _examples(private, input_shape, example_input)
        examples, exported = _first(private, every, flat=input_shape is None and example_input is None)
        recording = recorded(exported, examples)
        compare(private, recording.reading.network, recording.reading.places, examples)
    return recording


def recorded(exported: ExportedProgram, examples: tuple[Tensor, ...]) -> Recording:
    """What a program is read as."""
    exported, program = functional(exported)
    program = with_remarks(program)
    return Recording(exported, program, read(program), examples)


def private_copy(module: nn.Module) -> nn.Module:
    """A copy on the CPU in eval mode, without parametrisations."""
    module = unwrapped(module)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor) or tensor.is_meta:
            raise InputError(
                "it holds no numbers yet; run the module once or load its weights first",
                where=f"tensor {name!r}",
            )
    if module.training and any(isinstance(part, _TWO_MODES) for part in module.modules()):
        warnings.warn(
            "the module is in training mode; what is analysed is a copy of it in eval mode", stacklevel=2
        )
    return without_parametrisations(copied(module).cpu().eval())


def copied(module: nn.Module) -> nn.Module:
    """A copy, on the same device and in the same mode."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        # Weight norm and pruning leave computed tensors behind, which torch refuses to copy.
        tensors = (value for value in vars(part).values() if isinstance(value, Tensor))
        memo.update({id(tensor): tensor.detach().clone() for tensor in tensors if not tensor.is_leaf})
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise UnsupportedError(
            f"the module cannot be copied ({reason(error)}), and relutrim works on nothing but a copy of it"
        ) from error


def without_parametrisations(module: nn.Module) -> nn.Module:
    """The module, which is in eval mode, with the numbers that masks, weight norm and their like compute."""
    with torch.no_grad():
        for part in list(module.modules()):
            if parametrize.is_parametrized(part):
                _unparametrised(part)
            for hook in list(part._forward_pre_hooks.values()):
                if isinstance(hook, prune.BasePruningMethod):
                    prune.remove(part, hook._tensor_name)  # type: ignore[no-untyped-call]
                elif isinstance(hook, WeightNorm):
                    remove_weight_norm(part, hook.name)
                elif isinstance(hook, SpectralNorm):
                    remove_spectral_norm(part, hook.name)
    return module


def _unparametrised(part: nn.Module) -> None:
    """Torch's own way to do this changes the class, which the module that was copied has too."""
    masks: Any = part.parametrizations
    numbers = {name: getattr(part, name).detach().clone() for name in masks}
    learnt = {name: next(one.parameters(False), None) for name, one in masks.items()}
    del part.parametrizations
    part.__class__ = type(part).__bases__[0]
    for name, tensor in numbers.items():
        original = learnt[name]
        if original is None:
            part.register_buffer(name, tensor)
        else:
            part.register_parameter(name, nn.Parameter(tensor, requires_grad=original.requires_grad))


_TWO_MODES = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


def unwrapped(module: nn.Module) -> nn.Module:
    """Without what torch.compile and DataParallel put around a module."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _examples(
    module: nn.Module, shape: tuple[int, ...] | None, given: Examples | None
) -> list[tuple[Tensor, ...]]:
    """Batches of inputs to record with, the likeliest first."""
    if given is not None:
        every = tuple(given) if isinstance(given, tuple | list) else (given,)
        if not every or not all(isinstance(one, Tensor) for one in every) or not every[0].ndim:
            raise InputError("example_input is a tensor, a batch of inputs, or a tuple of such tensors")
        return [tuple(one.detach().cpu() for one in every)]
    shapes = [shape] if shape is not None else [(width,) for width in dict.fromkeys(_widths(module))]
    if not shapes:
        raise InputError(f"the shape of the input cannot be told from the module; {_PASS_SHAPE}")
    tensors = [*module.parameters(), *module.buffers()]
    floating = (one.dtype for one in tensors if one.is_floating_point() or one.is_complex())
    dtype = next(floating, torch.float32)
    return [(torch.zeros(ROWS, *(int(size) for size in shape), dtype=dtype),) for shape in shapes]


def _widths(module: nn.Module) -> Iterator[int]:
    """How many numbers each layer that tells reads, in order, as long as the input may be flat."""
    for part in module.modules():
        if isinstance(part, nn.modules.conv._ConvNd | nn.BatchNorm2d):
            return  # how large the space is, only the caller knows
        if isinstance(part, nn.Linear):
            yield part.in_features
        elif isinstance(part, nn.BatchNorm1d):
            yield part.num_features
    shapes = [tuple(parameter.shape) for parameter in module.parameters()]
    if isinstance(module, fx.GraphModule) and max(map(len, shapes), default=0) == 2:
        yield next(shape[1] for shape in shapes if len(shape) == 2)


def _first(
    module: nn.Module, every: list[tuple[Tensor, ...]], *, flat: bool
) -> tuple[tuple[Tensor, ...], ExportedProgram]:
    """The first examples that the module takes, and the program."""
    for examples in every[:-1]:
        with suppress(InputError):
            return examples, _export(module, examples, flat=flat)
    return every[-1], _export(module, every[-1], flat=flat)


def _export(module: nn.Module, examples: tuple[Tensor, ...], *, flat: bool) -> ExportedProgram:
    """The program: with a free batch size if the module takes one."""
    failed: Exception | None = None
    for free in (tuple({0: Dim.AUTO} if one.ndim else None for one in examples), None):
        try:
            with quiet():
                given = tuple(one.clone() for one in examples)
                return torch.export.export(module, given, dynamic_shapes=free, strict=False)
        except Exception as error:
            failed = error
    assert failed is not None
    try:
        with quiet():
            module(*(one.clone() for one in examples))
    except Exception as error:
        shapes = " and ".join(str(tuple(one.shape[1:])) for one in examples)
        shape = f"{'flat ' if flat else ''}inputs of shape {shapes}"
        raise InputError(f"the module does not run on {shape} ({reason(error)}); {_PASS_SHAPE}") from error
    raise UnsupportedError(
        f"torch.export cannot record the module ({reason(failed)}); its forward() must take tensors and "
        "not decide by the values in it. Rewrite that part, or export the model to ONNX and pass the file"
    ) from failed
