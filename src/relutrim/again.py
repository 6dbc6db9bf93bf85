"""Analyses of what rewriting has left: a smaller network may show what the original hid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from relutrim.network.graph import Network
from relutrim.rewrite.draft import Step

if TYPE_CHECKING:
    from relutrim.prove.stability import Stability
    from relutrim.prove.verdict import Evidence
    from relutrim.rewrite.cost import Cost
    from relutrim.rewrite.pipeline import Rewritten

NAME = "analyze"


@dataclass(frozen=True, eq=False)
class Again:
    """Rounds of analysing and rewriting, where neurons are undecided and there is time.

    Opposite neurons, for one, are bounded one by one in the original and are a linear part afterwards. The
    verdicts are the smaller network's own; nothing is carried over from the original but inputs to try. Where
    every neuron is decided, another round has nothing to find: rewriting moves no pre-activation by more than
    rounding does, or than the tolerance allows.
    """

    analyse: Callable[[Network, float | None, Any], Stability]
    time_limit: float | None

    def improve(
        self,
        network: Network,
        stability: Stability,
        result: Rewritten,
        rewrite: Callable[..., Rewritten],
        weakest: Evidence,
        cost: Cost,
    ) -> Rewritten:
        """The result of as many rounds as make the network smaller; each ends with one that costs less."""
        from relutrim.prove.cascade import LAST_SECONDS

        before, spent = network, stability.seconds
        while cost.of(result.network) < cost.of(before) and stability.undecided(weakest):
            left = None if self.time_limit is None else self.time_limit - spent
            if (LAST_SECONDS - spent if left is None else left) <= 0:
                break
            before = result.network
            stability = self.analyse(before, left, stability.witnesses)
            spent += stability.seconds
            found = rewrite(before, stability, moved=result.moved)
            if cost.of(found.network) < cost.of(before):
                text = f"decided again: {stability.undecided(weakest)} neurons are undecided now"
                result = replace(found, steps=(*result.steps, Step(NAME, "", text), *found.steps))
        return result
