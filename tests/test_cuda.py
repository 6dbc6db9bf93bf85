"""The GPU gives the same verdicts as the CPU. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import relutrim

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

DOMAINS = {
    "box": relutrim.Box(0, 1),
    "normalised": relutrim.NormalizedBox(0, 1, 0.1307, 0.3081),
    "constrained": relutrim.Box(0, 1).sum_between(15, 320),
}


@pytest.mark.parametrize("kind", DOMAINS)
def test_verdicts_on_the_gpu_are_those_of_the_cpu(kind):
    network = relutrim.load(relutrim.demo_model())
    cpu = relutrim.analyze(network, DOMAINS[kind])
    gpu = relutrim.analyze(network, DOMAINS[kind], device="cuda")
    for one, other in zip(cpu.layers, gpu.layers, strict=True):
        np.testing.assert_array_equal(one.verdict, other.verdict)


def test_compression_with_an_analysis_on_the_gpu_is_the_same():
    cpu = relutrim.compress(relutrim.demo_model(), relutrim.Box(0, 1))
    gpu = relutrim.compress(relutrim.demo_model(), relutrim.Box(0, 1), device="cuda")
    assert cpu.network.widths == gpu.network.widths
    assert gpu.deviation.proven == pytest.approx(cpu.deviation.proven, rel=0.1)
