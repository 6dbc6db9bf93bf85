"""Which rewrites are applied, and how far the result may be from the network.

1. **Strip** (:mod:`relutrim.rewrite.strip`): what goes without a trace, deviation 0.
2. **Shrink** (:mod:`relutrim.rewrite.shrink`): what moves nothing but by the rounding of new weights. First
   as if that did not matter; where the result is farther away than allowed, once more, each rewrite only if
   the network that it leaves is not.
3. **Spend** (:mod:`relutrim.rewrite.spend`): what matters that little, where the allowance is for that.

What cannot be proved to be within the allowance is not the result. If nothing can, or nothing got smaller,
the network itself is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from relutrim.graph.graph import Network
from relutrim.graph.origin import Frame
from relutrim.graph.slicing import Kept
from relutrim.intervals import Interval
from relutrim.prove.deadline import Deadline
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.cost import Cost
from relutrim.rewrite.draft import Draft, Mask, Step
from relutrim.rewrite.factor import NAME as FACTOR
from relutrim.rewrite.fuse import fold_batch_norms, fuse
from relutrim.rewrite.rules import Allowance, Limits, Rules, fits
from relutrim.rewrite.shrink import leo, shrink
from relutrim.rewrite.spend import proposals, sparsify
from relutrim.rewrite.straighten import straighten
from relutrim.rewrite.strip import cut, strip

REWRITES = ("leo++", "all")


@dataclass(frozen=True)
class LeftOut:
    """What would have been the result if it did not have to stay within what is allowed."""

    parameters: int
    connections: int
    neurons: int
    deviation: float
    """Proven, as stored; NaN if none can be stated."""
    worst: float
    """The same of the output that is farthest beyond what it is allowed, relative to that."""
    allowed: float
    """How far that one may move."""


@dataclass(frozen=True, eq=False)
class Rewritten:
    """The outcome: the float64 network, the network as its file holds it, and what is proven of each. Where
    nothing was rewritten, both are the very network that went in.
    """

    network: Network
    stored: Network
    steps: tuple[Step, ...]
    deviation: float
    deviation_stored: float
    moved: Mapping[str, Tensor]
    """Per source of an output, how far each entry can have moved in memory."""
    inactive: Mapping[str, Mask]
    """Per ReLU, in its value's shape, which units of ``stored`` are always 0."""
    ranges: Mapping[str, Interval]
    """Bounds of every value of ``stored``, as good as the verdicts that were used."""
    left_out: LeftOut | None = None
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """Which slices of the original's values are left in ``stored``, where that is not all of them."""
    elsewhere: Callable[[Limits | None], Rewritten | None] | None = None
    """The same as a file of another format than the original's holds it; None where that moves an output
    beyond the limits.
    """


def rewrite(
    network: Network,
    stability: Stability,
    *,
    rewrites: str = "all",
    weakest: Evidence = Evidence.PROOF,
    allowed: Allowance | None = None,
    moved: Limits | None = None,
    cost: Cost = Cost.PARAMETERS,
    fold_batch_norm: bool = False,
    frame: Frame | None = None,
    deadline: Deadline | None = None,
) -> Rewritten:
    """The smaller network.

    ``leo++`` is the paper's Algorithm 2 as it is meant: layer by layer collapse, fold whatever the cost, or
    merge and drop; the last hidden layer included. ``all`` does everything that makes the network smaller,
    again and again, from the last layer to the first: fewer readers need fewer neurons to read. ``cuts``
    only cuts away what is 0 and what nobody reads.

    ``allowed`` is how far the outputs may move on the domain, weights as stored (None: however far the
    rounding of new weights takes them). ``moved`` is how far the outputs of a network that was rewritten
    before are from the original's. ``cost`` is what ``all`` makes smaller; the result never costs more than
    the network.
    ``fold_batch_norm`` folds batch norms into the layers beside them, which rounds every weight. ``frame`` is
    what the network's source can say as it is; something else is the result only if it is worth it. Once the
    deadline has passed, what was found by then is the result.
    """
    original = Draft.start(network, stability, weakest, moved)
    if rewrites != "all" or frame is None or not frame.holds(network):
        frame = None  # the paper folds whatever that takes; and what is something else already stays that
    rules = Rules(None if rewrites == "leo++" else cost, None, deadline or Deadline(), fold_batch_norm, frame)
    limits = None if allowed is None else allowed.limits
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not applied
        if rewrites == "leo++":
            found, freely = _leo(original, limits, rules)
        elif rewrites == "cuts":
            found = freely = cut(original, rules)
        else:
            found, freely = _all(original, allowed, cost, rules)
            if frame is not None and (frame.refused or straighten(found) is not found):
                other = _all(original, allowed, cost, replace(rules, frame=None))
                if frame.worth(cost.of(found.network)[:-1], cost.of(other[0].network)[:-1]):
                    (found, freely), rules = other, replace(rules, frame=None)
        left_out = None if freely is found else _left_out(freely, found, limits)
        smaller = bool(found.steps) and (rewrites == "leo++" or cost.least(original, found) is found)
        if not smaller or not fits(found, limits):
            found = original
        if allowed is not None and allowed.budget is not None:
            found = sparsify(found, allowed.budget, rules)
    if found is original:
        return _untouched(original, weakest, left_out)
    return _finished(found, weakest, left_out)


