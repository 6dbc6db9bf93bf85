"""Prove every stable verdict again from what an analysis left behind, without search and without a solver.

Ranges are built up from the input: each value's by intervals and linear bounds over the ranges before it, and
by the recorded proofs whose ranges hold by then. A verdict is confirmed if the ranges so built imply it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from relutrim.bounds.interval import input_interval, settle_ties, value_interval
from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope
from relutrim.graph.operators import Barrier, Relu
from relutrim.intervals import Interval
from relutrim.prove.parts import AnyProof
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.rounding import require_ieee


@dataclass(frozen=True)
class Rechecked:
    """How many verdicts with evidence ``proof`` were proved again, and (layer, neuron) of those that were
    not.
    """

    confirmed: int
    lost: tuple[tuple[str, int], ...]


def recheck(stability: Stability) -> Rechecked:
    """All verdicts that rest on a proof."""
    require_ieee()
    proofs: dict[str, list[AnyProof]] = {}
    for proof in stability.proofs:
        proofs.setdefault(proof.target, []).append(proof)
    found = _implied(stability, _ranges(stability, proofs, {}))
    if found.lost:
        # An analysis has linear bounds before it has proofs, layer by layer, and they need not get better
        # with those: a neuron that is proved active is its argument, and no longer just at least 0.
        values: dict[str, Interval] = {}
        targets = [node.name for node in stability.problem.network.nodes if node.name in proofs]
        for count in range(len(targets) + 1):
            values = _ranges(stability, {name: proofs[name] for name in targets[:count]}, values)
        found = _implied(stability, values)
    return found


def _ranges(
    stability: Stability, proofs: Mapping[str, Sequence[AnyProof]], known: Mapping[str, Interval]
) -> dict[str, Interval]:
    """Those of all values, with proofs by their targets; what is known already holds."""
    network, region = stability.problem.network, stability.problem.region()
    values: dict[str, Interval] = {network.input.name: input_interval(network, region.box())}
    backward = Backward(network, region, values)
    for node in network.nodes:
        own = settle_ties(node, values, value_interval(network, node, values))
        values[node.name] = own.meet(known[node.name]) if node.name in known else own
        backward.forget()
        readers = [reader.operator for reader in network.readers(node.name)]
        if any(isinstance(reader, Barrier) for reader in readers):
            _tighten(backward, node.name, torch.arange(network.size(node.name)))
        if any(isinstance(reader, Relu) for reader in readers):
            before = values[node.name]
            _tighten(backward, node.name, (~((before.lo >= 0) | (before.hi <= 0))).flatten().nonzero()[:, 0])
            for proof in proofs.get(node.name, ()):
                _apply(backward, proof)
    return values


def _implied(stability: Stability, values: Mapping[str, Interval]) -> Rechecked:
    """Which verdicts follow from ranges."""
    network = stability.problem.network
    confirmed, lost = 0, []
    for layer in stability.layers:
        pre = values[network[layer.name].inputs[0]]
        on, off = (pre.lo >= 0).flatten().tolist(), (pre.hi <= 0).flatten().tolist()
        for neuron, (verdict, evidence) in enumerate(zip(layer.verdict, layer.evidence, strict=True)):
            if evidence == Evidence.PROOF:
                shown = {Verdict.INACTIVE: off, Verdict.ACTIVE: on}.get(verdict)
                if shown is not None and shown[neuron]:
                    confirmed += 1
                else:
                    lost.append((layer.name, neuron))
    return Rechecked(confirmed, tuple(lost))


def _tighten(backward: Backward, name: str, index: torch.Tensor) -> None:
    for part in torch.split(index, backward.rows) if len(index) else ():
        for slope in Slope:
            for sign in (1.0, -1.0):
                _meet(backward, name, part, sign, backward.neurons(name, part, sign, slope).lower)


def _apply(backward: Backward, proof: AnyProof) -> None:
    """Use a proof, with the ranges it starts from widened to those that are known to hold."""
    ranges = {}
    for name, known in backward.values.items():
        if name != proof.target:
            given = proof.ranges.get(name)
            if given is None or not given.lo.shape == given.hi.shape == known.lo.shape:
                return
            ranges[name] = Interval(
                torch.minimum(given.lo.to(known.lo), known.lo), torch.maximum(given.hi.to(known.hi), known.hi)
            )
    bound = replace(proof, ranges=ranges).check(backward)
    if not math.isnan(bound):
        lower = torch.tensor([bound], dtype=torch.float64)
        _meet(backward, proof.target, torch.tensor([proof.neuron]), proof.sign, lower)


def _meet(backward: Backward, name: str, index: torch.Tensor, sign: float, lower: torch.Tensor) -> None:
    backward.values[name] = backward.values[name].tightened(index, sign, lower)
    backward.forget()
