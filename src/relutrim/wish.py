"""How to compress, as a user says it, and what that means in numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from relutrim.errors import InputError
from relutrim.graph.graph import Network
from relutrim.memory import AMPLE, MemoryBudget
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence
from relutrim.rounding import UNIT

if TYPE_CHECKING:
    from relutrim.prove.deadline import Deadline
    from relutrim.rewrite.rules import Allowance

UNIT32 = 2.0**-24
"""Unit roundoff of float32."""
_LOOK = 0.3
"""The part of the time until the deadline that looking for the largest outputs gets."""
EVIDENCE = {"proof": Evidence.PROOF, "solver": Evidence.SOLVER, "data": Evidence.DATA}


@dataclass(frozen=True)
class Wish:
    """How to compress, as a user says it."""

    tolerance: str | float
    rewrites: str
    evidence: str
    cost: str
    dtype: str | None
    fold_batch_norm: bool = False

    def checked(self, network: Network) -> Wish:
        """The same, if it makes sense."""
        from relutrim.observe import checked_dtype
        from relutrim.rewrite.cost import Cost
        from relutrim.rewrite.pipeline import REWRITES

        for word, value, choices in (
            ("set of rewrites", self.rewrites, REWRITES),
            ("evidence", self.evidence, EVIDENCE),
            ("cost", self.cost, list(Cost)),
        ):
            if value not in choices:
                raise InputError(f"there is no {word} {value!r}; choose one of {', '.join(choices)}")
        tolerance = parsed_tolerance(self.tolerance)
        if tolerance != "exact" and self.rewrites != "all":
            raise InputError(f"rewrites {self.rewrites!r} are exact; a tolerance needs rewrites 'all'")
        return replace(self, tolerance=tolerance, dtype=checked_dtype(self.dtype, network))


def parsed_tolerance(tolerance: str | float) -> str | float:
    """``exact``, ``rounding``, or a number that is not negative."""
    if tolerance in ("exact", "rounding"):
        return tolerance
    try:
        number = float(tolerance)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InputError(
            f"tolerance {tolerance!r} makes no sense; it is 'exact', 'rounding', or how far an output may "
            "move, a number such as 1e-6"
        )
    return number


def allowed_deviation(
    network: Network,
    stability: Stability,
    tolerance: str | float,
    data: Any = None,
    deadline: Deadline | None = None,
    memory: MemoryBudget = AMPLE,
) -> Allowance:
    """How far the entries of the outputs may move, and what of that may be spent.

    ``exact`` and ``rounding`` allow ``2^-24`` (float32's unit roundoff) times the largest value seen. Of
    that ``rounding`` spends what storing the output in the file's own type may change. Where an input is
    unbounded no value says how large an output gets: there ``exact`` is 0, and ``rounding`` makes no sense.
    What is pinned may not move at all. Where time is up, only some inputs are looked at.
    """
    import torch

    from relutrim.observe import largest_outputs
    from relutrim.rewrite.rules import Allowance

    region = stability.problem.region()
    bounded = region.bounded
    if tolerance == "rounding" and not bounded:
        raise InputError(
            "an input is unbounded, so nothing says what rounding an output may take; give a number as "
            "tolerance, such as 1e-6, or every input a finite range"
        )
    still = {name: torch.zeros((1, *network.shapes[name]), dtype=torch.float64) for name in network.pinned}
    if isinstance(tolerance, str) and bounded:
        until = None if deadline is None else deadline.within(_LOOK * deadline.left)
        largest = largest_outputs(network, stability, data, until, memory)
        parts = torch.split(largest, [network.size(source) for source in network.sources])
        shaped = {
            source: part.reshape(1, *network.shapes[source])
            for source, part in zip(network.sources, parts, strict=True)
        }
        limits = {source: UNIT32 * part for source, part in shaped.items()} | still
        own = UNIT if network.dtype == "float64" else UNIT32
        budget = {source: own * part for source, part in shaped.items()} | still
        return Allowance(limits, budget if tolerance == "rounding" else None)
    number = 0.0 if isinstance(tolerance, str) else tolerance
    every = {
        source: torch.full((1, *network.shapes[source]), number, dtype=torch.float64)
        for source in network.sources
    }
    every |= still
    return Allowance(every, every if number > 0 else None)
