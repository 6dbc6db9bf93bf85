"""Certificates end to end: what is certified is true, and what is false is not certified."""

from __future__ import annotations

import json
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import oracle
from certifying import (
    as_domain,
    certified,
    entries,
    files,
    for_out,
    nudged,
    proof_of,
    recheck,
    small,
    true_gap,
)
from onnx_models import model, op
from relutrim.analysis import analyze
from relutrim.certificate import schema
from relutrim.certificate.check import Asked, check
from relutrim.certificate.groundwork import Groundwork
from relutrim.certificate.write import certifiable, certify
from relutrim.compression import compress
from relutrim.domain import Box, NormalizedBox
from relutrim.errors import CheckFailed, InputError, RelutrimError, UnsupportedError
from relutrim.graph import Add, MaxPool, Mean, Network, Node, Output, Port, Relu, Reshape, Take
from relutrim.io.onnx.write import network_to_proto
from rewriting import dense, graph, linear
from spatial import spatial_networks
from strategies import problems

SLOW = settings(max_examples=40, suppress_health_check=list(HealthCheck))
UNIT = oracle.Polytope.of([0, 0], [1, 1])


def test_a_certificate_is_accepted_and_its_bound_is_true():
    network = small()
    result = certified(network)
    assert result.stored.neurons < network.neurons
    report = recheck(result, asked=Asked(0.0, 1.0), tolerance=1e-5)
    assert true_gap(network, result.stored, UNIT) <= Fraction(report.bound)
    assert proof_of(result).bound == report.bound


def test_ranges_of_another_relu_that_samples_do_not_tell_apart_are_not_taken():
    """The checker's leaky ReLU has a ReLU of ``-y`` besides, and ``y`` is 0 but for one corner of the box."""
    first, second, third = (
        op("Gemm", ["x", "v", "w"], "a"),
        op("Relu", ["a"], "b"),
        op("Gemm", ["b", "t"], "c"),
    )
    nodes = [first, second, third, op("LeakyRelu", ["c"], "d", alpha=0.5), op("Gemm", ["d", "u", "o"])]
    weights = {
        "v": np.array([[1, 1], [1, 1], [1, -1], [1, 1]]),
        "w": np.array([-3.9375, 0]),
        "t": np.array([[1, 1], [0, 0]]),
        "u": np.array([[8], [8]]),
        "o": np.ones(1),
    }
    proto = model(nodes, ["batch", 4], {name: np.float32(array) for name, array in weights.items()})
    result = compress(proto, Box(0, 1), tolerance=4.0, certificate=True, method="bounds")
    corner = [Fraction(1)] * 4
    (before,), (after,) = (oracle.outputs(one, corner) for one in (result.original, result.stored))
    assert abs(before - after) <= Fraction(result.deviation.proven)


@SLOW
@given(problems(max_layers=3, max_width=4, max_neurons=8, extreme=False), st.sampled_from(["exact", 1e-3]))
def test_every_compression_of_a_tame_network_is_certified(problem, tolerance):
    """Also with a tolerance: what goes rests on ranges that the checker finds as well."""
    network, random = problem
    result = certified(network, as_domain(random, network), tolerance=tolerance)
    bound = proof_of(result).bound
    assert true_gap(network, result.stored, random.polytope) <= Fraction(bound)
    if tolerance != "exact":
        assert bound <= tolerance


@pytest.mark.parametrize("tolerance", ["exact", 1e-3])
@pytest.mark.parametrize(
    ("rows", "ends", "first", "second"),
    [
        # x = 1: the unit is 0
        ([[-1.0]], (-np.inf, -1.0), ([[-3.0]], [3.0]), ([[-1.0]], [1.0])),
        # x + y = 0: the first unit is 1
        ([[1.0, 1.0]], (0.0, 0.0), ([[1.0, 1.0], [1.0, 0.0]], [1.0, 0.0]), ([[1.0, 1.0]], [0.0])),
    ],
)
def test_what_only_the_constraints_make_constant_is_certified(rows, ends, first, second, tolerance):
    network = dense(linear(*first), linear(*second))
    low, high = ([end] for end in ends)
    domain = Box(-1, 1).constrain(np.array(rows), np.array(low), np.array(high))
    result = certified(network, domain, tolerance=tolerance)
    assert proof_of(result).bound <= 1e-9
    polytope = oracle.Polytope.of([-1] * len(rows[0]), [1] * len(rows[0]), rows, low, high)
    assert true_gap(network, result.stored, polytope) <= Fraction(proof_of(result).bound)


