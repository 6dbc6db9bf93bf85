"""Calls of a recorded program, computed by torch's own operators.

Only operators in the table of those that are read are called: they compute, and do nothing else. So a program
of a file can be tried without loading it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from relutrim.io.exported_archive import SCALAR_TYPES
from relutrim.io.torch.read import ATEN, base
from relutrim.io.torch.record import ROWS, Call, Program, Ref

_OTHERS = ("t", "numpy_T", "sym_size")
_FORMATS = (None, torch.contiguous_format, torch.channels_last, torch.channels_last_3d, torch.preserve_format)


def evaluate(call: Call, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a call makes of tensors, by the names of its results: nothing if something is not known."""
    target = operator_of(call)
    known = base(call.kind) in ATEN or call.kind in _OTHERS
    if target is None or not known or not values.keys() >= {*call.reads}:
        return {}
    read = [values[name] for name in call.reads]
    device = next((one.device for one in read if isinstance(one, torch.Tensor)), None)
    said = {key: _said(argument, device) for key, argument in call.arguments.items()}
    args, kwargs = arguments_of(target, replace(call, arguments=said), values)
    with torch.no_grad():
        made = target(*args, **kwargs)
    parts = made if isinstance(made, tuple | list) else [made]
    names = [call.name if out is None else out.name for out in call.outputs]
    return dict(zip(names, parts, strict=True)) if len(parts) == len(names) else {}


def _said(argument: Any, device: torch.device | None) -> Any:
    """What a file says of a type, a layout or a device; all tensors here are on one device."""
    kind, _, number = argument.partition("=") if isinstance(argument, str) else ("", "", "")
    match kind:
        case "as_scalar_type":
            return getattr(torch, SCALAR_TYPES[int(number)])
        case "as_memory_format":
            return _FORMATS[int(number)]
        case "as_layout":
            return torch.strided
        case "as_device":
            return device
    return argument


def run(program: Program, x: torch.Tensor) -> list[torch.Tensor | None]:
    """What a program returns, None for what depends on something that is not known. No other value is held
    for longer than somebody reads it.
    """
    last = {name: call.name for call in program.calls for name in call.reads}
    last |= {name: "" for name in program.outputs if name is not None}
    values: dict[str, Any] = {program.inputs[0].name: x}
    for name, make in program.constants.items():
        array = make().array if name in last and name not in program.mutable else None
        if array is not None and array.dtype.kind != "V":
            values[name] = torch.tensor(array)
    for call in program.calls:
        values |= evaluate(call, values)
        for name in call.reads:
            if last[name] == call.name:
                values.pop(name, None)
    return [None if name is None else values.get(name) for name in program.outputs]


def examples_of(program: Program) -> tuple[torch.Tensor, ...]:
    """Inputs of a program: zeros, a few where their number is open."""
    return tuple(
        torch.zeros(
            [size if isinstance(size, int) else ROWS for size in one.shape], dtype=getattr(torch, one.dtype)
        )
        for one in program.inputs
    )


def operator_of(call: Call) -> torch._ops.OpOverload | None:
    """The operator that is called, if it is one of ATen's."""
    space, _, rest = call.target.partition(".")
    if space != "aten":
        return None
    name, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, name), overload or "default")
    return found if isinstance(found, torch._ops.OpOverload) else None


def arguments_of(
    target: torch._ops.OpOverload, call: Call, values: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What is given by place, as long as none is left out, and by name behind that; ``values`` are what is
    read.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for one in target._schema.arguments:
        name = "input" if one.name == "self" else one.name
        if name in call.arguments:
            value = _given(call.arguments[name], values)
            if one.kwarg_only or len(args) < list(target._schema.arguments).index(one):
                kwargs[one.name] = value
            else:
                args.append(value)
    return tuple(args), kwargs


def _given(argument: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(argument, Ref):
        return values[argument.name]
    if isinstance(argument, list | tuple):
        return [_given(part, values) for part in argument]
    return argument
