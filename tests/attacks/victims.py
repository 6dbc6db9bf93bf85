"""Networks to attack, each with its valid certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from attacks.forging import onnx_of, unpacked
from certifying import files
from relutrim.compression import compress_network
from relutrim.domain import Box, Domain
from relutrim.graph import Network
from relutrim.io.onnx.read import network_from_proto
from rewriting import dense, linear

OPTIONS: dict[str, Any] = {"method": "auto", "time_limit": 3.0, "device": "cpu", "seed": 0, "progress": None}


@dataclass(eq=False)
class Victim:
    """Two files and the certificate about them."""

    name: str
    model: bytes
    out: bytes
    certificate: bytes
    points: np.ndarray | None = None
    """Inputs to look at where there is a suspicion, one a row."""
    document: dict[str, Any] = field(init=False)
    arrays: dict[str, np.ndarray] = field(init=False)
    others: dict[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.document, self.arrays, self.others = unpacked(self.certificate)


def victim(
    name: str, network: Network, domain: Domain | None = None, tolerance: Any = "exact", **options: Any
) -> Victim:
    """The network's compression, certified."""
    made = compress_network(
        network, domain or Box(0, 1), certificate=True, tolerance=tolerance, **{**OPTIONS, **options}
    )
    return Victim(name, *files(made))


def random_dense(rng: np.random.Generator, inputs: int, widths: list[int], outputs: int) -> Network:
    """Random float32 weights, biases that make about half of the neurons stable, and twins among them."""
    layers, before = [], inputs
    for width in [*widths, outputs]:
        weight = rng.normal(size=(width, before)) * (rng.random((width, before)) < 0.8)
        reach = np.abs(weight).sum(1)
        bias = rng.choice([-0.6, -0.1, 0.0, 0.1, 0.6], width) * reach - weight.sum(1) / 2
        if width > 3 and width != outputs:
            factor = rng.choice([2.0, 0.5, -1.0])
            weight[1], bias[1] = factor * weight[0], factor * bias[0]
        layers.append(linear(weight.astype(np.float32), bias.astype(np.float32)))
        before = width
    return dense(*layers, dtype="float32")


def branching(seed: int, inputs: int) -> Network:
    """Bounds leave units to trees of several leaves, or, with few inputs, to parts of the box."""
    rng, widths = np.random.default_rng(seed), [inputs, 8, 8, 6, 2]
    return dense(
        *(
            linear(
                (rng.normal(size=(after, before)) / before**0.5).astype(np.float32),
                (0.7 * rng.normal(size=after)).astype(np.float32),
            )
            for before, after in pairwise(widths)
        ),
        dtype="float32",
    )


def trees(count: int) -> list[Victim]:
    """So many whose proofs have trees, and half as many whose proofs have parts."""
    seeds = [("trees", seed, 8) for seed in (39, 34, 32, 31, 2, 6)[:count]]
    seeds += [("parts", seed, 4) for seed in (10, 3, 8)[: count // 2]]
    return [
        victim(f"{name} {seed}", branching(seed, inputs), Box(-1, 1), time_limit=60.0)
        for name, seed, inputs in seeds
    ]


def turned_on() -> Network:
    """The second layer is positive wherever the first is off, and not elsewhere: half a proof is a lie."""
    return dense(
        linear([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [-0.5, -0.5, -0.875]),
        linear([[-1.0, 0, 0], [0, -1.0, 0], [1.0, -1.0, -0.5]], [0.25, 0.125, 0.0625]),
        linear([[1.0, 2.0, 3.0], [1.0, -1.0, 1.0]], [0.5, 0.0]),
        dtype="float32",
    )


def convolutional(rng: np.random.Generator) -> Network:
    """A convolution, a maximum over windows and a dense layer."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "k", "c"], ["a"], pads=[0, 1, 1, 0]),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["d"], ["e"]),
        node("Gemm", ["e", "w", "v"], ["f"], transB=1),
        node("Relu", ["f"], ["g"]),
        node("Gemm", ["g", "u"], ["y"], transB=1),
    ]

    def numbers(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    constants = {
        "k": numbers(3, 1, 2, 2),
        "c": np.array([2.5, -0.2, -4.0], np.float32),
        "w": numbers(4, 12),
        "v": np.array([0.5, -0.5, 20.0, -20.0], np.float32),
        "u": numbers(2, 4),
    }
    content = onnx_of(nodes, [1, 1, 4, 4], constants, double=False)
    import onnx

    return network_from_proto(onnx.ModelProto.FromString(content))


def victims(seed: int, count: int = 20, shared: Path | None = None) -> list[Victim]:
    """So many, from all families; the shipped demo and, where a folder is named, the paper's among them."""
    from relutrim.examples import demo_model
    from relutrim.io import load

    rng, found = np.random.default_rng(seed), [victim("turned on", turned_on(), method="bounds")]
    found += trees(count // 3)
    if count > 4:
        found.append(victim("demo", load(demo_model())))
    if shared is not None:
        paths = sorted((shared / "networks" / "paper").glob("mnist_2x100*.onnx"))[:2]
        found += [victim(path.stem, load(path)) for path in paths]
    while len(found) < count:
        number = len(found)
        kind = number % 5
        if kind == 0:
            made = victim(f"convolution {number}", convolutional(rng))
        elif kind == 1:
            box = Box(0, 1).sum_between(0.5, 2.0)
            made = victim(f"constrained {number}", random_dense(rng, 3, [5, 4], 2), box)
        elif kind == 2:
            made = victim(f"tolerant {number}", random_dense(rng, 2, [6, 5], 2), tolerance=0.05)
        elif kind == 3:
            made = victim(f"deep {number}", random_dense(rng, 8, [8, 8, 6], 3))
        else:
            made = victim(f"bounds {number}", random_dense(rng, 3, [6, 4, 4], 2), method="bounds")
        found.append(made)
    return found
