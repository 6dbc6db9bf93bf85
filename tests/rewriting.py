"""Small dense networks by hand, their drafts, and whether what is proven of a rewrite is true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

import oracle
from relutrim.analysis import analyze_network
from relutrim.compression import Compression, compress_network
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.layers import DenseLayer, dense_layer

QUICK: dict[str, Any] = {"method": "bounds", "time_limit": None, "device": "cpu", "seed": 0, "progress": None}
"""No search for witnesses: rewrites rest on proofs alone."""


def linear(weight: Any, bias: Any = None) -> Linear:
    weight = np.array(weight, dtype=float)
    return Linear(weight, np.zeros(len(weight)) if bias is None else np.array(bias, dtype=float))


def dense(*layers: Linear, dtype: str = "float64", output_relu: bool = False) -> Network:
    """linear1, relu1, linear2, ... in a row; the last linear node is ``output``."""
    nodes: list[Node] = []
    current = "x"
    for k, operator in enumerate(layers, 1):
        name = f"linear{k}" if k < len(layers) else "output"
        nodes.append(Node(name, operator, (current,)))
        current = name
        if k < len(layers) or output_relu:
            current = f"relu{k}"
            nodes.append(Node(current, Relu(), (name,)))
    return Network(
        Port("x", (layers[0].weight.shape[1],)), tuple(nodes), (Output("y", current),), dtype=dtype
    )


def graph(
    inputs: int, nodes: Sequence[tuple[str, Any, Any]], *outputs: str, dtype: str = "float64"
) -> Network:
    """Nodes (name, operator, input or inputs); the outputs are named like their sources."""
    return Network(
        Port("x", (inputs,)),
        tuple(Node(name, o, (read,) if isinstance(read, str) else tuple(read)) for name, o, read in nodes),
        tuple(Output(name, name) for name in outputs),
        dtype=dtype,
    )


def start(network: Network, lo: Any, hi: Any) -> Draft:
    """The draft with which rewriting starts."""
    box = Box(_ends(network, lo), _ends(network, hi))
    return Draft.start(network, analyze_network(network, box, data=None, **QUICK), Evidence.PROOF)


def layer_of(draft: Draft, relu: str) -> DenseLayer:
    layer = dense_layer(draft.network, relu)
    assert layer is not None
    return layer


def compressed(network: Network, lo: Any, hi: Any, **options: Any) -> Compression:
    return compress_network(network, Box(_ends(network, lo), _ends(network, hi)), **{**QUICK, **options})


def gap(one: Network, other: Network, lo: Any, hi: Any) -> Fraction:
    """The largest true deviation over all outputs and the whole box."""
    box = oracle.Polytope.of(_ends(one, lo).ravel(), _ends(one, hi).ravel())
    return max(oracle.largest_deviations(one, other, box), default=Fraction(0))


def assert_true(network: Network, draft: Draft, lo: Any, hi: Any) -> float:
    """What is proven of the draft, in memory and stored, holds. Returns the bound in memory."""
    for final in (draft.stored().realise(), draft.realise()):
        assert math.isfinite(final.proven)
        assert gap(network, final.network, lo, hi) <= Fraction(final.proven)
    return final.proven


def assert_holds(network: Network, result: Compression, lo: Any, hi: Any) -> None:
    """What a compression claims holds for both networks."""
    for smaller, claimed in (
        (result.network, result.deviation.proven_float64),
        (result.stored, result.deviation.proven),
    ):
        assert claimed is not None
        assert math.isfinite(claimed)
        assert gap(network, smaller, lo, hi) <= Fraction(claimed)


def names(result: Compression) -> list[str]:
    """Which rewrites were applied."""
    return [step.rewrite for step in result.steps]


def _ends(network: Network, end: Any) -> np.ndarray:
    return np.broadcast_to(np.asarray(end, dtype=float), network.input.shape)
