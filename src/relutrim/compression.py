"""From a model and a domain to a smaller model: ``relutrim.compress``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relutrim.again import Again
from relutrim.analysis import analyze_network, shape_of
from relutrim.domain.domain import Domain
from relutrim.errors import InputError
from relutrim.network.graph import Network
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.rewrite.draft import Mask, Step
from relutrim.wish import EVIDENCE, Wish, allowed_deviation

if TYPE_CHECKING:
    from relutrim.accuracy import Accuracy
    from relutrim.bounds.values import Interval
    from relutrim.certificate.groundwork import Groundwork
    from relutrim.certificate.write import Certificate
    from relutrim.latency import Latency
    from relutrim.observe import Predictions
    from relutrim.prove.cascade import Progress
    from relutrim.rewrite.pipeline import Rewritten


@dataclass(frozen=True)
class Deviation:
    """How far the compressed network is from the original, at the outputs before any tail.

    ``proven`` holds on the whole domain in real arithmetic for the weights as stored; it is None where
    verdicts weaker than a proof were allowed, or where the file's type cannot hold a weight.
    ``proven_float64`` is the same for the float64 network in memory. ``found`` is the largest difference that
    a search found on the domain, real arithmetic and stored weights again: it certainly exists.

    The others were observed on ``samples`` inputs, in float32 and in ``dtype``: the difference between both
    networks, and the original's own rounding error; in ``dtype`` also how often both predict the same.
    """

    proven: float | None
    proven_float64: float | None
    observed_float32: float
    original_float32_error: float
    samples: int
    found: float
    dtype: str
    observed: float
    original_error: float
    predictions: Predictions | None


@dataclass(frozen=True, eq=False)
class Compression:
    """The result. ``model`` is of the kind that went in; ``network`` is in float64, ``stored`` what a file
    holds.

    >>> import relutrim
    >>> result = relutrim.compress(relutrim.demo_model(), relutrim.Box(0, 1))
    >>> print(result)
    200 -> 104 neurons, 89400 -> 52385 connections, 89610 -> 52499 parameters
    >>> result.deviation.found <= result.deviation.proven < 1e-7  # on the whole domain, weights as stored
    True
    >>> result.steps[0].rewrite, result.steps[0].text
    ('drop-inactive', 'removed 12 inactive of 100 neurons')
    >>> more = result.at("rounding")  # the same verdicts, another tolerance
    >>> more.stored.connections < result.stored.connections
    True

    :meth:`save` writes the model, :meth:`save_report` a page for people; in a notebook it shows as a table.
    """

    model: Any
    original: Network
    network: Network
    stored: Network
    stability: Stability
    steps: tuple[Step, ...]
    deviation: Deviation
    rewrites: str
    evidence: str
    tolerance: str | float = "exact"
    cost: str = "parameters"
    masks: Mapping[str, Mask] = field(default_factory=dict, repr=False)
    """Per ReLU of ``stored``, in its value's shape, which units are always 0 on the domain."""
    ranges: Mapping[str, Interval] = field(default_factory=dict, repr=False)
    """Bounds of values of ``stored`` on the domain: proven ones, or none at all."""
    certificate: Certificate | None = None
    """The proof for whoever trusts nobody, where one was asked for."""

    @property
    def report(self) -> dict[str, Any]:
        """What was done, as a dictionary that serialises to JSON."""
        from relutrim.report.json import compression_json

        return compression_json(self)

    def at(self, tolerance: str | float, *, dtype: str | None = None) -> Compression:
        """The same network compressed with another tolerance, by the verdicts that are known already, and
        observed in ``dtype`` (None: the same as here).
        """
        wish = Wish(tolerance, "all", self.evidence, self.cost, dtype or self.deviation.dtype)
        wish = wish.checked(self.original)
        result = _rewritten(self.original, self.stability, wish, None)
        found = _observed(self.original, self.stability, wish, None, result)
        return replace(found, model=_same_kind(self.model, found.stored))

    def without_looking(self, tolerance: str | float) -> Rewritten:
        """What :meth:`at` rewrites, without the time it takes to observe it."""
        wish = Wish(tolerance, "all", self.evidence, self.cost, None).checked(self.original)
        return _rewritten(self.original, self.stability, wish, None)

    def latency(self) -> Latency:
        """The size of both networks as ONNX, and their times with onnxruntime if that is installed."""
        from relutrim.latency import measure

        return measure(self.original, self.stored)

    def accuracy(self, data: Any, labels: Any) -> Accuracy | None:
        """How often both networks give the class that a label names, on the rows of ``data`` (raw units) that
        lie in the domain; None where the network is no classifier, or no row lies there.
        """
        from relutrim.accuracy import accuracy

        return accuracy(self.original, self.stored, self.stability, data, labels, self.deviation.dtype)

    def save(self, path: str | Path) -> None:
        """Write the compressed network to a file, whole or not at all."""
        from relutrim.formats import save

        save(self.stored, path)

    def save_report(
        self, path: str | Path, *, latency: Latency | None = None, accuracy: Accuracy | None = None
    ) -> None:
        """Write an HTML report for people to a file, whole or not at all; it loads nothing from anywhere."""
        from relutrim.formats.files import write_text
        from relutrim.report.html.page import compression_page

        write_text(Path(path), compression_page(self, latency=latency, accuracy=accuracy))

    def _repr_html_(self) -> str:
        """How notebooks show it."""
        from relutrim.report.html.notebook import compression_fragment

        return compression_fragment(self)

    def __str__(self) -> str:
        before, after = self.original, self.network
        return (
            f"{before.neurons} -> {after.neurons} neurons, {before.connections} -> "
            f"{after.connections} connections, "
            f"{before.parameters} -> {after.parameters} parameters"
        )


