"""From a model and a domain to a smaller model: ``relutrim.compress``."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from relutrim.again import Again, mergeable
from relutrim.analysis import analyze_network, shape_for
from relutrim.clock import Clock
from relutrim.domain.domain import Domain, Everywhere
from relutrim.errors import CheckFailed, InputError, RelutrimError, UnsupportedError
from relutrim.graph.graph import Network
from relutrim.graph.operators import Fresh
from relutrim.io.source import Source
from relutrim.memory import AMPLE, MemoryBudget
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.result import Compression, Deviation
from relutrim.rewrite.relevance import Smaller
from relutrim.wish import EVIDENCE, Wish, allowed_deviation

if TYPE_CHECKING:
    from relutrim.certificate.groundwork import Groundwork
    from relutrim.certificate.write import Certificate
    from relutrim.io.onnx.beside import Files
    from relutrim.io.torch.source import Remade, TorchSource
    from relutrim.io.torch.verify import Trial
    from relutrim.prove.cascade import Progress
    from relutrim.prove.deadline import Deadline
    from relutrim.rewrite.pipeline import Rewritten
    from relutrim.rewrite.rules import Allowance

T = TypeVar("T")
SECONDS = 60.0
"""How long a compression takes at most, unless someone says otherwise."""
_ANALYSIS, _CERTIFIED = 0.7, 0.4
"""The part of the time that analyses get; less where a certificate is to be made."""
_FIRST, _UNMERGED = 0.85, 0.3
"""The first analysis' part of that; less where merging changes what is to be analysed."""
_REWRITING = 0.6
"""The part of what is left that rewriting gets; looking at both networks, half of the rest."""
_EXPRESSIONS = 2**13
"""How many neurons a network may have that the checker writes as expressions."""
_TRIED = 16
"""On how many inputs, at most, a module is run beside what becomes of it."""
_LEAST_LOOK, _MOST_LOOK, _LEAST_BOUND = 0.5, 3.0, 2.0
"""Seconds for looking at both networks, at least and at most, and at least for the bound on float32: else as
many as the rest has taken.
"""


