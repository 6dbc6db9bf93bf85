"""Networks of convolutions, poolings, moves and branches: bounds, verdicts and rewrites against the truth."""

from __future__ import annotations

import io
import json
import math
from fractions import Fraction

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

import oracle
import spatial
import strategies
from relutrim import Box
from relutrim.analysis import analyze_network
from relutrim.bounds.boxes import bound_boxes
from relutrim.bounds.interval import forward_radius, input_interval, node_interval
from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope
from relutrim.compression import compress_network
from relutrim.domain.region import Region
from relutrim.errors import InputError
from relutrim.graph import (
    BatchNorm,
    Convolution,
    Linear,
    MaxPool,
    Mean,
    Network,
    Node,
    Output,
    Port,
    Relu,
    Scale,
)
from relutrim.prove.recheck import recheck
from relutrim.prove.stability import Channels
from relutrim.prove.verdict import Verdict
from relutrim.report.json import analysis_json, dumps, model_json, schema
from relutrim.report.tables import show_stability

QUICK = {"method": "auto", "time_limit": 5.0, "device": "cpu", "seed": 0, "progress": None}
slow = settings(suppress_health_check=list(HealthCheck))
few = settings(slow, max_examples=40)


@st.composite
def problems(draw: st.DrawFn, **options) -> tuple[Network, strategies.RandomDomain]:
    network = draw(spatial.spatial_networks(**options))
    return network, draw(strategies.domains(network.input.size, rows=0))


def domain_of(random: strategies.RandomDomain, network: Network) -> Box:
    shape = network.input.shape
    return Box(random.lo.reshape(shape), random.hi.reshape(shape))


