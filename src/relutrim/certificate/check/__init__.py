"""The independent checker: numpy, onnx and the standard library, and no code of the prover's.

From two models and a certificate it proves anew that the second equals the first on the certified domain, up
to a bound that it computes itself. What the certificate says is a hint wherever it is not a claim, and every
claim is compared with what was proved. :func:`check` is all of it; ``python -m relutrim.certificate.check``
calls it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relutrim.certificate.check import hull
from relutrim.certificate.check.archive import MODELS, Archive, need, open_archive, sha256
from relutrim.certificate.check.call import MOST
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.equal import Comparison, Hint, Hints
from relutrim.certificate.check.hints import decoded
from relutrim.certificate.check.maps import Graph, Node
from relutrim.certificate.check.ranges import Layer, Ranges, fills
from relutrim.certificate.check.read import read
from relutrim.certificate.check.rounding import gradual_underflow
from relutrim.errors import CheckFailed, InputError, RelutrimError

_PARTS = 64
SECONDS = 600.0
"""How long a check may take, unless someone says otherwise."""


@dataclass(frozen=True)
class Asked:
    """A set of inputs that the certificate must cover; single numbers stand for all inputs."""

    lo: Any
    hi: Any
    rows: Any = None
    lower: Any = ()
    upper: Any = ()
    mean: Any = None
    std: Any = None


@dataclass
class Report:
    """What was proved, and what was looked at; ``lines`` are for a reader."""

    bound: float = float("nan")
    bounds: list[np.ndarray[Any, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """One more thing that is known."""
        self.lines.append(line)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "bound": self.bound,
            "bounds": [bound.tolist() for bound in self.bounds],
            "checked": self.lines,
        }


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
            return _checked(model, out, certificate, asked, tolerance, translated, time.monotonic() + seconds)
    except RelutrimError:
        raise
    except (MemoryError, RecursionError) as error:
        raise CheckFailed(f"not checked: it takes too much memory ({type(error).__name__})") from None
    except Exception as error:  # whatever it is: nothing was proved
        raise CheckFailed(
            f"what the certificate or a model says makes no sense ({type(error).__name__}: {error})"
        ) from None


def _checked(
    model: bytes,
    out: bytes,
    certificate: bytes,
    asked: Asked | None,
    tolerance: float | None,
    translated: Callable[[str], bytes | None] | None,
    deadline: float,
) -> Report:
    if not gradual_underflow():
        raise CheckFailed("this process flushes denormal numbers to zero, so that nothing can be proved")
    report, archive = Report(), open_archive(certificate)
    graphs = [
        read_front(_onnx(archive, key, content, report, translated), key)
        for key, content in (("model", model), ("out", out))
    ]
    domain = _domain(archive, graphs[0].sizes[0])
    _same_ends(*graphs)
    report.say(f"domain: {domain!s:.300}")
    if asked is not None:
        _contained(domain, asked, graphs[0], report)
    before, after = (in_front(graph, domain) for graph in graphs)
    ranges = prove_ranges(before, domain, decoded(archive), report, deadline)
    comparison = Comparison(before, ranges, _hints(archive, "layers"))
    _claimed_slack(archive, comparison, report)
    bounds = comparison.bounds(after, _hints(archive, "out_layers"))
    _claimed_bounds(archive, graphs[0], bounds, report)
    if tolerance is not None and not report.bound <= tolerance:
        raise CheckFailed(
            f"OUT is proved to be within {report.bound:.6g} of MODEL, and {tolerance:g} was asked for"
        )
    if report.unchecked:
        raise CheckFailed("not checked: " + "; ".join(report.unchecked))
    return report


def read_front(content: bytes, what: str) -> Graph:
    """A model, with the file named in what goes wrong."""
    try:
        return read(content)
    except RelutrimError as error:
        raise error.at("MODEL" if what == "model" else "OUT") from None


def alike(first: Graph, second: Graph) -> bool:
    """Whether both do the same operations with the same numbers."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
            return np.array_equal(one, other)
        if isinstance(one, tuple):
            return len(one) == len(other) and all(map(same, one, other))
        if hasattr(one, "__dict__") and vars(one):
            return type(one) is type(other) and same(tuple(vars(one).values()), tuple(vars(other).values()))
        return type(one) is type(other) and bool(one == other)

    ends = [(g.sizes, [(o.value, o.steps, o.shape) for o in g.outputs]) for g in (first, second)]
    pairs = zip(first.nodes, second.nodes, strict=False)
    return ends[0] == ends[1] and all(
        a.inputs == b.inputs and same(a.operation, b.operation) for a, b in pairs
    )