def as_it_is(network: Network, stability: Stability, weakest: Evidence = Evidence.PROOF) -> Rewritten:
    """The network itself."""
    return _untouched(Draft.start(network, stability, weakest), weakest, None)


def _elsewhere(draft: Draft, weakest: Evidence, limits: Limits | None) -> Rewritten | None:
    """A draft without the numbers of its source, such as quotients and roots."""
    plain = replace(draft, network=draft.network.without_origins())
    if not draft.steps:
        plain = plain.plain()
    return _finished(plain, weakest, None) if fits(plain, limits) else None


def _leo(original: Draft, limits: Limits | None, rules: Rules) -> tuple[Draft, Draft]:
    """What the paper's algorithm leaves, within the limits and freely."""
    freely = leo(_fused(original, rules), rules)
    if limits is None or fits(freely, limits):
        return freely, freely
    bound = replace(rules, limit=limits)
    return leo(_fused(original, bound), bound), freely


def _all(original: Draft, allowed: Allowance | None, cost: Cost, rules: Rules) -> tuple[Draft, Draft]:
    """What all rewrites leave, within what is allowed and, but for spending, freely. What spending leaves is
    the result only where it costs less than what goes without.
    """
    stripped = strip(original, rules)
    stripped = rules.better(stripped, straighten(stripped, rules.fixed))
    if allowed is not None and allowed.nothing:
        return stripped, stripped
    freely = _freely(original, stripped, cost, rules, factors=True)
    if allowed is None:
        return (freely if fits(freely, None) else stripped), freely
    found = freely if fits(freely, allowed.limits) else _bound(stripped, allowed.limits, cost, rules)
    if allowed.budget is not None:
        plain = found
        if any(step.rewrite == FACTOR for step in freely.steps):  # spending makes factors of its own
            whole = _freely(original, stripped, cost, rules, factors=False)
            plain = whole if fits(whole, allowed.limits) else found
        for proposal in proposals(plain, allowed.budget, rules):
            if fits(proposal, allowed.limits):
                return cost.least(found, proposal), freely
    return found, freely


def _freely(original: Draft, stripped: Draft, cost: Cost, rules: Rules, *, factors: bool) -> Draft:
    """The smallest network that moves nothing but by rounding, however far that is."""
    fused = _fused(original, rules)
    return cost.least(stripped, leo(fused, rules), shrink(fused, rules, factors=factors))


def _bound(draft: Draft, limits: Limits, cost: Cost, rules: Rules) -> Draft:
    """The same with every step within the limits; the draft itself if it is not."""
    bound = replace(rules, limit=limits)
    if not bound.allows(draft):
        return draft
    fused = _fused(draft, bound)
    return cost.least(draft, shrink(fused, bound, factors=True))


def _fused(draft: Draft, rules: Rules) -> Draft:
    """Dense layers made visible, as far as that is allowed; batch norms only where that is asked for."""

    def accept(_: Draft, after: Draft) -> bool:
        return rules.allows(after)

    return fuse(fold_batch_norms(draft, accept) if rules.fold_batch_norm else draft, accept)


def _left_out(freely: Draft, found: Draft, limits: Limits | None) -> LeftOut | None:
    """What did not fit, if that would have been less."""
    network = freely.network
    if network.parameters >= found.network.parameters:
        return None
    final = freely.stored().realise()
    worst, most = final.proven, 0.0
    if limits is not None and math.isfinite(worst):
        moved = torch.cat([final.deviation[source].flatten() for source in limits])
        limit = torch.cat([limits[source].flatten() for source in limits])
        at = int((moved / limit).nan_to_num(0.0).argmax())
        worst, most = float(moved[at]), float(limit[at])
    return LeftOut(network.parameters, network.connections, network.neurons, final.proven, worst, most)


def _untouched(original: Draft, weakest: Evidence, left_out: LeftOut | None) -> Rewritten:
    """The network itself."""
    network = original.network
    still = original.deviation
    return Rewritten(
        network,
        network,
        (),
        original.proven,
        original.proven,
        still,
        _inactive(original, weakest),
        original.ranges,
        left_out,
        elsewhere=partial(_elsewhere, original, weakest),
    )


def _finished(draft: Draft, weakest: Evidence, left_out: LeftOut | None) -> Rewritten:
    memory, file = draft.realise(), draft.stored().realise()
    return Rewritten(
        memory.network,
        file.network,
        memory.steps,
        memory.proven,
        file.proven,
        memory.deviation,
        _inactive(file, weakest),
        file.ranges,
        left_out,
        file.kept,
        partial(_elsewhere, draft, weakest),
    )


def _inactive(draft: Draft, weakest: Evidence) -> dict[str, Mask]:
    """Which units are always 0 by their proven ranges, or by what the draft rests on where that is less."""
    found = {}
    for relu in draft.network.relus:
        below = (draft.ranges[relu.inputs[0]].hi[0] <= 0).numpy()
        told = draft.zero[relu.name].reshape(below.shape) & (weakest != Evidence.PROOF)
        found[relu.name] = below | told
    return found
