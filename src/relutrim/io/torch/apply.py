"""Edits put back into the module that a program was recorded from.

1. What comes back is a copy of the module, of the same class, in which layers are smaller: its tensors are
   cut or set, and known layers say their new sizes; a layer that computes nothing any more is an identity.
   Names, hooks, modes and whatever else it holds are as they were. It is recorded again, and has to be the
   graph that was meant; and run beside the module, opaque nodes included, it has to compute the same.
2. Where its code cannot say that (a new step, a size that forward() holds), what comes back is the recorded
   program with the edits, and why. It is recorded again too, and evaluated it has to agree with the graph.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn

from relutrim.errors import InputError, RelutrimError
from relutrim.graph.comparing import check_equal
from relutrim.io.torch.compare import compare
from relutrim.io.torch.edit import Edited, needed_calls
from relutrim.io.torch.graph_module import edited_module, set_tensor
from relutrim.io.torch.module import Recording, copied, record, unwrapped, without_parametrisations
from relutrim.io.torch.program import reason
from relutrim.io.torch.read import read
from relutrim.io.torch.record import Call, Program
from relutrim.io.torch.verify import Trial, check_computes, check_layers, check_state


def applied(
    module: nn.Module, recording: Recording, edited: Edited, trial: Trial | None = None
) -> tuple[nn.Module, str | None]:
    """The module with what became of its program; if that is no longer of its class, why. ``trial`` says on
    what inputs both are run.
    """
    module, obstacle = unwrapped(module), edited.obstacle
    if obstacle is None:
        try:
            return _checked_layers(module, recording, edited, trial), None
        except RelutrimError as error:
            obstacle = _reason(error)
    program = edited_module(recording.exported, recording.program, edited)
    check_state(recording.exported, program, edited)
    compare(copy.deepcopy(program), edited.network, recording.reading.places, recording.examples)
    _check_recorded(program, recording, edited)
    check_computes(module, program, recording, trial)
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    return program.to(device).train(module.training), obstacle


def _checked_layers(
    module: nn.Module, recording: Recording, edited: Edited, trial: Trial | None
) -> nn.Module:
    found = _with_layers(module, edited)
    check_layers(module, found, edited)
    _check_recorded(found, recording, edited)
    check_computes(module, found, recording, trial)
    return found


def _reason(error: RelutrimError) -> str:
    """Why smaller layers do not do. What is said of a model that does not run is meant for one that somebody
    gave, so only torch's own words are taken from that.
    """
    if isinstance(error, InputError) and isinstance(error.__cause__, Exception):
        return f"with smaller layers its forward() does not run ({reason(error.__cause__)})"
    return f"with smaller layers its forward() computes something else ({error})"


def _check_recorded(module: nn.Module, recording: Recording, edited: Edited) -> None:
    """Raise an error unless a module that is recorded again reads as the graph that was meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = record(module, example_input=recording.examples)
    check_program(again.program, edited)


def check_program(program: Program, edited: Edited) -> None:
    """The same of a program."""
    check_equal(read(program, _same_names(program, edited)).network, edited.network)


def _same_names(program: Program, edited: Edited) -> dict[str, str]:
    """What the values of a program's calls are called in another one that has the same calls, but for those
    that nothing depends on. Calls without a counterpart get names that mean nothing there.
    """
    pairs = zip(_needed(program), _needed(edited.program), strict=False)
    found = {one.name: edited.names[other.name] for one, other in pairs if other.name in edited.names}
    return {call.name: f"{call.name} again" for call in program.calls} | found


def _needed(program: Program) -> list[Call]:
    """The calls that make something of numbers. Torch leaves ``x[:, :n]`` out where that is all of ``x``."""
    needed = needed_calls(program)
    made = [out for call in program.calls for out in call.outputs if out is not None]
    shapes = {tensor.name: tensor.shape for tensor in (*program.inputs, *made)}

    def takes_all(call: Call) -> bool:
        (before, *_), (after, *_) = call.reads, call.outputs
        return after is not None and shapes.get(before) == after.shape

    calls = (call for call in program.calls if call.name in needed and not call.only_sizes)
    return [call for call in calls if call.kind != "slice" or not takes_all(call)]


def _with_layers(module: nn.Module, edited: Edited) -> nn.Module:
    """A copy with smaller layers."""
    found = copied(module)
    modes = {part: part.training for part in found.modules()}
    without_parametrisations(found.eval())
    for name, array in edited.tensors.items():
        set_tensor(found, name, torch.tensor(array))
    for path in edited.idle:
        found.set_submodule(path, nn.Identity())
    for path in {name.rpartition(".")[0] for name in edited.tensors}:
        _say_sizes(found.get_submodule(path), edited.groups.get(f"{path}.weight".removeprefix("."), 1))
    for part, mode in modes.items():
        part.training = mode
    return found


def _say_sizes(layer: nn.Module, groups: int) -> None:
    """Let a layer say the sizes that its tensors have."""
    match layer:
        case nn.Linear():
            layer.out_features, layer.in_features = layer.weight.shape
        case nn.modules.conv._ConvTransposeNd():
            layer.in_channels, layer.out_channels = layer.weight.shape[0], layer.weight.shape[1] * groups
            layer.groups = groups
        case nn.modules.conv._ConvNd():
            layer.out_channels, layer.in_channels = layer.weight.shape[0], layer.weight.shape[1] * groups
            layer.groups = groups
        case nn.modules.batchnorm._NormBase():
            first = next(iter([*layer.parameters(False), *layer.buffers(False)]))
            layer.num_features = first.shape[0]
        case nn.PReLU():
            layer.num_parameters = layer.weight.numel()
