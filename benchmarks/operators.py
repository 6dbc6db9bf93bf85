"""What an adjoint that is written out saves over the one that follows from the product."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.results import table, write_section
from relutrim.graph.operators import Add, Affine, AveragePool, Convolution, Linear, Scale, Transpose
from relutrim.graph.operators.affine import View
from relutrim.graph.operators.base import Shape

HEADER = ("operator", "forms", "product, ms", "derived adjoint, ms", "its own, ms", "equal to the bit")
_REPEAT = 7


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=__doc__)
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    text = table(HEADER, [_measured(*case) for case in _cases()])
    print(text)
    if options.section:
        write_section(
            options.section, text, f"OMP_NUM_THREADS=1 python -m benchmarks.operators {shlex.join(arguments)}"
        )


def _cases() -> Iterator[tuple[str, int, Any, list[Shape]]]:
    random = np.random.default_rng(0)
    same = {"stride": (1, 1), "dilation": (1, 1), "padding": ((1, 1), (1, 1))}
    image = (16, 32, 32)
    yield "Linear 100x100", 64, Linear(random.normal(size=(100, 100)), np.zeros(100)), [(100,)]
    yield "Linear 784x800", 512, Linear(random.normal(size=(800, 784)), np.zeros(800)), [(784,)]
    small = Convolution(random.normal(size=(8, 3, 3, 3)), np.zeros(8), **same)
    yield "Convolution 3x8x8, 3x3", 8, small, [(3, 8, 8)]
    wide = Convolution(random.normal(size=(32, 16, 3, 3)), np.zeros(32), **same)
    yield "Convolution 16x32x32, 3x3", 64, wide, [image]
    yield "Scale 16x32x32", 64, Scale.exactly(random.normal(size=(16, 1, 1))), [image]
    yield "Add 16x32x32", 64, Add(2), [image, image]
    yield "Transpose 16x32x32", 64, Transpose((1, 2, 0)), [image]
    yield "AveragePool 16x32x32, 2x2", 64, AveragePool((2, 2), (2, 2), ((0, 0), (0, 0))), [image]


def _measured(name: str, count: int, operator: Affine, inputs: list[Shape]) -> Sequence[object]:
    forms = torch.randn(count, *operator.output_shape(inputs), dtype=torch.float64)
    given = [torch.randn(count, *shape, dtype=torch.float64) for shape in inputs]
    written_out = type(operator).pulled_back is not Affine.pulled_back
    derived = Affine.pulled_back(operator, View.VALUE, forms, inputs)
    own = operator.pulled_back(View.VALUE, forms, inputs)
    return (
        name,
        count,
        _milliseconds(lambda: operator.forward(given)),
        _milliseconds(lambda: Affine.pulled_back(operator, View.VALUE, forms, inputs)),
        _milliseconds(lambda: operator.pulled_back(View.VALUE, forms, inputs)) if written_out else "",
        all(bool((one == other).all()) for one, other in zip(derived, own, strict=True)),
    )


def _milliseconds(run: Callable[[], object]) -> str:
    """The least of several runs."""
    best = float("inf")
    for _ in range(_REPEAT):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return f"{1000 * best:.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
