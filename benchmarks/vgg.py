"""A convolutional network of VGG-11's size: time and memory of interval and linear bounds.

Eight convolutions (9.2 million weights), max pooling, batch norm folded away, one linear layer; 32x32 images,
random weights of a fixed seed, on a box of a given radius around a random image. ``--method bounds`` goes
through every layer, layer by layer; what a limit leaves is unknown.
"""

from __future__ import annotations

import argparse
import resource
import shlex
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.results import table, write_section
from relutrim.analysis import analyze
from relutrim.domain import Ball
from relutrim.graph import Linear, Network, Node, Output, Port, Relu, Reshape
from relutrim.graph.operators import Convolution, MaxPool
from relutrim.prove.verdict import Verdict

PLAN = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
"""Channels of each convolution; 0 is a max pooling."""
HEADER = ("layer", "units", "active", "inactive", "unknown")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vgg", description=__doc__)
    parser.add_argument("--radius", type=float, default=0.002, help="of the box [0.002]")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="S", help="[600]")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    options = parser.parse_args(arguments)
    network = vgg11()
    centre = np.random.default_rng(1).uniform(size=network.input.shape)
    started = time.perf_counter()
    stability = analyze(
        network,
        Ball(centre, options.radius),
        method="bounds",
        time_limit=options.time_limit,
        device=options.device,
    )
    seconds = time.perf_counter() - started
    rows = [
        [
            layer.name,
            layer.size,
            *(layer.count(v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNKNOWN)),
        ]
        for layer in stability.layers
    ]
    memory = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB resident at most"
    if options.device != "cpu":
        memory += f", {torch.cuda.max_memory_allocated() / 2**30:.2f} GB on the device"
    text = (
        f"{network.parameters:,} parameters, {network.neurons:,} units; {seconds:.1f} s "
        f"(limit {options.time_limit:g} s), {memory}.\n\n{table(HEADER, rows)}"
    )
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.vgg", *arguments]))
    else:
        print(text)


def vgg11() -> Network:
    """He's initialisation, biases of 0."""
    rng = np.random.default_rng(0)
    nodes: list[Node] = []
    name, channels, size = "x", 3, 32
    for number, width in enumerate(PLAN):
        if width:
            weight = rng.normal(size=(width, channels, 3, 3)) * np.sqrt(2 / (9 * channels))
            conv = Convolution(weight, np.zeros(width), (1, 1), ((1, 1), (1, 1)), (1, 1))
            nodes += [Node(f"conv{number}", conv, (name,)), Node(f"relu{number}", Relu(), (f"conv{number}",))]
            name, channels = f"relu{number}", width
        else:
            pool = MaxPool((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1))
            nodes.append(Node(f"pool{number}", pool, (name,)))
            name, size = f"pool{number}", size // 2
    flat = channels * size * size
    nodes.append(Node("flat", Reshape((channels, size, size), (flat,)), (name,)))
    nodes.append(Node("y", Linear(rng.normal(size=(10, flat)) * np.sqrt(1 / flat), np.zeros(10)), ("flat",)))
    return Network(Port("x", (3, 32, 32)), tuple(nodes), (Output("y", "y"),))


if __name__ == "__main__":
    main(sys.argv[1:])
