"""Making a certificate: hints gathered, the checker run on them, its bound claimed.

A certificate exists only if the checker accepts it: :func:`certify` raises what the checker says otherwise.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relutrim._version import __version__
from relutrim.certificate.check import CUTS, EXPRESSIONS, SECONDS, Report, check, read_front, same, same_ends
from relutrim.certificate.check.archive import DOCUMENT, DTYPES, MODELS, SCHEMA, sha256
from relutrim.certificate.check.cuts import Cuts
from relutrim.certificate.check.domain import Domain as Certified
from relutrim.certificate.check.equal import MATCH, Comparison, Hint
from relutrim.certificate.check.kinds import is_onnx
from relutrim.certificate.check.maps import Graph
from relutrim.certificate.check.ranges import Layer
from relutrim.certificate.groundwork import Groundwork, certified_domain
from relutrim.certificate.hinting import Pairing, seen, treatment
from relutrim.errors import CheckFailed, InputError, UnsupportedError

if TYPE_CHECKING:
    from relutrim.graph.graph import Network
    from relutrim.graph.operators import Operator
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
        document, inside = dict(self.document), dict[str, bytes]()
        for key, path in (("model", model), ("out", out)):
            onnx = self.models[key]
            said: dict[str, Any] = {"sha256": sha256(onnx), "embedded": False, "given": None}
            if path is not None:
                said |= _file(key, onnx, path, opaque=self.document.get("comparison") == CUTS)
            if said["embedded"]:
                inside[MODELS[key]] = onnx
            document[key] = said
        return _zipped(document, self.arrays, inside)

    def save(
        self, path: str | Path, *, model: str | Path | None = None, out: str | Path | None = None
    ) -> tuple[Path, ...]:
        """Write it, whole or not at all, and say which files were written. ``model`` and ``out`` are the
        files that it is about. For a model in memory they are written too, as ONNX: ``C.model.onnx`` and
        ``C.out.onnx`` beside ``C``.
        """
        from relutrim.io.files import check_target, replacing

        target = Path(path)
        given = {"model": model, "out": out}
        content = self.content(*(None if one is None else Path(one) for one in given.values()))
        beside = {
            target.with_name(f"{target.name}.{key}.onnx"): self.models[key]
            for key, one in given.items()
            if one is None
        }
        for one in beside:
            check_target(one)
        for one, onnx in {**beside, target: content}.items():
            with replacing(one) as aside:
                aside.write_bytes(onnx)
        return (target, *beside)


def _file(key: str, certified: bytes, path: Path, *, opaque: bool) -> dict[str, Any]:
    """What a certificate says of a file: it is the ONNX that was certified, or the checker reads the same in
    it; or it is of another format, and that ONNX goes along.
    """
    from relutrim.io import suffix

    content = path.read_bytes()
    try:
        plain = is_onnx(path.name, content)
    except InputError as error:
        raise error.at(str(path)) from None
    if plain:
        return _read_as(key, certified, path, opaque=opaque)
    given = {"sha256": sha256(content), "suffix": suffix(path)}
    return {"embedded": True, "given": given}


def _read_as(key: str, certified: bytes, path: Path, *, opaque: bool) -> dict[str, Any]:
    """What a certificate says of an ONNX file in which the checker reads what was certified, for MODEL
    perhaps with ReLUs behind its outputs.
    """
    from relutrim.io.files import read_bytes

    found = read_bytes(path)
    if found == certified:
        return {}
    wanted = read_front(certified, key, opaque=opaque)
    for output_relu in (False, True)[: 1 + (key == "model")]:
        if same(read_front(found, key, output_relu=output_relu, opaque=opaque), wanted):
            more = {"output_relu": True} if output_relu else {}
            return {"sha256": sha256(found), **more}
    raise CheckFailed(
        "the checker reads something else in it than what was certified, so no certificate is written; "
        "compress without --certificate",
        where=str(path),
    )


@np.errstate(all="ignore")
def certify(
    work: Groundwork,
    stored: Network,
    stability: Stability,
    steps: Sequence[Step] = (),
    tolerance: str | float = "exact",
    limits: Mapping[str, npt.NDArray[np.float64]] | None = None,
    out: bytes | None = None,
    deadline: float = float("inf"),
) -> Certificate:
    """The certificate that ``stored`` equals the model on the domain of ``stability``.

    ``limits`` are how far the entries of each output may be away; more is an error. ``out`` is the ONNX that
    holds ``stored`` (None: the one that is written for it). After the deadline (``time.monotonic()``) it is
    :class:`CheckFailed`.
    """
    from relutrim.io.onnx.write import network_to_proto

    if out is None:
        out = network_to_proto(stored).SerializeToString(deterministic=True)
    work.ranges.until(deadline)
    before, after = work.graph, read_front(out, "out", deadline, replace(work.domain, deadline=deadline))
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
    arrays = work.proofs | _hint_arrays("layers", pairing.model) | _hint_arrays("out", hints)
    arrays["layers.slack"] = np.array(slack, "<f8")
    layers = _layer_texts(before, pairing.model), _layer_texts(after, hints)
    claimed = _Claimed(work.model, out, work.domain, before, bounds, EXPRESSIONS, arrays, layers)
    return _certificate(claimed, stability, steps, tolerance, limits, deadline)


@np.errstate(all="ignore")
def certify_cuts(
    model: bytes,
    out: bytes,
    stability: Stability,
    steps: Sequence[Step] = (),
    tolerance: str | float = "exact",
    limits: Mapping[str, npt.NDArray[np.float64]] | None = None,
    deadline: float = float("inf"),
) -> Certificate:
    """The certificate that OUT is MODEL with slices cut away, which is known without any of the prover's
    proofs: for networks too large for :func:`certify`, for unbounded domains, and with nodes that nobody
    knows.
    """
    domain = replace(certified_domain(stability), deadline=deadline)
    before, after = (
        read_front(content, key, deadline, domain, opaque=True)
        for key, content in (("model", model), ("out", out))
    )
    same_ends(before, after)
    bounds = Cuts(before, after, domain, deadline).bounds()
    claimed = _Claimed(model, out, domain, before, bounds, CUTS, {}, ([], []))
    return _certificate(claimed, stability, steps, tolerance, limits, deadline)


@dataclass(frozen=True, eq=False)
class _Claimed:
    """What a certificate is about, and what was proved of it."""

    model: bytes
    out: bytes
    domain: Certified
    before: Graph
    bounds: Sequence[npt.NDArray[np.float64]]
    comparison: str
    arrays: dict[str, npt.NDArray[Any]]
    layers: tuple[list[dict[str, Any]], list[dict[str, Any]]]


def _certificate(
    claimed: _Claimed,
    stability: Stability,
    steps: Sequence[Step],
    tolerance: str | float,
    limits: Mapping[str, npt.NDArray[np.float64]] | None,
    deadline: float,
) -> Certificate:
    """The certificate, once the checker has accepted it."""
    model, out, outputs = claimed.model, claimed.out, claimed.before.outputs
    bounds = [np.zeros_like(bound) for bound in claimed.bounds] if out == model else claimed.bounds
    claims = [
        _claim(name, bound, (limits or {}).get(name, np.full(len(bound), np.inf)))
        for name, bound in zip(outputs, bounds, strict=True)
    ]
    arrays = _domain_arrays(claimed.domain) | claimed.arrays
    arrays["outputs.bound"] = np.concatenate([np.zeros(0), *claims]).astype("<f8")
    document = {
        "schema": SCHEMA,
        "relutrim": __version__,
        "model": {},
        "out": {},
        "comparison": claimed.comparison,
        "domain": {"origin": stability.domain.origin, "text": str(claimed.domain)[:300]},
        "layers": claimed.layers[0],
        "out_layers": claimed.layers[1],
        "outputs": [
            {"name": name, "largest": float(claim.max(initial=0.0))}
            for name, claim in zip(outputs, claims, strict=True)
        ],
        "tolerance": tolerance,
        "rewrites": [{"name": s.rewrite, "node": s.node, "text": s.text} for s in steps],
        "arrays": {},
    }
    made = Certificate(document, arrays, {"model": model, "out": out}, Report())
    report = check(model, out, made.content(), seconds=min(SECONDS, deadline - time.monotonic()))
    return Certificate(document, arrays, made.models, report)


def certifiable(network: Network, source: bytes | None, *, opaque: bool) -> bytes | None:
    """The ONNX that a certificate is about: ``source``, or the one that is written for the network; an error
    if it cannot be written, or the checker does not read it, with nodes that it does not know if they may be
    ``opaque``. None if it holds some that may not.
    """
    from relutrim.io.onnx.write import network_to_proto

    if source is None:
        _check_input(network)
        source = network_to_proto(exactly_storable(network)).SerializeToString(deterministic=True)
    try:
        front = read_front(source, "model", opaque=True)
        if front.sizes[0] != network.size(network.input.name):
            raise UnsupportedError("its batch has a fixed length, so that its rows could be mixed")
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{error.message}, so the model cannot be certified; it can be compressed without a certificate",
            where=error.where,
        ) from None
    known = front.around == b""
    return source if known or opaque else None


def _check_input(network: Network) -> None:
    """Refuse a model of whose input nothing is followed: an ONNX file of it could not be certified either."""
    followed = {*network.pinned, *(name for node in network.nodes for name in node.inputs)}
    opaque = any(node.operator.kind == "Fresh" for node in network.nodes)
    if opaque and network.input.name not in followed:
        raise UnsupportedError(
            "only an input of float32 or float64 numbers is followed, and nothing of this one is, so the "
            "model cannot be certified, and could not be as ONNX; it can be compressed without a "
            "certificate. A model in float16 or bfloat16 loses nothing by model.float()",
            where=f"input {network.input.name!r}",
        )


def exactly_storable(network: Network) -> Network:
    """The network such that an ONNX file holds its very numbers, in float64 if need be; else an error."""
    for dtype in ("float32", "float64"):
        if dtype == "float64" or dtype == network.dtype:
            inexact = [node for node in network.nodes if not _holds(node.operator, dtype)]
            if not inexact:
                return network if dtype == network.dtype else replace(network, dtype=dtype)
    raise InputError(
        "its numbers are quotients or roots that no file holds exactly (a normalisation, a division), so the "
        "model cannot be certified through an ONNX file; export it to ONNX and compress that",
        where=f"node {inexact[0].name!r}",
    )


def _holds(operator: Operator, dtype: str) -> bool:
    """Whether a file whose weights are of this type says exactly what an operator computes. The epsilon of a
    batch norm is a float32 in every ONNX file, and that is the one that is certified.
    """
    from relutrim.graph.operators import BatchNorm, Scale

    told = vars(operator)
    if isinstance(operator, BatchNorm):
        told = {name: told[name] for name in ("gain", "bias", "mean", "variance")}
    elif isinstance(operator, Scale) and not operator.exact:
        return operator.divisor(dtype) is not None
    with np.errstate(over="ignore"):
        return all(
            np.array_equal(array.astype(dtype), array)
            for name, array in told.items()
            if isinstance(array, np.ndarray) and array.dtype == np.float64
            if not name.endswith("radius") or array.any()
        )


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
    if len(limit) != len(bound):  # the checker does not know how many entries it has
        limit = np.full(len(bound), limit.min(initial=np.inf))
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
