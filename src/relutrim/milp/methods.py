"""The methods ``isa``, ``layer`` and ``neuron``: what comes before the solver, and what its word is worth.

A solver works with tolerances, so its word alone makes nobody stable. What it says no input can do is given
to the prover, whose bounds are safe; what the prover cannot confirm gets a program of its own, and counts,
with evidence ``solver``, only with a margin that the tolerances cannot explain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relutrim.errors import InputError
from relutrim.graph.operators import Affine, Relu
from relutrim.intervals import Interval
from relutrim.milp.formulation import Formulation, State, Unmodelled
from relutrim.milp.isa import Hunt, seen, unseen
from relutrim.milp.settings import Settings
from relutrim.milp.single import TOLERANCE, Reach
from relutrim.milp.solver import TOLERANCES, Outcome, Solver, Status, Watcher, solver
from relutrim.prove.tree_search import TreeSearch

if TYPE_CHECKING:
    from relutrim.milp.model import Milp
    from relutrim.prove.cascade import Cascade
    from relutrim.prove.deadline import Deadline
    from relutrim.prove.stability import LayerStability

_FEASIBILITY = 1e-6


@dataclass(eq=False)
class Milps:
    """One run of a method, on the state of a cascade.

    ``words`` are states that no input shows by the solver's word, with their margins; ``remarks`` say why
    others are not decided.
    """

    cascade: Cascade
    settings: Settings
    deadline: Deadline
    words: dict[State, float] = field(default_factory=dict, init=False)
    remarks: list[str] = field(default_factory=list, init=False)
    _solver: Solver = field(init=False)
    _ranges: dict[str, Interval] = field(init=False)

    def __post_init__(self) -> None:
        for node in self.cascade.network.nodes:
            if not isinstance(node.operator, Affine | Relu):
                raise InputError(
                    f"node {node.name!r} is a {node.operator.kind}, which mixed-integer programs here have "
                    "no rows for; use --method auto, which proves and searches without them"
                )
        self._solver = solver(self.settings.solver)
        self._ranges = self.cascade.values

    def run(self, method: str) -> None:
        """Decide what can be decided in time."""
        cascade = self.cascade
        if self.settings.big_m != "interval":
            cascade.bound(search=False)
        if self.settings.big_m == "best":
            cascade.rebound(cascade.network.input.name, search=False)
        relus = [relu.name for relu in cascade.network.relus]
        try:
            if method == "isa":
                self._isa(relus)
            for relu in relus if method != "isa" else ():
                if method == "layer":
                    self._isa([relu])
                else:
                    self._neurons(relu)
        except Unmodelled as error:
            self._remark(str(error))

    def conclude(self, layers: Sequence[LayerStability]) -> dict[str, Any]:
        """What the solver's word adds to verdicts, as changes of a :class:`Stability`."""
        told = []
        for layer in layers:
            margins = {True: np.full(layer.size, np.nan), False: np.full(layer.size, np.nan)}
            for state, margin in self.words.items():
                if state.relu == layer.name and not seen(self.cascade, state):
                    margins[state.on][state.neuron] = margin
            told.append(layer.told(inactive=margins[True], active=margins[False]))
        return {"layers": tuple(told), "remarks": tuple(self.remarks), "solver": self.settings.solver}

    def _isa(self, relus: Sequence[str]) -> None:
        """The states of these ReLUs, all in one program."""
        wanted = unseen(self.cascade, relus)
        if not wanted or self.deadline.passed:
            return
        hunt = Hunt(self.cascade, self._formulation(relus), wanted, self.settings.inject)
        outcome = self._solve(hunt.model, hunt, _FEASIBILITY)
        impossible = list(hunt.open.values()) if hunt.settled(outcome) else []
        self._confirm([*impossible, *hunt.pending])

    def _neurons(self, relu: str) -> None:
        """The states of a ReLU, each in a program of its own. What they say tightens the constants of what
        follows, whose verdicts rest on the solver's word anyway.
        """
        wanted = self._both(relu) if self.settings.until == "optimal" else unseen(self.cascade, [relu])
        if not wanted or self.deadline.passed:
            return
        formulation = self._formulation([relu])
        self._ranges = dict(self._ranges)
        impossible = []
        for state in wanted:
            if self.deadline.passed:
                break
            if self.settings.until == "optimal" or not seen(self.cascade, state):
                reach = self._reach(formulation, state, self.settings.until)
                self._claim(state, reach)
                if state in self.words:
                    impossible.append(state)
        self._prove(impossible)

    def _both(self, relu: str) -> list[State]:
        loose = self.cascade.loose(self.cascade.network[relu].inputs[0]).nonzero()[:, 0].tolist()
        return [State(relu, neuron, on) for neuron in loose for on in (True, False)]

    def _confirm(self, states: Sequence[State]) -> None:
        """Proofs where the prover finds any, margins where the solver has any."""
        if self.settings.big_m == "interval" and states:
            self.cascade.bound(search=False)
        formulations: dict[str, Formulation] = {}
        for state in self._prove(states):
            if self.deadline.passed:
                return
            if state.relu not in formulations:
                formulations[state.relu] = self._formulation([state.relu])
            self._claim(state, self._reach(formulations[state.relu], state, "sign"))

    def _prove(self, states: Sequence[State]) -> list[State]:
        """Give states to the prover; those it leaves."""
        if self._left(states):
            among = frozenset((state.relu, state.neuron) for state in states)
            TreeSearch(self.cascade, self.deadline, self.cascade.jobs, among).briefly()
        return self._left(states)

    def _left(self, states: Iterable[State]) -> list[State]:
        """Those that are neither shown nor proved impossible."""
        cascade = self.cascade
        return [
            state
            for state in states
            if not seen(cascade, state) and bool(cascade.undecided(cascade.network[state.relu])[state.neuron])
        ]

    def _formulation(self, relus: Sequence[str]) -> Formulation:
        return Formulation(self.cascade.backward, self._ranges, relus)

    def _reach(self, formulation: Formulation, state: State, until: str) -> tuple[Reach, Outcome]:
        tolerance = max(TOLERANCE, TOLERANCES[self.settings.solver])
        reach = Reach(self.cascade, formulation, state, until, self.settings.inject != "off", tolerance)
        return reach, self._solve(reach.model, reach, TOLERANCE)

    def _claim(self, state: State, found: tuple[Reach, Outcome]) -> None:
        """Keep what the solver says about a state."""
        reach, outcome = found
        margin = reach.margin(outcome)
        if margin > 0:
            self.words[state] = margin
        if reach.usable(outcome) and self._ranges is not self.cascade.values:
            pre = self.cascade.network[state.relu].inputs[0]
            known = self._ranges[pre]
            index = torch.tensor([state.neuron], device=known.lo.device)
            lower = torch.tensor([-outcome.bound - reach.explained]).to(known.lo)
            self._ranges[pre] = known.tightened(index, -1.0 if state.on else 1.0, lower)

    def _solve(self, model: Milp, watcher: Watcher, tolerance: float) -> Outcome:
        """Whatever goes wrong in a solver decides nothing, and is remarked."""
        try:
            outcome = self._solver.maximize(model, watcher, self.deadline, tolerance, self.cascade.seed)
        except InputError:
            raise
        except Exception as error:
            outcome = Outcome(Status.FAILED, math.nan, why=f"{type(error).__name__}: {error}")
        self.cascade.nodes += outcome.nodes
        if outcome.status is Status.FAILED:
            self._remark(f"the solver {self.settings.solver} failed ({outcome.why})")
        self.cascade.report(self.settings.solver)
        return outcome

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)