def compress(
    model: Any,
    domain: Domain,
    *,
    data: Any = None,
    tolerance: str | float = "exact",
    rewrites: str = "all",
    evidence: str = "proof",
    cost: str = "parameters",
    dtype: str | None = None,
    method: str = "auto",
    time_limit: float | None = None,
    device: str = "cpu",
    output_relu: bool = False,
    seed: int = 0,
    jobs: int | None = None,
    solver: str = "highs",
    big_m: str = "best",
    inject: str = "relaxation",
    until: str = "sign",
    journal: str | Path | None = None,
    certificate: bool = False,
    progress: Progress | None = None,
) -> Compression:
    """Make ``model`` smaller without changing what it computes on ``domain``.

    ``model`` is a path, an ``nn.Module`` or a :class:`Network`; it is never changed. ``rewrites``: ``all``,
    or ``leo++`` for the paper's algorithm. ``tolerance`` is how far an output may move on the domain, weights
    as stored: ``exact`` allows nothing but the rounding of re-written weights, ``rounding`` half a unit in
    the last place (of the file's type) of the largest value an output was seen to take, a number that much.
    ``cost`` is what to make smaller, ``parameters`` or ``multiply-adds``; the result never has more of them.
    ``evidence`` is the weakest that a rewrite may rest on; anything but ``proof`` gives up the guarantee.
    ``dtype`` is the type to observe both networks in, beside what is proven: ``float32``, ``float64`` or
    ``bfloat16-check`` (None: the file's); what is stored does not depend on it. The other options are those
    of :func:`relutrim.analyze`. Ctrl-C is a ``KeyboardInterrupt``: a network that is half compressed is of
    use to nobody.

    ``certificate`` makes :attr:`Compression.certificate` as well, which :mod:`relutrim.certificate.check`
    accepts; where it would not, that is an error. It is about the network as ``save`` writes it, and the
    smaller network is not analysed anew then.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> for parameter, value in zip(model.parameters(), (1.0, -0.5, 1.0, 0.0)):
    ...     _ = nn.init.constant_(parameter, value)  # three times relu(x - 0.5)
    >>> import relutrim
    >>> smaller = relutrim.compress(model, relutrim.Box(0, 1))
    >>> print(smaller)
    3 -> 1 neurons, 6 -> 2 connections, 10 -> 4 parameters
    >>> type(smaller.model).__name__, smaller.deviation.proven < 1e-12
    ('Sequential', True)
    """
    from relutrim.formats import as_network

    result = compress_network(
        as_network(model, output_relu=output_relu, input_shape=shape_of(domain)),
        domain,
        data=data,
        tolerance=tolerance,
        rewrites=rewrites,
        evidence=evidence,
        cost=cost,
        dtype=dtype,
        method=method,
        time_limit=time_limit,
        device=device,
        seed=seed,
        jobs=jobs,
        solver=solver,
        big_m=big_m,
        inject=inject,
        until=until,
        journal=journal,
        progress=progress,
        certificate=certificate,
        source=onnx_of(model) if certificate and not output_relu else None,
    )
    return replace(result, model=_same_kind(model, result.stored))


def onnx_of(model: Any) -> bytes | None:
    """The ONNX that a path leads to; None for anything else."""
    from relutrim.formats import suffix
    from relutrim.formats.files import read_bytes

    if isinstance(model, str | Path) and suffix(Path(model)) in (".onnx", ".onnx.gz"):
        return read_bytes(Path(model))
    return None


