"""ISA's and the baselines' programs on SCIP: one call, with a constraint handler that looks at solutions and
a heuristic that looks at relaxations.

Columns that are to be 0 get that as their global upper bound. SCIP must not reason about them beforehand: a
column that only the objective moves would be merged with its row, and setting it to 0 would then forbid what
it stands for. So the handler locks them, and reductions that rest on locks alone, or on symmetries
that a column set to 0 breaks, are off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyscipopt import Conshdlr, Heur, Model
from pyscipopt.scip import PY_SCIP_HEURTIMING as TIMING
from pyscipopt.scip import PY_SCIP_RESULT as RESULT
from pyscipopt.scip import PY_SCIP_STAGE as STAGE

from relutrim.graph.operators import Array
from relutrim.milp.model import Milp
from relutrim.milp.solver import Outcome, Status, Watcher
from relutrim.prove.deadline import Deadline

_LIMITS = {
    "timelimit",
    "memlimit",
    "nodelimit",
    "totalnodelimit",
    "stallnodelimit",
    "gaplimit",
    "userinterrupt",
}

_INFINITE = 1e19


def maximize(model: Milp, watcher: Watcher, deadline: Deadline, tolerance: float, seed: int) -> Outcome:
    """One call; see :class:`relutrim.milp.solver.Solver`."""
    return _Run(model, watcher, deadline, tolerance, seed).run()


@dataclass(eq=False)
class _Run:
    model: Milp
    watcher: Watcher
    deadline: Deadline
    tolerance: float
    seed: int
    zeroed: set[int] = field(default_factory=set, init=False)
    waiting: list[int] = field(default_factory=list, init=False)
    enough: bool = field(default=False, init=False)
    error: BaseException | None = field(default=None, init=False)

    def run(self) -> Outcome:
        self.scip = self._built()
        self.scip.optimize()
        if self.error is not None:
            raise self.error
        status, nodes = self.scip.getStatus(), int(self.scip.getNTotalNodes())
        bound = self._bound()
        if self.enough:
            return Outcome(Status.STOPPED, bound, nodes)
        if status == "userinterrupt":
            raise KeyboardInterrupt
        if status == "infeasible" and math.isfinite(self.model.cutoff):
            return Outcome(Status.FINISHED, self.model.cutoff, nodes)
        if status == "optimal":
            return Outcome(Status.FINISHED, bound, nodes)
        if status in _LIMITS:
            return Outcome(Status.LIMIT, bound, nodes)
        return Outcome(Status.FAILED, math.nan, nodes, why=f"SCIP ended with {status}")

    def _built(self) -> Model:
        model, scip = self.model, Model()
        scip.hideOutput()
        scip.setParam("limits/time", min(1e9, max(0.0, self.deadline.left)))
        scip.setParam("numerics/feastol", self.tolerance)
        scip.setParam("numerics/dualfeastol", self.tolerance)
        scip.setParam("randomization/randomseedshift", self.seed % 2**31)
        scip.setParam("misc/allowstrongdualreds", False)
        scip.setParam("misc/allowweakdualreds", False)
        scip.setParam("misc/usesymmetry", 0)
        columns = zip(
            model.lo.tolist(), model.hi.tolist(), model.cost.tolist(), model.whole.tolist(), strict=True
        )
        self.columns = [
            scip.addVar(lb=lo, ub=hi, obj=cost, vtype="B" if whole else "C")
            for lo, hi, cost, whole in columns
        ]
        index, value, start = model.index.tolist(), model.value.tolist(), model.start.tolist()
        for row, (lo, hi) in enumerate(zip(model.row_lo.tolist(), model.row_hi.tolist(), strict=True)):
            a, b = start[row], start[row + 1]
            if a == b:
                continue
            first = self.columns[index[a]] * value[a]
            cons = scip.addCons(first <= hi) if hi < math.inf else scip.addCons(first >= lo)
            if -math.inf < lo and hi < math.inf:
                scip.chgLhs(cons, lo)
            for at in range(a + 1, b):
                scip.addConsCoeff(cons, self.columns[index[at]], value[at])
        scip.setMaximize()
        scip.addObjoffset(model.offset)
        if math.isfinite(model.cutoff):
            scip.setObjlimit(model.cutoff)
        self.marks = [self.columns[i] for i in model.marks.tolist()]
        handler = _Handler(self)
        scip.includeConshdlr(
            handler,
            "states",
            "looks at every solution",
            enfopriority=-2_000_000,
            chckpriority=-2_000_000,
            propfreq=1,
            needscons=False,
        )
        if self.watcher.relaxations:
            scip.includeHeur(
                _Look(self),
                "relaxations",
                "looks at every relaxation",
                "R",
                priority=1_000_000,
                freq=1,
                timingmask=TIMING.AFTERLPNODE,
                usessubscip=False,
            )
        return scip

    def values(self, solution: Any) -> Array:
        """A solution, or where that is None the relaxation's."""
        return np.array([self.scip.getSolVal(solution, column) for column in self.columns])

    def rejects(self, solution: Any) -> bool:
        """Show a solution to the watcher; whether it holds what is to be 0."""
        if self.over():
            return False
        try:
            values = self.values(solution)
            self.zero(self.watcher.solution(values))
            self.ask()
        except BaseException as error:
            self.fail(error)
            return True
        return any(values[column] > 1e-6 for column in self.zeroed)

    def look(self) -> None:
        """Show the relaxation to the watcher."""
        if self.over():
            return
        try:
            self.zero(self.watcher.relaxation(self.values(None)))
            self.ask()
        except BaseException as error:
            self.fail(error)

    def zero(self, columns: Sequence[int]) -> None:
        """Columns that are to be 0 as soon as SCIP allows."""
        fresh = [column for column in columns if column not in self.zeroed]
        self.zeroed.update(fresh)
        self.waiting += fresh

    def apply(self) -> tuple[bool, bool]:
        """Set what waits to 0; whether that changed anything, and whether nothing is left that way."""
        changed = False
        try:
            while self.waiting and not self.over() and not self.scip.inProbing():
                column = self.scip.getTransformedVar(self.columns[self.waiting.pop()])
                infeasible, tightened = self.scip.tightenVarUbGlobal(column, 0.0, force=True)
                if infeasible:
                    return True, True
                changed = changed or tightened
        except BaseException as error:
            self.fail(error)
        return changed, False

    def ask(self) -> None:
        """Stop if the watcher has enough, or time is up."""
        if self.watcher.enough(self._bound()):
            self.enough = True
            self.over()

    def _bound(self) -> float:
        """What SCIP knows; its infinities say nothing here."""
        bound = float(self.scip.getDualbound())
        return bound if abs(bound) < _INFINITE else math.nan

    def fail(self, error: BaseException) -> None:
        """Exceptions must not pass through SCIP: keep the first, and stop."""
        if self.error is None:
            self.error = error
        self.over()

    def over(self) -> bool:
        """Whether to stop; SCIP is told each time, because there is a stage at which it does not listen."""
        if self.error is None and not self.enough:
            return False
        if self.scip.getStage() != STAGE.INITSOLVE:
            self.scip.interruptSolve()
        return True


