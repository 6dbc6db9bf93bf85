"""What became of the neurons of each layer.

Every step of the rewriting knows how many neurons it took from each ReLU, or put there; this gives what it
did a name that a person understands. Channels that others stand for, or that are constant, are read by nobody
after one step and go with the next, which would drop any channel: their name is that of the cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from relutrim.graph.graph import Network
from relutrim.rewrite.draft import Step

MEANINGS = {
    "dropped": "always 0 on the domain, or read by nobody any more",
    "carried": "the linear part of active neurons, on fewer neurons in their place",
    "merged": "multiples or combinations of others",
    "folded": "layers that are linear, joined with the next one or left without ReLUs",
    "constant": "one number on the whole domain, which became bias",
    "negligible": "of too little effect to matter to the tolerance that was given",
    "other": "gone, and this report has no word for how",
}
FATES = tuple(MEANINGS)
WORDS = {
    "drop-inactive": "dropped",
    "drop-unread": "dropped",
    "drop-channels": "dropped",
    "drop-terms": "dropped",
    "carry-linear": "carried",
    "merge-active": "merged",
    "merge-collinear": "merged",
    "merge-channels": "merged",
    "fold-stable": "folded",
    "fold-convolutions": "folded",
    "straighten": "folded",
    "collapse": "constant",
    "constant-channels": "constant",
    "drop-negligible": "negligible",
}
"""What a rewrite does to neurons, in one word."""
NO_NEURONS = frozenset(
    {
        "analyze",
        "drop-columns",
        "drop-connections",
        "factor",
        "fuse",
        "hold-biases",
        "lift-relu",
    }
)
"""Rewrites that take no neuron away."""
_CAUSES = ("merge-channels", "constant-channels")
_CUT = "drop-channels"


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
    added = dict.fromkeys(counted, 0)
    before = ""
    for step in steps:
        cause = before if step.rewrite == _CUT and before in _CAUSES else step.rewrite
        for name, count in step.lost.items():
            if name in counted:
                counted[name][WORDS.get(cause, "other")] += max(0, count)
                added[name] += max(0, -count)
        before = step.rewrite
    kept = {relu.name: stored.size(relu.name) for relu in stored.relus}
    return {
        name: Fate(original.size(name), kept.get(name, 0), gone, added[name])
        for name, gone in counted.items()
    }
