"""Certificates that lie, and would be believed if one test of a proof were missing.

A proof of a unit of a valid certificate is kept, and the unit moved (by its bias, in both files) until an
input contradicts what the proof is for, barely. Most leaves of the tree, or parts of the domain, still prove
their share; the one with that input does not. So the lie is rejected as it is, and a checker that does not
see that a leaf is missing, or is about another case, accepts what is left. Everything else about it is true:
both files are the same network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from attacks.forging import forged, hint_of, network_of, proofs_of, repacked, unpacked
from attacks.victims import Victim
from relutrim.certificate.trees import Split
from relutrim.graph import Linear, Network
from relutrim.io.onnx.write import network_to_proto

_TRIED = 512
_STEPS = 300
_ROOM = 1e-3
"""How far beyond 0 the unit gets, as a share of what it was moved by."""


def lies(victim: Victim) -> Iterator[Victim]:
    """One for every proof of a victim that has several leaves or parts; its network is dense."""
    network = network_of(victim.model)
    for number, proof in enumerate(proofs_of(victim.arrays)):
        if isinstance(proof.tree, Split):
            yield lie(victim, network, number)


def lie(victim: Victim, network: Network, number: int) -> Victim:
    """With one proof of something that is not so."""
    proof = proofs_of(victim.arrays)[number]
    layer, unit, sign = proof.layer, proof.unit, proof.sign
    lo, hi = victim.arrays["domain.lo"], victim.arrays["domain.hi"]
    point, least = smallest(network, layer, unit, sign, lo, hi)
    model = moved(network, layer, unit, -sign * (1 + _ROOM) * least)
    sizes = [network.size(relu.name) for relu in network.relus]
    kinds = [np.zeros(size, int) for size in sizes]
    kinds[layer][unit] = 1 if sign > 0 else 2
    content = forged(
        model,
        model,
        lo.tolist(),
        hi.tolist(),
        model_hints=[hint_of(kind.tolist()) for kind in kinds],
        bound=1e-6,
        slack=0.0,
    )
    document, arrays, others = unpacked(content)
    arrays |= {name: array for name, array in victim.arrays.items() if name.startswith("proof.")}
    name = f"lie {number} about {victim.name}"
    return Victim(name, model, model, repacked(document, arrays, others), points=point[None])


def smallest(
    network: Network, layer: int, unit: int, sign: int, lo: np.ndarray, hi: np.ndarray
) -> tuple[np.ndarray, float]:
    """An input where ``sign *`` the unit's pre-activation is about as small as it gets, and that value."""
    rng, name = np.random.default_rng(0), network.relus[layer].inputs[0]

    def values(x: np.ndarray) -> np.ndarray:
        y = network.run(torch.as_tensor(x), until=[name])[name]
        return sign * y.reshape(len(x), -1)[:, unit].numpy()

    x = lo + (hi - lo) * rng.random((_TRIED, lo.size)).round()
    best = values(x)
    for step in range(_STEPS):
        width = (hi - lo) * 0.5 ** (step / 20)
        moved = np.clip(x + width * rng.normal(size=x.shape) * (rng.random(x.shape) < 0.4), lo, hi)
        found = values(moved)
        better = found < best
        x[better], best[better] = moved[better], found[better]
    at = int(best.argmin())
    return x[at], float(best[at])


def moved(network: Network, layer: int, unit: int, by: float) -> bytes:
    """The network with the bias of one unit moved by about that much."""
    node = network[network.relus[layer].inputs[0]]
    assert isinstance(node.operator, Linear)
    bias = np.array(node.operator.bias)
    bias[unit] = np.float32(bias[unit] + by)
    operator = replace(node.operator, bias=bias)
    made = network.edit(change={node.name: replace(node, operator=operator)})
    return bytes(network_to_proto(made).SerializeToString(deterministic=True))
