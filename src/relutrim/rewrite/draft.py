"""A network in the middle of being rewritten, with a proof of how far it is from the original.

The idea that keeps the accounting simple: **on the domain**, a stably active ReLU is the identity and a
stably inactive one is zero. Writing the original with those in place of its stable ReLUs changes nothing, and
from then on every rewrite is plain linear algebra. No verdict is ever needed again for a network whose
weights have been perturbed, except once at the end: a neuron that was kept although it is linear (a basis row
of a merge) is written as a ReLU, so its pre-activation must be non-negative in the *final* network.
:meth:`Draft.realise` checks that against its proven range and charges what is missing.

Each rewrite states, per node it replaced, how far the new node's value can be from the old one's **on the
same input**;
:meth:`Draft.rewritten` carries that through the rest of the network (activations and maxima are 1-Lipschitz),
widens the ranges it shifts, and adds what arrives at the outputs to the proven deviation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relutrim.bounds.interval import image
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Affine, Array, Operator
from relutrim.graph.slicing import Kept, composed
from relutrim.intervals import Interval
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.rewrite.gains import gains
from relutrim.rewrite.storage import rounded, storable
from relutrim.rounding import ETA

Mask = npt.NDArray[np.bool_]
_SAFETY = 1 + 2.0**-20
"""Pays for the rounding of deviation bounds themselves: short sums of non-negative numbers."""


@dataclass(frozen=True)
class Step:
    """One rewrite as it is reported. ``lost`` is how many neurons fewer each ReLU has behind it; a draft sees
    both networks and fills that in.
    """

    rewrite: str
    node: str
    text: str
    neurons: int = 0
    deviation: float = 0.0
    lost: Mapping[str, int] = field(default_factory=dict, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.rewrite,
            "node": self.node,
            "neurons_removed": self.neurons,
            "deviation": self.deviation,
            "detail": self.text,
        }


@dataclass(frozen=True, eq=False)
class Draft:
    """``identity`` and ``zero`` say, per ReLU, which neurons stand for the identity and for 0 on the domain.

    Inactive neurons that stay to the end are written as the ReLUs they were, so no bound may rest on their
    being 0 once their inputs move. ``ranges`` are proven bounds of every value, and ``deviation`` of each
    entry of each output source, both for the network as it is now.
    """

    network: Network
    identity: Mapping[str, Mask]
    zero: Mapping[str, Mask]
    ranges: Mapping[str, Interval]
    deviation: Mapping[str, Tensor]
    steps: tuple[Step, ...] = field(default=())
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """Which slices of the original's values are left, where that is not all of them."""

    @classmethod
    def start(
        cls,
        network: Network,
        stability: Stability,
        weakest: Evidence,
        moved: Mapping[str, Tensor] | None = None,
    ) -> Draft:
        """The original, with its stable neurons as identity or zero where the evidence is strong enough; or a
        network that was rewritten before, whose outputs may have ``moved`` that far from the original's.
        """
        identity, zero = {}, {}
        for layer in stability.layers:
            good = layer.evidence >= weakest
            identity[layer.name] = (layer.verdict == Verdict.ACTIVE) & good
            zero[layer.name] = (layer.verdict == Verdict.INACTIVE) & good
        ranges = {name: Interval(r.lo.cpu(), r.hi.cpu()) for name, r in stability.ranges.items()}
        still = {source: torch.zeros_like(ranges[source].lo) for source in network.sources}
        return cls(network, identity, zero, ranges, still if moved is None else moved)

    def reach(self, name: str) -> Tensor:
        """The largest magnitude of a value on the domain, as a batch of one."""
        return self.ranges[name].magnitude

    def rewritten(
        self,
        network: Network,
        step: Step | None,
        *,
        moved: Mapping[str, Tensor] | None = None,
        identity: Mapping[str, Mask] | None = None,
        zero: Mapping[str, Mask] | None = None,
        ranges: Mapping[str, Interval] | None = None,
        kept: Mapping[str, Kept] | None = None,
    ) -> Draft:
        """The next draft. ``moved`` says how far nodes' values can move on unchanged inputs; unlisted nodes
        do not.

        Masks and ranges of nodes whose entries were removed are given anew, and which entries are ``kept``.
        """
        known = {**self.ranges, **(ranges or {})}
        moved = moved or {}
        shift: dict[str, Tensor] = {}
        for node in network.nodes:
            local = moved.get(node.name)
            before = [shift.get(name) for name in node.inputs]
            if any(s is not None for s in before):
                inputs = [
                    torch.zeros_like(known[n].lo) if s is None else s
                    for n, s in zip(node.inputs, before, strict=True)
                ]
                arrived = passed(node.operator, inputs)
                local = arrived if local is None else arrived + local
            if local is not None and bool((local != 0).any()):
                shift[node.name] = local * _SAFETY
                known[node.name] = _widen(known[node.name], shift[node.name])
        masks = tuple(
            {relu.name: {**old, **(new or {})}[relu.name] for relu in network.relus}
            for old, new in ((self.identity, identity), (self.zero, zero))
        )
        _sharpen(shift, network, masks[0], moved)
        deviation = dict(self.deviation)
        largest = 0.0
        for source in network.sources:
            if source in shift:
                deviation[source] = (deviation[source] + shift[source]) * _SAFETY
                largest = max(largest, float(shift[source].max()) if shift[source].numel() else 0.0)
                if bool(shift[source].isnan().any()):
                    largest = float("nan")
        steps = self.steps
        if step is not None:
            steps += (replace(step, deviation=largest, lost=_lost(self.network, network)),)
        return Draft(
            network=network,
            identity=masks[0],
            zero=masks[1],
            ranges={name: known[name] for name in [network.input.name, *(n.name for n in network.nodes)]},
            deviation={source: deviation[source] for source in network.sources},
            steps=steps,
            kept=composed(self.kept, kept or {}, network),
        )

    def plain(self) -> Draft:
        """The draft in which every ReLU is a ReLU and nothing else: whatever moves, none stands for less."""
        none = {name: np.zeros_like(mask) for name, mask in self.identity.items()}
        return replace(self, identity=none, zero=none)

    def stored(self) -> Draft:
        """The draft as its file will hold it: weights rounded to the file's type, parameters without
        radius. Where the type cannot hold a weight at all, nothing can be said of the deviation: it is NaN.
        """
        change: dict[str, Node | None] = {}
        moved = {}
        for node in self.network.nodes:
            if node.origin is not None:
                continue  # its numbers are the source's own
            if not storable(node.operator, self.network.dtype):
                moved[node.name] = torch.full_like(self.ranges[node.name].lo, torch.nan)
                continue
            found = rounded(node.operator, self.network.dtype)
            if found is not None:
                operator, gap = found
                change[node.name] = Node(node.name, operator, node.inputs)
                moved[node.name] = image(gap, [self.ranges[node.inputs[0]]]).magnitude
        return self.rewritten(self.network.edit(change=change), None, moved=moved)

    def realise(self) -> Draft:
        """Neurons that stand for the identity become ReLUs again; where their range dips below 0, that is
        charged.
        """
        draft = self
        for relu in self.network.relus:
            mask = torch.as_tensor(draft.identity[relu.name]).reshape(1, *draft.network.shapes[relu.name])
            below = (-draft.ranges[relu.inputs[0]].lo).clamp(min=0)
            charge = torch.where(mask, below, torch.zeros_like(below))
            if bool((charge != 0).any()):
                draft = draft.rewritten(draft.network, None, moved={relu.name: charge})
        return draft

    @property
    def proven(self) -> float:
        """The largest deviation over all outputs; NaN if there is none that can be stated."""
        parts = [d.flatten() for d in self.deviation.values()]
        every = torch.cat(parts) if parts else torch.zeros(0)
        return (
            float(every.max())
            if every.numel() and not bool(every.isnan().any())
            else float("nan")
            if every.numel()
            else 0.0
        )