@SLOW
@given(problems(max_layers=3, max_width=4, max_neurons=8))
def test_no_number_however_extreme_makes_a_certificate_false(problem):
    network, random = problem
    try:
        result = certified(network, as_domain(random, network))
    except RelutrimError:
        return
    assert true_gap(network, result.stored, random.polytope) <= Fraction(proof_of(result).bound)


def test_windows_that_hold_the_same_and_are_padded_elsewhere_are_certified():
    """Both are the larger input, so a unit of OUT may be paired with either."""
    nodes = (
        Node("pool", MaxPool((2, 3), (1, 1), ((0, 0), (1, 2)), (1, 1)), ("x",)),
        Node("flat", Reshape((1, 1, 2), (2,)), ("pool",)),
        Node("wide", linear([[0.0, 0.0], [0.0, 1.0]]), ("flat",)),
        Node("relu", Relu(), ("wide",)),
    )
    network = Network(Port("x", (1, 2, 1)), nodes, (Output("y", "relu"),), dtype="float32")
    assert recheck(certified(network)).bound <= 1e-9


def test_a_mean_that_reads_no_input_is_certified():
    """Padding alone: there is no symbol whose coefficients could be added up."""
    nodes = (
        Node("take", Take((None, np.array([-1, -1]))), ("x",)),
        Node("mean", Mean((0,), False), ("take",)),
        Node("wide", linear(np.zeros((2, 2))), ("mean",)),
        Node("relu", Relu(), ("wide",)),
    )
    network = Network(Port("x", (1, 1)), nodes, (Output("y", "relu"),), dtype="float32")
    assert recheck(certified(network)).bound <= 1e-9


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(spatial_networks(max_neurons=16, largest=3, steps=4, extreme=False))
def test_convolutions_maxima_and_branches_are_certified(network):
    result = certified(network)
    report = recheck(result)
    box = oracle.Polytope.of(np.zeros(network.input.size), np.ones(network.input.size))
    for x in oracle.random_points(box, 6):
        pairs = zip(oracle.outputs(network, x), oracle.outputs(result.stored, x), strict=True)
        assert all(abs(a - b) <= Fraction(report.bound) for a, b in pairs)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    problems(max_layers=3, max_width=4, max_neurons=8, rows=0, extreme=False),
    st.integers(0, 1000),
    st.sampled_from([1e-3, -0.25, 1.0, 2.0**-20, -100.0]),
)
def test_another_network_is_accepted_only_if_it_is_as_close_as_claimed(problem, which, by):
    network, random = problem
    result = certified(network, as_domain(random, network))
    other = nudged(result.stored, which, by)
    model, _, content = files(result)
    out = network_to_proto(other).SerializeToString(deterministic=True)
    try:
        report = check(model, out, for_out(content, out))
    except CheckFailed:
        return
    stored = other.edit() if other.dtype == "float64" else _stored(other)
    assert true_gap(network, stored, random.polytope) <= Fraction(report.bound)


def _stored(network):
    from relutrim.io.onnx.read import network_from_proto

    return network_from_proto(network_to_proto(network))


def test_opposite_and_collinear_neurons_are_recognised():
    first = linear([[1, -1], [-2, 2], [3, -3], [1, 1]], [0.25, -0.5, 0.75, -1])
    network = dense(first, linear([[1, 2, 3, 4], [-1, 1, 1, 2]]), dtype="float32")
    result = certified(network)
    assert result.stored.neurons < network.neurons
    assert proof_of(result).bound < 1e-6


