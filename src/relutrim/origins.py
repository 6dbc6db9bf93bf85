"""Which unit of the original a unit of the compressed network is.

Rewrites say of every value which of its slices they keep (:class:`~relutrim.graph.slicing.Kept`); what they
make anew, such as carriers of a linear part, has no origin.

It is kept in ONNX files (their metadata) and ``.pt2`` files (their extra files) under ``relutrim.origins``,
as JSON: per ReLU the ``layer`` that its units were in, and for each of them (each channel, where there are
positions) the index there, or null.
Metadata changes nothing that is computed. Reports say the same of the ReLUs that changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from relutrim.graph.graph import Network
from relutrim.graph.operators import Relu, Shape
from relutrim.graph.slicing import Kept

KEY = "relutrim.origins"
Origins: TypeAlias = dict[str, dict[str, Any]]


def as_metadata(stored: Network, original: Network, kept: Mapping[str, Kept]) -> dict[str, str]:
    """The entry of the metadata. Where the original was compressed before, the origins are those of what it
    was made from.
    """
    found = origins(stored, original, kept)
    before = _read(original.metadata.get(KEY))
    if before is not None:
        found = {name: _composed(one, before) for name, one in found.items()}
    return {KEY: json.dumps(found, separators=(",", ":"))}


def origins(stored: Network, original: Network, kept: Mapping[str, Kept]) -> Origins:
    """Per ReLU of ``stored``: the layer of the original that its units were in, and their indices there."""
    found: Origins = {}
    for relu in stored.relus:
        shape, before = stored.shapes[relu.name], original.get(relu.name)
        known = before is not None and isinstance(before.operator, Relu)
        units = _units(shape, original.shapes[relu.name], kept.get(relu.name)) if known else None
        nothing = [None] * _count(shape)
        found[relu.name] = {"layer": relu.name if known else None, "units": units or nothing}
    return found


def of_changed(stored: Network, original: Network) -> Origins:
    """What the metadata of ``stored`` say, but for ReLUs that have all units of the original and no others.
    Where the original was compressed before, of which nobody knows what it had, that is every ReLU.
    """
    said = _read(stored.metadata.get(KEY)) or {}
    again = _read(original.metadata.get(KEY)) is not None
    return {
        relu.name: said[relu.name]
        for relu in stored.relus
        if relu.name in said and (again or said[relu.name] != _all_of(original, relu.name))
    }


def _all_of(network: Network, name: str) -> dict[str, Any] | None:
    """What is said of a ReLU that stays as it is in ``network``; None if there is no such value."""
    if name not in network.shapes:
        return None
    shape = network.shapes[name]
    return {"layer": name, "units": list(range(_count(shape)))}


def _count(shape: Shape) -> int:
    """How many units, or channels, a value has."""
    return shape[0] if len(shape) > 1 else math.prod(shape)


def _units(shape: Shape, before: Shape, kept: Kept | None) -> list[int | None] | None:
    """The places of units, or channels, in the value as it was; None if it was another one."""
    if (before if kept is None else kept.of(before)) != shape or not shape:
        return [0] if shape == before == () else None
    indices = np.arange(shape[0]) if kept is None or kept.axis else kept.indices
    return [None if unit < 0 else unit for unit in indices.tolist()]


def _read(text: str | None) -> Origins | None:
    """Origins from a file, if that is what they are."""
    try:
        found = json.loads(text or "")
        sound = all(_is_origin(one) for one in found.values())
    except (ValueError, AttributeError, RecursionError):
        return None
    return dict(found) if sound else None


def _is_origin(found: object) -> bool:
    """Whether something is the origin of a ReLU, and nothing else."""
    match found:
        case {"layer": None | str(), "units": [*units], **more}:
            return not more and all(unit is None or (type(unit) is int and unit >= 0) for unit in units)
    return False


def _composed(found: dict[str, Any], before: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The origin of an origin."""
    layer = before.get(found["layer"], {"layer": None, "units": []})
    units = layer["units"]
    far = [units[unit] if unit is not None and 0 <= unit < len(units) else None for unit in found["units"]]
    return {"layer": layer["layer"], "units": far}
