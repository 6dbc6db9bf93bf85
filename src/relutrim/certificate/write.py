"""Making a certificate: hints gathered, the checker run on them, its bound claimed.

A certificate exists only if the checker accepts it: :func:`certify` raises what the checker says otherwise.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relutrim._version import __version__
from relutrim.certificate.check import Report, check, read_front
from relutrim.certificate.check.archive import DOCUMENT, DTYPES, MODELS, SCHEMA, sha256
from relutrim.certificate.check.domain import Domain as Certified
from relutrim.certificate.check.equal import MATCH, Comparison, Hint
from relutrim.certificate.check.hints import TABLES
from relutrim.certificate.check.maps import Graph
from relutrim.certificate.groundwork import Groundwork, decoded
from relutrim.certificate.hinting import Pairing, seen, treatment
from relutrim.errors import CheckFailed, InputError, UnsupportedError

if TYPE_CHECKING:
    from relutrim.certificate.records import Record
    from relutrim.network.graph import Network
    from relutrim.prove.stability import Stability
    from relutrim.rewrite.draft import Step

_ROOM = 1 + 2.0**-10
"""How much more is claimed than was proved here: another machine may add up in another order."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """What proves a compression, apart from the two files; :meth:`save` writes it."""

    document: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    models: dict[str, bytes]
    report: Report

    @property
    def bound(self) -> float:
        """How far any output can be from the original's on the domain."""
        return self.report.bound

    def content(self, model: Path | None = None, out: Path | None = None) -> bytes:
        """The file's bytes, for models in these files (None: in the ONNX files that relutrim writes)."""
        from relutrim.formats.files import read_bytes

        document, inside = dict(self.document), dict[str, bytes]()
        for key, path in (("model", model), ("out", out)):
            onnx = self.models[key]
            said: dict[str, Any] = {"sha256": sha256(onnx), "embedded": False, "given": None}
            if path is not None and read_bytes(path) != onnx:
                given = path.read_bytes()
                said |= {
                    "embedded": True,
                    "given": {"sha256": sha256(given), "suffix": "".join(path.suffixes[-2:])},
                }
                inside[MODELS[key]] = onnx
            document[key] = said
        return _zipped(document, self.arrays, inside)

    def save(self, path: str | Path, *, model: Path | None = None, out: Path | None = None) -> None:
        """Write it, whole or not at all."""
        from relutrim.formats.files import replacing

        content = self.content(model, out)
        with replacing(Path(path)) as aside:
            aside.write_bytes(content)


@np.errstate(all="ignore")
def certify(
    work: Groundwork,
    stored: Network,
    stability: Stability,
    steps: Sequence[Step] = (),
    tolerance: str | float = "exact",
    limits: Sequence[npt.NDArray[np.float64]] | None = None,
) -> Certificate:
    """The certificate that ``stored`` equals the model on the domain of ``stability``.

    ``limits`` are how far each output's entries may be away; more is an error.
    """
    from relutrim.formats.onnx.write import network_to_proto

    out = network_to_proto(stored).SerializeToString(deterministic=True)
    before, after = work.graph, work.domain.in_front(read_front(out, "out"))
    arrays = _domain_arrays(work.domain)
    proofs = _stored_proofs(work.records, work.layers, before, arrays)
    samples = work.samples
    if samples.size == 0:
        raise InputError("no input is known to lie in the domain, so no hints for a certificate can be found")
    hints_before = treatment(work.ranges.layers)
    pairing = Pairing(seen(before, samples), seen(after, samples), hints_before)
    comparison = Comparison(before, work.ranges, lambda n, _: pairing.model[n])
    hints: list[Hint] = []

    def hint(number: int, inputs: Any) -> Hint:
        hints.append(pairing.exactly(pairing.out[number], inputs, comparison))
        return hints[-1]

    bounds = comparison.bounds(after, hint)
    document = {
        "schema": SCHEMA,
        "relutrim": __version__,
        "model": {},
        "out": {},
        "domain": _domain_text(stability, work.domain),
        "layers": _layer_texts(before, pairing.model, arrays, "layer", comparison.slack, work.ranges.layers),
        "proofs": proofs,
        "out_layers": _layer_texts(after, hints, arrays, "out", None, None),
        "outputs": _output_texts(before, bounds, limits, arrays),
        "tolerance": tolerance,
        "rewrites": [{"name": s.rewrite, "node": s.node, "text": s.text} for s in steps],
        "arrays": {},
    }
    made = Certificate(document, arrays, {"model": work.model, "out": out}, Report())
    report = check(work.model, out, made.content())
    return Certificate(document, arrays, made.models, report)