def in_front(graph: Graph, domain: Domain) -> Graph:
    """The graph with the domain's normalisation before it."""
    front = domain.front()
    moved = [
        Node(node.operation, tuple(i + len(front) for i in node.inputs), node.name) for node in graph.nodes
    ]
    outputs = tuple(replace(o, value=o.value + len(front)) for o in graph.outputs)
    sizes = (graph.sizes[0],) * len(front) + graph.sizes
    return replace(graph, nodes=(*front, *moved), sizes=sizes, outputs=outputs)


def prove_ranges(
    graph: Graph,
    domain: Domain,
    hints: Mapping[int, Sequence[dict[str, Any] | Callable[[], dict[str, Any]]]],
    report: Report | None = None,
    deadline: float = float("inf"),
) -> Ranges:
    """The ranges of all layers' inputs: intervals, linear bounds, and then what hints prove."""
    ranges = Ranges(graph, domain, deadline)
    with np.errstate(all="ignore"):
        for number in range(len(graph.nodes)):
            layer = ranges.advance(number)
            if layer is None:
                continue
            at = len(ranges.layers)
            first = _decided(layer)
            ranges.tighten(layer)
            second = _decided(layer)
            for hint in hints.get(at, ()):
                ranges.in_time()
                _use(ranges, layer, hint() if callable(hint) else hint)
            ranges.close(layer)
            if report is not None:
                kinds = "maxima" if layer.windows is not None else "ReLUs"
                report.say(
                    f"layer {at} ({graph.nodes[number].name[:60]}): {layer.size} {kinds}; of their inputs "
                    f"have one sign by intervals {first}, by linear bounds {second - first} more, by "
                    f"{len(hints.get(at, ()))} hints {_decided(layer) - second} more"
                )
    return ranges


def _use(ranges: Ranges, layer: Layer, hint: dict[str, Any]) -> None:
    """A hint's bound, if it proves one."""
    sign, entry = float(hint["sign"]), hint["unit"]
    if not 0 <= entry < len(layer.lo) or abs(sign) != 1:
        raise InputError("a hint names a unit that MODEL does not have")
    if "leaves" in hint:
        lower = hull.bound(ranges, layer, hint)
    else:
        lo, hi, lower = hint["lo"], hint["hi"], np.inf
        if len(ranges.domain.rows) or not fills(ranges.domain.lo, ranges.domain.hi, lo, hi, ranges.in_time):
            return
        for at in range(0, len(lo), _PARTS):
            low, high = ranges.on_parts(layer, lo[at : at + _PARTS], hi[at : at + _PARTS])
            least = (low if sign > 0 else -high)[:, entry].min()
            lower = min(lower, least) if least == least else np.nan
            if np.isnan(lower):
                return
    ranges.meet(layer, np.array([entry]), sign, np.array([lower]))


def _decided(layer: Layer) -> int:
    return int(((layer.lo >= 0) | (layer.hi <= 0)).sum())


def _onnx(
    archive: Archive,
    key: str,
    content: bytes,
    report: Report,
    translated: Callable[[str], bytes | None] | None,
) -> bytes:
    """The ONNX that is certified, if the file is the one that the certificate is about."""
    said, name = need(archive.document, key, dict), "MODEL" if key == "model" else "OUT"
    wanted = need(said, "sha256", str)
    if sha256(content) == wanted:
        report.say(f"{name}: sha256 {wanted}")
        return content
    if content[:2] == b"\x1f\x8b":
        unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(content, 64 * MOST)
        if sha256(unpacked) == wanted:
            report.say(f"{name}: sha256 {wanted}, unpacked")
            return unpacked
    given = said.get("given")
    if not isinstance(given, dict) or sha256(content) != given.get("sha256"):
        raise CheckFailed(
            f"{name} is not the file that the certificate is about: its sha256 is {sha256(content)}"
        )
    inside = archive.models.get(MODELS[key])
    if inside is None or sha256(inside) != wanted:
        raise CheckFailed(f"the certificate holds no ONNX for {name}, or another one than it says")
    report.say(f"{name}: sha256 {given.get('sha256')}, certified through the ONNX inside, sha256 {wanted}")
    other = None if translated is None else translated(key)
    if other is None or not alike(read_front(other, key), read_front(inside, key)):
        report.unchecked.append(
            f"that the ONNX inside the certificate is what {name} computes; 'relutrim check' reads it itself"
        )
    return inside


def _domain(archive: Archive, size: int) -> Domain:
    said = need(archive.document, "domain", dict)
    rows = archive.array(said.get("rows"), "float64", (-1, size))
    ends = [archive.array(said.get(name), "float64", (size,)) for name in ("lo", "hi")]
    limits = [
        archive.array(said.get(name), "float64", (len(rows),), infinite=True) for name in ("lower", "upper")
    ]
    spread = [said.get(name) for name in ("mean", "std")]
    shifts = [None if name is None else archive.array(name, "float64", (size,)) for name in spread]
    if not ((ends[0] <= ends[1]).all() and (limits[0] <= limits[1]).all()) or len(rows) > 1024:
        raise InputError("the certified domain is empty, or has too many constraints")
    if (shifts[0] is None) != (shifts[1] is None) or (shifts[1] is not None and not (shifts[1] > 0).all()):
        raise InputError("the certified domain's normalisation makes no sense")
    return Domain(ends[0], ends[1], rows, limits[0], limits[1], shifts[0], shifts[1])


