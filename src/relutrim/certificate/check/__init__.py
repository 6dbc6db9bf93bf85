"""The independent checker: numpy, onnx and the standard library, and no code of the prover's.

From two models and a certificate it proves anew that the second equals the first on the certified domain, up
to a bound that it computes itself. What the certificate says is a hint wherever it is not a claim, and every
claim is compared with what was proved. :func:`check` is all of it; ``python -m relutrim.certificate.check``
calls it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relutrim.certificate.check.archive import MODELS, Archive, need, open_archive, sha256
from relutrim.certificate.check.call import MOST
from relutrim.certificate.check.cuts import Cuts
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.equal import Comparison, Hint, Hints
from relutrim.certificate.check.kinds import is_onnx
from relutrim.certificate.check.maps import Affine, Graph, Map
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
EXPRESSIONS, CUTS = "expressions", "cuts"
"""The two comparisons: of expressions, whatever was rewritten, or of what was cut away."""


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
    *,
    names: tuple[str, str] = ("", ""),
    output_relu: bool = False,
) -> Report:
    """Prove everything that the certificate claims, or raise: :class:`CheckFailed` where a claim is not
    proved.

    ``names`` are those of the files: a model whose name ends in ``.onnx`` or ``.onnx.gz`` is read here, and
    in no other way; without a name its content says what it is. ``translated`` gives the ONNX of a model in
    another format (``model`` or ``out``), where someone can tell. ``output_relu`` means MODEL with a ReLU
    behind each output.
    """
    with _answered():
        deadline, report, archive = time.monotonic() + seconds, Report(), open_archive(certificate)
        if tolerance is not None and not 0 <= tolerance < _FOREVER:
            raise InputError(
                f"a tolerance of {tolerance:g} makes no sense; it is how far outputs may be away"
            )
        cuts = _comparison(archive) == CUTS
        domain = replace(_domain(archive, infinite=cuts), deadline=deadline)
        model_content, out_content = (
            _certified(archive, key, name, content, report, translated, deadline, opaque=cuts)
            for key, name, content in zip(NAMES, names, (model, out), strict=True)
        )
        relus = _output_relus(archive, output_relu)
        before = read_front(model_content, "model", deadline, domain, output_relu=relus, opaque=cuts)
        after = read_front(out_content, "out", deadline, domain, opaque=cuts)
        same_ends(before, after)
        _covered(domain, asked, before, report)
        if cuts:
            bounds = Cuts(before, after, domain, deadline).bounds()
            report.lines += _said_of_cuts(before, after)
        else:
            bounds = _by_expressions(archive, before, after, domain, report, deadline)
        if out_content == model_content and not relus:
            report.lines.append("OUT is MODEL, byte for byte")
            bounds = [np.zeros_like(bound) for bound in bounds]
        _claimed_bounds(archive, before, bounds, report)
        if tolerance is not None and not report.bound <= tolerance:
            raise CheckFailed(f"OUT is within {report.bound:.6g} of MODEL, and {tolerance:g} was asked for")
        return report


def _comparison(archive: Archive) -> str:
    """How MODEL and OUT are compared."""
    found = archive.document.get("comparison", EXPRESSIONS)
    if found not in (EXPRESSIONS, CUTS):
        raise InputError(f"the certificate asks for a comparison {found!r:.100}, which there is not")
    return str(found)


def _by_expressions(
    archive: Archive, before: Graph, after: Graph, domain: Domain, report: Report, deadline: float
) -> list[np.ndarray[Any, Any]]:
    """What is proved with the certificate's proofs and hints."""
    streams = {"words": "int32", "numbers": "float64", "bytes": "uint8"}
    proofs = Proofs(*(archive.array(f"proof.{name}", dtype, (-1,)) for name, dtype in streams.items()))
    ranges = prove_ranges(before, domain, proofs, report, deadline)
    comparison = Comparison(before, ranges, _hints(archive, "layers", before))
    _claimed_slack(archive, comparison, report)
    return comparison.bounds(after, _hints(archive, "out", after))


