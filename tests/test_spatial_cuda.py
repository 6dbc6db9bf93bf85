"""Convolutions and maxima on CUDA: the same bounds as on the CPU, up to rounding, and without cuDNN."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relutrim import Box
from relutrim.analysis import analyze_network
from relutrim.graph import (
    AveragePool,
    Convolution,
    Linear,
    MaxPool,
    Network,
    Node,
    Output,
    Port,
    Relu,
    Reshape,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def network() -> Network:
    draw = np.random.default_rng(0)
    ones = ((1, 1), (1, 1))
    operators = [
        Convolution(draw.normal(size=(4, 2, 3, 3)), draw.normal(size=4), (1, 1), ones, (1, 1)),
        Relu(),
        MaxPool((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)),
        Convolution(
            draw.normal(size=(4, 2, 3, 3)) / 4, draw.normal(size=4), (2, 1), ((2, 0), (1, 1)), (1, 2), 2
        ),
        Relu(),
        AveragePool((2, 2), (1, 1), ones),
        Relu(),
    ]
    nodes, source, shape = [], "x", (2, 8, 8)
    for k, operator in enumerate(operators):
        nodes.append(Node(f"n{k}", operator, (source,)))
        shape, source = operator.output_shape([shape]), f"n{k}"
    size = int(np.prod(shape))
    nodes.append(Node("flat", Reshape(shape, (size,)), (source,)))
    nodes.append(Node("out", Linear(draw.normal(size=(3, size)), np.zeros(3)), ("flat",)))
    return Network(Port("x", (2, 8, 8)), tuple(nodes), (Output("y", "out"),))


def test_bounds_on_cuda_are_those_of_the_cpu():
    found = [
        analyze_network(
            network(),
            Box(0.4, 0.6),
            data=None,
            method="bounds",
            time_limit=60.0,
            device=device,
            seed=0,
            progress=None,
        )
        for device in ("cpu", "cuda")
    ]
    for one, other in zip(found[0].layers, found[1].layers, strict=True):
        assert np.allclose(one.lower, other.lower, rtol=0, atol=1e-9)
        assert np.allclose(one.upper, other.upper, rtol=0, atol=1e-9)


def test_float64_convolutions_leave_cudnn_out():
    from torch.profiler import ProfilerActivity, profile

    kernel = network().nodes[0].operator
    x = torch.rand(8, 2, 8, 8, dtype=torch.float64, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        y = kernel.forward([x])
        kernel.adjoint(y, [(2, 8, 8)])
        torch.cuda.synchronize()
    assert not [event.key for event in seen.key_averages() if "cudnn" in event.key.lower()]