def some_points(random: strategies.RandomDomain, count: int, seed: int = 0) -> list[list[Fraction]]:
    """Corners of the box, and points that have some coordinates inside."""
    draw = np.random.default_rng(seed)
    found = []
    for k in range(count):
        at_hi = draw.random(len(random.lo)) < 0.5
        share = draw.integers(0, 5, len(random.lo))
        inside = (draw.random(len(random.lo)) < 0.3) & (k >= count // 2)
        found.append(
            [
                Fraction(a) + Fraction(int(t), 4) * (Fraction(b) - Fraction(a))
                if free
                else Fraction(b if up else a)
                for a, b, up, t, free in zip(
                    random.lo.tolist(), random.hi.tolist(), at_hi, share, inside, strict=True
                )
            ]
        )
    return found


def intervals(network: Network, region: Region):
    values = {network.input.name: input_interval(network, region.box())}
    for node in network.nodes:
        values[node.name] = node_interval(node, values)
    return values


def no_lie(low: float, value: Fraction, high: float) -> bool:
    return (not math.isfinite(low) or Fraction(low) <= value) and (
        not math.isfinite(high) or value <= Fraction(high)
    )


@slow
@given(problems(), st.sampled_from(Slope))
def test_interval_and_linear_bounds_hold_at_points(problem, slope):
    network, random = problem
    region = domain_of(random, network).fit(network).region()
    values = intervals(network, region)
    backward = Backward(network, region, values)
    truths = [oracle.evaluate(network, x) for x in some_points(random, 8)]
    for node in network.nodes:
        index = torch.arange(network.size(node.name))
        lower = backward.neurons(node.name, index, 1.0, slope).lower.tolist()
        upper = (-backward.neurons(node.name, index, -1.0, slope).lower).tolist()
        ends = values[node.name]
        for truth in truths:
            for low, value, high in zip(lower, truth[node.name], upper, strict=True):
                assert no_lie(low, value, high)
            for low, value, high in zip(
                ends.lo.flatten().tolist(), truth[node.name], ends.hi.flatten().tolist(), strict=True
            ):
                assert no_lie(low, value, high)


@slow
@given(problems())
def test_a_forward_pass_is_within_its_radius(problem):
    network, random = problem
    region = domain_of(random, network).fit(network).region()
    radius = forward_radius(network, intervals(network, region))
    for x in some_points(random, 4):
        x = [Fraction(float(v)) for v in x]
        assume(random.polytope.contains(x))
        found = network.run(torch.tensor([[float(v) for v in x]], dtype=torch.float64))
        truth = oracle.evaluate(network, x)
        for node in network.nodes:
            for value, true, off in zip(
                found[node.name].flatten().tolist(),
                truth[node.name],
                radius[node.name].flatten().tolist(),
                strict=True,
            ):
                if math.isfinite(value) and math.isfinite(off):
                    assert abs(Fraction(value) - true) <= Fraction(off)


@few
@given(problems())
def test_bounds_on_many_boxes_hold_on_each(problem):
    network, random = problem
    region = domain_of(random, network).fit(network).region()
    middle = (region.lo / 2 + region.hi / 2).clamp(region.lo, region.hi)  # halves underflow
    lo = torch.stack([region.lo, middle, region.lo])
    hi = torch.stack([middle, region.hi, region.hi])
    values, _ = bound_boxes(network, region, {}, lo, hi, network.nodes[-1].name)
    for box in range(3):
        own = strategies.RandomDomain(
            lo[box].numpy(), hi[box].numpy(), random.matrix, random.lower, random.upper, random.point
        )
        for x in some_points(own, 4):
            truth = oracle.evaluate(network, x)
            for node in network.nodes:
                ends = values[node.name]
                at = box if len(ends.lo) == 3 else 0
                for low, value, high in zip(
                    ends.lo[at].flatten().tolist(),
                    truth[node.name],
                    ends.hi[at].flatten().tolist(),
                    strict=True,
                ):
                    assert no_lie(low, value, high)


@few
@given(problems())
def test_no_point_contradicts_a_verdict(problem):
    network, random = problem
    stability = analyze_network(network, domain_of(random, network), data=None, **QUICK)
    for x in some_points(random, 24):
        truth = oracle.evaluate(network, x)
        for layer in stability.layers:
            before = truth[network[layer.name].inputs[0]]
            for verdict, value, low, high in zip(
                layer.verdict, before, layer.lower, layer.upper, strict=True
            ):
                assert verdict != Verdict.ACTIVE or value >= 0
                assert verdict != Verdict.INACTIVE or value <= 0
                assert no_lie(low, value, high)


@few
@given(problems(largest=2, steps=5, max_neurons=12))
def test_verdicts_and_bounds_against_brute_force(problem):
    network, random = problem
    assume(network.input.size <= 4)
    stability = analyze_network(network, domain_of(random, network), data=None, **QUICK)
    exact = oracle.exact_ranges(network, random.polytope)
    for layer in stability.layers:
        for verdict, low, high, (least, most) in zip(
            layer.verdict, layer.lower, layer.upper, exact[layer.name], strict=True
        ):
            assert verdict != Verdict.ACTIVE or least >= 0
            assert verdict != Verdict.INACTIVE or most <= 0
            assert verdict != Verdict.UNSTABLE or least < 0 < most
            assert no_lie(low, least, math.inf)
            assert no_lie(-math.inf, most, high)
    assert not recheck(stability).lost or stability.proofs


@few
@given(problems(extreme=False))
def test_compressed_networks_stay_within_the_proven_deviation(problem):
    network, random = problem
    result = compress_network(network, domain_of(random, network), rewrites="all", **QUICK)
    assert result.network.parameters <= network.parameters
    for smaller, claimed in (
        (result.network, result.deviation.proven_float64),
        (result.stored, result.deviation.proven),
    ):
        assert claimed is not None
        for x in some_points(random, 12):
            before, after = oracle.outputs(network, x), oracle.outputs(smaller, x)
            assert all(abs(a - b) <= Fraction(claimed) for a, b in zip(before, after, strict=True))


def chain(*operators, shape) -> Network:
    nodes, source = [], "x"
    for k, operator in enumerate(operators):
        nodes.append(Node(f"n{k}", operator, (source,)))
        source = f"n{k}"
    return Network(Port("x", shape), tuple(nodes), (Output("y", source),))


def test_batch_norm_behind_a_convolution_is_folded_and_charged():
    draw = np.random.default_rng(0)
    kernel = Convolution(draw.normal(size=(3, 2, 3, 3)), draw.normal(size=3), (1, 1), ((1, 1),) * 2, (1, 1))
    norm = BatchNorm.of(*(draw.random((3, 1, 1)) + 0.5 for _ in range(4)), 1e-5)
    head = Linear(draw.normal(size=(2, 3)), np.zeros(2))
    network = chain(kernel, norm, Relu(), Mean((1, 2), False), head, shape=(2, 4, 4))
    result = compress_network(
        network, Box(-1, 1), rewrites="all", tolerance=1e-4, fold_batch_norm=True, **QUICK
    )
    assert not any(isinstance(node.operator, Scale) for node in result.network.nodes)
    assert 0 < result.deviation.proven_float64 <= 1e-4
    assert any(step.rewrite == "fuse" for step in result.steps)


def test_a_scale_that_differs_within_a_channel_stays():
    kernel = Convolution(np.ones((1, 1, 1)), np.zeros(1), (1,), ((0, 0),), (1,))
    network = chain(kernel, Scale.exactly(np.array([1.0, 2.0, -1.0])), Relu(), shape=(1, 3))
    result = compress_network(network, Box(-1, 1), rewrites="all", **QUICK)
    assert any(isinstance(node.operator, Scale) for node in result.network.nodes)


def test_a_tie_of_a_convolution_is_decided_exactly():
    """``2 * 0.3 - 0.3 - 0.3`` is 0, but its rounding radius is not."""
    kernel = Convolution(np.array([[[2.0, -1.0, -1.0]]]), np.zeros(1), (1,), ((0, 0),), (1,))
    network = chain(kernel, Relu(), shape=(1, 3))
    lo, hi = np.array([[0.3, 0.3, 0.3]]), np.array([[0.4, 0.3, 0.3]])
    stability = analyze_network(network, Box(lo, hi), data=None, **QUICK)
    assert Verdict(stability.layers[0].verdict[0]) is Verdict.ACTIVE


def test_mixed_integer_programs_decline_maxima_and_name_the_node():
    pool = MaxPool((2,), (2,), ((0, 0),), (1,))
    network = chain(Scale.exactly(1.0, -0.5), pool, Relu(), shape=(1, 4))
    for method in ("isa", "layer", "neuron"):
        with pytest.raises(InputError, match=r"'n1' is a MaxPool.*--method auto"):
            analyze_network(network, Box(0, 1), data=None, **{**QUICK, "method": method})


def test_mixed_integer_programs_take_convolutions():
    draw = np.random.default_rng(1)
    kernel = Convolution(draw.normal(size=(2, 1, 2)), draw.normal(size=2), (1,), ((1, 0),), (1,))
    second = Convolution(draw.normal(size=(2, 2, 2)), draw.normal(size=2), (2,), ((0, 0),), (1,))
    network = chain(kernel, Relu(), second, Relu(), shape=(1, 4))
    by = {
        method: analyze_network(network, Box(-1, 1), data=None, **{**QUICK, "method": method})
        for method in ("auto", "isa", "neuron")
    }
    for method in ("isa", "neuron"):
        for one, other in zip(by["auto"].layers, by[method].layers, strict=True):
            assert (one.verdict == other.verdict).all()


def test_channels_are_counted_where_a_layer_has_positions():
    kernel = Convolution(
        np.array([[[1.0]], [[-1.0]], [[1.0]]]), np.array([0.0, 0.0, -0.5]), (1,), ((0, 0),), (1,)
    )
    network = chain(kernel, Relu(), Mean((1,), False), Relu(), shape=(1, 3))
    stability = analyze_network(network, Box(0, 1), data=None, **QUICK)
    assert stability.layers[0].channels == Channels(active=1, inactive=1, mixed=1)
    assert stability.layers[1].channels is None
    report = json.loads(dumps(analysis_json(stability, model_json(network))))
    jsonschema.validate(report, schema("analysis"))
    assert report["layers"][0]["channels"] == {"count": 3, "active": 1, "inactive": 1, "mixed": 1}
    assert "channels" not in report["layers"][1]
    text = io.StringIO()
    show_stability(stability, Console(file=text, width=200))
    assert "1 active, 1 inactive, 1 mixed" in text.getvalue()
