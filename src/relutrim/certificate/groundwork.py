"""The checker's own view of a model and its domain, before there is anything to compare it with.

The prover's proofs become hints in the checker's terms, and the checker bounds every unit with them. What it
does not confirm, a rewrite that is to be certified leaves alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relutrim.certificate.check import prove_ranges, read_front
from relutrim.certificate.check.domain import Domain as Certified
from relutrim.certificate.check.equal import LINEAR, SYMBOL, ZERO
from relutrim.certificate.check.maps import Graph
from relutrim.certificate.check.ranges import Ranges
from relutrim.certificate.hinting import run, treatment
from relutrim.certificate.trees import Leaf, Place, UnitProof, of_boxes, of_states, stream_of, streams
from relutrim.errors import CheckFailed
from relutrim.prove.verdict import Evidence, Verdict

if TYPE_CHECKING:
    from relutrim.certificate.records import Record
    from relutrim.intervals import Interval
    from relutrim.prove.stability import LayerStability, Stability

_SAMPLES = 512
_NUMBERS = 2**25
"""How many numbers all values may have for so many inputs."""
_PACKED = 3 * 2**27
"""What packed leaves may take in a certificate, of which the checker reads 2**29 bytes; trees for which there
is no room are left out. About twice as much is made of them before what they do not use is known.
"""


@dataclass(frozen=True, eq=False)
class Groundwork:
    """What a certificate of a model on a domain starts from, whatever OUT is."""

    model: bytes
    graph: Graph
    domain: Certified
    samples: npt.NDArray[np.float64]
    layers: dict[str, int]
    """The checker's number of each ReLU of the prover's network."""
    proofs: dict[str, npt.NDArray[Any]]
    """For single units, as a certificate stores them."""
    ranges: Ranges

    @classmethod
    @np.errstate(all="ignore")  # what overflows proves nothing
    def of(cls, model: bytes, stability: Stability, deadline: float = math.inf) -> Groundwork:
        """Let the checker bound everything, with the prover's proofs as hints; :class:`CheckFailed` once the
        deadline (``time.monotonic()``) has passed.
        """
        domain = replace(certified_domain(stability), deadline=deadline)
        before = read_front(model, "model", deadline, domain)
        samples = _samples(stability)
        layers = _layers(before, stability, samples)
        places = _places(before, layers, stability.problem.network.input.name)
        wanted = _proofs(_records(stability, layers), layers, places, domain)
        proofs, ranges = _proved(before, domain, wanted)
        return cls(model, before, domain, samples, layers, proofs, ranges)

    def supported(self, stability: Stability) -> Stability:
        """The analysis without the verdicts that the checker cannot prove, and with no other ranges than its
        own: what a rewrite may rest on if it is to be certified.
        """
        found = []
        for layer in stability.layers:
            number = self.layers.get(layer.name)
            kind = None if number is None else treatment([self.ranges.layers[number]])[0].kind
            shown = {Verdict.ACTIVE: LINEAR, Verdict.INACTIVE: ZERO}
            lost = np.isin(layer.verdict, list(shown))
            for verdict, wanted in shown.items():
                lost &= ~((layer.verdict == verdict) & (kind == wanted)) if kind is not None else lost
            if not lost.any():
                found.append(layer)
                continue
            lower, upper = layer.lower.copy(), layer.upper.copy()
            known = None if number is None else self.ranges.layers[number]
            lower[lost] = np.nan if known is None else np.minimum(lower, known.lo)[lost]
            upper[lost] = np.nan if known is None else np.maximum(upper, known.hi)[lost]
            verdicts, evidence = layer.verdict.copy(), layer.evidence.copy()
            verdicts[lost], evidence[lost] = Verdict.UNKNOWN, Evidence.NONE
            found.append(replace(layer, verdict=verdicts, evidence=evidence, lower=lower, upper=upper))
        return replace(stability, layers=tuple(found), ranges=self._ranges(stability, found))

    def _ranges(self, stability: Stability, layers: Sequence[LayerStability]) -> dict[str, Interval]:
        """Of every value of the prover's network: what both prover and checker know of ReLUs' inputs, and
        what follows from that by intervals. The checker alone may mean another ReLU, which samples do not
        tell apart.
        """
        import torch

        from relutrim.bounds.interval import input_interval, node_interval
        from relutrim.intervals import Interval

        network, box = stability.problem.network, self.ranges.domain
        like = stability.ranges[network.input.name].lo
        ends = Interval(*(torch.as_tensor(end).to(like) for end in (box.lo, box.hi)))
        found = {network.input.name: input_interval(network, ends)}
        read = {network[layer.name].inputs[0]: layer for layer in layers if layer.name in self.layers}
        for node in network.nodes:
            found[node.name] = node_interval(node, found)
            if node.name in read:
                layer = read[node.name]
                known, shape = self.ranges.layers[self.layers[layer.name]], found[node.name].lo.shape
                own = stability.ranges[node.name]
                low = np.minimum(own.lo.cpu().numpy().reshape(-1), known.lo)  # NaN, which is no end, stays
                high = np.maximum(own.hi.cpu().numpy().reshape(-1), known.hi)
                lo = np.where(layer.verdict == Verdict.ACTIVE, np.fmax(low, 0), low)
                hi = np.where(layer.verdict == Verdict.INACTIVE, np.fmin(high, 0), high)
                mine = Interval(*(torch.as_tensor(end).reshape(shape).to(like) for end in (lo, hi)))
                found[node.name] = found[node.name].meet(mine)
        return found


def certified_domain(stability: Stability) -> Certified:
    """The domain of an analysis in the checker's terms."""
    problem, domain = stability.problem, stability.domain
    shape, size = problem.network.input.shape, problem.lo.size
    spread = [
        None if numbers is None else domain._spread(numbers, shape, "std").reshape(size)
        for numbers in (domain.mean, domain.std)
    ]
    return Certified(problem.lo, problem.hi, problem.rows, problem.lower, problem.upper, *spread)


