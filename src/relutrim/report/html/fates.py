"""What became of the neurons of each layer.

A step of the rewriting says how many neurons it removed from the layer that it names; what is left is in the
stored network under the layer's name. Steps that reach over several layers (whole channels, a network that
became a constant) do not say how many neurons each of them lost, so those are what is missing in the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from relutrim.network.graph import Network
from relutrim.rewrite.draft import Step

_KINDS = {
    "drop-inactive": "dropped",
    "carry-linear": "carried",
    "merge-active": "merged",
    "merge-collinear": "merged",
    "fold-stable": "folded",
    "straighten": "folded",
    "drop-unread": "other",
    "drop-negligible": "other",
}
FATES = ("dropped", "carried", "merged", "folded", "other")


@dataclass(frozen=True)
class Fate:
    """Of ``size`` neurons, how many went how, and how many are ``left``; ``added`` ones are new there."""

    size: int
    left: int
    gone: dict[str, int]
    added: int

    @property
    def parts(self) -> list[tuple[str, int]]:
        """What a bar shows: all that went, in order, then what is left."""
        return [*self.gone.items(), ("left", self.left)]


def fates(original: Network, stored: Network, steps: Iterable[Step]) -> dict[str, Fate]:
    """Per ReLU of the original network."""
    counted: dict[str, dict[str, int]] = {relu.name: dict.fromkeys(FATES, 0) for relu in original.relus}
    for step in steps:
        if step.node in counted and step.rewrite in _KINDS:
            counted[step.node][_KINDS[step.rewrite]] += step.neurons
    kept = {relu.name: stored.size(relu.name) for relu in stored.relus}
    found = {}
    for name, gone in counted.items():
        size, left = original.size(name), kept.get(name, 0)
        missing = size - left - sum(gone.values())
        gone["other"] += max(0, missing)
        found[name] = Fate(size, left, gone, max(0, -missing))
    return found