def compress_network(
    network: Network,
    domain: Domain,
    *,
    tolerance: str | float = "exact",
    rewrites: str = "all",
    evidence: str = "proof",
    cost: str = "parameters",
    dtype: str | None = None,
    data: Any = None,
    certificate: bool = False,
    source: bytes | None = None,
    **analysis: Any,
) -> Compression:
    """:func:`compress` for a model that is a :class:`Network` already; ``analysis`` are the options of the
    analysis, ``source`` is the ONNX file it was read from (None: a certificate is about the one that relutrim
    writes for it).
    """
    wish = Wish(tolerance, rewrites, evidence, cost, dtype).checked(network)
    if certificate and (evidence != "proof" or analysis.get("method") == "data"):
        raise InputError("a certificate rests on proofs alone; leave --evidence and --method data away")
    if certificate:
        from relutrim.certificate.groundwork import Groundwork
        from relutrim.certificate.write import certifiable

        source = certifiable(network, source)  # before the analysis, which may take hours

    folder = analysis.pop("journal", None)

    def analyse(smaller: Network, time_limit: float | None, data: Any) -> Stability:
        options = {
            **analysis,
            "time_limit": time_limit,
            "journal": _journal_of(smaller, network, data, folder),
        }
        found = analyze_network(smaller, domain, data=data, **options)
        if found.interrupted:
            raise KeyboardInterrupt
        return found

    stability = analyse(network, analysis.get("time_limit"), data)
    # A certificate speaks of the original's verdicts only, and of those that the checker proves too.
    work = Groundwork.of(source, stability) if source is not None and certificate else None
    supported = stability if work is None else work.supported(stability)
    anew = analysis.get("method") != "data" and not certificate
    again = Again(analyse, analysis.get("time_limit")) if anew else None
    said = partial(_said, analysis.get("progress"), stability)
    said("rewrite")
    result = _rewritten(network, supported, wish, data, again)
    said("compare")
    found = _observed(network, stability, wish, data, result)
    if work is None:
        return found
    said("certify")
    return replace(found, certificate=_certified(work, found, wish, data))


def _certified(work: Groundwork, found: Compression, wish: Wish, data: Any) -> Certificate:
    """The certificate of a rewritten network, within what the tolerance allows."""
    from relutrim.certificate.write import certify

    network, stability = found.original, found.stability
    allowed = allowed_deviation(network, stability, wish.tolerance, data)
    limits = None
    if allowed is not None:
        limits = [allowed[output.source].flatten().numpy() for output in network.outputs]
    return certify(work, found.stored, stability, found.steps, wish.tolerance, limits)


def _journal_of(smaller: Network, original: Network, data: Any, folder: str | Path | None) -> Path | None:
    """Where the analysis of a network has its journal: that of a smaller one in a folder of its own, by its
    content and by the inputs that it begins with.
    """
    if folder is None or smaller is original:
        return None if folder is None else Path(folder)
    from relutrim.journal.identity import content_digest

    return Path(folder) / f"again-{content_digest((smaller, data))[:16]}"


def _said(progress: Progress | None, stability: Stability, stage: str) -> None:
    """Tell who watches that a stage has begun in which no neuron is decided."""
    if progress is not None:
        total = sum(layer.size for layer in stability.layers)
        progress(stage, total - stability.count(Verdict.UNKNOWN), total)


def _rewritten(
    network: Network, stability: Stability, wish: Wish, data: Any, again: Again | None = None
) -> Rewritten:
    """What verdicts allow for."""
    from relutrim.rewrite.cost import Cost
    from relutrim.rewrite.pipeline import rewrite

    weakest, cost = EVIDENCE[wish.evidence], Cost(wish.cost)
    allowed = allowed_deviation(network, stability, wish.tolerance, data)
    apply = partial(rewrite, rewrites=wish.rewrites, weakest=weakest, allowed=allowed, cost=cost)
    result = apply(network, stability)
    if again is not None and wish.rewrites == "all":
        result = again.improve(network, stability, result, apply, weakest, cost)
    return result


def _observed(
    network: Network, stability: Stability, wish: Wish, data: Any, result: Rewritten
) -> Compression:
    """A rewritten network beside the original."""
    from relutrim.observe import observe
    from relutrim.origins import with_origins
    from relutrim.search.climb import gradients

    proved = EVIDENCE[wish.evidence] == Evidence.PROOF
    assert wish.dtype is not None
    with gradients():
        seen = observe(network, result.stored, stability, data, "float32", wish.dtype)
    stored = with_origins(result.stored, network, stability)
    single, deployed = seen.by_type["float32"], seen.by_type[wish.dtype]
    return Compression(
        model=stored,
        original=network,
        network=result.network,
        stored=stored,
        stability=stability,
        steps=result.steps,
        deviation=Deviation(
            result.deviation_stored if proved and math.isfinite(result.deviation_stored) else None,
            result.deviation if proved else None,
            single.difference,
            single.own_error,
            seen.inputs,
            seen.found,
            wish.dtype,
            deployed.difference,
            deployed.own_error,
            deployed.predictions,
        ),
        rewrites=wish.rewrites,
        evidence=wish.evidence,
        tolerance=wish.tolerance,
        cost=wish.cost,
        masks=result.inactive,
        ranges=result.ranges if proved else {},
    )


def _same_kind(model: Any, stored: Network) -> Any:
    """The compressed model as what the user gave: a module for a module, a network for everything else."""
    if isinstance(model, str | Path | Network):
        return stored
    from relutrim.formats.torch_write import build_module

    return build_module(stored, training=bool(model.training))
