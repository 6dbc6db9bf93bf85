"""Certificates of small networks, and what an attacker could make of them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

import oracle
from relutrim.certificate.check import Report, check
from relutrim.certificate.write import Certificate
from relutrim.compression import Compression, compress_network
from relutrim.domain import Box, Domain
from relutrim.graph import Linear, Network, Node
from rewriting import QUICK, dense, linear
from strategies import RandomDomain


def small() -> Network:
    """On the unit square: one active, one inactive and two unstable neurons, twice."""
    first = linear([[1, 1], [-1, -1], [1, -1], [0.5, -1]], [1, -1, 0, 0.125])
    second = linear([[1, 1, 1, 1], [-1, 0, 0, -1], [1, 0, -3, 1], [1, -1, 2, -4]], [0.5, -0.25, 0, 0.375])
    return dense(first, second, linear([[1, 2, 3, 4], [1, -1, 1, -1]]), dtype="float32")


def certified(network: Network, domain: Domain | None = None, **options: Any) -> Compression:
    return compress_network(network, domain or Box(0, 1), certificate=True, **{**QUICK, **options})


def proof_of(result: Compression) -> Certificate:
    assert result.certificate is not None
    return result.certificate


def files(result: Compression) -> tuple[bytes, bytes, bytes]:
    """MODEL, OUT and the certificate."""
    proof = proof_of(result)
    return proof.models["model"], proof.models["out"], proof.content()


def recheck(result: Compression, **options: Any) -> Report:
    return check(*files(result), **options)


def as_domain(random: RandomDomain, network: Network) -> Domain:
    shape = network.input.shape
    domain = Box(random.lo.reshape(shape), random.hi.reshape(shape))
    return domain.constrain(random.matrix, random.lower, random.upper) if len(random.matrix) else domain


def true_gap(one: Network, other: Network, domain: oracle.Polytope) -> Fraction:
    return max(oracle.largest_deviations(one, other, domain), default=Fraction(0))


def entries(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return target.getvalue()


def edited(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The certificate with another document."""
    parts = entries(content)
    document = json.loads(parts["certificate.json"])
    change(document)
    parts["certificate.json"] = json.dumps(document).encode()
    return packed(parts)


def with_array(content: bytes, name: str, array: np.ndarray) -> bytes:
    """The certificate with another array, listed as it is."""
    from relutrim.certificate.check.archive import sha256

    parts = entries(content)
    document = json.loads(parts["certificate.json"])
    parts[f"arrays/{name}.bin"] = array.tobytes()
    document["arrays"][name] |= {"shape": list(array.shape), "sha256": sha256(array.tobytes())}
    parts["certificate.json"] = json.dumps(document).encode()
    return packed(parts)


def packed_leaf(random: Random, shapes: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of a leaf, as they come, for levels of so many units with so many places each."""
    found = b""
    for units, width in shapes:
        some = random.choice([[0, 255], [0, 1, 128, 254, 255]])
        head = random.choices(some, k=5 * units)
        pushes = random.choices([0.0, -0.25, 1e-45, 0.3, 1, -2], k=units)
        cuts = sum(byte > 0 for byte in head[4 * units :])
        found += bytes(head) + np.array(pushes, "<f4").tobytes()
        found += bytes(random.choices(range(256), k=cuts * width))
    return found


def for_out(content: bytes, out: bytes) -> bytes:
    """The certificate with another OUT's hash: what a forger would do first."""
    from relutrim.certificate.check.archive import sha256

    return edited(content, lambda document: document["out"].update(sha256=sha256(out)))


def nudged(network: Network, which: int, by: float) -> Network:
    """The network with one weight or bias moved."""
    places = [
        (node, name, index)
        for node in network.nodes
        if isinstance(node.operator, Linear)
        for name in ("weight", "bias")
        for index in np.ndindex(getattr(node.operator, name).shape)
    ]
    node, name, index = places[which % len(places)]
    array = np.array(getattr(node.operator, name))
    array[index] += by
    operator = replace(node.operator, **{name: array})
    return network.edit(change={node.name: Node(node.name, operator, node.inputs)})
