"""What steps of a tail compute, and what they are where it turns out that something reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relutrim.errors import CheckFailed, UnsupportedError
from relutrim.graph import Operator, Output, Sigmoid, Softmax, TailStep, Tanh

if TYPE_CHECKING:
    from torch import Tensor


def behind_tail(output: Output, value: Tensor, *, batched: bool = True) -> Tensor:
    """What the tail of an output makes of a batch of values; its axes count the batch if there is one."""
    for step in output.tail:
        axis = int(step.attributes.get("axis", -1))
        axis += not batched and axis >= 0
        match step.kind:
            case "Softmax":
                value = value.softmax(axis)
            case "LogSoftmax":
                value = value.log_softmax(axis)
            case "Sigmoid":
                value = value.sigmoid()
            case "Tanh":
                value = value.tanh()
            case "Identity":
                pass
            case kind:
                raise CheckFailed(f"relutrim cannot check the {kind} before output {output.name!r}")
    return value


def inner(step: TailStep, axes: int, *, batched: bool = True, origin: str | None = None) -> Operator:
    """The operator for a value of so many axes, the batch left out; the step's axis counts it if there is
    one. ``origin`` says, for errors, where the tail begins.
    """
    match step.kind:
        case "Sigmoid":
            return Sigmoid()
        case "Tanh":
            return Tanh()
        case "Softmax":
            return Softmax(int(step.attributes["axis"]) % (axes + batched) - batched)
    said = origin or f"{step.kind} {step.name!r}"
    raise UnsupportedError(
        f"it reads what {said} makes; a {step.kind} has no range that is known beforehand, so it is only "
        "carried over at the very end: cut the model in two there"
    )
