"""The page put together: what the template shows, and the template rendered.

Names in models are anybody's text. They are escaped wherever they stand, control characters are spelt out,
JSON inside the page holds no ``<``, and the page allows itself no script but its own, by that script's hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from relutrim.errors import one_line
from relutrim.prove.stability import LayerStability, Stability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.report.html import numbers
from relutrim.report.html.architecture import drawings
from relutrim.report.html.channel_map import by_channel, drawn_by_channel
from relutrim.report.html.environment import machine, versions
from relutrim.report.html.fates import FATES, MEANINGS, Fate, fates
from relutrim.report.html.neuron_map import MOST, NARROW, VERDICTS, drawing, payload
from relutrim.report.html.prose import Claim, analysis_claim, compression_claim, domain_words, hindrances
from relutrim.report.html.scale import log_places
from relutrim.report.json import analysis_json, compression_json

if TYPE_CHECKING:
    from relutrim.accuracy import Accuracy
    from relutrim.holdout import Holdout
    from relutrim.latency import Latency
    from relutrim.result import Compression, Deviation

_CLOSEST = 8
_EVIDENCE = (Evidence.PROOF, Evidence.WITNESS, Evidence.SOLVER, Evidence.DATA)


def compression_page(
    result: Compression,
    model: dict[str, Any] | None = None,
    *,
    out: Path | None = None,
    latency: Latency | None = None,
    holdout: Holdout | None = None,
    accuracy: Accuracy | None = None,
    command: str | None = None,
    certificate: Path | None = None,
) -> str:
    """The report of a compression. ``certificate`` is a file that was written beside it; its hash goes in."""
    report = compression_json(result, model, latency=latency, holdout=holdout, accuracy=accuracy)
    became = fates(result.original, result.stored, result.steps)
    seen = {"dropped", "carried", "merged"} | {
        word for fate in became.values() for word, count in fate.gone.items() if count
    }
    return _rendered(
        result.stability,
        report,
        compression_claim(result),
        command,
        out=None if out is None else one_line(out.name),
        out_path=None if out is None else one_line(str(out)),
        certificate=None if certificate is None else _certificate(certificate),
        architecture=drawings(result.original, result.stored, result.stability),
        layers=[_layer(layer, became.get(layer.name)) for layer in result.stability.layers],
        fate_words=[word for word in FATES if word in seen],
        sizes=_sizes(report),
        deviation=_deviation(result.deviation),
        origins=[_origin(name, found) for name, found in report["origins"].items()],
        rewrites=[
            {**step, "node": one_line(step["node"]), "detail": one_line(step["detail"])}
            for step in report["rewrites"]
        ],
    )


def analysis_page(
    stability: Stability,
    model: dict[str, Any],
    *,
    holdout: Holdout | None = None,
    command: str | None = None,
) -> str:
    """The report of an analysis."""
    return _rendered(
        stability,
        analysis_json(stability, model, holdout=holdout),
        analysis_claim(stability),
        command,
        out=None,
        out_path=None,
        certificate=None,
        architecture=drawings(stability.problem.network, None, stability),
        layers=[_layer(layer, None) for layer in stability.layers],
        fate_words=[],
        sizes=[],
        deviation=None,
        origins=[],
        rewrites=None,
    )


def _rendered(
    stability: Stability, report: dict[str, Any], claim: Claim, command: str | None, **parts: Any
) -> str:
    total = sum(layer.size for layer in stability.layers)
    layers = [layer for layer in stability.layers if layer.size]
    drawn = [by_channel(layer) if drawn_by_channel(layer) else layer for layer in layers]
    squares = sum(layer.size for layer in drawn)
    if squares > MOST:
        layers, drawn = [], []
    maps = [
        (one_line(layer.name), layer, drawing(own), "channels" if own is not layer else "neurons")
        for layer, own in zip(layers, drawn, strict=True)
    ]
    path = report["model"]["path"] if report.get("model") else None
    style, script = _asset("report.css"), _asset("report.js")
    return (
        environment()
        .get_template("report.html")
        .render(
            style=Markup(style),
            script=Markup(script),
            style_hash=_csp_hash(style),
            script_hash=_csp_hash(script),
            model="a model in memory" if path is None else one_line(Path(path).name),
            path=None if path is None else one_line(path),
            report=report,
            claim=claim,
            domain=domain_words(report["domain"], stability.problem.network.input.size),
            total=total,
            counts={verdict.word: stability.count(verdict) for verdict in VERDICTS},
            stable=stability.count(Verdict.ACTIVE) + stability.count(Verdict.INACTIVE),
            words=[verdict.word for verdict in VERDICTS],
            maps=maps,
            wide_maps=sum(picture["view"][0] > NARROW for _, _, picture, _ in maps),
            too_many=squares > MOST,
            meanings=MEANINGS,
            closest=_closest(stability),
            remarks=[one_line(remark) for remark in [*report["remarks"], *hindrances(report)]],
            command=command,
            versions=versions(stability.solver),
            platform=machine(),
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            embedded=_json(report),
            neurons=_json([payload(own, kind) for own, (*_, kind) in zip(drawn, maps, strict=True)]),
            evidence_words=[evidence.word for evidence in _EVIDENCE],
            **parts,
        )
    )


@cache
def environment() -> Environment:
    """The templates; whatever is put into them is escaped."""
    found = Environment(
        loader=PackageLoader("relutrim.report.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "at_most": numbers.at_most,
        "at_least": numbers.at_least,
        "about": numbers.about,
        "share": numbers.share,
        "one_line": one_line,
        "unbroken": numbers.unbroken,
        "words": numbers.words,
        "count": "{:,}".format,
    }
    return found


def _asset(name: str) -> str:
    return (resources.files("relutrim.report.html") / "templates" / name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(value: Any) -> Markup:
    """JSON that can stand in a page: nothing in it can end the element that holds it, or open a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _certificate(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": one_line(str(path)), "sha256": digest}


def _layer(layer: LayerStability, fate: Fate | None) -> dict[str, Any]:
    counts = [(verdict.word, layer.count(verdict)) for verdict in VERDICTS]
    return {
        "name": one_line(layer.name),
        "size": layer.size,
        "shape": "×".join(map(str, layer.shape)) if len(layer.shape) > 1 else None,
        "counts": counts,
        "bar": _segments(counts),
        "evidence": [(e.word, int((layer.evidence == e).sum())) for e in _EVIDENCE],
        "channels": layer.channels,
        "fate": fate,
        "fate_bar": _segments(fate.parts) if fate is not None else [],
        "indices": [
            (verdict.word, layer.count(verdict), numbers.spans(layer.which(verdict))) for verdict in VERDICTS
        ],
    }


def _origin(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Where the units of a ReLU come from, in words."""
    known = sorted({unit for unit in found["units"] if unit is not None})
    new, layer = found["units"].count(None), found["layer"]
    other = "" if layer in (None, name) else f" of {one_line(layer)}"
    parts = [f"{numbers.spans(known)}{other}"] if known else []
    return {
        "name": one_line(name),
        "size": len(found["units"]),
        "text": "; ".join([*parts, *([f"{new:,} new"] if new else [])]) or "none",
    }


def _segments(parts: list[tuple[str, int]]) -> list[tuple[str, int, float, float]]:
    """Kind, count, start and width in percent, of what a bar shows."""
    total = sum(count for _, count in parts)
    found, start = [], 0
    for kind, count in parts:
        if count:
            found.append((kind, count, round(100 * start / total, 3), round(100 * count / total, 3)))
            start += count
    return found


def _sizes(report: dict[str, Any]) -> list[dict[str, Any]]:
    before, after = report["original"], report["compressed"]
    rows: list[tuple[str, int | None, int | None]] = [
        (word.replace("_", "-"), before[word], after[word])
        for word in ("neurons", "connections", "parameters", "multiply_adds", "zeros", "bytes")
    ]
    rows[-2] = ("weights that are 0", before["zeros"], after["zeros"])
    rows[-1] = ("bytes of parameters", before["bytes"], after["bytes"])
    if report["latency"] is not None and report["latency"]["onnx_bytes"]["before"] is not None:
        sizes = report["latency"]["onnx_bytes"]
        rows.append(("bytes of the ONNX file", sizes["before"], sizes["after"]))
    return [
        {
            "word": word,
            "before": old,
            "after": new,
            "removed": numbers.removed(old, new) if word != "weights that are 0" else "",
            "share": min(100.0, round(100 * new / old, 2)) if old else 0.0,
        }
        for word, old, new in rows
        if old is not None and new is not None
    ]


def _deviation(deviation: Deviation) -> dict[str, Any]:
    """The numbers side by side: what is proven, what exists, what rounding does to either network anyway."""
    dtype = deviation.dtype.removesuffix("-check")
    rows = [
        ("proven", "proven on the whole domain, weights as stored", deviation.proven, "at_most"),
        ("proven_float64", "proven for the float64 network in memory", deviation.proven_float64, "at_most"),
        ("found", "found by a search: certainly exists", deviation.found, "at_least"),
        ("observed", f"observed in {dtype} on {deviation.samples:,} inputs", deviation.observed, "about"),
        (
            "original_error",
            f"the original's own rounding error in {dtype}",
            deviation.original_error,
            "about",
        ),
    ]
    known = [(key, text, value, how) for key, text, value, how in rows if value is not None]
    places, ticks = log_places([value for _, _, value, _ in known])
    return {
        "rows": [
            {"key": key, "text": text, "value": value, "shown": getattr(numbers, how)(value), "place": place}
            for (key, text, value, how), place in zip(known, places, strict=True)
        ],
        "ticks": ticks,
        "predictions": deviation.predictions,
        "dtype": dtype,
    }


def _closest(stability: Stability) -> list[dict[str, Any]]:
    """Stable neurons whose proof has least room."""
    found = []
    for layer in stability.layers:
        margin = layer.margin
        room = [(float(margin[i]), i) for i in margin.argsort()[:_CLOSEST].tolist()]
        found += [
            {
                "layer": one_line(layer.name),
                "index": i,
                "margin": gap,
                "verdict": Verdict(int(layer.verdict[i])).word,
                "evidence": Evidence(int(layer.evidence[i])).word,
            }
            for gap, i in room
            if gap == gap
        ]
    return sorted(found, key=lambda one: one["margin"])[:_CLOSEST]