def _samples(stability: Stability) -> npt.NDArray[np.float64]:
    """Inputs of the domain: those that showed states, and random ones."""
    import torch

    region, network = stability.problem.region(), stability.problem.network
    numbers = max(1, sum(map(network.size, network.shapes)))
    most = max(1, min(_SAMPLES, _NUMBERS // numbers))
    random = region.sample(most, torch.Generator().manual_seed(0)).numpy()
    seen = stability.witnesses
    return np.concatenate([random, seen[:: max(1, len(seen) // most)]])


def _layers(graph: Graph, stability: Stability, samples: npt.NDArray[np.float64]) -> dict[str, int]:
    """The checker's number for each ReLU of the prover's network: the one that computes the same."""
    import torch

    from relutrim.graph.operators import Relu

    network, few = stability.problem.network, samples[:32]
    mine = run(graph, few)
    theirs = network.run(torch.as_tensor(few, dtype=torch.float64))
    found: dict[str, int] = {}
    free = list(enumerate(graph.layers))
    for node in network.nodes:
        if isinstance(node.operator, Relu):
            value = theirs[node.name].reshape(len(few), -1).numpy()
            for number, at in free:
                other = mine[at + 1]
                if other.shape == value.shape and np.abs(other - value).max(initial=0.0) <= 1e-6 * (
                    1 + np.abs(value).max(initial=0.0)
                ):
                    found[node.name] = number
                    free.remove((number, at))
                    break
    return found


def _records(stability: Stability, layers: dict[str, int]) -> list[tuple[int, Record]]:
    """The proofs of units in layers that the checker has, with those layers' numbers."""
    from relutrim.bounds.linear import Backward
    from relutrim.certificate.records import TreeRecord, recorded
    from relutrim.graph.operators import Relu
    from relutrim.prove.hull.proof import Proof

    network = stability.problem.network
    backward = Backward(network, stability.problem.region(), {})
    found, room = [], _PACKED
    for proof in stability.proofs:
        relus = [r.name for r in network.readers(proof.target) if isinstance(r.operator, Relu)]
        numbers = [layers[name] for name in relus if name in layers]
        if not numbers or (isinstance(proof, Proof) and proof.size > 2 * room):
            continue
        record = recorded(proof, backward)
        taken = record.packed_size if isinstance(record, TreeRecord) else 0
        if taken <= room:
            found.append((min(numbers), record))
            room -= taken
    return found


def _proved(
    graph: Graph, domain: Certified, wanted: Sequence[UnitProof]
) -> tuple[dict[str, npt.NDArray[Any]], Ranges]:
    """The checker's ranges with these proofs, as a certificate stores them; without those that are too large
    for the checker, and those of trees that do not decide what they are for, unless others rest on them.
    """
    proofs = streams(wanted)
    try:
        ranges = prove_ranges(graph, domain, stream_of(proofs), deadline=domain.deadline)
    except CheckFailed:
        if not wanted or time.monotonic() > domain.deadline:
            raise
        largest = max(wanted, key=lambda proof: proof.size)
        return _proved(graph, domain, [proof for proof in wanted if proof is not largest])
    decided = [hint.kind != SYMBOL for hint in treatment(ranges.layers)]
    kept = [proof for proof in wanted if not proof.levels or decided[proof.layer][proof.unit]]
    if len(kept) == len(wanted):
        return proofs, ranges
    fewer = _proved(graph, domain, kept)
    left = [hint.kind != SYMBOL for hint in treatment(fewer[1].layers)]
    lost = any((before & ~after).any() for before, after in zip(decided, left, strict=True))
    return (proofs, ranges) if lost else fewer


def _places(graph: Graph, layers: dict[str, int], source: str) -> dict[str, int]:
    """Where each named value's entries begin among all places; ``source`` is the network's input."""
    sizes = [graph.sizes[at + 1] for at in graph.layers]
    starts = np.cumsum([graph.sizes[0], *sizes])
    return {source: 0} | {name: int(starts[number]) for name, number in layers.items()}


def _proofs(
    records: Sequence[tuple[int, Record]], layers: dict[str, int], places: dict[str, int], domain: Certified
) -> list[UnitProof]:
    """The records in the checker's terms."""
    from relutrim.certificate.records import TreeRecord

    box, found = domain.narrowed(), []

    def at(entry: tuple[str, int]) -> Place:
        return layers.get(entry[0], -1), entry[1]

    def place(entry: tuple[str, int]) -> int:
        return places[entry[0]] + entry[1] if entry[0] in places else -1

    for layer, record in records:
        proof = UnitProof(layer, record.entry, record.sign, Leaf())
        if isinstance(record, TreeRecord):
            own = sorted(
                (layers[level.relu], number)
                for number, level in enumerate(record.levels)
                if level.relu in layers
            )
            leaves = []
            for leaf in record.leaves:
                states = {at(entry): on for entry, on in leaf.states.items()}
                leaves.append((states, Leaf(b"".join(leaf.packed[i] for _, i in own))))
            for number, i in own:
                level = record.levels[i]
                values = np.array([[place(value) for value in row] for row in level.values], np.int64)
                proof.levels.append((number, level.entries, values.reshape(len(level.entries), -1)))
            tree = of_states(leaves)
        else:
            tree = of_boxes(box.lo, box.hi, record.lo, record.hi)
        if tree is not None:
            proof.tree = tree
            found.append(proof)
    return found
