"""How to compress, as a user says it, and what that means in numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from relutrim.errors import InputError
from relutrim.network.graph import Network
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence

if TYPE_CHECKING:
    from torch import Tensor

EVIDENCE = {"proof": Evidence.PROOF, "solver": Evidence.SOLVER, "data": Evidence.DATA}


@dataclass(frozen=True)
class Wish:
    """How to compress, as a user says it."""

    tolerance: str | float
    rewrites: str
    evidence: str
    cost: str
    dtype: str | None

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
    network: Network, stability: Stability, tolerance: str | float, data: Any = None
) -> dict[str, Tensor] | None:
    """Per source of an output how far its entries may move. ``rounding`` is what storing the output itself
    may change: half a unit in the last place, in the file's type, of the largest value seen.
    """
    import torch

    from relutrim.observe import behind_normalisation, samples

    if tolerance == "exact":
        return None
    points = behind_normalisation(stability.problem, network, samples(stability, data))
    values = network.run(points, until=list(network.sources))
    allowed = {}
    for source in network.sources:
        seen = values[source].abs().amax(0, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
        unit = 2.0**-53 if network.dtype == "float64" else 2.0**-24
        allowed[source] = (
            unit * seen if tolerance == "rounding" else torch.full_like(seen, float(tolerance))
        ).to(torch.float64)
    return allowed
