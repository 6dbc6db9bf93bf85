"""The reader and the checker agree with onnxruntime, or refuse, on single operators with odd attributes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from conformance import GROUPS, Case
from onnx_models import run, values_at
from relutrim.certificate.check.read import read
from relutrim.certificate.hinting import run as run_graph
from relutrim.errors import RelutrimError
from relutrim.io.onnx import network_from_proto, network_to_proto

CLOSE = 1e-5
ROWS = {"reader": 3, "checker": 1}
"""In an open batch. The checker speaks of one input at a time."""


def same(found: np.ndarray, truth: np.ndarray, scale: float) -> bool:
    return found.shape == truth.shape and np.allclose(found, truth, CLOSE, CLOSE * scale, equal_nan=True)


def inputs_of(case: Case, rows: int) -> np.ndarray:
    shape = [rows if isinstance(size, str) else size for size in case.shape]
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def truth_of(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray] | None:
    """What onnxruntime computes, None where it refuses."""
    try:
        return run(proto, x)
    except Exception:
        return None


def taken_by_reader(proto: onnx.ModelProto, x: np.ndarray) -> list[list[np.ndarray]] | None:
    """What the reader takes a model for, in float64 and as it is written; None if it refuses."""
    try:
        network = network_from_proto(proto)
        written = truth_of(network_to_proto(network), x)
    except RelutrimError:
        return None
    plain = not any(output.tail for output in network.outputs)
    # What is written and cannot be run is refused when it is saved.
    return [one for one in (written, values_at(network, x) if plain else None) if one is not None]


def taken_by_checker(proto: onnx.ModelProto, x: np.ndarray) -> list[list[np.ndarray]] | None:
    """What the checker takes a model for, apart from tails; None if it refuses."""
    try:
        graph = read(proto.SerializeToString())
    except RelutrimError:
        return None
    values = run_graph(graph, x.reshape(1, graph.sizes[0]).astype(np.float64))
    plain = not any(value.steps for value in graph.outputs.values())
    return [[values[end.number].reshape(end.shape) for end in graph.outputs.values()]] if plain else []


TAKEN = {"reader": taken_by_reader, "checker": taken_by_checker}


def judged(case: Case, who: str, rows: int) -> str | None:
    """What is wrong, ``""`` if nothing is, None where the case is refused."""
    proto, x = case.proto(), inputs_of(case, rows)
    found = TAKEN[who](proto, x)
    if found is None:
        return None
    truth = truth_of(proto, x)
    if truth is None and rows > 1 and isinstance(case.shape[0], str):
        return judged(case, who, 1)  # of the rows that an open batch may have, one is all that it takes
    if truth is None:
        return f"{case} is refused by onnxruntime alone"
    scale = 1 + max(float(np.nanmax(abs(one), initial=0.0)) for one in truth)
    right = (same(a, b, scale) for values in found for a, b in zip(values, truth, strict=True))
    return "" if all(right) else f"{case} is read otherwise"


@pytest.mark.parametrize("who", TAKEN)
@pytest.mark.parametrize("group", GROUPS)
def test_every_case_is_read_as_onnxruntime_does_or_refused(group, who):
    results = [judged(case, who, ROWS[who]) for case in GROUPS[group]()]
    wrong = [result for result in results if result]
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} in all"
    assert "" in results
