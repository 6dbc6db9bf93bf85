"""What intervals alone say of an analysed network: no more than any other reader of it can prove at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from relutrim.bounds.interval import input_interval, node_interval, value_interval
from relutrim.prove.stability import LayerStability, Stability
from relutrim.prove.verdict import Evidence, Verdict


def by_intervals(stability: Stability, *, gates: bool = True) -> Stability:
    """The analysis without verdicts and ranges that intervals do not prove; without ``gates`` those of single
    operators, for a reader to whom a clip is the difference of two ReLUs.
    """
    problem, network = stability.problem, stability.problem.network
    ranges = {network.input.name: input_interval(network, problem.region().box())}
    for node in network.nodes:
        ranges[node.name] = value_interval(network, node, ranges) if gates else node_interval(node, ranges)
    layers = []
    for layer in stability.layers:
        known = ranges[network[layer.name].inputs[0]]
        lower, upper = (end.flatten().cpu().numpy() for end in (known.lo, known.hi))
        proved = np.where(layer.verdict == Verdict.ACTIVE, lower >= 0, upper <= 0)
        layers.append(
            _without(
                layer, ~proved & np.isin(layer.verdict, (Verdict.ACTIVE, Verdict.INACTIVE)), lower, upper
            )
        )
    return replace(stability, layers=tuple(layers), ranges=ranges)


def _without(
    layer: LayerStability,
    lost: np.ndarray[tuple[int], np.dtype[np.bool_]],
    lower: np.ndarray,
    upper: np.ndarray,
) -> LayerStability:
    verdict, evidence = layer.verdict.copy(), layer.evidence.copy()
    verdict[lost], evidence[lost] = Verdict.UNKNOWN, Evidence.NONE
    return replace(layer, verdict=verdict, evidence=evidence, lower=lower, upper=upper)
