"""What other ways of making a network smaller do to the paper's MNIST networks, beside relutrim.

Tools that simplify ONNX graphs (where they are installed), the paper's LEO++, and pruning by magnitude to as
many connections as relutrim leaves, with what that does to outputs and predictions on MNIST's test images.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from benchmarks.mnist import images
from benchmarks.results import shared, table, write_section
from relutrim.compression import compress
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node
from relutrim.io import load

HEADER = (
    "network",
    "connections",
    "onnxsim",
    "onnxslim",
    "LEO++",
    "relutrim",
    "magnitude",
    "moves by",
    "predictions changed",
    "relutrim moves by",
    "predictions changed",
)
_NETWORKS = (
    "mnist_2x100_l1_0.0002_s0",
    "mnist_2x400_l1_0.0002_s0",
    "mnist_2x800_l1_0.0001_s0",
    "mnist_5x100_l1_0.0002_s0",
)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("networks", nargs="*", metavar="NAME", help="of networks in networks/paper")
    options = parser.parse_args(arguments)
    test = images("t10k")
    if test is None:
        sys.exit("MNIST is not there")
    x = torch.as_tensor(test, dtype=torch.float64)
    rows = []
    for name in options.networks or _NETWORKS:
        path = shared() / "networks" / "paper" / f"{name}.onnx"
        network = load(path)
        leo = compress(network, Box(0, 1), rewrites="leo++", time_limit=5).stored
        ours = compress(network, Box(0, 1), time_limit=5).stored
        pruned = by_magnitude(network, ours.connections)
        rows.append(
            [
                name,
                f"{network.connections:,}",
                *(simplified(path, tool) for tool in ("onnxsim", "onnxslim")),
                f"{leo.connections:,}",
                f"{ours.connections:,}",
                f"{pruned.connections - pruned.zeros:,}",
                *moved(network, pruned, x),
                *moved(network, ours, x),
            ]
        )
        print(*rows[-1], flush=True)
    text = (
        "Connections left by each. Pruning by magnitude keeps the largest weights, as many as relutrim "
        "leaves; all are given the same files. Differences are in float64, over MNIST's test images.\n\n"
        f"{table(HEADER, rows)}"
    )
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.beside", *arguments]))
    else:
        print(text)


def simplified(path: Path, tool: str) -> str:
    """How many connections a tool for graphs leaves."""
    if find_spec(tool) is None:
        return "not installed"
    made: Any = getattr(sys.modules[__name__], f"_{tool}")(onnx.load(path))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "simplified.onnx"
        onnx.save(made, target)
        return f"{load(target).connections:,}"


def _onnxsim(model: Any) -> Any:
    import onnxsim

    return onnxsim.simplify(model)[0]


def _onnxslim(model: Any) -> Any:
    import onnxslim

    return onnxslim.slim(model)


def by_magnitude(network: Network, left: int) -> Network:
    """The network with 0 for all weights but the ``left`` largest."""
    layers = {n.name: n.operator for n in network.nodes if isinstance(n.operator, Linear)}
    sizes = np.sort(np.concatenate([np.abs(linear.weight).ravel() for linear in layers.values()]))
    least = sizes[len(sizes) - left]
    change: dict[str, Node | None] = {
        name: Node(
            name, Linear(np.where(np.abs(o.weight) >= least, o.weight, 0.0), o.bias), network[name].inputs
        )
        for name, o in layers.items()
    }
    return network.edit(change=change)


def moved(network: Network, other: Network, x: torch.Tensor) -> tuple[str, str]:
    """The largest difference of an output, and how often another one is the largest."""
    before, after = network(x), other(x)
    changed = (before.argmax(1) != after.argmax(1)).double().mean()
    return f"{float((before - after).abs().max()):.1e}", f"{100 * float(changed):.2f}%"


if __name__ == "__main__":
    main(sys.argv[1:])