def _contained(domain: Domain, asked: Asked, graph: Graph, report: Report) -> None:
    size = graph.sizes[0]
    channels = graph.shape[1] if len(graph.shape) > 2 else size

    def wide(numbers: Any) -> Any:
        found = np.asarray(numbers, np.float64).reshape(-1)
        if found.size not in (1, size, channels) or size % found.size:
            raise InputError(f"{found.size} numbers do not go with {size} inputs")
        return np.repeat(found, size // found.size)

    rows = np.zeros((0, size)) if asked.rows is None else np.asarray(asked.rows, np.float64)
    rows = np.broadcast_to(rows, (len(rows), size)) if rows.shape[1] in (1, size) else rows
    if rows.shape[1] != size:
        raise InputError(f"constraints over {rows.shape[1]} inputs, where there are {size}")
    limits = [np.asarray(end, np.float64).reshape(-1) for end in (asked.lower, asked.upper)]
    shifts = [None if numbers is None else wide(numbers) for numbers in (asked.mean, asked.std)]
    other = Domain(wide(asked.lo), wide(asked.hi), rows, limits[0], limits[1], shifts[0], shifts[1])
    why = domain.contains(other)
    if why is not None:
        raise CheckFailed(f"the certified domain does not contain the one asked for: {why}")
    report.say("the domain asked for lies in it")


def _same_ends(before: Graph, after: Graph) -> None:
    """Inputs and outputs of both must be called the same and have the same shapes (a softmax along an axis is
    another one in another shape), and tails be the same.
    """
    ends = [(g.input_name, g.shape, [(o.name, o.steps, o.shape) for o in g.outputs]) for g in (before, after)]
    if ends[0] != ends[1]:
        raise CheckFailed(
            f"the inputs, outputs or tails of MODEL {ends[0]!r:.200} and OUT {ends[1]!r:.200} differ"
        )


def _hints(archive: Archive, key: str) -> Hints:
    said = need(archive.document, key, list)

    def hint(number: int, inputs: Any) -> Hint:
        if number >= len(said):
            raise InputError(f"the certificate has hints for {len(said)} {key} only")
        size = need(said[number], "size", int)
        kind = archive.array(said[number].get("kind"), "uint8", (size,))
        if said[number].get("place") is None:
            return Hint(kind, np.full(size, -1), np.ones(size))
        place = archive.array(said[number].get("place"), "int32", (size,))
        return Hint(kind, place, archive.array(said[number].get("scale"), "float64", (size,)))

    return hint


def _claimed_slack(archive: Archive, comparison: Comparison, report: Report) -> None:
    said = need(archive.document, "layers", list)
    if len(said) != len(comparison.slack):
        raise CheckFailed(
            f"the certificate is about {len(said)} layers, and MODEL has {len(comparison.slack)}"
        )
    for number, (entry, slack) in enumerate(zip(said, comparison.slack, strict=True)):
        claimed = need(entry, "slack", float)
        if not slack <= claimed:
            raise CheckFailed(
                f"layer {number}: units that are said to be linear or zero are so up to {slack:.3g} only, "
                f"not {claimed:.3g}"
            )
    report.say("all units that are said to be linear or zero on the domain are proved to be so")


def _claimed_bounds(archive: Archive, graph: Graph, bounds: list[Any], report: Report) -> None:
    said = need(archive.document, "outputs", list)
    if len(said) != len(bounds):
        raise CheckFailed(f"the certificate has bounds for {len(said)} outputs, and MODEL has {len(bounds)}")
    largest = 0.0
    for entry, output, bound in zip(said, graph.outputs, bounds, strict=True):
        claimed = archive.array(
            entry.get("bound") if isinstance(entry, dict) else None, "float64", bound.shape
        )
        if not (bound <= claimed).all():
            at = int(np.flatnonzero(~(bound <= claimed))[0])
            raise CheckFailed(
                f"output {output.name!r}: entry {at} is proved to be within {bound[at]:.6g} of MODEL's, and "
                f"{claimed[at]:.6g} is claimed"
            )
        largest = max([largest, *claimed.tolist()])
        report.say(
            f"output {output.name!r}: {bound.size} entries within {claimed.max(initial=0.0):.6g} of MODEL's"
        )
    report.bound, report.bounds = largest, bounds
