"""``--bounds``: proven ranges of every neuron, for those who put a network into a program of their own.

Every number holds as the decimal that is written, and so does the float64 that it is read as: an end whose
shortest decimal lies within the range steps outward first. What is not known to be finite is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relutrim.analysis import analyze_network
from relutrim.graph.graph import Network
from relutrim.graph.operators import Array
from relutrim.intervals import Interval
from relutrim.io.files import write_text
from relutrim.prove.deadline import Deadline
from relutrim.prove.ranges import tightest
from relutrim.prove.stability import Stability
from relutrim.report.json import dumps

if TYPE_CHECKING:
    from relutrim.result import Compression


def write_bounds(
    path: Path, stability: Stability, model: dict[str, Any], time_limit: float | None = None
) -> None:
    """Write the bounds, whole or not at all. Only the sweep that makes them tighter has a limit."""
    late = 0.0 if stability.interrupted else time_limit
    write_text(path, dumps(bounds_json(stability, model, tightest(stability, Deadline(late)))) + "\n")


def of_compressed(result: Compression, **analysis: Any) -> Stability:
    """The compressed network as it is stored, bounded anew, and met with what its making has proved."""
    found = analyze_network(result.stored, **{**analysis, "method": "bounds", "progress": None})
    known = {name: found.ranges[name].meet(known) for name, known in result.ranges.items()}
    return replace(found, ranges={**found.ranges, **known})


def bounds_json(
    stability: Stability, model: dict[str, Any], ranges: Mapping[str, Interval] | None = None
) -> dict[str, Any]:
    """Bounds as a dictionary that serialises to JSON; ``ranges`` are proven ones of every value."""
    network = stability.problem.network
    ranges = stability.ranges if ranges is None else ranges
    normalised = stability.domain.mean is not None
    seen = network.nodes[0].name if normalised else network.input.name
    return {
        "schema": "relutrim/bounds/1",
        "model": model,
        "domain": stability.domain.describe(),
        "method": stability.method,
        "interrupted": stability.interrupted,
        "raw_input": _value(network, network.input.name, ranges) if normalised else None,
        "input": _value(network, seen, ranges),
        "layers": [_layer(network, relu.name, ranges) for relu in network.relus],
        "outputs": [
            {**_value(network, output.source, ranges), "name": output.name, "source": output.source}
            | {"tail": [step.kind for step in output.tail]}
            for output in network.outputs
        ],
    }


def _layer(network: Network, name: str, ranges: Mapping[str, Interval]) -> dict[str, Any]:
    (source,) = network[name].inputs
    lo, hi = _ends(ranges[source])
    after = _ends(ranges[name])
    with np.errstate(invalid="ignore"):
        active, inactive = (lo >= 0) & (hi > 0), hi <= 0
    return {
        "name": name,
        "reads": source,
        "shape": list(network.shapes[name]),
        "pre": {"lower": _decimals(lo, down=True), "upper": _decimals(hi, down=False)},
        "post": {
            "lower": _decimals(np.fmax(np.maximum(lo, 0), np.fmax(after[0], 0)), down=True),
            "upper": _decimals(np.fmin(np.maximum(hi, 0), after[1]), down=False),
        },
        "active": [int(i) for i in np.flatnonzero(active)],
        "inactive": [int(i) for i in np.flatnonzero(inactive)],
    }


def _value(network: Network, name: str, ranges: Mapping[str, Interval]) -> dict[str, Any]:
    lo, hi = _ends(ranges[name])
    return {
        "name": name,
        "shape": list(network.shapes[name]),
        "lower": _decimals(lo, down=True),
        "upper": _decimals(hi, down=False),
    }


def _ends(interval: Interval) -> tuple[Array, Array]:
    return interval.lo.flatten().cpu().numpy(), interval.hi.flatten().cpu().numpy()


def _decimals(ends: Array, *, down: bool) -> list[float | None]:
    return [_decimal(end, down=down) for end in ends.tolist()]


def _decimal(end: float, *, down: bool) -> float | None:
    """A float whose shortest decimal is not beyond ``end``.

    >>> _decimal(0.1, down=True), _decimal(0.1, down=False), _decimal(0.5, down=True)
    (0.1, 0.10000000000000002, 0.5)
    """
    if not math.isfinite(end):
        return None
    text, exact = Decimal(repr(end)), Decimal(end)
    if (text > exact) if down else (text < exact):
        end = math.nextafter(end, -math.inf if down else math.inf)
    return end if math.isfinite(end) else None
