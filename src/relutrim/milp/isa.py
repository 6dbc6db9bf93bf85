"""ISA, the paper's Algorithm 1: one program that shows as many unseen states at once as it can.

While a solver works, every solution and every relaxation it comes by is looked at: the network is run on its
input, and the states that this shows with certainty are no longer asked for. When the value of what is still
asked for is known to be below 1, no input shows any of it.

A solver's values are never taken for states. Where a solution claims a state that its input does not show
(optima like to sit at 0, where a neuron is neither on nor off, and rows hold only up to a tolerance), the
state is not asked for any more either, or the solver would claim it for ever; it is *pending*, and has to be
decided in another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from relutrim.graph.operators import Array
from relutrim.milp.formulation import CUTOFF, Formulation, State
from relutrim.milp.model import Milp
from relutrim.milp.solver import Outcome, Status
from relutrim.search.climb import Targets, climb

if TYPE_CHECKING:
    from relutrim.prove.cascade import Cascade

_CLAIMED = 1e-3
_STEPS = 24


@dataclass(eq=False)
class Hunt:
    """The algorithm's side of a solver's work: which states are still asked for, and which are pending."""

    cascade: Cascade
    formulation: Formulation
    wanted: Sequence[State]
    inject: str = "relaxation"
    model: Milp = field(init=False)
    open: dict[int, State] = field(init=False)
    pending: list[State] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.model = self.formulation.states(self.wanted)
        self.open = dict(zip(self.model.marks.tolist(), self.wanted, strict=True))

    @property
    def relaxations(self) -> bool:
        """Random inputs come at the same moments as those of relaxations."""
        return self.inject != "off"

    def solution(self, values: Array) -> list[int]:
        """States that a solution's input shows, and those it only claims."""
        shown = self._look(values)
        least = min(_CLAIMED, 0.5 / max(1, len(self.wanted)))
        claimed = [column for column in self.open if not values[column] <= least]
        if claimed:
            shown += self._climb([self.open[column] for column in claimed], values)
        claimed = [column for column in claimed if column in self.open]
        self.pending += [self.open.pop(column) for column in claimed]
        return shown + claimed

    def relaxation(self, values: Array) -> list[int]:
        """States that the input of a relaxation shows, or a random one."""
        if self.inject == "random":
            cascade = self.cascade
            return self._note(cascade.region.sample(1, cascade.generator))
        return self._look(values)

    def states(self, values: Array, marks: Sequence[int]) -> Array:
        """Which neurons are on at the input of ``values``; NaN for those of the marks."""
        formulation = self.formulation
        pre = self.cascade.network.run(self._input(values), until=formulation.pre_activations)
        states = formulation.binaries({name: pre[name] > 0 for name in formulation.pre_activations})
        states[[formulation.binary(self.open[mark]) for mark in marks]] = np.nan
        return states

    def enough(self, bound: float) -> bool:
        """Whether nothing that is still asked for can be shown."""
        return not self.open or bound < CUTOFF - _CLAIMED

    def settled(self, outcome: Outcome) -> bool:
        """Whether, by the solver's word, no input shows anything that is still asked for."""
        if outcome.status is Status.STOPPED:
            return self.enough(outcome.bound)
        return outcome.status is Status.FINISHED and outcome.bound <= CUTOFF + _CLAIMED

    def _look(self, values: Array) -> list[int]:
        return self._note(self._input(values))

    def _climb(self, states: Sequence[State], values: Array) -> list[int]:
        """From the input of a solution up the slope of the states that it claims but does not show."""
        cascade, region = self.cascade, self.cascade.region
        targets = Targets(
            [state.relu for state in states],
            torch.tensor([state.neuron for state in states], device=region.lo.device),
            torch.tensor([1.0 if state.on else -1.0 for state in states]).to(region.lo),
            self._input(values).expand(len(states), -1),
        )
        return self._note(climb(cascade.network, region, targets, _STEPS, cascade.deadline))

    def _input(self, values: Array) -> torch.Tensor:
        return input_of(self.cascade, self.model, values)

    def _note(self, points: torch.Tensor) -> list[int]:
        self.cascade.witnesses.observe(points)
        shown = [column for column, state in self.open.items() if seen(self.cascade, state)]
        for column in shown:
            del self.open[column]
        if shown:
            self.cascade.report("isa")
        return shown


def input_of(cascade: Cascade, model: Milp, values: Array) -> torch.Tensor:
    """The network input in a solver's values, moved into the domain where they are off."""
    point = torch.as_tensor(np.asarray(values)[model.inputs], dtype=torch.float64)
    return cascade.region.project(point.to(cascade.region.lo)[None])


def seen(cascade: Cascade, state: State) -> bool:
    """Whether an input has shown a state."""
    found = cascade.witnesses.seen[state.relu]
    return bool((found.active if state.on else found.inactive)[state.neuron] >= 0)


def unseen(cascade: Cascade, relus: Sequence[str]) -> list[State]:
    """The states of undecided neurons of these ReLUs that no input has shown yet: the paper's P and Q."""
    found = []
    for name in relus:
        open_, known = cascade.undecided(cascade.network[name]), cascade.witnesses.seen[name]
        for on, witness in ((True, known.active), (False, known.inactive)):
            found += [State(name, i, on) for i in (open_ & (witness < 0)).nonzero()[:, 0].tolist()]
    return found