class _Handler(Conshdlr):
    """Every solution has to pass here before it counts."""

    def __init__(self, run: _Run) -> None:
        self.run = run

    def conscheck(self, constraints: Any, solution: Any, *_: Any) -> dict[str, Any]:
        bad = self.run.rejects(solution)
        return {"result": RESULT.INFEASIBLE if bad else RESULT.FEASIBLE}

    def _enforce(self) -> dict[str, Any]:
        bad = self.run.rejects(None)
        changed, empty = self.run.apply()
        if empty:
            return {"result": RESULT.CUTOFF}
        if changed:
            return {"result": RESULT.REDUCEDDOM}
        return {"result": RESULT.INFEASIBLE if bad else RESULT.FEASIBLE}

    def consenfolp(self, *_: Any) -> dict[str, Any]:
        return self._enforce()

    def consenfops(self, *_: Any) -> dict[str, Any]:
        return self._enforce()

    def consprop(self, *_: Any) -> dict[str, Any]:
        changed, empty = self.run.apply()
        if empty:
            return {"result": RESULT.CUTOFF}
        return {"result": RESULT.REDUCEDDOM if changed else RESULT.DIDNOTFIND}

    def conslock(self, constraint: Any, locktype: Any, up: int, down: int) -> None:
        for column in self.run.marks:
            self.run.scip.addVarLocksType(
                self.run.scip.getTransformedVar(column) if self.run.scip.getStage() > 1 else column,
                locktype,
                up + down,
                up + down,
            )


class _Look(Heur):
    """After each relaxation of a node. Bounds wait for the next node: SCIP branches on the LP as it is."""

    def __init__(self, run: _Run) -> None:
        self.run = run

    def heurexec(self, timing: Any, infeasible: Any) -> dict[str, Any]:
        self.run.look()
        return {"result": RESULT.DIDNOTFIND}
