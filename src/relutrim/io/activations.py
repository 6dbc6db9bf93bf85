"""Functions of each number alone: a line each in the table of a format, and what several operators make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.graph.operators import Elu, Operator, Scale, Softplus
from relutrim.io.piecewise import Emit, V

Number: TypeAlias = float | str
"""A number of an operator, or a word."""


class Function:
    """A line of a table. ``make`` is an operator of the graph, which the same line writes, or a function that
    takes an :class:`Emit` and a value. ``parameters`` are what the format calls its numbers, in the order in
    which ``make`` takes them, and their defaults.
    """

    def __init__(self, make: Callable[..., Any], /, **parameters: Number) -> None:
        self.make = make
        self.parameters: Mapping[str, Number] = parameters

    @property
    def operator(self) -> type[Operator] | None:
        """The operator that the line writes."""
        return self.make if isinstance(self.make, type) and issubclass(self.make, Operator) else None

    def read(self, emit: Emit[V], x: V, numbers: Iterable[Number]) -> V:
        """What the function makes of ``x``."""
        made: V = self.make(emit, x, *numbers) if self.operator is None else emit(self.make(*numbers), x)
        return made

    def written(self, operator: Operator) -> dict[str, Number]:
        """What the format says of the operator besides its name."""
        own = (getattr(operator, field.name) for field in fields(operator) if field.init)
        return dict(zip(self.parameters, own, strict=False))


def table(lines: Mapping[str, Function]) -> dict[type[Operator], str]:
    """What each operator is called that some line writes, the first one that does."""
    found: dict[type[Operator], str] = {}
    for name, line in lines.items():
        if line.operator is not None:
            found.setdefault(line.operator, name)
    return found


def elu(emit: Emit[V], x: V, alpha: float, scale: float, input_scale: float = 1.0) -> V:
    """``scale elu(x)``: with the right numbers, SELU."""
    if input_scale != 1:
        raise UnsupportedError("an ELU that scales its input is not known")
    made = emit(Elu(alpha), x)
    return made if scale == 1 else emit(Scale.exactly(scale), made)


def celu(emit: Emit[V], x: V, alpha: float) -> V:
    """``alpha elu(x / alpha)``."""
    if alpha == 1:
        return emit(Elu(), x)
    if not alpha > 0:
        raise UnsupportedError(f"its alpha is {alpha}; only positive ones make a function that rises")
    return emit(Scale.exactly(alpha), emit(Elu(), emit(Scale.divide(np.asarray(alpha)), x)))


def softplus(emit: Emit[V], x: V, beta: float, threshold: float) -> V:
    """``log(1 + exp(beta x)) / beta``."""
    if not beta > 0 or threshold < 20:
        raise UnsupportedError(f"a softplus of beta {beta} that is cut off at {threshold} is not known")
    if beta == 1:
        return emit(Softplus(threshold), x)
    return emit(Scale.divide(np.asarray(beta)), emit(Softplus(threshold), emit(Scale.exactly(beta), x)))