def compress(
    model: Any,
    domain: Domain | None = None,
    *,
    data: Any = None,
    tolerance: str | float = "exact",
    rewrites: str = "all",
    evidence: str = "proof",
    cost: str = "parameters",
    fold_batch_norm: bool = False,
    dtype: str | None = None,
    method: str = "auto",
    time_limit: float | None = SECONDS,
    device: str = "cpu",
    output_relu: bool = False,
    seed: int = 0,
    jobs: int | None = None,
    solver: str = "highs",
    big_m: str = "best",
    inject: str = "relaxation",
    until: str = "sign",
    memory: str | int | None = None,
    journal: str | Path | None = None,
    certificate: bool = False,
    input_shape: tuple[int, ...] | None = None,
    example_input: Any = None,
    progress: Progress | None = None,
) -> Compression:
    """Make ``model`` smaller without changing what it computes on ``domain`` (None: on all real inputs,
    :func:`relutrim.Everywhere`, which a box may allow for more than).

    ``model`` is a path, an ``onnx.ModelProto``, an ``nn.Module`` or a :class:`Network`; it is never changed.
    What comes from ONNX, or from a ``.pt2`` file, stays the model that it was but for what rewriting changes.
    ``rewrites``: ``all``, or ``leo++`` for the paper's algorithm. ``tolerance`` is how far an output may
    provably move on the domain, weights as stored: ``0`` not at all; ``exact`` by the rounding of re-written
    weights alone, and by no more than ``2^-24`` times the largest value it was seen to take (float32's unit
    roundoff, for every file); ``rounding`` by as much, whatever removes most; a number that much. No result
    is ever farther away: what does not fit is left out (:attr:`Compression.left_out`), and where nothing fits
    the model comes back as it was.
    ``cost`` is what to make smaller, ``parameters`` or ``multiply-adds``; the result never has more of them.
    ``evidence`` is the weakest that a rewrite may rest on; anything but ``proof`` gives up the guarantee.
    ``fold_batch_norm`` folds batch norms into the layers beside them, which rounds every weight and is
    charged; otherwise they stay as they are.
    ``dtype`` is the type to observe both networks in, beside what is proven: ``float32``, ``float64`` or
    ``bfloat16-check`` (None: the file's); what is stored does not depend on it. The other options are those
    of :func:`relutrim.analyze`.

    ``time_limit`` is for all of it, in seconds; ``math.inf`` lifts it. The first Ctrl-C ends the stage that
    is running, and the result is made of what is proved by then (:attr:`Compression.interrupted`); the
    second is a ``KeyboardInterrupt``.

    ``certificate`` makes :attr:`Compression.certificate` as well, which :mod:`relutrim.certificate.check`
    accepts; where it would not, that is an error, and where time is up before, it is None, with a warning. It
    is about the network as ``save`` writes it, and the smaller network is not analysed anew then. That of a
    module is about two ONNX files, which its ``save`` writes beside it; each was compared with its module.

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
    from relutrim.io import as_network

    clock, domain = Clock(time_limit), Everywhere() if domain is None else domain
    input_shape = shape_for(model, domain, input_shape, example_input)
    source = None if output_relu else source_of(model)
    recorded = None if output_relu else recorded_of(model, input_shape, example_input)
    result = compress_network(
        recorded.network
        if recorded is not None
        else as_network(model, output_relu=output_relu, input_shape=input_shape, example_input=example_input),
        domain,
        data=data,
        tolerance=tolerance,
        rewrites=rewrites,
        evidence=evidence,
        cost=cost,
        fold_batch_norm=fold_batch_norm,
        dtype=dtype,
        method=method,
        device=device,
        seed=seed,
        jobs=jobs,
        solver=solver,
        big_m=big_m,
        inject=inject,
        until=until,
        memory=MemoryBudget.of(memory),
        journal=journal,
        progress=progress,
        certificate=certificate,
        source=source,
        recorded=recorded,
        clock=clock,
    )
    result = replace(result, model=_same_kind(model, result))
    if certificate and result.certificate is None:
        why = "the run was interrupted" if result.interrupted else "time was up (a larger time_limit helps)"
        warnings.warn(f"no certificate was made: {why}", stacklevel=2)
    if recorded is not None and result.certificate is not None:
        for key, one in (("model", model), ("out", result.model)):
            recorded.confirm(result.certificate.models[key], one)
    return result


def source_of(model: Any) -> Source | None:
    """The file that a path leads to, or a model in memory; None for anything else."""
    from relutrim.io import is_proto

    if is_proto(model):
        return Source.of_proto(model)
    return Source.of(model) if isinstance(model, str | Path) else None


def recorded_of(
    model: Any, input_shape: tuple[int, ...] | None, example_input: Any = None
) -> TorchSource | None:
    """A module or an exported program as it is recorded; None for anything else."""
    from relutrim.io import is_proto

    if isinstance(model, str | Path | Network) or is_proto(model):
        return None
    from relutrim.io.torch.source import TorchSource

    return TorchSource.of(model, input_shape, example_input=example_input)


def compress_network(
    network: Network,
    domain: Domain,
    *,
    tolerance: str | float = "exact",
    rewrites: str = "all",
    evidence: str = "proof",
    cost: str = "parameters",
    fold_batch_norm: bool = False,
    dtype: str | None = None,
    data: Any = None,
    certificate: bool = False,
    source: Source | None = None,
    recorded: TorchSource | None = None,
    target: Path | None = None,
    clock: Clock | None = None,
    time_limit: float | None = SECONDS,
    **analysis: Any,
) -> Compression:
    """:func:`compress` for a model that is a :class:`Network` already; ``analysis`` are the options of the
    analysis, ``source`` is the file that it was read from, or ``recorded`` the model in memory, ``target``
    the file that the result is for (None: one like the source, or ONNX), and ``clock`` one that is running
    already.
    """
    wish = Wish(tolerance, rewrites, evidence, cost, dtype, fold_batch_norm).checked(network)
    editor = recorded or _editor(source, target)
    network = network if editor is not None else network.without_origins()
    if certificate and (evidence != "proof" or analysis.get("method") == "data"):
        raise InputError("a certificate rests on proofs alone; leave --evidence and --method data away")
    clock = clock or Clock(time_limit)
    budget = MemoryBudget.of(analysis.get("memory"))
    options = {**analysis, "memory": budget}
    run = _Run(network, domain, wish, data, source, editor, target, clock, options, budget)
    return run.certified() if certificate else run.plain()


@dataclass(frozen=True, eq=False)
class _Run:
    """One compression: its stages share a clock."""

    network: Network
    domain: Domain
    wish: Wish
    data: Any
    source: Source | None
    editor: Source | TorchSource | None
    """The model that edits are applied to; None if the result is written anew."""
    target: Path | None
    clock: Clock
    analysis: dict[str, Any]
    memory: MemoryBudget
    limits: list[float] = field(default_factory=list)
    """The seconds that each analysis was given."""

    def plain(self) -> Compression:
        """Without a certificate: what rewriting leaves is analysed again as long as that helps."""
        window = self.clock.stage(_ANALYSIS)
        anew = self.analysis.get("method") != "data" and self.wish.rewrites == "all"
        first = (_UNMERGED if mergeable(self.network) else _FIRST) if anew else 1.0
        stability = self._analysed(self.network, first * window.left, self.data)
        method = self.analysis.get("method", "auto")
        again = Again(self._analysed, window, method) if anew and not self.clock.interrupted else None
        self._say("rewrite", stability)
        result, allowed = self._rewritten(stability, stability, again)
        self._say("compare", stability)
        return self._observed(stability, result, allowed)

    def certified(self) -> Compression:
        """With a certificate: of whatever was rewritten where the checker can follow that, else of what was
        cut away.
        """
        from relutrim.certificate.write import certifiable

        fresh = self.network.pinned or any(isinstance(node.operator, Fresh) for node in self.network.nodes)
        large = bool(fresh) or self.network.neurons > _EXPRESSIONS or not self.domain.bounded
        onnx = certifiable(self.network, onnx_of(self.source), opaque=large)  # this may take hours to analyse
        if onnx is None:
            onnx, large = certifiable(self.network, onnx_of(self.source), opaque=True), True
        assert onnx is not None
        stability = self._analysed(self.network, _CERTIFIED * self.clock.left, self.data)
        return self._of_cuts(onnx, stability) if large else self._of_expressions(onnx, stability)

    def _of_expressions(self, onnx: bytes, stability: Stability) -> Compression:
        """What rests on verdicts of the original that the checker proves too, with a certificate."""
        from relutrim.certificate.groundwork import Groundwork

        work = self._in_time(lambda deadline: Groundwork.of(onnx, stability, deadline), 0.5)
        self._say("rewrite", stability)
        proved = stability if work is None else work.supported(stability)
        result, allowed = self._rewritten(stability, proved, None)
        self._say("compare", stability)
        found = self._observed(stability, result, allowed)
        if work is None:
            return found
        self._say("certify", stability)
        made = self._in_time(lambda deadline: self._certificate(work, found, deadline), 0.8)
        if made is not None and found.allowed is not None and made.bound > found.allowed:
            made = self._if_cuts(onnx, found) or made
        lost = proved.count(Verdict.UNKNOWN) - stability.count(Verdict.UNKNOWN)
        if lost:
            found = _remarked(
                found,
                f"the checker does not prove {lost:,} neurons itself: for the sake of the "
                "certificate they were taken for undecided",
            )
        return replace(found, certificate=made, interrupted=self.clock.interrupted)

    def _if_cuts(self, onnx: bytes, found: Compression) -> Certificate | None:
        """The certificate of a result in which nothing moves, where intervals show that too. (Over
        expressions a bound may be larger than what the tolerance allows.)
        """
        if found.deviation.proven != 0:
            return None
        try:
            return self._in_time(lambda deadline: self._certificate_of_cuts(onnx, found, deadline), 1.0)
        except CheckFailed:
            return None

    def _of_cuts(self, onnx: bytes, stability: Stability) -> Compression:
        """What was rewritten if that is cuts that the checker confirms, else what its intervals allow to
        cut; with a certificate.
        """
        self._say("rewrite", stability)
        result, allowed = self._rewritten(stability, stability, None)
        found = self._observed(stability, result, allowed)
        self._say("certify", stability)
        try:
            made = self._in_time(lambda deadline: self._certificate_of_cuts(onnx, found, deadline), 0.6)
        except CheckFailed:
            found, made = self._cut_by_intervals(onnx, stability, allowed)
        return replace(found, certificate=made, interrupted=self.clock.interrupted)

    def _cut_by_intervals(
        self, onnx: bytes, stability: Stability, allowed: Allowance | None
    ) -> tuple[Compression, Certificate | None]:
        """What intervals allow to cut, with a certificate: those that know clips if the checker knows them
        too, which depends on how the file spells them.
        """
        from relutrim.prove.by_intervals import by_intervals

        run = replace(self, wish=replace(self.wish, tolerance=0.0, rewrites="cuts"))
        for gates in (True, False):
            result, _ = run._rewritten(stability, by_intervals(stability, gates=gates), None)
            found = self._observed(stability, result, allowed)
            found = _remarked(found, "for the sake of the certificate only what intervals show was cut")
            try:
                return found, self._in_time(partial(self._certificate_of_cuts, onnx, found), 1.0)
            except CheckFailed:
                if not gates:
                    raise
        raise AssertionError

    def _in_time(self, make: Callable[[float], T], part: float) -> T | None:
        """What a stage of the checker's makes, or None if its time is up before, or it is interrupted."""
        stage = self.clock.stage(part)
        try:
            return make(time.monotonic() + stage.left)
        except CheckFailed:
            if not stage.passed:
                raise
        except KeyboardInterrupt:
            if self.clock.interrupted:
                raise
            self.clock.interrupt()
        return None

    def _analysed(self, network: Network, seconds: float, data: Any, method: str | None = None) -> Stability:
        """Verdicts of the network, or of what rewriting has made of it; by another method if one is named."""
        own = self.analysis.get("method", "auto")
        folder = (
            self.analysis.get("journal") if method in (None, own) else None
        )  # bounds take next to no time
        self.limits.append(seconds)
        kept = self._journal_of(network, data, folder)
        more = {"method": method or own, "time_limit": seconds, "journal": kept}
        options = {**self.analysis, **more}
        with self.clock.raising():
            found = analyze_network(network, self.domain, data=data, relevance=Smaller(network), **options)
        if found.interrupted:
            self.clock.interrupt()
        return found

    def _journal_of(self, network: Network, data: Any, folder: str | Path | None) -> Path | None:
        """Where the analysis of a network has its journal: that of a smaller one in a folder of its own, by
        its content and by the inputs that it begins with.
        """
        if folder is None or network is self.network:
            return None if folder is None else Path(folder)
        from relutrim.journal.identity import content_digest

        return Path(folder) / f"again-{content_digest((network, data))[:16]}"

    def _say(self, stage: str, stability: Stability) -> None:
        """Tell who watches that a stage has begun in which no neuron is decided."""
        progress: Progress | None = self.analysis.get("progress")
        if progress is not None:
            total = sum(layer.size for layer in stability.layers)
            progress(stage, total - stability.count(Verdict.UNKNOWN), total)

    def _rewritten(
        self, stability: Stability, proved: Stability, again: Again | None
    ) -> tuple[Rewritten, Allowance | None]:
        """What the verdicts that are ``proved`` allow for, and how far outputs may move."""
        deadline = self.clock.stage(_REWRITING)
        with self.clock.stopping(deadline):
            allowed = _allowance(self.network, stability, self.wish, self.data, deadline, self.memory)
            found = _rewritten(self.network, proved, self.wish, allowed, again, deadline, self.editor)
            return found, allowed

    def _observed(self, stability: Stability, result: Rewritten, allowed: Allowance | None) -> Compression:
        taken = 0.0 if self.clock.interrupted else self.clock.elapsed
        least = _LEAST_LOOK if self.clock.interrupted else _LEAST_BOUND
        most = max(_LEAST_LOOK, min(taken, _MOST_LOOK)), max(least, taken)
        deadline = self.clock.stage(0.5)
        with self.clock.stopping(deadline):
            found = _observed(
                self.network,
                stability,
                self.wish,
                self.data,
                result,
                allowed,
                self.editor,
                deadline,
                most,
                self.memory,
            )
            late = stability.count(Verdict.UNKNOWN) > 0 and stability.seconds >= self.limits[0]
            found = replace(found, source=self.source, time_was_up=late or stability.spared > 0)
            found = _with_remarks(found, self.source)
            if self.target is not None:
                found = found.written_as(self.target, deadline)
            elif found.unchanged and self.source is None and self.editor is None:
                found = converted(found, deadline) or found
        return replace(found, interrupted=self.clock.interrupted)

    def _certificate(self, work: Groundwork, found: Compression, deadline: float) -> Certificate:
        """The certificate of a rewritten network, within what the tolerance allows to spend."""
        from relutrim.certificate.write import certify

        edited = None if found.edited_onnx is None else found.edited_onnx.content
        out = work.model if found.unchanged else edited
        spending = found.allowance is not None and found.allowance.budget is not None
        limits = self._limits(found) if spending else None
        steps, tolerance = found.steps, self.wish.tolerance
        return certify(work, found.stored, found.stability, steps, tolerance, limits, out, deadline)

    def _certificate_of_cuts(self, onnx: bytes, found: Compression, deadline: float) -> Certificate:
        """The same of a network that was cut."""
        from relutrim.certificate.write import certify_cuts

        out = onnx if found.unchanged else found.onnx
        steps, tolerance = found.steps, self.wish.tolerance
        return certify_cuts(onnx, out, found.stability, steps, tolerance, self._limits(found), deadline)

    def _limits(self, found: Compression) -> dict[str, npt.NDArray[np.float64]] | None:
        """How far each output may be away, if anything says that."""
        if found.allowance is None:
            return None
        allowed = found.allowance.limits
        return {output.name: allowed[output.source].flatten().numpy() for output in self.network.outputs}


