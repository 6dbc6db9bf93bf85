"""What the commands print with ``--json``; the schemas lie beside this file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relutrim.graph.graph import Network
from relutrim.prove.verdict import Evidence, Verdict

if TYPE_CHECKING:  # these load torch, which ``relutrim inspect`` does without
    from relutrim.accuracy import Accuracy
    from relutrim.holdout import Holdout
    from relutrim.latency import Latency
    from relutrim.prove.stability import LayerStability, Stability
    from relutrim.result import Compression, Deviation
    from relutrim.rewrite.pipeline import LeftOut, Rewritten


def schema(name: str) -> dict[str, Any]:
    """A published schema: ``analysis``, ``bounds``, ``compression``, ``inspection``, ``instance``,
    ``training``.
    """
    text = (
        resources.files("relutrim.report").joinpath("schemas", f"{name}-1.json").read_text(encoding="utf-8")
    )
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def dumps(report: dict[str, Any]) -> str:
    """Standard JSON: NaN and infinity have no place in it, so they must have become null before."""
    return json.dumps(report, allow_nan=False)


def model_json(network: Network, path: Path | None = None) -> dict[str, Any]:
    """Where a model came from and how large it is."""
    digest = None
    if path is not None:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "path": str(path) if path is not None else None,
        "sha256": digest,
        "parameters": network.parameters,
    }


def size_json(network: Network) -> dict[str, Any]:
    """The size of a network; ``bytes`` counts its parameters in the file's number type."""
    width = 8 if network.dtype == "float64" else 4
    return {
        "widths": network.widths,
        "neurons": network.neurons,
        "connections": network.connections,
        "parameters": network.parameters,
        "multiply_adds": network.multiply_adds,
        "zeros": network.zeros,
        "bytes": network.parameters * width,
    }


def inspection_json(network: Network, path: Path, constants: Sequence[str] = ()) -> dict[str, Any]:
    """What ``relutrim inspect`` prints; ``constants`` are inputs of the file that have stored values."""
    return {
        "schema": "relutrim/inspection/1",
        "model": model_json(network, path),
        "dtype": network.dtype,
        "input": {"name": network.input.name, "shape": list(network.input.shape)},
        "constant_inputs": list(constants),
        "outputs": [
            {"name": o.name, "shape": list(network.shapes[o.source]), "tail": [step.kind for step in o.tail]}
            for o in network.outputs
        ],
        "size": size_json(network),
        "nodes": [
            {
                "name": node.name,
                "operator": node.operator.kind,
                "inputs": list(node.inputs),
                "shape": list(network.shapes[node.name]),
                "parameters": node.operator.parameters,
            }
            for node in network.nodes
        ],
    }


def analysis_json(
    stability: Stability, model: dict[str, Any], *, details: bool = False, holdout: Holdout | None = None
) -> dict[str, Any]:
    """What ``relutrim analyze`` prints."""
    return {
        "schema": "relutrim/analysis/1",
        "model": model,
        "domain": stability.domain.describe(),
        "method": stability.method,
        "solver": stability.solver,
        "seconds": round(stability.seconds, 6),
        "complete": stability.complete,
        "interrupted": stability.interrupted,
        "data": {"rows": stability.data_rows, "outside_domain": stability.data_rows_outside},
        "holdout": None if holdout is None else {**vars(holdout), "share": holdout.share},
        "layers": [_layer(layer, details) for layer in stability.layers],
        "remarks": list(stability.remarks),
    }


