"""ISA's and the baselines' programs on HiGHS.

HiGHS can neither be shown new rows while it works nor be asked for the relaxations of its nodes. So it is
stopped at the first solution that shows something, and begins again without what was seen; by the paper's
Corollary 1 that happens at most once per neuron. In between, the relaxation of each new program is solved
here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from relutrim.graph.operators import Array
from relutrim.highs import quiet_solver
from relutrim.highs import run as run_solver
from relutrim.milp.model import Index, Milp
from relutrim.milp.solver import Outcome, Status, Watcher
from relutrim.prove.deadline import Deadline

_FINISHED = (
    highspy.HighsModelStatus.kOptimal,
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kObjectiveBound,
)
_LIMITS = (
    highspy.HighsModelStatus.kTimeLimit,
    highspy.HighsModelStatus.kIterationLimit,
    highspy.HighsModelStatus.kMemoryLimit,
    highspy.HighsModelStatus.kSolutionLimit,
    highspy.HighsModelStatus.kInterrupt,
)
_HEURISTICS = ("rins", "rens", "root_reduced_cost", "zi_round", "shifting", "feasibility_jump")
"""Where there is nothing to find, as mostly here, these cost most of the time."""
_DIVE = 50
_ITERATIONS = 2000
"""Of the simplex method; more than that, and an interior point is quicker."""
_SHOW = highspy.cb.HighsCallbackType.kCallbackMipImprovingSolution
_ASK = highspy.cb.HighsCallbackType.kCallbackMipInterrupt


def maximize(model: Milp, watcher: Watcher, deadline: Deadline, tolerance: float, seed: int) -> Outcome:
    """Solve again and again, until a search ends without a new solution of interest; see
    :class:`relutrim.milp.solver.Solver`.
    """
    return _Run(model, watcher, deadline, tolerance, seed).run()


@dataclass(eq=False)
class _Run:
    model: Milp
    watcher: Watcher
    deadline: Deadline
    tolerance: float
    seed: int
    hi: Array = field(init=False)
    nodes: int = field(default=0, init=False)
    error: BaseException | None = field(default=None, init=False)
    found: list[int] = field(default_factory=list, init=False)
    enough: bool = field(default=False, init=False)
    late: bool = field(default=False, init=False)
    heard: float = field(default=math.nan, init=False)
    dived: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.hi = self.model.hi.copy()

    def run(self) -> Outcome:
        while not self.deadline.passed:
            bound = self._relaxations() if self.watcher.relaxations else None
            if bound is not None:
                return self._end(Status.STOPPED, bound)
            if self.deadline.passed:
                break
            outcome = self._search()
            if outcome is not None:
                return outcome
        return self._end(Status.LIMIT, math.nan)

    def _end(self, status: Status, bound: float, why: str = "") -> Outcome:
        return Outcome(status, bound, self.nodes, why)

    def _relaxations(self) -> float | None:
        """Relaxations of the program, while their inputs show anything; where that is enough, the bound (NaN:
        whatever it is).
        """
        lp = self._solver(whole=False)
        while not self.deadline.passed:
            values = self._relaxed(lp)
            if values is None:
                return None
            seen = self._zero(self.watcher.relaxation(values))
            if not seen:
                bound = self.model.offset - float(lp.getInfo().objective_function_value)
                if self.watcher.enough(bound):
                    return bound
                seen = self._dive(lp, values, self._open()) or self._dives(lp, values)
            if self.watcher.enough(math.inf):
                return math.nan
            if not seen:
                return None
            self._narrow(lp, np.array(seen), self.model.lo[seen], self.hi[seen])
        return None

    def _dives(self, lp: highspy.Highs, values: Array) -> list[int]:
        """One dive for each mark that had none yet, until one shows something."""
        marks = self.model.marks
        for mark in self._open():
            if mark not in self.dived and not self.deadline.passed:
                self.dived.add(mark)
                self._weigh(lp, np.where(marks == mark, self.model.cost[marks], 0.0))
                seen = self._dive(lp, values, [mark])
                self._weigh(lp, self.model.cost[marks])
                if seen:
                    return seen
        return []

    def _dive(self, lp: highspy.Highs, values: Array, marks: Sequence[int]) -> list[int]:
        """Relaxations where the states are those of the last one's input, but for those of the marks: what
        comes nearest to these without leaving a linear piece of the network, then the same from there.
        """
        columns = np.flatnonzero(self.model.whole)
        seen: list[int] = []
        best = math.inf
        for _ in range(_DIVE):
            states = self.watcher.states(values, marks)
            lo = np.where(np.isnan(states), self.model.lo[columns], states)
            self._narrow(lp, columns, lo, np.where(np.isnan(states), self.hi[columns], states))
            found = self._relaxed(lp)
            value = float(lp.getInfo().objective_function_value)
            if found is None or not value < best - self.tolerance:
                break
            values, best = found, value
            whole = bool((np.abs(values[columns] - values[columns].round()) <= self.tolerance).all())
            seen = self._zero((self.watcher.solution if whole else self.watcher.relaxation)(values))
            if seen:
                break
        self._narrow(lp, columns, self.model.lo[columns], self.hi[columns])
        return seen

    def _open(self) -> list[int]:
        marks = self.model.marks
        return [int(mark) for mark in marks[self.hi[marks] > 0]]

    def _weigh(self, lp: highspy.Highs, cost: Array) -> None:
        lp.changeColsCost(len(cost), self.model.marks.astype(np.int32), -cost)

    def _relaxed(self, lp: highspy.Highs) -> Array | None:
        """A solution of a relaxation: by the simplex method where it has a start and does not stall, else by
        an interior point.
        """
        for way in ("simplex", "ipm") if lp.getBasis().valid else ("ipm",):
            lp.setOptionValue("solver", way)
            lp.setOptionValue("time_limit", min(1e9, lp.getRunTime() + max(0.0, self.deadline.left)))
            run_solver(lp)
            if lp.getModelStatus() != highspy.HighsModelStatus.kIterationLimit:
                break
        if lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return np.array(lp.getSolution().col_value)

    @staticmethod
    def _narrow(lp: highspy.Highs, columns: Index, lo: Array, hi: Array) -> None:
        lp.changeColsBounds(len(columns), columns.astype(np.int32), lo, hi)

    def _zero(self, columns: Sequence[int]) -> list[int]:
        fresh = [c for c in columns if self.hi[c] > 0]
        self.hi[fresh] = 0.0
        return fresh

    def _search(self) -> Outcome | None:
        """One search; None if something was found, so that another has to follow."""
        highs = self._solver(whole=True)
        self.found, self.enough, self.late, self.error = [], False, False, None
        highs.setCallback(self._called, None)
        highs.startCallback(_SHOW)
        highs.startCallback(_ASK)
        highs.setOptionValue("time_limit", min(1e9, max(0.0, self.deadline.left)))
        code = run_solver(highs)
        if self.error is not None:
            raise self.error
        status, info = highs.getModelStatus(), highs.getInfo()
        self.nodes += max(0, int(info.mip_node_count))
        known = info.mip_dual_bound if self.model.whole.any() else info.objective_function_value
        bound = self.model.offset - float(known)
        if self.found:
            return None
        if self.enough:
            return self._end(Status.STOPPED, self.heard)
        if self.late:
            return self._end(Status.LIMIT, math.nan)
        if code != highspy.HighsStatus.kError and status in _FINISHED:
            if status == highspy.HighsModelStatus.kOptimal:
                # The callback may miss a solution that presolve leaves for the end.
                seen = self._zero(self.watcher.solution(np.array(highs.getSolution().col_value)))
                return None if seen else self._end(Status.FINISHED, bound)
            if math.isfinite(self.model.cutoff):
                return self._end(Status.FINISHED, self.model.cutoff)
            return self._end(Status.FAILED, math.nan, f"HiGHS ended with {status.name}")
        if status in _LIMITS:
            return self._end(Status.LIMIT, bound)
        return self._end(Status.FAILED, math.nan, f"HiGHS ended with {status.name}")

    def _called(self, kind: object, _: str, out: object, answer: object, __: object) -> None:
        """Callbacks of HiGHS. Exceptions must not pass through it."""
        try:
            if self.error is None and kind == int(_SHOW) and not self.found:
                self.found = self._zero(self.watcher.solution(np.array(out.mip_solution)))  # type: ignore[attr-defined]
            elif self.error is None and kind == int(_ASK) and not self.enough:
                self.heard = self.model.offset - float(out.mip_dual_bound)  # type: ignore[attr-defined]
                self.enough, self.late = self.watcher.enough(self.heard), self.deadline.passed
        except BaseException as error:  # raised again outside
            self.error = error
        if kind == int(_ASK):  # sticky: assigned on every call
            answer.user_interrupt = bool(self.found or self.enough or self.late or self.error)  # type: ignore[attr-defined]

    def _solver(self, *, whole: bool) -> highspy.Highs:
        """HiGHS minimises: it drops given solutions when it maximises."""
        model, highs = self.model, quiet_solver()
        highs.setOptionValue("random_seed", self.seed % 2**31)
        if not whole:
            highs.setOptionValue("simplex_iteration_limit", _ITERATIONS)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_, _ = model.size
        lp.col_cost_ = -model.cost
        lp.col_lower_, lp.col_upper_ = np.minimum(model.lo, self.hi), self.hi
        lp.row_lower_, lp.row_upper_ = model.row_lo, model.row_hi
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = model.start, model.index, model.value
        highs.setOptionValue("primal_feasibility_tolerance", self.tolerance)
        highs.setOptionValue("dual_feasibility_tolerance", self.tolerance)
        if whole:
            lp.integrality_ = [
                highspy.HighsVarType.kInteger if w else highspy.HighsVarType.kContinuous for w in model.whole
            ]
            # Not mip_feasibility_tolerance: see TOLERANCES.
            for name in _HEURISTICS:
                highs.setOptionValue(f"mip_heuristic_run_{name}", False)
            highs.setOptionValue("mip_rel_gap", 0.0)
            highs.setOptionValue("mip_abs_gap", self.tolerance)
            if math.isfinite(model.cutoff):
                highs.setOptionValue("objective_bound", model.offset - model.cutoff)
        if highs.passModel(lp) == highspy.HighsStatus.kError:
            raise RuntimeError("HiGHS does not accept the program")
        return highs
