"""Which unit of the original a unit of the compressed network is.

Rewrites compute new weights, and some units are new altogether (carriers of a linear part), so nothing is
tracked on the way: what was kept is found by what it computes. A unit has an origin if, on inputs all over
the domain, its value is that of one original unit times one positive number, **and so is the slope** of its
value towards another input, wherever it is positive. Both functions are piecewise linear: where value and
slope agree at an input, they agree around it. So an origin is an observation, not a proof, and a weak one
only where no input was looked at; a carrier, whose value is shifted, has none.

It is kept in the metadata of ONNX files under ``relutrim.origins``, as JSON: per ReLU the ``layer`` that its
units were in, and for each of them (each channel, where there are positions) the index there, or null.
Metadata changes nothing that is computed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from relutrim.network.graph import Network
from relutrim.observe import behind_normalisation, samples
from relutrim.prove.stability import Stability

KEY = "relutrim.origins"
Origins: TypeAlias = dict[str, dict[str, Any]]

_NUMBERS = 2**23
"""How many values of one network are looked at, at most."""
_FEWEST, _MOST = 8, 1024
_STEP = 2.0**-12
_CLOSE = {"float32": 2.0**-16, "float64": 2.0**-28}
"""How far values and slopes may be apart, relative to the largest: what storing weights may do."""
_POSITIVE = 2.0**-10
"""A unit's slope counts where its value is at least this part of its largest: not where it bends."""


def with_origins(stored: Network, original: Network, stability: Stability) -> Network:
    """The network with its origins among the metadata. Where the original was compressed before, they are
    those of what it was made from.
    """
    found = origins(stored, original, stability)
    before = _read(original.metadata.get(KEY))
    if before is not None:
        found = {name: _composed(one, before) for name, one in found.items()}
    metadata = {**stored.metadata, KEY: json.dumps(found, separators=(",", ":"))}
    return replace(stored, metadata=metadata)


def origins(stored: Network, original: Network, stability: Stability) -> Origins:
    """Per ReLU of ``stored``: the layer of the original that its units were in, and their indices there."""
    widest = max((n.size(relu.name) for n in (stored, original) for relu in n.relus), default=1)
    points = behind_normalisation(stability.problem, original, samples(stability, None))
    most = min(_MOST, max(_FEWEST, _NUMBERS // max(1, widest)))
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(5))[:most]
    mine, theirs = (_looked_at(network, points[order]) for network in (stored, original))
    close = _CLOSE[stored.dtype]
    found: Origins = {}
    for relu in stored.relus:
        names = sorted(theirs, key=lambda name: name != relu.name)  # stable: its own name first
        found[relu.name] = {"layer": None, "units": [None] * _units(stored.shapes[relu.name])}
        for name in names:
            units = _matched(mine[relu.name], theirs[name], close)
            if any(unit is not None for unit in units):
                found[relu.name] = {"layer": name, "units": units}
                break
    return found


def _units(shape: Sequence[int]) -> int:
    return int(shape[0]) if len(shape) > 1 else math.prod(shape)


def _looked_at(network: Network, points: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Per ReLU the values of its units (inputs and positions, units), and their slopes."""
    names = [relu.name for relu in network.relus]
    # Towards other inputs, since a domain is convex: outside of it nothing is promised.
    near = points + _STEP * (points.roll(1, 0) - points)
    with torch.no_grad():
        here, there = network.run(points), network.run(near)
    return {
        name: (_columns(here[name]), (_columns(there[name]) - _columns(here[name])) / _STEP) for name in names
    }


def _columns(value: Tensor) -> Tensor:
    """Units, or channels, as columns."""
    if value.ndim <= 2:
        return value.reshape(len(value), -1)
    return value.movedim(1, -1).reshape(-1, value.shape[1])


def _matched(mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], close: float) -> list[int | None]:
    """For each of my units theirs that it is a multiple of, if there is one."""
    (value, slope), (other, slope_there) = mine, theirs
    found: list[int | None] = [None] * value.shape[1]
    if len(value) != len(other) or not other.shape[1]:
        return found  # other positions
    largest, largest_there = value.amax(0), other.amax(0)
    likeness = (value / value.norm(dim=0)).T @ (other / other.norm(dim=0))
    best = likeness.nan_to_num(-1.0).argmax(1)
    for unit, there in enumerate(best.tolist()):
        scale = float(largest[unit] / largest_there[there])
        if not 0 < scale < math.inf:  # never seen active, or beyond what can be computed
            continue
        expected, rise = scale * other[:, there], scale * slope_there[:, there]
        apart = (value[:, unit] - expected).abs().max()
        on = expected > _POSITIVE * largest[unit]
        if not bool(on.any()):
            continue
        steep = rise[on].abs().max()
        differ = (slope[on, unit] - rise[on]).abs().max()
        if apart <= close * largest[unit] and differ <= close * steep:
            found[unit] = there
    return found


def _read(text: str | None) -> Origins | None:
    """Origins from a file, if that is what they are."""
    try:
        found = json.loads(text or "")
        for layer in found.values():
            if not all(unit is None or isinstance(unit, int) for unit in layer["units"]):
                return None
            _ = layer["layer"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return dict(found)


def _composed(found: dict[str, Any], before: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The origin of an origin."""
    layer = before.get(found["layer"], {"layer": None, "units": []})
    units = layer["units"]
    far = [units[unit] if unit is not None and 0 <= unit < len(units) else None for unit in found["units"]]
    return {"layer": layer["layer"], "units": far}
