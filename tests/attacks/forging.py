"""What a forger needs: ONNX from a few nodes, and a certificate for any two files that claims anything."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from certifying import entries, packed
from relutrim.certificate.check import check, prove_ranges, read_front
from relutrim.certificate.check.archive import DTYPES, SCHEMA, sha256
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.equal import Comparison, Hint
from relutrim.certificate.check.proofs import INPUT, PACKED, PART, UNIT
from relutrim.certificate.trees import Leaf, Split, Tree, UnitProof, stream_of, streams
from relutrim.certificate.write import _hint_arrays
from relutrim.errors import RelutrimError
from relutrim.graph import Network
from relutrim.io.onnx.read import network_from_proto

NAMES = {np.dtype(code): name for name, code in DTYPES.items()}


def onnx_of(
    nodes: list[Any],
    shape: list[int],
    constants: dict[str, Any],
    output: str = "y",
    *,
    double: bool = True,
    opset: int = 17,
) -> bytes:
    """A model with one input ``x`` and one output, its constants as they are."""
    kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(output, kind, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return bytes(made.SerializeToString())


@lru_cache(maxsize=256)
def network_of(content: bytes) -> Network:
    """A model as the package reads it, which is not how the checker does."""
    return network_from_proto(onnx.ModelProto.FromString(content))


def repacked(document: dict[str, Any], arrays: dict[str, np.ndarray], others: dict[str, bytes]) -> bytes:
    """A certificate whose list of arrays is right, whatever they hold."""
    document["arrays"] = {
        name: {
            "dtype": NAMES[np.dtype(array.dtype)],
            "shape": list(array.shape),
            "sha256": sha256(array.tobytes()),
        }
        for name, array in arrays.items()
    }
    parts = {"certificate.json": json.dumps(document).encode(), **others}
    return packed(parts | {f"arrays/{name}.bin": array.tobytes() for name, array in arrays.items()})


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, bytes]]:
    """The document, the arrays by name, and other entries."""
    parts = entries(content)
    document = json.loads(parts.pop("certificate.json"))
    arrays = {
        name: np.frombuffer(parts.pop(f"arrays/{name}.bin"), DTYPES[said["dtype"]])
        .reshape(said["shape"])
        .copy()
        for name, said in document["arrays"].items()
    }
    return document, arrays, parts


def proofs_of(arrays: dict[str, np.ndarray]) -> list[UnitProof]:
    """Proofs for single units; to be changed as one likes."""
    stream, found = stream_of(arrays), []

    def tree() -> Tree:
        kind = int(stream.words(1)[0])
        if kind == PART:
            return Leaf()
        if kind == PACKED:
            parts = [part for _, _, places in levels for part in stream.packed(*places.shape)]
            return Leaf(packed=b"".join(part.tobytes() for part in parts))
        if kind == UNIT:
            return Split(tuple(stream.words(2).tolist()), tree(), tree())
        assert kind == INPUT
        axis, at = int(stream.words(1)[0]), float(stream.numbers(1)[0])
        return Split(axis, tree(), tree(), at)

    while stream.layer() >= 0:
        layer, unit, sign = stream.words(3).tolist()
        levels = stream.levels(int(stream.words(1)[0]))
        found.append(UnitProof(layer, unit, sign, tree(), levels))
    return found


def forged(
    model: bytes,
    out: bytes,
    lo: list[float],
    hi: list[float],
    *,
    model_hints: list[Hint] | None = None,
    out_hints: list[Hint] | None = None,
    bound: float = 0.0,
    slack: float = 1e308,
) -> bytes:
    """A certificate for two ONNX files on a box, with these hints, that claims this bound.

    Without hints, every unit of MODEL is a symbol and every unit of OUT matches the one at its place.
    """
    graphs = [read_front(content, "model") for content in (model, out)]
    sizes = [[graph.sizes[at + 1] for at in graph.layers] for graph in graphs]
    starts = np.cumsum([0, *sizes[1]])
    model_hints = model_hints or [hint_of([0] * n) for n in sizes[0]]
    out_hints = out_hints or [
        hint_of([3] * n, list(range(k, k + n))) for n, k in zip(sizes[1], starts, strict=False)
    ]
    count = graphs[0].sizes[next(iter(graphs[0].outputs.values())).number]
    arrays: dict[str, np.ndarray] = {
        "domain.lo": np.array(lo, float),
        "domain.hi": np.array(hi, float),
        "domain.rows": np.zeros((0, len(lo))),
        "domain.lower": np.zeros(0),
        "domain.upper": np.zeros(0),
        "layers.slack": np.full(len(sizes[0]), float(slack)),
        "outputs.bound": np.full(count, float(bound)),
        **streams([]),
        **_hint_arrays("layers", model_hints),
        **_hint_arrays("out", out_hints),
    }
    document = {
        "schema": SCHEMA,
        "model": {"sha256": sha256(model), "embedded": False},
        "out": {"sha256": sha256(out), "embedded": False},
        "layers": [{"size": size} for size in sizes[0]],
        "out_layers": [{"size": size} for size in sizes[1]],
    }
    return repacked(document, arrays, {})


def hint_of(kind: list[int], place: list[int] | None = None, scale: list[float] | None = None) -> Hint:
    """A hint for one layer."""
    return Hint(
        np.array(kind, np.uint8),
        np.array(place if place is not None else [-1] * len(kind), np.int64),
        np.array(scale if scale is not None else [1.0] * len(kind), float),
    )


def smallest_bound(model: bytes, out: bytes, lo: list[float], hi: list[float]) -> float:
    """What the checker proves of two files with the hints that :func:`forged` gives."""
    domain = Domain(np.array(lo), np.array(hi), np.zeros((0, len(lo))), np.zeros(0), np.zeros(0))
    before, after = (read_front(content, "model", domain=domain) for content in (model, out))
    ranges = prove_ranges(before, domain)
    sizes = [[graph.sizes[at + 1] for at in graph.layers] for graph in (before, after)]
    starts = np.cumsum([0, *sizes[1]])

    def of_out(number: int, _: Any) -> Hint:
        return hint_of([3] * sizes[1][number], list(range(starts[number], starts[number + 1])))

    comparison = Comparison(before, ranges, lambda number, _: hint_of([0] * sizes[0][number]))
    return max(float(bound.max(initial=0.0)) for bound in comparison.bounds(after, of_out))


def accepted(model: bytes, out: bytes, certificate: bytes, **options: Any) -> bool:
    """Whether the checker accepts; anything but an answer is an error."""
    try:
        check(model, out, certificate, **options)
    except RelutrimError:
        return False
    return True


__all__ = [
    "accepted",
    "forged",
    "hint_of",
    "network_of",
    "onnx",
    "onnx_of",
    "proofs_of",
    "repacked",
    "smallest_bound",
    "unpacked",
]
