"""ISA's and the baselines' programs on Gurobi: one call, with lazy constraints, as in the paper.

Gurobi may pass over a lazy constraint that came from a node, so each is given again with every solution that
violates it. The licence that comes with the package allows 2000 columns and 2000 rows; a row with two ends
would take a column of its own, so it is two rows here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import gurobipy
import numpy as np
from gurobipy import GRB

from relutrim.errors import InputError
from relutrim.graph.operators import Array
from relutrim.milp.model import Milp
from relutrim.milp.solver import Outcome, Status, Watcher
from relutrim.prove.deadline import Deadline

_LIMITS = {GRB.TIME_LIMIT, GRB.NODE_LIMIT, GRB.ITERATION_LIMIT, GRB.MEM_LIMIT, GRB.SOLUTION_LIMIT}


def maximize(model: Milp, watcher: Watcher, deadline: Deadline, tolerance: float, seed: int) -> Outcome:
    """One call; see :class:`relutrim.milp.solver.Solver`."""
    try:
        return _Run(model, watcher, deadline, tolerance, seed).run()
    except gurobipy.GurobiError as error:
        if error.errno == GRB.ERROR_SIZE_LIMIT_EXCEEDED:
            columns, rows, _ = model.size
            raise InputError(
                f"the program has {columns} columns and about {rows} rows, more than Gurobi's licence here "
                "allows; use --solver highs or scip, or a larger licence"
            ) from None
        if error.errno == GRB.ERROR_NO_LICENSE:
            raise InputError(f"Gurobi has no licence here ({error}); use --solver highs or scip") from None
        return Outcome(Status.FAILED, math.nan, why=f"Gurobi: {error}")


@dataclass(eq=False)
class _Run:
    model: Milp
    watcher: Watcher
    deadline: Deadline
    tolerance: float
    seed: int
    zeroed: set[int] = field(default_factory=set, init=False)
    enough: bool = field(default=False, init=False)
    error: BaseException | None = field(default=None, init=False)

    def run(self) -> Outcome:
        with gurobipy.Env(params={"OutputFlag": 0}) as environment, gurobipy.Model(env=environment) as solver:
            self._fill(solver)
            solver.optimize(self._called)
            if self.error is not None:
                raise self.error
            status, nodes = solver.Status, int(solver.NodeCount)
            bound = float(solver.ObjBound) if status != GRB.INF_OR_UNBD else math.nan
            if not abs(bound) < 1e99:
                bound = math.nan
        if self.enough:
            return Outcome(Status.STOPPED, bound, nodes)
        cut = math.isfinite(self.model.cutoff)
        if cut and status in (GRB.CUTOFF, GRB.INFEASIBLE, GRB.INF_OR_UNBD):
            return Outcome(Status.FINISHED, self.model.cutoff, nodes)
        if status == GRB.OPTIMAL:
            return Outcome(Status.FINISHED, bound, nodes)
        if status == GRB.INTERRUPTED:
            raise KeyboardInterrupt
        if status in _LIMITS:
            return Outcome(Status.LIMIT, bound, nodes)
        return Outcome(Status.FAILED, math.nan, nodes, why=f"Gurobi ended with status {status}")

    def _fill(self, solver: gurobipy.Model) -> None:
        model = self.model
        solver.Params.TimeLimit = min(1e9, max(0.0, self.deadline.left))
        solver.Params.Seed = self.seed % 2_000_000_000
        solver.Params.Threads = 1
        solver.Params.LazyConstraints = 1
        solver.Params.DualReductions = 0
        solver.Params.MIPGap = 0.0
        solver.Params.MIPGapAbs = self.tolerance
        solver.Params.FeasibilityTol = max(1e-9, self.tolerance)
        solver.Params.OptimalityTol = max(1e-9, self.tolerance)
        solver.Params.IntFeasTol = max(1e-9, self.tolerance)
        if math.isfinite(model.cutoff):
            solver.Params.Cutoff = model.cutoff
        kinds = np.where(model.whole, GRB.BINARY, GRB.CONTINUOUS).tolist()
        made = solver.addVars(
            len(kinds), lb=model.lo.tolist(), ub=model.hi.tolist(), obj=model.cost.tolist(), vtype=kinds
        )
        self.columns = list(made.values())
        solver.ModelSense = GRB.MAXIMIZE
        solver.ObjCon = model.offset
        start, index, value = model.start.tolist(), model.index.tolist(), model.value.tolist()
        for row, (lo, hi) in enumerate(zip(model.row_lo.tolist(), model.row_hi.tolist(), strict=True)):
            a, b = start[row], start[row + 1]
            form = gurobipy.LinExpr(value[a:b], [self.columns[i] for i in index[a:b]])
            if lo == hi:
                solver.addLConstr(form, GRB.EQUAL, hi)
                continue
            if hi < math.inf:
                solver.addLConstr(form, GRB.LESS_EQUAL, hi)
            if lo > -math.inf:
                solver.addLConstr(form, GRB.GREATER_EQUAL, lo)

    def _called(self, solver: gurobipy.Model, where: int) -> None:
        """Callbacks of Gurobi. Exceptions must not pass through it."""
        if self.error is not None or self.enough:
            solver.terminate()
            return
        try:
            if where == GRB.Callback.MIPSOL:
                values = np.array(solver.cbGetSolution(self.columns))
                self._zero(solver, self.watcher.solution(values), values)
                self._ask(solver, float(solver.cbGet(GRB.Callback.MIPSOL_OBJBND)))
            elif where == GRB.Callback.MIPNODE:
                if self.watcher.relaxations and solver.cbGet(GRB.Callback.MIPNODE_STATUS) == GRB.OPTIMAL:
                    values = np.array(solver.cbGetNodeRel(self.columns))
                    self._zero(solver, self.watcher.relaxation(values), values)
                self._ask(solver, float(solver.cbGet(GRB.Callback.MIPNODE_OBJBND)))
            elif where == GRB.Callback.MIP:
                self._ask(solver, float(solver.cbGet(GRB.Callback.MIP_OBJBND)))
        except BaseException as error:  # raised again outside
            self.error = error
            solver.terminate()

    def _zero(self, solver: gurobipy.Model, columns: Sequence[int], values: Array) -> None:
        fresh = [column for column in columns if column not in self.zeroed]
        self.zeroed.update(fresh)
        for column in {*fresh, *(column for column in self.zeroed if values[column] > 0)}:
            solver.cbLazy(gurobipy.LinExpr(self.columns[column]), GRB.LESS_EQUAL, 0.0)

    def _ask(self, solver: gurobipy.Model, bound: float) -> None:
        if self.watcher.enough(bound):
            self.enough = True
            solver.terminate()
