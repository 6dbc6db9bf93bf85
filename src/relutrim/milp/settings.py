"""How the methods of the paper work, as stated by the user. Nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from relutrim.errors import InputError

METHODS = ("isa", "layer", "neuron")
SOLVERS = ("highs", "scip", "gurobi")
BIG_M = ("interval", "linear", "best")
INJECTIONS = ("relaxation", "random", "off")
UNTIL = ("sign", "optimal")


@dataclass(frozen=True)
class Settings:
    """How a method works: which solver, where its constants come from, which inputs it is given on the way,
    and how far a program of a single neuron is searched.
    """

    solver: str = "highs"
    big_m: str = "best"
    inject: str = "relaxation"
    until: str = "sign"

    def __post_init__(self) -> None:
        for option, value, known in (
            ("solver", self.solver, SOLVERS),
            ("big-M", self.big_m, BIG_M),
            ("injection", self.inject, INJECTIONS),
            ("end", self.until, UNTIL),
        ):
            if value not in known:
                raise InputError(f"there is no {option} {value!r}; choose one of {', '.join(known)}")
