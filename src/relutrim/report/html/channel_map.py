"""What the page draws of a convolutional layer: one square per channel instead of one per unit.

A channel is inactive if it is inactive at every position, and active if it is active at every position. It
is unstable if a position is, or if one is active and another inactive. Everything else is unknown. Bounds of
a channel are those over all its positions, and its evidence is the weakest that is needed.
"""

from __future__ import annotations

import numpy as np

from relutrim.prove.stability import LayerStability
from relutrim.prove.verdict import Evidence, Verdict

UNITS = 4096
"""Layers with more units than this are drawn by channels."""


def drawn_by_channel(layer: LayerStability) -> bool:
    """Whether a layer has channels with positions, and too many units to look at."""
    return len(layer.shape) > 2 and layer.size > UNITS


def by_channel(layer: LayerStability) -> LayerStability:
    """The layer with its channels for neurons. There are no witnesses: a channel has none of its own."""
    count = layer.shape[0]
    verdict, evidence = (codes.reshape(count, -1) for codes in (layer.verdict, layer.evidence))
    inactive, active, unstable = (
        verdict == one for one in (Verdict.INACTIVE, Verdict.ACTIVE, Verdict.UNSTABLE)
    )
    mixed = unstable.any(1) | (inactive.any(1) & active.any(1))
    found = np.full(count, Verdict.UNKNOWN, dtype=np.int8)
    found[mixed] = Verdict.UNSTABLE
    found[active.all(1)] = Verdict.ACTIVE
    found[inactive.all(1)] = Verdict.INACTIVE
    strongest = [np.where(mask, evidence, Evidence.NONE).max(1) for mask in (unstable, active, inactive)]
    settling = np.maximum(strongest[0], np.minimum(strongest[1], strongest[2]))
    weakest = np.where(mixed, settling, evidence.min(1))
    weakest = np.where(found == Verdict.UNKNOWN, Evidence.NONE, weakest).astype(np.int8)
    lower, upper = layer.lower.reshape(count, -1).min(1), layer.upper.reshape(count, -1).max(1)
    none = np.full(count, -1, dtype=np.int64)
    return LayerStability(layer.name, (count,), found, weakest, lower, upper, none, none)