def _with_remarks(found: Compression, source: Source | None) -> Compression:
    """With what holds of the model only as it is stored."""
    if source is None or not source.is_onnx:
        return found
    from relutrim.io.onnx.parse import constant_inputs, parse

    names = constant_inputs(parse(source.content))
    if not names:
        return found
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return _remarked(found, f"inputs with stored values count as constants: {listed}")


def _remarked(found: Compression, said: str) -> Compression:
    """With something to be said of the analysis."""
    remarks = (*found.stability.remarks, said)
    return replace(found, stability=replace(found.stability, remarks=remarks))


def recompressed(before: Compression, tolerance: str | float, dtype: str | None) -> Compression:
    """The same network compressed with another tolerance, by the verdicts that are known already."""
    wish = Wish(tolerance, "all", before.evidence, before.cost, dtype or before.deviation.dtype)
    wish = wish.checked(before.original)
    allowed = _allowance(before.original, before.stability, wish, None)
    editor = before.recorded or _editor(before.source)
    result = _rewritten(before.original, before.stability, wish, allowed, editor=editor)
    found = _observed(before.original, before.stability, wish, None, result, allowed, editor)
    found = replace(found, source=before.source)
    return replace(found, model=_same_kind(before.model, found))


def suggested(before: Compression, time_limit: float = math.inf) -> Rewritten | None:
    """What the tolerance ``rounding`` would remove beyond a result; None if that is nothing, or if there is
    no time to find anything.
    """
    deadline = Clock(time_limit).stage()
    if deadline.passed or not before.stability.domain.bounded:
        return None
    wish = Wish("rounding", "all", before.evidence, before.cost, None).checked(before.original)
    allowed = _allowance(before.original, before.stability, wish, None)
    found = _rewritten(before.original, before.stability, wish, allowed, deadline=deadline)
    less = found.stored.connections < before.stored.connections and math.isfinite(found.deviation_stored)
    return found if less else None