def certifiable(network: Network, source: bytes | None) -> bytes:
    """The ONNX that a certificate is about: ``source``, or the one that is written for the network; an error
    if it cannot be written, or the checker does not read it.
    """
    from relutrim.formats.onnx.write import network_to_proto

    if source is None:
        source = network_to_proto(exactly_storable(network)).SerializeToString(deterministic=True)
    try:
        front = read_front(source, "model")
        if front.sizes[0] != network.size(network.input.name):
            raise UnsupportedError("its batch has a fixed length, so that its rows could be mixed")
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{error.message}, so the model cannot be certified; it can be compressed without a certificate",
            where=error.where,
        ) from None
    return source


def exactly_storable(network: Network) -> Network:
    """The network such that an ONNX file holds its very numbers, in float64 if need be; else an error."""
    inexact = {"float32": False, "float64": False}
    for node in network.nodes:
        for name, array in vars(node.operator).items():
            if not isinstance(array, np.ndarray) or array.dtype != np.float64:
                continue
            if name.endswith("radius") and array.any():
                raise InputError(
                    "its numbers are quotients or roots that no file holds exactly (a batch norm, a "
                    "division), so the model cannot be certified through an ONNX file; export it to ONNX "
                    "and compress that",
                    where=f"node {node.name!r}",
                )
            with np.errstate(over="ignore"):
                inexact["float32"] |= not np.array_equal(array.astype(np.float32), array)
    return replace(network, dtype="float64") if inexact[network.dtype] else network


def _zipped(document: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], models: dict[str, bytes]) -> bytes:
    listed, contents = {}, dict[str, bytes]()
    names = {np.dtype(kind): name for name, kind in DTYPES.items()}
    for name, array in arrays.items():
        content = np.ascontiguousarray(array).tobytes()
        listed[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "sha256": sha256(content)}
        contents[f"arrays/{name}.bin"] = content
    text = json.dumps({**document, "arrays": listed}, allow_nan=False, indent=1)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {DOCUMENT: text.encode(), **contents, **models}.items():
            entry = zipfile.ZipInfo(name)  # without a time: the same certificate gives the same bytes
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return target.getvalue()


def _domain_arrays(domain: Certified) -> dict[str, npt.NDArray[Any]]:
    every = {name: getattr(domain, name) for name in ("lo", "hi", "rows", "lower", "upper", "mean", "std")}
    return {f"domain.{name}": np.asarray(array, "<f8") for name, array in every.items() if array is not None}


def _domain_text(stability: Stability, domain: Certified) -> dict[str, Any]:
    names = ("lo", "hi", "rows", "lower", "upper", "mean", "std")
    text = {name: None if getattr(domain, name) is None else f"domain.{name}" for name in names}
    return {**text, "origin": stability.domain.origin, "text": str(domain)[:300]}


def _stored_proofs(
    records: Sequence[tuple[int, Record]],
    layers: dict[str, int],
    graph: Graph,
    arrays: dict[str, npt.NDArray[Any]],
) -> int:
    """How many hints there are; their numbers go to ``arrays``."""
    if records:
        hints = [next(iter(decoded([one], layers, graph).items())) for one in records]
        arrays |= tables_of([(layer, hint) for layer, (hint,) in hints], graph.sizes[0])
    return len(records)


