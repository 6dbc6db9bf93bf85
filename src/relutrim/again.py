"""Analyses of what rewriting has left: a smaller network may show what the original hid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from relutrim.graph.graph import Network
from relutrim.graph.slicing import composed
from relutrim.rewrite.draft import Step

if TYPE_CHECKING:
    from relutrim.prove.deadline import Deadline
    from relutrim.prove.stability import Stability
    from relutrim.prove.verdict import Evidence
    from relutrim.rewrite.cost import Cost
    from relutrim.rewrite.pipeline import Rewritten

NAME = "analyze"
_THOROUGH = 0.75
"""The part of the time left that an analysis gets which is not of bounds alone: what it leads to is bounded
again.
"""


@dataclass(frozen=True, eq=False)
class Again:
    """Rounds of analysing and rewriting, where neurons are undecided and there is time.

    Opposite neurons, for one, are bounded one by one in the original and are a linear part afterwards. The
    verdicts are the smaller network's own; nothing is carried over from the original but inputs to try. Where
    every neuron is decided, another round has nothing to find: rewriting moves no pre-activation by more than
    rounding does, or than the tolerance allows.

    A round is of bounds alone (``analyse`` is asked for a method) as long as those make the network smaller;
    they take next to no time. Only then it is as thorough as the first analysis.
    """

    analyse: Callable[[Network, float, Any, str], Stability]
    deadline: Deadline
    method: str
    """That of the first analysis."""

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
        before = network
        while cost.of(result.network) < cost.of(before) and stability.undecided(weakest):
            if self.deadline.passed or stability.interrupted or stability.left == 0:
                break
            before = result.network
            for method in dict.fromkeys(("bounds", self.method)):
                part = 1.0 if method == "bounds" else _THOROUGH
                stability = self.analyse(before, part * self.deadline.left, stability.witnesses, method)
                found = rewrite(before, stability, moved=result.moved)
                if cost.of(found.network) < cost.of(before):
                    word = "bounded" if method == "bounds" != self.method else "decided"
                    text = f"{word} again: {stability.undecided(weakest)} neurons are undecided now"
                    result = replace(
                        found,
                        steps=(*result.steps, Step(NAME, "", text), *found.steps),
                        kept=composed(result.kept, found.kept, found.stored),
                    )
                    break
                if self.deadline.passed or stability.interrupted:
                    break
        return result


def mergeable(network: Network) -> bool:
    """Whether any neurons go or become linear whatever the verdicts are: multiples and opposites of others,
    constant ones, and those that nobody reads. Then it is the network without them that is worth the time.
    """
    from relutrim.rewrite.collinear import multiples
    from relutrim.rewrite.layers import dense_layers

    for layer in dense_layers(network):
        rows = np.concatenate([layer.operator.weight, layer.operator.bias[:, None]], axis=1)
        every = np.ones(len(rows), dtype=np.bool_)
        readers = [reader.operator for reader in layer.readers]
        read = [np.asarray(vars(reader)["weight"]).any(axis=0) for reader in readers]
        if not layer.operator.weight.any(axis=1).all() or not np.any(read, axis=0).all():
            return True
        if multiples(rows, every, signed=False):
            return True
    return False