def _said_of_cuts(before: Graph, after: Graph) -> list[str]:
    """For a reader: what there is in both, and what is not known of it."""
    left, all_of = (sum(size for size in graph.sizes if size > 0) for graph in (after, before))
    nodes = f"{len(after.nodes)} of {len(before.nodes)}, with {left} of {all_of} entries"
    lines = [f"every node of OUT is one of MODEL with the same coefficients: {nodes}"]
    opaque = [node.name for node in before.nodes if node.opaque is not None]
    if opaque:
        lines.append(
            f"{len(opaque)} values come from nodes or inputs that the checker does not know; they are the "
            f"same in both, and may be anything: {', '.join(opaque[:3])}{', ...' if opaque[3:] else ''}"
        )
    return lines


@contextmanager
def _answered() -> Iterator[None]:
    """Whatever goes wrong inside: nothing was proved."""
    try:
        with np.errstate(all="ignore"):  # what overflows proves nothing
            if not (np.array([ETA]) * 1.0 > 0).all():
                raise CheckFailed("this process flushes denormal numbers to zero: nothing can be proved")
            yield
    except RelutrimError:
        raise
    except (MemoryError, RecursionError) as error:
        raise CheckFailed(f"not checked: it takes too much memory ({type(error).__name__})") from None
    except Exception as error:
        raise CheckFailed(
            f"what the certificate or a model says makes no sense ({type(error).__name__}: {error})"
        ) from None


def read_front(
    content: bytes,
    key: str,
    deadline: float = _FOREVER,
    domain: Domain | None = None,
    *,
    output_relu: bool = False,
    opaque: bool = False,
) -> Graph:
    """A model behind the domain's normalisation, with the file named in what goes wrong."""
    try:
        return read(content, deadline, domain, output_relu=output_relu, opaque=opaque)
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
        if not graph.nodes[graph.layers[at]].minor:
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


def _certified(
    archive: Archive,
    key: str,
    name: str,
    content: bytes,
    report: Report,
    translated: Callable[[str], bytes | None] | None,
    deadline: float,
    *,
    opaque: bool,
) -> bytes:
    """The ONNX that is certified, if the file is the one that the certificate is about."""
    try:
        plain = is_onnx(name, content)
    except RelutrimError as error:
        raise error.at(NAMES[key]) from None
    said = need(archive.document, key, dict)
    wanted = need(said, "sha256", str)
    if not plain:
        return _inside(archive, key, content, report, translated, deadline, opaque=opaque)
    if said.get("given") is not None:
        raise CheckFailed(f"the certificate is not about {NAMES[key]} itself, which is ONNX; make a new one")
    unpacked = _unpacked(key, content)
    if sha256(unpacked) != wanted:
        raise CheckFailed(
            f"{NAMES[key]} is not the file that the certificate is about: its sha256 is another"
        )
    report.lines.append(f"{NAMES[key]}: sha256 {wanted}{'' if unpacked is content else ', unpacked'}")
    return unpacked


def _unpacked(key: str, content: bytes) -> bytes:
    if content[:2] != b"\x1f\x8b":
        return content
    packed = zlib.decompressobj(zlib.MAX_WBITS | 16)
    found = packed.decompress(content, 64 * MOST)
    if not packed.eof or packed.unused_data:
        raise CheckFailed(f"{NAMES[key]} is not one whole gzip file")
    return found


def _inside(
    archive: Archive,
    key: str,
    content: bytes,
    report: Report,
    translated: Callable[[str], bytes | None] | None,
    deadline: float,
    *,
    opaque: bool,
) -> bytes:
    """The ONNX in the certificate, for a file of another format, if someone can tell that both are one."""
    said, name = need(archive.document, key, dict), NAMES[key]
    given, wanted = said.get("given"), need(said, "sha256", str)
    if not isinstance(given, dict) or sha256(content) != given.get("sha256"):
        raise CheckFailed(f"{name} is not the file that the certificate is about: its sha256 is another")
    inside = archive.models.get(MODELS[key])
    if inside is None or sha256(inside) != wanted:
        raise CheckFailed(f"the certificate holds no ONNX for {name}, or another one than it says")
    report.lines.append(f"{name}: sha256 {given['sha256']}, through the ONNX inside, sha256 {wanted}")
    other = None if translated is None else translated(key)
    graphs = [read_front(one, key, deadline, opaque=opaque) for one in (other, inside) if one is not None]
    if other is None or not same(*graphs):
        raise CheckFailed(f"not checked: that the ONNX inside is what {name} computes; use 'relutrim check'")
    return inside


