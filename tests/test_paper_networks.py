"""The paper's networks, where they are at hand: verdicts hold, and LEO++ removes what Algorithm 2 implies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import relutrim
from relutrim.prove.verdict import Verdict

# Stable neurons (active, inactive) per layer that interval and linear bounds prove; what is decided in all.
KNOWN = {
    "mnist_2x100_l1_0.0002_s0": ([(29, 21), (24, 8)], True),
    "mnist_2x400_l1_0.0002_s0": ([(270, 79), (284, 50)], True),
    "mnist_2x800_l1_0.0001_s0": ([(540, 151), (454, 137)], True),
    "mnist_3x100_l1_0.000125_s0": ([(9, 10), (3, 2), (7, 4)], True),
    "mnist_4x100_l1_0.0001_s0": ([(3, 8), (1, 0), (0, 1), (0, 2)], False),
    "mnist_5x100_l1_0.0002_s0": ([(13, 22), (21, 22), (39, 13), (41, 20), (37, 21)], False),
    "cifar10_2x400_l1_0.000175_s0": ([(67, 304), (104, 143)], True),
}


@pytest.fixture(scope="module", params=KNOWN)
def analysed(request, shared):
    network = relutrim.load(shared / "networks" / "paper" / f"{request.param}.onnx")
    return request.param, network, relutrim.analyze(network, relutrim.Box(0, 1), time_limit=3)


def test_at_least_the_known_stable_neurons_are_found(analysed):
    name, _, stability = analysed
    known, complete = KNOWN[name]
    for layer, (active, inactive) in zip(stability.layers, known, strict=True):
        assert layer.count(Verdict.ACTIVE) >= active
        assert layer.count(Verdict.INACTIVE) >= inactive
    assert stability.count(Verdict.UNKNOWN) <= (0 if complete else 5)


def test_no_sampled_input_contradicts_a_verdict(analysed):
    _, network, stability = analysed
    generator = torch.Generator().manual_seed(11)
    x = torch.rand(4000, network.input.size, generator=generator, dtype=torch.float64)
    x[::2] = (x[::2] < torch.rand(2000, 1, generator=generator, dtype=torch.float64)).to(x)
    values = network.run(x)
    for layer in stability.layers:
        y = values[network[layer.name].inputs[0]].numpy()
        assert (y[:, layer.verdict == Verdict.ACTIVE] > -1e-9).all()
        assert (y[:, layer.verdict == Verdict.INACTIVE] < 1e-9).all()


def test_witnesses_show_both_states_of_every_unstable_neuron(analysed):
    _, network, stability = analysed
    values = network.run(torch.as_tensor(stability.witnesses))
    for layer in stability.layers:
        y = values[network[layer.name].inputs[0]].numpy()
        neurons = np.flatnonzero(layer.verdict == Verdict.UNSTABLE)
        assert (y[layer.active_witness[neurons], neurons] > 0).all()
        assert (y[layer.inactive_witness[neurons], neurons] < 0).all()


def test_leo_removes_the_inactive_and_merges_what_is_dependent(analysed):
    _, network, _ = analysed
    result = relutrim.compress(network, relutrim.Box(0, 1), rewrites="leo++", time_limit=3)
    stability = result.stability  # its own: on a busy machine two analyses decide other neurons in time
    left = network.input.size
    for layer, width in zip(stability.layers, result.network.widths[1:-1], strict=True):
        # Trained weights are in general position: the active rows have rank min(|Q|, inputs).
        active = min(layer.count(Verdict.ACTIVE), left)
        left = active + layer.count(Verdict.UNSTABLE) + layer.count(Verdict.UNKNOWN)
        assert width == left
    x = torch.as_tensor(stability.witnesses)
    truth = network(x)
    assert float((result.network(x) - truth).abs().max()) <= 1e-9 * float(truth.abs().max())
    assert float((result.stored(x) - truth).abs().max()) <= result.deviation.proven + 1e-9 * float(
        truth.abs().max()
    )
