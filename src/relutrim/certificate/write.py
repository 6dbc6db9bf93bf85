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
from relutrim.certificate.check.maps import Graph
from relutrim.certificate.check.ranges import Layer
from relutrim.certificate.groundwork import Groundwork
from relutrim.certificate.hinting import Pairing, seen, treatment
from relutrim.errors import CheckFailed, InputError, UnsupportedError

if TYPE_CHECKING:
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
    before, after = work.graph, read_front(out, "out", domain=work.domain)
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
    slack = [_slack(*one) for one in zip(comparison.slack, work.ranges.layers, strict=True)]
    allowed = limits or [np.full(len(bound), np.inf) for bound in bounds]
    claims = [_claim(*one) for one in zip(before.outputs, bounds, allowed, strict=True)]
    arrays = _domain_arrays(work.domain) | work.proofs
    arrays |= _hint_arrays("layers", pairing.model) | _hint_arrays("out", hints)
    arrays["layers.slack"] = np.array(slack, "<f8")
    arrays["outputs.bound"] = np.concatenate([np.zeros(0), *claims]).astype("<f8")
    document = {
        "schema": SCHEMA,
        "relutrim": __version__,
        "model": {},
        "out": {},
        "domain": {"origin": stability.domain.origin, "text": str(work.domain)[:300]},
        "layers": _layer_texts(before, pairing.model),
        "out_layers": _layer_texts(after, hints),
        "outputs": [
            {"name": name, "largest": float(claim.max(initial=0.0))}
            for name, claim in zip(before.outputs, claims, strict=True)
        ],
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


def _hint_arrays(stem: str, hints: Sequence[Hint]) -> dict[str, npt.NDArray[Any]]:
    """The hints of all layers, one behind the other."""
    types = {"kind": "|u1", "place": "<i4", "scale": "<f8"}
    return {
        f"{stem}.{name}": np.concatenate([np.zeros(0), *(getattr(hint, name) for hint in hints)]).astype(kind)
        for name, kind in types.items()
    }


def _layer_texts(graph: Graph, hints: Sequence[Hint]) -> list[dict[str, Any]]:
    """For a reader: what there is in each layer."""
    kinds = ("symbol", "linear", "zero", "match")
    return [
        {
            "name": graph.nodes[at].name,
            "size": int(hint.kind.size),
            "counts": dict(zip(kinds, np.bincount(hint.kind, minlength=MATCH + 1).tolist(), strict=True)),
        }
        for at, hint in zip(graph.layers, hints, strict=True)
    ]


def _slack(slack: float, layer: Layer) -> float:
    """What is claimed of a layer's units that are called linear or zero."""
    reach = float(np.abs([layer.lo, layer.hi]).max(initial=1.0))
    return _finite(2 * slack + 1e-12 * reach, "a layer")


def _claim(name: str, bound: Any, limit: Any) -> npt.NDArray[np.float64]:
    """What is claimed of an output, if it is within its limit."""
    _finite(float(bound.max(initial=0.0)), f"output {name!r}")
    limit = limit.reshape(-1)
    if not (bound <= limit).all():
        raise CheckFailed(
            f"output {name!r} can be certified to be within {bound.max():.3g} of the original's only, and "
            f"{limit.max():.3g} is what the tolerance allows; use a larger tolerance, or leave the "
            "certificate away"
        )
    return np.asarray(np.minimum(bound * _ROOM, limit))


def _finite(number: float, what: str) -> float:
    if not np.isfinite(number):
        raise CheckFailed(
            f"{what}: no bound can be certified; the numbers of the network are too large for it"
        )
    return float(number)