def _output_relus(archive: Archive, asked: bool) -> bool:
    """Whether ReLUs are to be put behind MODEL's outputs. In another format they are in the ONNX inside."""
    said = need(archive.document, "model", dict)
    if said.get("given") is not None:
        return False
    if (said.get("output_relu", False) is True) != asked:
        what = "MODEL as it is" if asked else "MODEL with a ReLU behind each output (--output-relu)"
        raise CheckFailed(f"not checked: the certificate is about {what}")
    return asked


def same(one: Graph, other: Graph) -> bool:
    """Whether two models consist of the same, apart from the names of what is inside."""
    ends = [(graph.input_name, list(graph.outputs)) for graph in (one, other)]
    return ends[0] == ends[1] and bool(_numbers(one) == _numbers(other))


def _numbers(graph: Graph) -> Any:
    """All that a graph consists of, apart from names."""
    nodes = [
        (node.inputs, node.opaque, node.operation and _coefficients(node.operation)) for node in graph.nodes
    ]
    ends = [(value.number, value.shape, value.steps) for value in graph.outputs.values()]
    return graph.shape, graph.sizes, nodes, ends, graph.around


def _coefficients(operation: Affine) -> list[Any]:
    return [operation.bias.tobytes(), *map(_arrays, operation.maps)]


def _arrays(one: Map) -> list[Any]:
    return [None if array is None else (array.shape, array.tobytes()) for array in vars(one).values()]


def _domain(archive: Archive, *, infinite: bool) -> Domain:
    lo = archive.array("domain.lo", "float64", (-1,), infinite=infinite)
    hi, rows = (
        archive.array("domain.hi", "float64", lo.shape, infinite=infinite),
        archive.array("domain.rows", "float64", (-1, lo.size)),
    )
    ends = [f"domain.{name}" for name in ("lower", "upper")]
    lower, upper = (archive.array(name, "float64", (len(rows),), infinite=True) for name in ends)
    some = (lo <= hi) & (lo < np.inf) & (hi > -np.inf)
    if not (some.all() and (lower <= upper).all()) or len(rows) > 1024:
        raise InputError("the certified domain is empty, or has too many constraints")
    if not {"domain.mean", "domain.std"} & set(archive.arrays):
        return Domain(lo, hi, rows, lower, upper)
    mean, std = (archive.array(f"domain.{name}", "float64", lo.shape) for name in ("mean", "std"))
    if not (std > 0).all():
        raise InputError("the certified domain's normalisation makes no sense")
    return Domain(lo, hi, rows, lower, upper, mean, std)


def _covered(domain: Domain, asked: Asked | None, graph: Graph, report: Report) -> None:
    """The certified domain is one of MODEL's inputs, and contains the one asked for."""
    if graph.sizes[0] != domain.lo.size:
        raise InputError(f"the certified domain has {domain.lo.size} inputs, and MODEL {graph.sizes[0]}")
    report.lines.append(f"domain: {domain!s:.300}")
    if asked is not None:
        wanted = asked.spread(domain.lo.size, graph.shape[1] if len(graph.shape) > 2 else 1)
        if not ((wanted.lo <= wanted.hi).all() and (wanted.lower <= wanted.upper).all()):
            raise InputError("the domain asked for is empty: a lower end is above its upper one")
        why = domain.contains(wanted)
        if why is not None:
            raise CheckFailed(f"the certified domain does not contain the one asked for: {why}")
        report.lines.append("the domain asked for lies in it")


def same_ends(before: Graph, after: Graph) -> None:
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