def converted(before: Compression, deadline: Deadline | None = None) -> Compression | None:
    """A result as a file of another format holds it; None if that is not within the tolerance."""
    from relutrim.rewrite.storage import held_as_it_is

    if all(held_as_it_is(node.operator, before.stored.dtype) for node in before.stored.nodes):
        return before
    assert before.elsewhere is not None
    result = before.elsewhere(None if before.allowance is None else before.allowance.limits)
    if result is None:
        return None
    wish = Wish(before.tolerance, before.rewrites, before.evidence, before.cost, before.deviation.dtype)
    found = _observed(before.original, before.stability, wish, None, result, before.allowance, None, deadline)
    return replace(
        before,
        model=found.stored,
        network=found.network,
        stored=found.stored,
        deviation=found.deviation,
        masks=found.masks,
        ranges=found.ranges,
    )


def onnx_of(source: Source | None) -> bytes | None:
    """The ONNX in a file; None where it is none."""
    return None if source is None or not source.is_onnx else source.content


def _editor(source: Source | None, target: Path | None = None) -> Source | None:
    """The file that edits are applied to; None if the result is written anew."""
    return source if source is not None and source.edits(target) else None


def _rewritten(
    network: Network,
    stability: Stability,
    wish: Wish,
    allowed: Allowance | None,
    again: Again | None = None,
    deadline: Deadline | None = None,
    editor: Source | TorchSource | None = None,
) -> Rewritten:
    """What verdicts allow for, and the model to edit can say."""
    from relutrim.rewrite.cost import Cost
    from relutrim.rewrite.pipeline import rewrite

    weakest, cost = EVIDENCE[wish.evidence], Cost(wish.cost)
    apply = partial(
        rewrite,
        rewrites=wish.rewrites,
        weakest=weakest,
        allowed=allowed,
        cost=cost,
        fold_batch_norm=wish.fold_batch_norm,
        frame=None if editor is None else editor.frame(network),
        deadline=deadline,
    )
    result = apply(network, stability)
    return result if again is None else again.improve(network, stability, result, apply, weakest, cost)


