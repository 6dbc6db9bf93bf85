"""The independent checker: numpy, onnx and the standard library, and no code of the prover's.

From two models and a certificate it proves anew that the second equals the first on the certified domain, up
to a bound that it computes itself. What the certificate says is a hint wherever it is not a claim, and every
claim is compared with what was proved. :func:`check` is all of it; ``python -m relutrim.certificate.check``
calls it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from relutrim.certificate.check.archive import MODELS, Archive, need, open_archive, sha256
from relutrim.certificate.check.call import MOST
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.equal import Comparison, Hint, Hints
from relutrim.certificate.check.maps import Graph
from relutrim.certificate.check.proofs import Proofs
from relutrim.certificate.check.ranges import Ranges
from relutrim.certificate.check.read import read
from relutrim.certificate.check.rounding import ETA
from relutrim.errors import CheckFailed, InputError, RelutrimError

Asked = Domain
"""A set of inputs that the certificate must cover; single numbers stand for all inputs."""
SECONDS = 600.0
"""How long a check may take, unless someone says otherwise."""
_FOREVER = float("inf")
NAMES = {"model": "MODEL", "out": "OUT"}


@dataclass
class Report:
    """What was proved, and what was looked at; ``lines`` are for a reader."""

    bound: float = float("nan")
    bounds: list[np.ndarray[Any, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def check(
    model: bytes,
    out: bytes,
    certificate: bytes,
    asked: Asked | None = None,
    tolerance: float | None = None,
    translated: Callable[[str], bytes | None] | None = None,
    seconds: float = SECONDS,
) -> Report:
    """Prove everything that the certificate claims, or raise: :class:`CheckFailed` where a claim is not
    proved.

    ``translated`` gives the ONNX of a model in another format (``model`` or ``out``), where someone can tell.
    """
    try:
        with np.errstate(all="ignore"):  # what overflows proves nothing
            return _checked(
                {"model": model, "out": out},
                certificate,
                asked,
                tolerance,
                translated,
                time.monotonic() + seconds,
            )
    except RelutrimError:
        raise
    except (MemoryError, RecursionError) as error:
        raise CheckFailed(f"not checked: it takes too much memory ({type(error).__name__})") from None
    except Exception as error:  # whatever it is: nothing was proved
        raise CheckFailed(
            f"what the certificate or a model says makes no sense ({type(error).__name__}: {error})"
        ) from None


def _checked(
    files: Mapping[str, bytes],
    certificate: bytes,
    asked: Asked | None,
    tolerance: float | None,
    translated: Callable[[str], bytes | None] | None,
    deadline: float,
) -> Report:
    if tolerance is not None and not 0 <= tolerance < _FOREVER:
        raise InputError(f"a tolerance of {tolerance:g} makes no sense; it is how far an output may be away")
    if not (np.array([ETA]) * 1.0 > 0).all():
        raise CheckFailed("this process flushes denormal numbers to zero, so that nothing can be proved")
    report, archive = Report(), open_archive(certificate)
    model, out = (_graph(archive, key, files[key], report, translated, deadline) for key in NAMES)
    domain = _domain(archive, model.sizes[0])
    _same_ends(model, out)
    report.lines.append(f"domain: {domain!s:.300}")
    if asked is not None:
        why = domain.contains(asked.spread(domain.lo.size, model.shape[1] if len(model.shape) > 2 else 1))
        if why is not None:
            raise CheckFailed(f"the certified domain does not contain the one asked for: {why}")
        report.lines.append("the domain asked for lies in it")
    before, after = (domain.in_front(graph) for graph in (model, out))
    streams = {"words": "int32", "numbers": "float64"}
    proofs = Proofs(*(archive.array(f"proof.{name}", dtype, (-1,)) for name, dtype in streams.items()))
    ranges = prove_ranges(before, domain, proofs, report, deadline)
    comparison = Comparison(before, ranges, _hints(archive, "layers", before))
    _claimed_slack(archive, comparison, report)
    bounds = comparison.bounds(after, _hints(archive, "out", after))
    _claimed_bounds(archive, model, bounds, report)
    if tolerance is not None and not report.bound <= tolerance:
        raise CheckFailed(f"OUT is within {report.bound:.6g} of MODEL, and {tolerance:g} was asked for")
    return report


def read_front(content: bytes, key: str, deadline: float = _FOREVER) -> Graph:
    """A model, with the file named in what goes wrong."""
    try:
        return read(content, deadline)
    except RelutrimError as error:
        raise error.at(NAMES[key]) from None


@np.errstate(all="ignore")
def prove_ranges(
    graph: Graph,
    domain: Domain,
    proofs: Proofs | None = None,
    report: Report | None = None,
    deadline: float = _FOREVER,
) -> Ranges:
    """The ranges of all layers' inputs: intervals, linear bounds, and then what proofs add."""
    ranges, used = Ranges(graph, domain.narrowed(), deadline), 0
    while (layer := ranges.advance()) is not None:
        at, known = len(ranges.layers), [len(layer.open())]
        ranges.tighten(layer, layer.open)
        known.append(len(layer.open()))
        while proofs is not None and proofs.layer() == at:
            proofs.use(ranges, layer)
            used += 1
        ranges.close(layer)
        if report is not None:
            report.lines.append(
                f"layer {at} ({graph.nodes[graph.layers[at]].name[:60]}): {len(layer.lo)} ReLUs; of their "
                f"inputs have one sign by intervals {len(layer.lo) - known[0]}, by linear bounds "
                f"{known[0] - known[1]} more, by {used} proofs so far {known[1] - len(layer.open())} more"
            )
    if proofs is not None and proofs.layer() != -1:
        raise InputError(f"a proof for layer {proofs.layer()} is not there, or not in its place")
    return ranges


