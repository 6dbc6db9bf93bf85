"""What the algorithms ask of a solver, and what they hear from it while it works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Protocol, cast

from relutrim.errors import InputError
from relutrim.graph.operators import Array
from relutrim.milp.model import Milp
from relutrim.milp.settings import SOLVERS
from relutrim.prove.deadline import Deadline

TOLERANCES = {"highs": 1e-6, "scip": 1e-9, "gurobi": 1e-9}
"""How far off a solver's rows and whole numbers are at best. HiGHS 1.15 cuts off solutions when its
mip_feasibility_tolerance is below the default.
"""
_EXTRAS = {"highs": "highspy", "scip": "pyscipopt", "gurobi": "gurobipy"}


class Status(Enum):
    """How a solver's work ended."""

    FINISHED = "finished"
    """Everything was searched; the bound is final."""
    STOPPED = "stopped"
    """The algorithm had heard enough."""
    LIMIT = "limit"
    """Out of time, memory or patience."""
    FAILED = "failed"
    """Anything else. Nothing it said counts."""


@dataclass(frozen=True)
class Outcome:
    """The end of a solver's work: an upper bound of the value, by its own word (NaN: none)."""

    status: Status
    bound: float
    nodes: int = 0
    why: str = ""


class Watcher(Protocol):
    """The algorithm's side. Its methods are called from within the solver, and may raise."""

    @property
    def relaxations(self) -> bool:
        """Whether it wants to see solutions of relaxations."""

    def solution(self, values: Array) -> Sequence[int]:
        """A solution was found; returns columns that are 0 from now on. Where any of them is not 0 in this
        solution, it does not count.
        """

    def relaxation(self, values: Array) -> Sequence[int]:
        """A relaxation was solved; returns columns that are 0 from now on."""

    def states(self, values: Array, marks: Sequence[int]) -> Array:
        """The whole numbers that the network itself has at the input of ``values``; NaN for those that the
        marks count.
        """

    def enough(self, bound: float) -> bool:
        """Whether to stop, now that the value is known to be at most ``bound``."""


class Solver(Protocol):
    """One mixed-integer solver: a module of this folder."""

    def maximize(
        self, model: Milp, watcher: Watcher, deadline: Deadline, tolerance: float, seed: int
    ) -> Outcome:
        """Search the program until nothing is left, the watcher has enough, or time is up.

        A solution that is not above ``model.cutoff`` is of no interest, and a bound that is not either ends
        the search. ``tolerance`` is how far rows and whole numbers may be off.
        """


def solver(name: str) -> Solver:
    """The solver of a name; says what to install if it is missing."""
    if name not in SOLVERS:
        raise InputError(f"there is no solver {name!r}; choose one of {', '.join(SOLVERS)}")
    try:
        import_module(_EXTRAS[name])
    except ImportError as error:
        raise InputError(
            f"the solver {name!r} needs the package {_EXTRAS[name]}, which cannot be imported ({error}); "
            f"install it with: pip install 'relutrim[{name}]', or choose another --solver"
        ) from None
    return cast(Solver, import_module(f"relutrim.milp.{name}"))