def compression_json(
    result: Compression,
    model: dict[str, Any] | None = None,
    *,
    details: bool = False,
    latency: Latency | None = None,
    holdout: Holdout | None = None,
    accuracy: Accuracy | None = None,
) -> dict[str, Any]:
    """What ``relutrim compress`` prints: the analysis, and what became of the network."""
    source = model or model_json(result.original)
    analysis = analysis_json(result.stability, source, details=details, holdout=holdout)
    return {
        **analysis,
        "schema": "relutrim/compression/1",
        "rewrite_set": result.rewrites,
        "evidence_required": result.evidence,
        "tolerance": result.tolerance,
        "allowed": _number(result.allowed),
        "unchanged": result.unchanged,
        "obstacle": result.obstacle,
        "remark": result.remark,
        "left_out": None if result.left_out is None else _left_out(result.left_out),
        "interrupted": result.interrupted,
        "time_was_up": result.time_was_up,
        "cost": result.cost,
        "original": size_json(result.original),
        "compressed": size_json(result.stored),
        "origins": result.origins,
        "rewrites": [step.as_dict() | {"deviation": _number(step.deviation)} for step in result.steps],
        "deviation": _deviation(result.deviation),
        "unread_inputs": {
            "original": result.original.unread_inputs,
            "compressed": result.stored.unread_inputs,
        },
        "latency": None if latency is None else _latency(latency),
        "accuracy": None if accuracy is None else vars(accuracy).copy(),
    }


def _left_out(left: LeftOut) -> dict[str, Any]:
    return {name: _number(one) if isinstance(one, float) else one for name, one in vars(left).items()}


def suggestion_json(more: Rewritten | None, *, late: bool) -> dict[str, Any]:
    """What ``--suggest`` adds: what ``rounding`` would leave (nulls if no less), and whether time was up."""
    left = None if more is None else more.stored
    return {
        "parameters": None if left is None else left.parameters,
        "connections": None if left is None else left.connections,
        "neurons": None if left is None else left.neurons,
        "deviation": None if more is None else _number(more.deviation_stored),
        "time_was_up": late,
    }


def _deviation(deviation: Deviation) -> dict[str, Any]:
    seen = deviation.predictions
    return {
        "proven": _number(deviation.proven),
        "proven_float64": _number(deviation.proven_float64),
        "proven_float32": _number(deviation.proven_float32),
        "found": _number(deviation.found),
        "observed_float32": _number(deviation.observed_float32),
        "original_float32_error": _number(deviation.original_float32_error),
        "samples": deviation.samples,
        "dtype": deviation.dtype,
        "observed": _number(deviation.observed),
        "original_error": _number(deviation.original_error),
        "predictions": None if seen is None else vars(seen).copy(),
    }


def _latency(latency: Latency) -> dict[str, Any]:
    return {
        "onnx_bytes": {"before": latency.bytes_before, "after": latency.bytes_after},
        "runtime": latency.runtime,
        "threads": 1,
        "timings": [
            {
                "inputs": timing.inputs,
                "before_us": round(timing.before_us, 3),
                "after_us": round(timing.after_us, 3),
                "runs": timing.runs,
            }
            for timing in latency.timings
        ],
        "remark": latency.remark,
    }


def _layer(layer: LayerStability, details: bool) -> dict[str, Any]:
    stable_by = {
        e.word: int((layer.evidence == e).sum())
        for e in (Evidence.PROOF, Evidence.WITNESS, Evidence.SOLVER, Evidence.DATA)
    }
    text: dict[str, Any] = {
        "name": layer.name,
        "size": layer.size,
        "active": layer.which(Verdict.ACTIVE),
        "inactive": layer.which(Verdict.INACTIVE),
        "unstable_count": layer.count(Verdict.UNSTABLE),
        "unknown": layer.which(Verdict.UNKNOWN),
        "evidence": stable_by,
    }
    if layer.channels is not None:
        text["channels"] = {"count": layer.channels.count, **vars(layer.channels)}
    if details:
        text["neurons"] = [
            {
                "verdict": Verdict(verdict).word,
                "evidence": Evidence(evidence).word,
                "lower": _number(lower),
                "upper": _number(upper),
                "margin": _number(margin),
            }
            for verdict, evidence, lower, upper, margin in zip(
                layer.verdict.tolist(),
                layer.evidence.tolist(),
                layer.lower.tolist(),
                layer.upper.tolist(),
                layer.margin.tolist(),
                strict=True,
            )
        ]
    return text


def _number(value: float | None) -> float | None:
    """A number for JSON; what is not finite is null."""
    return float(value) if value is not None and math.isfinite(value) else None
