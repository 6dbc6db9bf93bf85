"""How the cost of an analysis grows with width, depth and the number of inputs.

The networks are made here, with a fixed seed, to resemble l1-trained ones: Kaiming-normal weights of which
each row keeps its largest fiftieth while the rest is scaled by 1e-6, and biases of standard deviation 0.3.
The domain is [0, 1]^n, the time limit 20 s for each. The floor is one pass of linear bounds over all layers.
"""

from __future__ import annotations

import numpy as np

from benchmarks.results import table, write_section
from benchmarks.stability import analyzed, floor
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.prove.verdict import Verdict

SEED = 0
TIME_LIMIT = 20.0
OUTPUTS = 10
WIDTHS = (100, 200, 400, 800, 1600, 3200)
DEPTHS = (2, 3, 4, 5, 6, 8, 10)
INPUTS = (784, 1536, 3072, 6144, 12288)
HEADER = ("neurons", "stable", "unknown", "seconds", "floor", "ratio")


def main() -> None:
    analyzed(made(), Box(0, 1), 2.0)  # the first call pays for torch's start-up
    parts = (
        ("width", "depth 2, 784 inputs", {width: made(width=width) for width in WIDTHS}),
        ("depth", "width 100, 784 inputs", {depth: made(depth=depth) for depth in DEPTHS}),
        ("inputs", "depth 2, width 100", {inputs: made(inputs=inputs) for inputs in INPUTS}),
    )
    tables = []
    for what, fixed, networks in parts:
        rows = []
        for size, network in networks.items():
            rows.append([size, *_measured(network)])
            print(what, *rows[-1], flush=True)
        tables.append(f"By {what}; {fixed}:\n\n{table((what, *HEADER), rows)}")
    note = f"Networks made with seed {SEED}, at most {TIME_LIMIT:g} s for each."
    write_section("growth", "\n\n".join([note, *tables]))


def made(inputs: int = 784, width: int = 100, depth: int = 2) -> Network:
    """A network of ``depth`` hidden layers, the same for the same sizes."""
    random = np.random.default_rng([SEED, inputs, width, depth])
    nodes, last = [], "x"
    for layer in range(depth):
        nodes.append(Node(f"linear{layer}", _linear(random, width if layer else inputs, width), (last,)))
        last = f"relu{layer}"
        nodes.append(Node(last, Relu(), (f"linear{layer}",)))
    nodes.append(Node("y", _linear(random, width, OUTPUTS), (last,)))
    return Network(Port("x", (inputs,)), tuple(nodes), (Output("y", "y"),))


def _linear(random: np.random.Generator, inputs: int, outputs: int) -> Linear:
    weight = random.normal(scale=np.sqrt(2 / inputs), size=(outputs, inputs))
    size = np.abs(weight)
    kept = size >= np.quantile(size, 0.98, axis=1, keepdims=True)
    return Linear(np.where(kept, weight, 1e-6 * weight), random.normal(scale=0.3, size=outputs))


def _measured(network: Network) -> list[object]:
    stability = analyzed(network, Box(0, 1), TIME_LIMIT)
    least = floor(network, Box(0, 1))
    return [
        network.neurons,
        stability.count(Verdict.ACTIVE) + stability.count(Verdict.INACTIVE),
        stability.count(Verdict.UNKNOWN),
        f"{stability.seconds:.3f}",
        f"{least:.3f}",
        f"{stability.seconds / least:.1f}",
    ]


if __name__ == "__main__":
    main()
