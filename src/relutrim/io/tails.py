"""What may follow the last affine layer, and what it computes.

A step of a tail is an operator of a kind in :data:`TAILS` that nothing but outputs and other steps read. A
sigmoid that something else reads is an operator like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from relutrim.errors import CheckFailed
from relutrim.graph import Output

if TYPE_CHECKING:
    from torch import Tensor

TAILS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "Sigmoid": lambda x, axis: x.sigmoid(),
    "Tanh": lambda x, axis: x.tanh(),
    "Softmax": lambda x, axis: x.softmax(axis),
    "LogSoftmax": lambda x, axis: x.log_softmax(axis),
    "Identity": lambda x, axis: x,
}
"""The kinds of steps. An Identity is one between others."""
NO_RANGE = "a LogSoftmax has no range that is known beforehand, so it is only carried over at the very end"


def behind_tail(output: Output, value: Tensor, *, batched: bool = True) -> Tensor:
    """What the tail of an output makes of a batch of values; its axes count the batch if there is one."""
    for step in output.tail:
        axis = int(step.attributes.get("axis", -1))
        axis += not batched and axis >= 0
        if step.kind not in TAILS:
            raise CheckFailed(f"relutrim cannot check the {step.kind} before output {output.name!r}")
        value = TAILS[step.kind](value, axis)
    return value