def tables_of(hints: Sequence[tuple[int, dict[str, Any]]], inputs: int) -> dict[str, npt.NDArray[Any]]:
    """Hints with the numbers of their layers as the tables of :mod:`relutrim.certificate.check.hints`."""
    lists: dict[str, list[Any]] = {name: [] for name in (*TABLES, "values")}
    boxes: dict[bytes, int] = {}

    def put(name: str, items: Sequence[Any]) -> tuple[int, int]:
        lists[name].extend(items)
        return len(lists[name]) - len(items), len(lists[name])

    for layer, hint in hints:
        both = np.concatenate([hint["lo"], hint["hi"]], 1) if "lo" in hint else np.zeros((0, 2 * inputs))
        parts = [boxes.setdefault(box.tobytes(), len(boxes)) for box in both]
        rows = put("rows", hint.get("rows", ()))
        cuts = [
            (*place, int(outside), *put("subset", listed.tolist()))
            for place, listed, outside in hint.get("cuts", ())
        ]
        leaves = []
        for leaf in hint.get("leaves", ()):
            states = put("states", [(*place, int(on)) for place, on in leaf["states"].items()])
            put("values", leaf["values"].tolist())
            leaves.append((*states, *put("at", leaf["at"].tolist()), int(leaf["empty"])))
        stretches = (*rows, *put("cuts", cuts), *put("leaves", leaves), *put("part", parts))
        put("hints", [(layer, hint["unit"], hint["sign"], *stretches)])
    found = {
        f"proof.{name}": np.array(lists[name], "<i4").reshape(
            len(lists[name]), *([columns] if columns else [])
        )
        for name, columns in TABLES.items()
    }
    ends = np.frombuffer(b"".join(boxes), "<f8").reshape(len(boxes), 2, inputs)
    found |= {"proof.lo": ends[:, 0], "proof.hi": ends[:, 1]}
    return {**found, "proof.values": np.array(lists["values"], "<f8")}


def _layer_texts(
    graph: Graph,
    hints: Sequence[Hint],
    arrays: dict[str, npt.NDArray[Any]],
    stem: str,
    slack: Sequence[float] | None,
    ranges: Any,
) -> list[dict[str, Any]]:
    found = []
    for number, (at, hint) in enumerate(zip(graph.layers, hints, strict=True)):
        name = f"{stem}{number}"
        entry: dict[str, Any] = {
            "name": graph.nodes[at].name,
            "size": int(hint.kind.size),
            "kind": f"{name}.kind",
        }
        arrays[f"{name}.kind"] = hint.kind.astype("|u1")
        named = bool((hint.place >= 0).any())
        entry |= {key: f"{name}.{key}" if named else None for key in ("place", "scale")}
        if named:
            arrays[f"{name}.place"] = hint.place.astype("<i4")
            arrays[f"{name}.scale"] = hint.scale.astype("<f8")
        entry["counts"] = dict(
            zip(
                ("symbol", "linear", "zero", "match"),
                np.bincount(hint.kind, minlength=MATCH + 1).tolist(),
                strict=True,
            )
        )
        if slack is not None:
            reach = float(np.abs([ranges[number].lo, ranges[number].hi]).max(initial=1.0))
            entry["slack"] = _finite(2 * slack[number] + 1e-12 * reach, f"layer {number}")
        found.append(entry)
    return found


def _output_texts(
    graph: Graph, bounds: Sequence[Any], limits: Sequence[Any] | None, arrays: dict[str, npt.NDArray[Any]]
) -> list[dict[str, Any]]:
    found = []
    for number, (name, bound) in enumerate(zip(graph.outputs, bounds, strict=True)):
        claim = bound * _ROOM
        if limits is not None:
            limit = limits[number].reshape(-1)
            claim = np.where(bound <= limit, np.minimum(claim, np.maximum(limit, bound)), claim)
            if not (bound <= limit).all():
                raise CheckFailed(
                    f"output {name!r} can be certified to be within {bound.max():.3g} of the "
                    f"original's only, and {limit.max():.3g} is what the tolerance allows; use a larger "
                    "tolerance, or leave the certificate away"
                )
        most = _finite(float(claim.max(initial=0.0)), f"output {name!r}")
        arrays[f"output{number}.bound"] = claim.astype("<f8")
        found.append({"name": name, "bound": f"output{number}.bound", "largest": most})
    return found


def _finite(number: float, what: str) -> float:
    if not np.isfinite(number):
        raise CheckFailed(
            f"{what}: no bound can be certified; the numbers of the network are too large for it"
        )
    return float(number)