def test_a_branching_network_is_certified():
    network = graph(
        2,
        [
            ("a", linear([[1, -1], [1, 1], [-1, -1]], [0, 0.5, -0.5]), "x"),
            ("r", Relu(), "a"),
            ("b", linear([[1, 2, 3], [1, 0, 1]]), "r"),
            ("skip", linear([[1, 0], [0, 1]]), "x"),
            ("sum", Add(2), ("b", "skip")),
        ],
        "sum",
        "r",
    )
    result = certified(network)
    assert true_gap(network, result.stored, UNIT) <= Fraction(recheck(result).bound)


def test_the_normalisation_of_a_domain_is_part_of_the_proof():
    network = small()
    result = certified(network, NormalizedBox(0, 255, 32.0, 200.0))
    asked = Asked(0.0, 255.0, mean=32.0, std=200.0)
    recheck(result, asked=asked)
    for other in (Asked(0.0, 1.0), Asked(0.0, 255.0, mean=33.0, std=200.0)):
        with pytest.raises(CheckFailed, match="normalisation"):
            recheck(result, asked=other)


def test_a_constraint_helps_and_must_be_asked_for():
    network = dense(linear([[1.0, 1.0], [1.0, -1.0]], [-1.0, 0.0]), linear([[1, 1]]), dtype="float32")
    result = certified(network, Box(0, 1).sum_between(1, 2))
    rows = np.ones((1, 1))
    assert "linear" in str(json.loads(entries(files(result)[2])["certificate.json"])["layers"][0]["counts"])
    recheck(result, asked=Asked(0.0, 1.0, rows, [1.0], [1.5]))
    recheck(result, asked=Asked(0.625, 0.75))
    with pytest.raises(CheckFailed, match="only where 1 <= G x <= 2"):
        recheck(result, asked=Asked(0.0, 1.0, rows, [0.5], [1.5]))


def test_the_document_follows_its_schema():
    for network in (small(), dense(linear([[1, -1]]), linear([[1], [2]]), dtype="float32")):
        document = json.loads(entries(files(certified(network))[2])["certificate.json"])
        Draft202012Validator(schema()).validate(document)


def test_the_same_compression_gives_the_same_bytes():
    assert files(certified(small())) == files(certified(small()))


@pytest.mark.parametrize("options", [{"evidence": "solver"}, {"evidence": "data"}])
def test_what_is_not_proved_cannot_be_certified(options):
    with pytest.raises(InputError, match="proofs alone"):
        certified(small(), **options)


def test_the_outputs_tail_must_be_kept():
    result = certified(small())
    model, out, content = files(result)
    import onnx

    proto = onnx.ModelProto.FromString(out)
    name = proto.graph.output[0].name
    last = next(node for node in proto.graph.node if name in node.output)
    last.output[0] = "before"
    proto.graph.node.append(onnx.helper.make_node("Softmax", ["before"], [name]))
    other = proto.SerializeToString()
    with pytest.raises(CheckFailed, match="tails"):
        check(model, other, for_out(content, other))


def test_a_fixed_batch_is_refused_before_the_analysis():
    network = small()
    proto = network_to_proto(network)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    with pytest.raises(UnsupportedError, match="fixed length"):
        certifiable(network, proto.SerializeToString(), opaque=False)


def test_the_end_of_the_groundworks_time_is_not_that_of_the_certificates(monkeypatch):
    network = small()
    stability = analyze(network, Box(0, 1))
    work = Groundwork.of(certifiable(network, None, opaque=False), stability, time.monotonic() + 1000)
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 2000)
    made = certify(work, network, stability, deadline=time.monotonic() + 1000)
    assert check(made.models["model"], made.models["out"], made.content()).bound == made.bound
    with pytest.raises(CheckFailed, match="longer"):
        certify(work, network, stability, deadline=time.monotonic() - 1)
