"""From a model and a domain to a smaller model: ``relutrim.compress``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relutrim.analysis import analyze_network, shape_of
from relutrim.domain.domain import Domain
from relutrim.errors import InputError
from relutrim.network.graph import Network
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.draft import Step

if TYPE_CHECKING:
    from torch import Tensor

    from relutrim.prove.cascade import Progress

EVIDENCE = {"proof": Evidence.PROOF, "solver": Evidence.SOLVER, "data": Evidence.DATA}
_SAMPLES = 2048


@dataclass(frozen=True)
class Deviation:
    """How far the compressed network is from the original, at the outputs before any tail.

    ``proven`` holds on the whole domain in real arithmetic for the weights as stored; it is None where
    verdicts weaker than a proof were allowed, or where the file's type cannot hold a weight.
    ``proven_float64`` is the same for the float64 network in memory. The others were observed on samples, in
    float32: the difference between both networks, and the original's own rounding error.
    """

    proven: float | None
    proven_float64: float | None
    observed_float32: float
    original_float32_error: float
    samples: int


@dataclass(frozen=True, eq=False)
class Compression:
    """The result. ``model`` is of the kind that went in; ``network`` is in float64, ``stored`` what a file
    holds.
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
    certificate: None = None

    @property
    def report(self) -> dict[str, Any]:
        """What was done, as a dictionary that serialises to JSON."""
        from relutrim.report.json import compression_json

        return compression_json(self)

    def at(self, tolerance: str | float) -> Compression:
        """The same network compressed with another tolerance, by the verdicts that are known already."""
        tolerance = parsed_tolerance(tolerance)
        found = _rewritten(self.original, self.stability, tolerance, "all", self.evidence, None, self.cost)
        return replace(found, model=_same_kind(self.model, found.stored))

    def save(self, path: str | Path) -> None:
        """Write the compressed network to a file, whole or not at all."""
        from relutrim.formats import save

        save(self.stored, path)

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
    progress: Progress | None = None,
) -> Compression:
    """Make ``model`` smaller without changing what it computes on ``domain``.

    ``model`` is a path, an ``nn.Module`` or a :class:`Network`; it is never changed. ``rewrites``: ``all``,
    or ``leo++`` for the paper's algorithm. ``tolerance`` is how far an output may move on the domain, weights
    as stored: ``exact`` allows nothing but the rounding of re-written weights, ``rounding`` half a unit in
    the last place (of the file's type) of the largest value an output was seen to take, a number that much.
    ``cost`` is what to make smaller, ``parameters`` or ``multiply-adds``; the result never has more of them.
    ``evidence`` is the weakest that a rewrite may rest on; anything but ``proof`` gives up the guarantee. The
    other options are those of :func:`relutrim.analyze`. Ctrl-C is a ``KeyboardInterrupt``: a network that is
    half compressed is of use to nobody.
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
        method=method,
        time_limit=time_limit,
        device=device,
        seed=seed,
        jobs=jobs,
        solver=solver,
        big_m=big_m,
        inject=inject,
        until=until,
        progress=progress,
    )
    return replace(result, model=_same_kind(model, result.stored))


def compress_network(
    network: Network,
    domain: Domain,
    *,
    tolerance: str | float = "exact",
    rewrites: str = "all",
    evidence: str = "proof",
    cost: str = "parameters",
    data: Any = None,
    **analysis: Any,
) -> Compression:
    """:func:`compress` for a model that is a :class:`Network` already; ``analysis`` are the options of the
    analysis.
    """
    from relutrim.rewrite.cost import Cost
    from relutrim.rewrite.pipeline import REWRITES

    if rewrites not in REWRITES:
        raise InputError(f"there is no set of rewrites {rewrites!r}; choose one of {', '.join(REWRITES)}")
    if evidence not in EVIDENCE:
        raise InputError(f"there is no evidence {evidence!r}; choose one of {', '.join(EVIDENCE)}")
    if cost not in list(Cost):
        raise InputError(f"there is no cost {cost!r}; choose one of {', '.join(Cost)}")
    tolerance = parsed_tolerance(tolerance)
    if tolerance != "exact" and rewrites != "all":
        raise InputError(f"rewrites {rewrites!r} are exact; a tolerance needs rewrites 'all'")
    stability = analyze_network(network, domain, data=data, **analysis)
    if stability.interrupted:
        raise KeyboardInterrupt
    return _rewritten(network, stability, tolerance, rewrites, evidence, data, cost)


def _rewritten(
    network: Network,
    stability: Stability,
    tolerance: str | float,
    rewrites: str,
    evidence: str,
    data: Any,
    cost: str,
) -> Compression:
    """What verdicts allow for."""
    from relutrim.rewrite.cost import Cost
    from relutrim.rewrite.pipeline import rewrite

    weakest = EVIDENCE[evidence]
    allowed = allowed_deviation(network, stability, tolerance, data)
    result = rewrite(network, stability, rewrites=rewrites, weakest=weakest, allowed=allowed, cost=Cost(cost))
    proved = weakest == Evidence.PROOF
    observed, own, samples = _observe(network, result.stored, stability, data)
    return Compression(
        model=result.stored,
        original=network,
        network=result.network,
        stored=result.stored,
        stability=stability,
        steps=result.steps,
        deviation=Deviation(
            result.deviation_stored if proved and math.isfinite(result.deviation_stored) else None,
            result.deviation if proved else None,
            observed,
            own,
            samples,
        ),
        rewrites=rewrites,
        evidence=evidence,
        tolerance=tolerance,
        cost=cost,
    )


def parsed_tolerance(tolerance: str | float) -> str | float:
    """``exact``, ``rounding``, or a number that is not negative."""
    if tolerance in ("exact", "rounding"):
        return tolerance
    try:
        number = float(tolerance)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InputError(
            f"tolerance {tolerance!r} makes no sense; it is 'exact', 'rounding', or how far an output may "
            "move, a number such as 1e-6"
        )
    return number


def allowed_deviation(
    network: Network, stability: Stability, tolerance: str | float, data: Any = None
) -> dict[str, Tensor] | None:
    """Per source of an output how far its entries may move. ``rounding`` is what storing the output itself
    may change: half a unit in the last place, in the file's type, of the largest value seen.
    """
    import torch

    if tolerance == "exact":
        return None
    points = _samples(network, stability, data)
    values = network.run(points, until=list(network.sources))
    allowed = {}
    for source in network.sources:
        seen = values[source].abs().amax(0, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
        unit = 2.0**-53 if network.dtype == "float64" else 2.0**-24
        allowed[source] = (
            unit * seen if tolerance == "rounding" else torch.full_like(seen, float(tolerance))
        ).to(torch.float64)
    return allowed


def _same_kind(model: Any, stored: Network) -> Any:
    """The compressed model as what the user gave: a module for a module, a network for everything else."""
    if isinstance(model, str | Path | Network):
        return stored
    from relutrim.formats.torch_write import build_module

    return build_module(stored, training=bool(model.training))


def _observe(original: Network, stored: Network, stability: Stability, data: Any) -> tuple[float, float, int]:
    """Both networks in float32 on random inputs, corners, witnesses and data: their difference, the
    original's own error.
    """
    import torch

    points = _samples(original, stability, data)
    single = points.to(torch.float32)
    if original.dtype == "float64":
        single = points
    with torch.no_grad():
        before, after, truth = original(single), stored(single), original(single.to(torch.float64))
    if not before.numel():
        return 0.0, 0.0, len(points)
    difference = (before.to(torch.float64) - after.to(torch.float64)).abs().max()
    own = (before.to(torch.float64) - truth).abs().max()
    return float(difference), float(own), len(points)


def _samples(original: Network, stability: Stability, data: Any) -> Tensor:
    """Inputs of the original network (behind the normalisation, if there is one). Data outside the domain
    says nothing.
    """
    import torch

    from relutrim.analysis import as_rows

    problem = stability.problem
    region = problem.region()
    generator = torch.Generator().manual_seed(1)
    parts = [region.sample(_SAMPLES, generator), torch.as_tensor(stability.witnesses[:_SAMPLES])]
    rows = as_rows(data, problem)
    if rows is not None:
        first = rows[:_SAMPLES].to(torch.float64)
        parts.append(first[region.inside(first)])
    points = torch.cat(parts)
    if problem.network.input.name == original.input.name:
        return points
    return problem.network.run(points, until=[original.input.name])[original.input.name].reshape(
        len(points), -1
    )
