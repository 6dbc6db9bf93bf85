"""Whether a recorded program can be read as if every operator made a new tensor.

Operators whose names end in an underscore change a tensor in place. That can be read as a new value as long
as nothing reads the old one afterwards, by its own name or by that of another view of the same memory.

1. A result may share memory with everything that its operator reads, unless the operator is one of those
   that are known to make a new tensor.
2. What an operator of ATen changes is what its schema says, and the statistics of a batch norm in training
   mode. An operator of another library that is not known here may change all that it reads.
3. A parameter or buffer that is changed is another one at each call.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from relutrim.io.torch.record import Call, Program, names

_STATISTICS = ("running_mean", "running_var")


def problem(program: Program, new: Collection[str]) -> str | None:
    """What is read after it was changed, in words; None if nothing is. ``new`` are the operators that make
    new tensors.
    """
    constants = set(program.constants)
    memory = {name: {name} for name in [*constants, *(tensor.name for tensor in program.inputs)]}
    made = dict.fromkeys(memory, -1)
    changed: dict[str, tuple[int, str]] = {}
    for time, call in enumerate(program.calls):
        reads = [name for name in call.reads if name in memory]
        if not call.only_sizes:
            found = _stale(reads, memory, made, changed)
            if found is not None:
                return f"it reads {found[0]!r}, whose memory {found[1]!r} changed in place before"
        written = {part for name in changes(call) for part in memory.get(name, ())}
        if written & constants:
            may = "changes" if _written(call.target) is not None else "is not known here and may change"
            return f"{call.name!r} ({call.target}) {may} the parameter or buffer {min(written & constants)!r}"
        changed.update(dict.fromkeys(written, (time, call.name)))
        shared = set() if not written and call.kind in new else {m for name in reads for m in memory[name]}
        for output in call.outputs:
            if output is not None:
                memory[output.name], made[output.name] = shared | {output.name}, time
    outputs = [name for name in (*program.outputs, *program.kept) if name in memory]
    found = _stale(outputs, memory, made, changed)
    return (
        None
        if found is None
        else f"it returns {found[0]!r}, whose memory {found[1]!r} changed in place before"
    )


def _stale(
    reads: list[str], memory: dict[str, set[str]], made: dict[str, int], changed: dict[str, tuple[int, str]]
) -> tuple[str, str] | None:
    for name in reads:
        for part in memory[name]:
            if part in changed and changed[part][0] > made[name]:
                return name, changed[part][1]
    return None


def changes(call: Call) -> list[str]:
    """The names of what a call changes in place."""
    if call.only_sizes or call.kind == "detach_" or call.target.startswith("higher_order."):
        return []
    found = _written(call.target)
    if found is None:
        return list(call.reads)
    training = call.arguments.get("training", call.arguments.get("use_input_stats", False))
    if "_norm" in call.kind and training is not False:
        found = (*found, *_STATISTICS)
    return [
        name for argument in found if argument in call.arguments for name in names(call.arguments[argument])
    ]


@cache
def _written(target: str) -> tuple[str, ...] | None:
    """The arguments that an operator changes; None if it is not known here."""
    import torch

    space, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(f"{space}::{name}")
    for schema in schemas:
        if schema.overload_name == (overload if overload != "default" else ""):
            written = [
                one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write
            ]
            return tuple("input" if one == "self" else one for one in written)
    return None
