"""One program per neuron and direction: the way before ISA, and the way to a margin after it.

The value of the program is how far the neuron gets into a state. It is searched to the end (Tjeng et al.
2019), or only until its sign is known (Serra et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from relutrim.graph.operators import Array
from relutrim.milp.formulation import Formulation, State
from relutrim.milp.isa import input_of, seen
from relutrim.milp.model import Milp
from relutrim.milp.solver import Outcome, Status

if TYPE_CHECKING:
    from relutrim.prove.cascade import Cascade

TOLERANCE = 1e-9
"""As small as solvers allow: margins have to be larger than what it explains."""


@dataclass(eq=False)
class Reach:
    """The algorithm's side of a solver's work on one state."""

    cascade: Cascade
    formulation: Formulation
    state: State
    until: str = "sign"
    relaxations: bool = False
    tolerance: float = TOLERANCE
    model: Milp = field(init=False)
    explained: float = field(init=False)
    """What the solver's tolerances can add up to."""

    def __post_init__(self) -> None:
        self.model = self.formulation.neuron(self.state)
        self.explained = self.formulation.sensitivity(self.model, self.tolerance)

    def solution(self, values: Array) -> Sequence[int]:
        """Note what the solution's input shows."""
        self.cascade.witnesses.observe(input_of(self.cascade, self.model, values))
        return ()

    def relaxation(self, values: Array) -> Sequence[int]:
        """The same for a relaxation."""
        return self.solution(values)

    def states(self, values: Array, marks: Sequence[int]) -> Array:
        """Nothing is to be counted here, so there is nothing to dive for."""
        return np.full(int(self.model.whole.sum()), math.nan)

    def enough(self, bound: float) -> bool:
        """Whether the sign is known, with a margin."""
        return self.until == "sign" and (seen(self.cascade, self.state) or bound < -2 * self.explained)

    def margin(self, outcome: Outcome) -> float:
        """How far from 0 the neuron stays, by the solver's word, beyond what tolerances explain; NaN where
        that says nothing.
        """
        if not self.usable(outcome):
            return math.nan
        margin = -outcome.bound - self.explained
        return margin if margin > 0 and not seen(self.cascade, self.state) else math.nan

    def usable(self, outcome: Outcome) -> bool:
        """Whether a solver ended as it should, with a bound that no input so far exceeds."""
        known = self.cascade.witnesses.seen[self.state.relu]
        met = float((known.highest if self.state.on else -known.lowest)[self.state.neuron])
        ended = outcome.status in (Status.FINISHED, Status.STOPPED)
        return ended and math.isfinite(outcome.bound) and not met > outcome.bound + self.explained