def _allowance(
    network: Network,
    stability: Stability,
    wish: Wish,
    data: Any,
    deadline: Deadline | None = None,
    memory: MemoryBudget = AMPLE,
) -> Allowance | None:
    """How far outputs may move. Where less than a proof is enough nothing is proven of that, so nothing but
    a number that somebody has named can be a limit.
    """
    if wish.tolerance == "exact" and EVIDENCE[wish.evidence] != Evidence.PROOF:
        return None
    return allowed_deviation(network, stability, wish.tolerance, data, deadline, memory)


def _observed(
    network: Network,
    stability: Stability,
    wish: Wish,
    data: Any,
    result: Rewritten,
    allowed: Allowance | None,
    editor: Source | TorchSource | None = None,
    deadline: Deadline | None = None,
    most: tuple[float, float] = (math.inf, math.inf),
    memory: MemoryBudget = AMPLE,
) -> Compression:
    """A rewritten network beside the original; ``editor`` is the model to edit. What that model cannot say
    is not done. ``most`` are the seconds of the search for differences and of the bound on float32, which
    gets what the first leaves until the deadline.
    """
    from relutrim.observe import observe
    from relutrim.origins import as_metadata
    from relutrim.prove.deadline import Deadline
    from relutrim.rewrite.pipeline import as_it_is
    from relutrim.search.climb import gradients

    deadline = deadline or Deadline()
    files: Files | None = None
    remade: Remade | None = None
    obstacle, metadata = None, dict[str, str]()
    if result.stored is not network:
        metadata = as_metadata(result.stored, network, result.kept)
        try:
            if isinstance(editor, Source):
                files = editor.edited(network, result.stored, result.kept, metadata)
            elif editor is not None:
                proved = EVIDENCE[wish.evidence] == Evidence.PROOF
                trial = _trial(network, stability, result) if proved else None
                remade = editor.edited(network, result.stored, result.kept, trial)
        except (UnsupportedError, InputError, CheckFailed) as error:
            result, obstacle = as_it_is(network, stability, EVIDENCE[wish.evidence]), _obstacle(error)

    proved, same = EVIDENCE[wish.evidence] == Evidence.PROOF, result.stored is network
    proved = proved or same
    assert wish.dtype is not None
    with gradients():
        seen = observe(
            network,
            result.stored,
            stability,
            data,
            "float32",
            wish.dtype,
            deadline=deadline,
            search=deadline.within(most[0]),
            same=proved and result.deviation_stored == 0,
            memory=memory,
        )
    stored = network if same else replace(result.stored, metadata={**result.stored.metadata, **metadata})
    single, deployed = seen.by_type["float32"], seen.by_type[wish.dtype]
    bounding = deadline.within(most[1])
    late = proved and not same and bounding.passed
    found = Compression(
        model=stored,
        original=network,
        network=result.network,
        stored=stored,
        stability=stability,
        steps=result.steps,
        deviation=Deviation(
            result.deviation_stored if proved and math.isfinite(result.deviation_stored) else None,
            result.deviation if proved else None,
            _in_float32(network, stability, result, bounding, memory) if proved and not late else None,
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
        left_out=result.left_out,
        allowance=allowed,
        edited=files,
        recorded=None if editor is None or isinstance(editor, Source) else editor,
        remade=remade,
        obstacle=obstacle,
        elsewhere=result.elsewhere,
    )
    return _remarked(found, "no time was left for the bound on both networks in float32") if late else found


def _trial(network: Network, stability: Stability, result: Rewritten) -> Trial | None:
    """On which inputs to run a model beside what becomes of it; None where nothing is proven of them."""
    from relutrim.io.torch.verify import Trial
    from relutrim.observe import behind_normalisation, samples

    if not math.isfinite(result.deviation_stored):
        return None
    points = behind_normalisation(stability.problem, network, samples(stability, None)[:_TRIED])
    return Trial(points.cpu(), result.deviation_stored)


def _obstacle(error: RelutrimError) -> str:
    """Why the model is left as it is; with what to do about it where that is a bug."""
    bug = "; please report it with the model and the domain" if isinstance(error, CheckFailed) else ""
    return f"{error}{bug}"


def _in_float32(
    network: Network, stability: Stability, result: Rewritten, deadline: Deadline, memory: MemoryBudget
) -> float | None:
    """The bound on how far both files are apart as they run in float32."""
    from relutrim.float32 import proven_float32

    if result.stored is network:
        return 0.0
    return proven_float32(
        stability.problem,
        network,
        result.stored,
        stability.ranges,
        result.ranges,
        result.deviation_stored,
        stopped=lambda: deadline.passed,
        memory=memory,
    )


def _same_kind(model: Any, found: Compression) -> Any:
    """The compressed model as what the user gave: a module for a module, a network for everything else."""
    from relutrim.io import is_proto

    if isinstance(model, str | Path | Network):
        return found.stored
    if is_proto(model):
        return copy.deepcopy(model) if found.unchanged else type(model).FromString(found.onnx)
    from relutrim.io.torch.source import remade

    return remade(model, found.remade, None if found.unchanged else found.stored)