def at_most(weight: Array, bias: Array, reach: Tensor) -> Tensor:
    """A number that ``|W| m + |b|`` never exceeds for magnitudes ``m``, whatever rounds or underflows."""
    w, b = torch.as_tensor(np.abs(weight)), torch.as_tensor(np.abs(bias))
    return (reach @ w.T + b) * _SAFETY + (w.shape[1] + 1) * ETA


def passed(operator: Operator, inputs: list[Tensor]) -> Tensor:
    """How far an operator's value moves with its inputs; products may underflow, parameters have radii."""
    moved = operator.spread(inputs)
    if not isinstance(operator, Affine):
        return moved
    fuzz = operator.fuzz(inputs)
    if fuzz is not None:
        moved = moved + fuzz
    return moved * _SAFETY + operator.terms([tuple(m.shape[1:]) for m in inputs]) * ETA


def middle(interval: Interval) -> tuple[Tensor, Tensor]:
    """A point in the middle of a range, and how far the range reaches from there at most."""
    centre = torch.where(interval.lo == interval.hi, interval.lo, interval.lo / 2 + interval.hi / 2)
    radius = torch.maximum(interval.hi - centre, centre - interval.lo)
    return centre, torch.where(interval.lo == interval.hi, 0 * radius, radius * _SAFETY)


def _sharpen(
    shift: dict[str, Tensor],
    network: Network,
    identity: Mapping[str, Mask],
    moved: Mapping[str, Tensor],
) -> None:
    """What arrives at the outputs, by way of how the linear parts of the network cancel.

    An inactive neuron that is still there counts as the ReLU that it will be in the file: moved above 0, it
    is 0 no longer.
    """
    local = {name: m for name, m in moved.items() if name in network and bool((m != 0).any())}
    if not local or not all(bool(m.isfinite().all()) for m in local.values()):
        return
    found = gains(network, identity, local)
    total = sum(
        (found[name] @ m.flatten() * _SAFETY + m.numel() * ETA for name, m in local.items()),
        torch.zeros(1, dtype=torch.float64),
    )
    start = 0
    for source in network.sources:
        own = total[start : start + network.size(source)]
        start += len(own)
        if source in shift:
            shift[source] = torch.fmin(shift[source], own.reshape(shift[source].shape) * _SAFETY)


def _lost(before: Network, after: Network) -> dict[str, int]:
    left = {relu.name: after.size(relu.name) for relu in after.relus}
    sizes = {relu.name: before.size(relu.name) for relu in before.relus}
    return {name: size - left.get(name, 0) for name, size in sizes.items() if size != left.get(name, 0)}


def _widen(interval: Interval, by: Tensor) -> Interval:
    down, up = torch.full_like(by, -torch.inf), torch.full_like(by, torch.inf)
    lo, hi = torch.nextafter(interval.lo - by, down), torch.nextafter(interval.hi + by, up)
    still = by == 0
    return Interval(torch.where(still, interval.lo, lo), torch.where(still, interval.hi, hi))