def _graph(
    archive: Archive,
    key: str,
    content: bytes,
    report: Report,
    translated: Callable[[str], bytes | None] | None,
    deadline: float,
) -> Graph:
    """The model that is certified, if the file is the one that the certificate is about."""
    said, name = need(archive.document, key, dict), NAMES[key]
    wanted = need(said, "sha256", str)
    unpacked = content
    if content[:2] == b"\x1f\x8b" and sha256(content) != wanted:
        packed = zlib.decompressobj(zlib.MAX_WBITS | 16)
        unpacked = packed.decompress(content, 64 * MOST)
        if not packed.eof or packed.unused_data:
            raise CheckFailed(f"{name} is not one whole gzip file")
    if sha256(unpacked) == wanted:
        report.lines.append(f"{name}: sha256 {wanted}{'' if unpacked is content else ', unpacked'}")
        return read_front(unpacked, key, deadline)
    given = said.get("given")
    if not isinstance(given, dict) or sha256(content) != given.get("sha256"):
        raise CheckFailed(f"{name} is not the file that the certificate is about: its sha256 is another")
    inside = archive.models.get(MODELS[key])
    if inside is None or sha256(inside) != wanted:
        raise CheckFailed(f"the certificate holds no ONNX for {name}, or another one than it says")
    report.lines.append(f"{name}: sha256 {given['sha256']}, through the ONNX inside, sha256 {wanted}")
    other = None if translated is None else translated(key)
    if other is None or not _same(other, inside):
        raise CheckFailed(f"not checked: that the ONNX inside is what {name} computes; use 'relutrim check'")
    return read_front(inside, key, deadline)


def _same(one: bytes, other: bytes) -> bool:
    """Whether two models have the same graph, whoever wrote them."""
    return bool(onnx.ModelProto.FromString(one).graph == onnx.ModelProto.FromString(other).graph)


def _domain(archive: Archive, size: int) -> Domain:
    rows = archive.array("domain.rows", "float64", (-1, size))
    lo, hi = (archive.array(f"domain.{name}", "float64", (size,)) for name in ("lo", "hi"))
    lower, upper = (
        archive.array(f"domain.{name}", "float64", (len(rows),), infinite=True) for name in ("lower", "upper")
    )
    names = ("domain.mean", "domain.std") if {"domain.mean", "domain.std"} & set(archive.arrays) else ()
    mean, std = (archive.array(name, "float64", (size,)) for name in names) if names else (None, None)
    if not ((lo <= hi).all() and (lower <= upper).all()) or len(rows) > 1024:
        raise InputError("the certified domain is empty, or has too many constraints")
    if std is not None and not (std > 0).all():
        raise InputError("the certified domain's normalisation makes no sense")
    return Domain(lo, hi, rows, lower, upper, mean, std)


def _same_ends(before: Graph, after: Graph) -> None:
    """Inputs and outputs of both must be called the same and have the same shapes (a softmax along an axis is
    another one in another shape), and tails be the same.
    """
    ends = [
        (graph.input_name, graph.shape, [(name, o.steps, o.shape) for name, o in graph.outputs.items()])
        for graph in (before, after)
    ]
    if ends[0] != ends[1]:
        raise CheckFailed(f"inputs, outputs or tails differ: MODEL {ends[0]!r:.200}, OUT {ends[1]!r:.200}")


def _hints(archive: Archive, stem: str, graph: Graph) -> Hints:
    """The hints of all layers lie one behind the other."""
    ends = np.cumsum([graph.sizes[at + 1] for at in graph.layers], dtype=np.int64)
    types, size = {"kind": "uint8", "place": "int32", "scale": "float64"}, int(ends[-1:].sum())
    every = [archive.array(f"{stem}.{name}", dtype, (size,)) for name, dtype in types.items()]
    split = [np.split(array, ends) for array in every]
    return lambda number, _: Hint(*(parts[number] for parts in split))


def _claimed_slack(archive: Archive, comparison: Comparison, report: Report) -> None:
    claimed = archive.array("layers.slack", "float64", (len(comparison.slack),))
    for number in np.flatnonzero(~(np.array(comparison.slack) <= claimed))[:1]:
        what = f"linear or zero up to {comparison.slack[number]:.3g} only, not {claimed[number]:.3g}"
        raise CheckFailed(f"layer {number}: units that are said to be so are {what}")
    report.lines.append("all units that are said to be linear or zero on the domain are proved to be so")


def _claimed_bounds(archive: Archive, graph: Graph, bounds: list[Any], report: Report) -> None:
    every = archive.array("outputs.bound", "float64", (sum(map(len, bounds)),))
    parts = np.split(every, np.cumsum([len(bound) for bound in bounds]))
    report.bound, report.bounds = float(every.max(initial=0.0)), bounds
    for name, claimed, bound in zip(graph.outputs, parts, bounds, strict=False):
        for at in np.flatnonzero(~(bound <= claimed))[:1]:
            what = f"{bound[at]:.6g} of MODEL's, and {claimed[at]:.6g} is claimed"
            raise CheckFailed(f"output {name!r}: entry {at} is proved to be within {what}")
        largest = claimed.max(initial=0.0)
        report.lines.append(f"output {name!r}: {bound.size} entries within {largest:.6g} of MODEL's")
