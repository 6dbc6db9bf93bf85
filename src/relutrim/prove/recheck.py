"""Prove every stable verdict again from what an analysis left behind, without search and without a solver.

Ranges are built up from the input: each value's by intervals and linear bounds over the ranges before it, and
by the recorded proofs whose ranges hold by then. A verdict is confirmed if the ranges so built imply it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from relutrim.bounds.interval import input_interval, node_interval
from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope
from relutrim.bounds.values import Interval
from relutrim.network.operators import Relu
from relutrim.prove.hull.proof import Proof, contains
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
    network, region = stability.problem.network, stability.problem.region()
    values: dict[str, Interval] = {network.input.name: input_interval(network, region.box())}
    backward = Backward(network, region, values)
    proofs: dict[str, list[Proof]] = {}
    for proof in stability.proofs:
        proofs.setdefault(proof.goal.target, []).append(proof)
    for node in network.nodes:
        values[node.name] = node_interval(node, values)
        backward.forget()
        if any(isinstance(reader.operator, Relu) for reader in network.readers(node.name)):
            _tighten(backward, node.name)
            for proof in proofs.get(node.name, ()):
                _apply(backward, proof)
    confirmed, lost = 0, []
    for layer in stability.layers:
        pre = values[network[layer.name].inputs[0]]
        on, off = (pre.lo >= 0).flatten().tolist(), (pre.hi <= 0).flatten().tolist()
        for neuron, (verdict, evidence) in enumerate(zip(layer.verdict, layer.evidence, strict=True)):
            if evidence == Evidence.PROOF:
                if off[neuron] if verdict == Verdict.INACTIVE else on[neuron]:
                    confirmed += 1
                else:
                    lost.append((layer.name, neuron))
    return Rechecked(confirmed, tuple(lost))


def _tighten(backward: Backward, name: str) -> None:
    for slope in Slope:
        known = backward.values[name]
        index = (~((known.lo >= 0) | (known.hi <= 0))).flatten().nonzero()[:, 0]
        if len(index):
            for sign in (1.0, -1.0):
                _meet(backward, name, index, sign, backward.neurons(name, index, sign, slope).lower)


def _apply(backward: Backward, proof: Proof) -> None:
    """Use a proof if the ranges it starts from are known to hold."""
    before = {name: ends for name, ends in proof.ranges.items() if name in backward.values}
    before.pop(proof.goal.target, None)
    if contains(before, backward.values):
        bound = torch.tensor([proof.check(backward)], dtype=torch.float64)
        _meet(backward, proof.goal.target, torch.tensor([proof.goal.neuron]), proof.goal.sign, bound)


def _meet(backward: Backward, name: str, index: torch.Tensor, sign: float, lower: torch.Tensor) -> None:
    known = backward.values[name]
    ends = torch.full_like(known.lo, torch.nan).flatten()
    ends[index] = lower
    ends = ends.reshape(known.lo.shape)
    nothing = torch.full_like(ends, torch.nan)
    backward.values[name] = known.meet(Interval(ends, nothing) if sign > 0 else Interval(nothing, -ends))
    backward.forget()
