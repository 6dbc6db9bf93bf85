"""A model of PyTorch beside what edits have made of it.

1. Every tensor that no edit names is the same to the last bit, and every other is what the edit says. That
   takes no running, and holds for what opaque nodes read.
2. Both are run on a few inputs of the domain, opaque nodes included. They may be as far apart as is proven,
   and as rounding makes them: as far as a part of 1e-3, or a small multiple of what the last bit of every
   number in MODEL does to its outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree

from relutrim.errors import CheckFailed, UnsupportedError
from relutrim.io.tolerance import agree, difference
from relutrim.io.torch.edit import Edited
from relutrim.io.torch.graph_module import unlifted
from relutrim.io.torch.module import Recording, copied, private_copy, without_parametrisations
from relutrim.io.torch.program import quiet

Tensors: TypeAlias = Mapping[str, Tensor]

_DRAWS, _ROWS = 2, 3


@dataclass(frozen=True, eq=False)
class Trial:
    """Inputs of the domain, and how far an output may be moved on it."""

    inputs: Tensor
    allowed: float


# Tensors


def check_layers(module: nn.Module, found: nn.Module, edited: Edited) -> None:
    """Raise :class:`CheckFailed` unless a module holds what the given one does, but for what edits say."""
    gone = tuple(f"{path}." for path in edited.idle)
    before = tensors_in(without_parametrisations(copied(module).eval()))
    stay = {name: tensor for name, tensor in before.items() if not name.startswith(gone)}
    after = tensors_in(found)
    _check_names(stay.keys() ^ after.keys())
    _check_tensors(before, after, edited)


def check_state(recorded: ExportedProgram, made: ExportedProgram | nn.Module, edited: Edited) -> None:
    """The same of a program, in which what nothing reads is not held."""
    after = tensors_in(made) if isinstance(made, nn.Module) else _state(made)
    _check_tensors(_state(recorded), after, edited)


def tensors_in(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a module, by all of its paths: parameters, buffers and other attributes."""
    found = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in {**vars(part), **part._parameters, **part._buffers}.items():
            if isinstance(value, Tensor):
                found[f"{path}.{name}" if path else name] = value
    return found


def _state(program: ExportedProgram) -> dict[str, Tensor]:
    held = {**program.constants, **program.state_dict}
    return {name: value for name, value in held.items() if isinstance(value, Tensor)}


def _check_tensors(before: Tensors, after: Tensors, edited: Edited) -> None:
    """Tensors of other names are those that edits add, or ones of before that are called otherwise."""
    new = {name: torch.tensor(array) for name, array in edited.tensors.items()}
    content: dict[object, list[Tensor]] = {}
    for name, tensor in new.items():
        content.setdefault(_memory(before[name]), []).append(tensor)
    others = [torch.tensor(array) for array in edited.added.values()]
    others += [tensor for name, tensor in before.items() if name not in new]
    for name, tensor in after.items():
        if name in new:
            allowed = [new[name]]
        elif name in before:
            allowed = [before[name], *content.get(_memory(before[name]), [])]
        else:
            allowed = others
        if not any(same_bits(tensor, one) for one in allowed):
            _check_names({name})


def _check_names(wrong: Iterable[str]) -> None:
    name = min(wrong, default=None)
    if name is not None:
        raise CheckFailed(
            "edits have made something else of it than they should; this is a bug in relutrim",
            where=f"tensor {name!r}",
        )


def _memory(tensor: Tensor) -> object:
    """The same for every name of a tensor."""
    if tensor.layout != torch.strided or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the last bit, NaN and the sign of 0 included."""
    if (one.dtype, one.shape, one.layout) != (other.dtype, other.shape, other.layout):
        return False
    return one is other or torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


# Runs


def check_computes(
    model: nn.Module | ExportedProgram, made: nn.Module, recording: Recording, trial: Trial | None
) -> None:
    """Raise :class:`UnsupportedError` if what was made of a model computes something else; both are copied.
    An output that differs from one run of the model to the next is not compared.
    """
    if trial is None:
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]), quiet():
        one, other = runnable(model), runnable(made)
        draws = [draw for draw in _draws(recording, trial) if _results(one, draw, 0) is not None]
        truth, again = ([_results(one, draw, seed) for draw in draws] for seed in (1, 2))
        found = [_results(other, draw, 3) for draw in draws]
        _shaken(one)
        shaken = [_results(one, draw, 1) for draw in draws]
    allowed = {
        place: trial.allowed * 2.0 ** len(output.tail)  # no step of a tail moves more than twice as far
        for place, output in zip(recording.reading.places, recording.reading.network.outputs, strict=False)
    }
    for expected, twice, results, noisy in zip(truth, again, found, shaken, strict=True):
        if expected is None or twice is None:
            continue
        if results is None or len(results) != len(expected):
            raise UnsupportedError("with the edits, the model does not run on what it ran on before")
        for place, (value, second, result) in enumerate(zip(expected, twice, results, strict=True)):
            if same_bits(value, second):
                near = None if noisy is None or noisy[place].shape != value.shape else noisy[place]
                _check_close(value, result, near, allowed.get(place, 0.0))


def _check_close(expected: Tensor, result: Tensor, noisy: Tensor | None, allowed: float) -> None:
    """Raise unless results are as near as they may be; ``noisy`` is what MODEL makes of the last bits."""
    noise = torch.zeros(()) if noisy is None else difference(noisy, expected)
    if not agree(expected, result, allowed, noise):
        raise UnsupportedError(
            "with the edits, the model computes something else, by more than is proven and rounding explains"
        )


def runnable(model: nn.Module | ExportedProgram) -> nn.Module:
    """A copy to run: what a model does to its buffers is not done to its own."""
    return private_copy(model) if isinstance(model, nn.Module) else copy.deepcopy(unlifted(model))


def _draws(recording: Recording, trial: Trial) -> Iterator[tuple[Tensor, ...]]:
    """Inputs: of the domain where the model's own is followed, the others as they were recorded and, numbers
    that have fractions, at random.
    """
    (first, *others), network = recording.examples, recording.reading.network
    free = isinstance(network.input.batch, str) and not others
    rows = _ROWS if free else len(first)
    generator = torch.Generator().manual_seed(0)
    for draw in range(_DRAWS if len(trial.inputs) else 0):
        x = first
        if first.is_floating_point():
            picked = torch.arange(draw * rows, (draw + 1) * rows) % len(trial.inputs)
            x = trial.inputs[picked].reshape(rows, *first.shape[1:]).to(first.dtype)
        elif first.is_complex():
            x = torch.randn(first.shape, dtype=first.dtype, generator=generator)
        random = [
            torch.randn(one.shape, generator=generator).to(one.dtype)
            if draw and one.is_floating_point()
            else one
            for one in others
        ]
        yield (x, *random)


def _results(run: Callable[..., Any], given: Sequence[Tensor], seed: int) -> list[Tensor] | None:
    """The tensors that come back; None if it does not run."""
    torch.manual_seed(seed)
    try:
        made = _pytree.tree_leaves(run(*(one.clone() for one in given)))
    except Exception:  # whatever a model raises
        return None
    return [one if isinstance(one, Tensor) else torch.zeros(0) for one in made]


def _shaken(module: nn.Module) -> None:
    """Move the last bits of all numbers."""
    generator = torch.Generator().manual_seed(0)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point() and tensor.layout == torch.strided:
            unit = 2 * torch.finfo(tensor.dtype).eps
            tensor.mul_((1 + unit * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype))
