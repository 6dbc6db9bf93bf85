"""What a step of a tail is where it turns out that something reads it: an operator within the network."""

from __future__ import annotations

from relutrim.errors import UnsupportedError
from relutrim.network import Operator, Sigmoid, Softmax, TailStep, Tanh


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
