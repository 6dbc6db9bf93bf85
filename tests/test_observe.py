"""What is seen of two networks: differences that exist, and what the deployed type makes of them."""

from __future__ import annotations

from fractions import Fraction

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import relutrim
import strategies
from command_line import call
from relutrim.analysis import analyze_network
from relutrim.compression import compress_network
from relutrim.domain import Box, NormalizedBox
from relutrim.errors import InputError
from relutrim.graph import Network, Relu, Take
from relutrim.observe import (
    InType,
    certain_difference,
    climb,
    most_samples,
    observe,
    outputs_by_part,
    outputs_of,
    samples,
)
from relutrim.prove.deadline import Deadline
from relutrim.report.json import schema
from relutrim.wish import allowed_deviation
from rewriting import QUICK, compressed, dense, graph, linear

slow = settings(suppress_health_check=list(HealthCheck))


def look(one: Network, other: Network, domain, dtype: str = "float32", data=None) -> tuple[float, InType]:
    """What is found over the real numbers and seen in a type."""
    stability = analyze_network(one, domain, data=data, **QUICK)
    seen = observe(one, other, stability, data, dtype)
    return seen.found, seen.by_type[dtype]


# Over the real numbers.


@settings(slow, max_examples=60)
@given(strategies.problems(), st.sampled_from([0.0, 1e-3, 0.1, 3.0]))
def test_what_is_found_exists(problem, tolerance):
    network, random = problem
    box = Box(random.lo, random.hi)
    if len(random.matrix):
        box = box.constrain(random.matrix, random.lower, random.upper)
    result = compress_network(network, box, tolerance=tolerance, **QUICK)
    found = result.deviation.found
    largest = max(oracle.largest_deviations(network, result.stored, random.polytope), default=Fraction(0))
    assert Fraction(found) <= largest
    assert result.deviation.proven is None or found <= result.deviation.proven


@settings(slow, max_examples=60)
@given(strategies.problems(rows=0), st.sampled_from([0.0, 2.0**-60, 1e-9, 1.0]))
def test_a_certain_difference_is_never_above_the_true_one(problem, shift):
    network, random = problem
    source = network[network.outputs[0].source]
    name = source.name if source.operator.kind == "Linear" else source.inputs[0]
    operator = network[name].operator
    moved = linear(operator.weight, operator.bias + shift)
    other = network.edit(change={name: type(source)(name, moved, network[name].inputs)})
    points = np.stack([random.lo, random.hi, random.point])
    found = certain_difference(network, other, torch.as_tensor(points))
    true = max(
        abs(a - b)
        for x in points
        for a, b in zip(
            oracle.outputs(network, [Fraction(v) for v in x]),
            oracle.outputs(other, [Fraction(v) for v in x]),
            strict=True,
        )
    )
    assert 0 <= Fraction(found) <= true


def apart(weights: np.ndarray) -> tuple[Network, Network]:
    """Two networks that differ by a linear function."""
    size = len(weights)
    return tuple(
        dense(linear(np.eye(size)), linear([np.zeros(size), row])) for row in (np.zeros(size), weights)
    )


def test_the_search_goes_where_the_difference_is_largest():
    weights = np.random.default_rng(5).normal(size=60)
    one, other = apart(weights)
    largest = weights.clip(0).sum(), -weights.clip(max=0).sum()
    stability = analyze_network(one, Box(0, 1), data=None, **QUICK)
    tried = samples(stability, None)
    assert float((one(tried) - other(tried)).abs().max()) < 0.7 * max(largest)
    assert look(one, other, Box(0, 1))[0] == pytest.approx(max(largest), rel=1e-12)


def test_the_search_stays_in_the_domain():
    one, other = apart(np.array([1.0, 1.0, -2.0, 0.5]))
    domain = Box(-1, [1.0, 2.0, 3.0, 4.0]).sum_between(-0.5, 0.25).constrain([[1, 0, 0, -1]], [-0.5], [0.5])
    problem = domain.fit(one)
    points = climb(
        one, other, problem.region(), samples(analyze_network(one, domain, data=None, **QUICK), None)
    )
    assert len(points)
    polytope = oracle.Polytope.of(
        problem.lo.ravel(), problem.hi.ravel(), problem.rows, problem.lower, problem.upper
    )
    assert all(polytope.contains([Fraction(v) for v in x]) for x in points.tolist())


def test_a_difference_behind_a_normalisation_is_found_in_raw_units():
    one, other = (dense(linear([[1.0]], [0.0]), linear([[factor]])) for factor in (1.0, 3.0))
    found, seen = look(one, other, NormalizedBox(0, 255, 51.0, 102.0))
    assert found == pytest.approx(4.0, rel=1e-9)  # 2 z for z = (255 - 51) / 102
    assert seen.difference == pytest.approx(4.0)


def test_networks_that_are_equal_are_not_apart():
    network = relutrim.load(relutrim.demo_model())
    found, seen = look(network, network, Box(0, 1))
    assert found == 0
    assert seen.difference == 0
    assert seen.own_error > 0


# What looking holds in memory, and takes of the time.


def stretched(size: int) -> Network:
    """One number and zeros behind it, which takes no multiplications, and a ReLU."""
    return graph(1, [("long", Take((np.array([0] + [-1] * (size - 1)),)), "x"), ("y", Relu(), "long")], "y")


@pytest.mark.parametrize("size", [2**16, 2**20, 2**24])
def test_few_inputs_are_looked_at_where_outputs_are_long(size):
    network = stretched(size)
    assert 1 <= most_samples(network) <= max(1, 2**22 // size)
    assert most_samples(dense(linear([[1.0]]))) == 2048


def test_few_inputs_are_looked_at_where_values_are_long_and_outputs_short():
    network = graph(
        1, [("a", Take((np.zeros(2**20, np.int64),)), "x"), ("y", Take((np.array([0]),)), "a")], "y"
    )
    assert network.multiply_adds == 0
    assert most_samples(network) <= 1024


def test_few_inputs_are_looked_at_where_they_are_long_themselves():
    network = graph(2**20, [("y", Take((np.array([0]),)), "x")], "y")
    assert most_samples(network) <= 4


def test_the_search_starts_from_few_inputs_where_values_are_long(monkeypatch):
    one, other = apart(np.ones(6))
    points = samples(analyze_network(one, Box(0, 1), data=None, **QUICK), None)
    region = Box(0, 1).fit(one).region()
    assert len(climb(one, other, region, points, steps=1)) > 3
    monkeypatch.setattr(relutrim.observe, "_NUMBERS", 3 * 2 * sum(map(one.size, one.shapes)))
    assert len(climb(one, other, region, points, steps=1)) == 3


def test_outputs_in_parts_are_the_same(monkeypatch):
    one, other = apart(np.arange(1.0, 7.0))
    points = torch.rand(50, 6, dtype=torch.float64)
    whole, found = outputs_of(one, points), certain_difference(one, other, points)
    monkeypatch.setattr(relutrim.observe, "_NUMBERS", 1)
    assert len([*outputs_by_part(one, points)]) == 50
    assert torch.allclose(outputs_of(one, points), whole)
    assert certain_difference(one, other, points) == pytest.approx(found, rel=1e-12)


def test_where_time_is_up_one_part_is_looked_at(monkeypatch):
    one, other = apart(np.ones(3))
    points = torch.tensor([[0.5] * 3, [1.0] * 3], dtype=torch.float64)
    monkeypatch.setattr(relutrim.observe, "_NUMBERS", 1)
    assert len([*outputs_by_part(one, points, Deadline(0.0))]) == 1
    assert certain_difference(one, other, points) == pytest.approx(3.0)
    assert certain_difference(one, other, points, Deadline(0.0)) == pytest.approx(1.5)


def test_what_rounding_may_take_goes_by_the_outputs_that_there_was_time_for(monkeypatch):
    network = dense(linear([[1.0]]))
    stability = analyze_network(network, Box(0, 1), data=np.array([[0.5]]), **QUICK | {"method": "data"})
    monkeypatch.setattr(relutrim.observe, "_NUMBERS", 1)
    whole = allowed_deviation(network, stability, "exact", np.array([[0.5]])).most
    assert whole == 2.0**-24  # a corner was among the inputs
    part = allowed_deviation(network, stability, "exact", np.array([[0.5]]), Deadline(0.0)).most
    assert 0 < part < whole


# In the deployed type.


def test_bfloat16_rounds_weights():
    # bfloat16 has eight significant bits.
    network = dense(linear([[1 + 2.0**-8]]), linear([[1.0]]), dtype="float32")
    _, seen = look(network, network, Box(1, 1), "bfloat16-check")
    assert (seen.difference, seen.own_error) == (0, 2.0**-8)
    assert look(network, network, Box(1, 1), "float32")[1].own_error == 0


def test_bfloat16_rounds_inputs_and_values():
    network = dense(linear([[1.0]]), linear([[1.0]]), dtype="float32")
    _, seen = look(network, network, Box(1 + 2.0**-10, 1 + 2.0**-10), "bfloat16-check")
    assert seen.own_error == 2.0**-10
    sums = dense(linear([[1.0, 1.0]]), linear([[1.0]]), dtype="float32")
    _, seen = look(sums, sums, Box([1.0, 2.0**-9], [1.0, 2.0**-9]), "bfloat16-check")
    assert seen.own_error == 2.0**-9


def test_bfloat16_sums_products_in_float32():
    ones = dense(linear(np.ones((1, 1024))), linear([[1.0]]), dtype="float32")
    _, seen = look(ones, ones, Box(1, 1), "bfloat16-check")
    assert seen.own_error == 0  # eight bits would have stopped at 256


def test_predictions_that_the_type_cannot_tell_apart():
    first = dense(linear([[1.0]]), linear([[1.0], [1 + 2.0**-10]]), dtype="float32")
    second = dense(linear([[1.0]]), linear([[1.0], [1 + 2.0**-7]]), dtype="float32")
    _, seen = look(first, second, Box(1, 2), "bfloat16-check")
    assert seen.predictions is not None
    assert (seen.predictions.original, seen.predictions.compressed) == (0, 1)
    assert seen.predictions.agree == 0
    _, seen = look(first, second, Box(1, 2), "float32")
    assert seen.predictions is not None
    assert (seen.predictions.original, seen.predictions.agree) == (1, 1)


def test_predictions_are_those_on_the_data_if_there_is_some():
    network = dense(linear([[1.0]]), linear([[1.0], [0.5]]), dtype="float32")
    _, seen = look(network, network, Box(0, 2), data=np.array([[0.5], [1.0], [7.0]]))
    assert seen.predictions is not None
    assert (seen.predictions.inputs, seen.predictions.from_data) == (2, True)
    _, seen = look(network, network, Box(0, 2))
    assert seen.predictions is not None
    assert not seen.predictions.from_data


def test_one_output_predicts_nothing():
    network = dense(linear([[1.0]]), linear([[1.0]]))
    assert look(network, network, Box(0, 2))[1].predictions is None


def test_float64_has_a_bound_on_its_own_error():
    weight = 1 / np.arange(3.0, 40.0)
    network = dense(linear([weight, -weight]), linear([[1.0, 1 / 3]]))
    _, seen = look(network, network, Box(0, 1), "float64")
    x = np.random.default_rng(0).random(37)
    exact = oracle.outputs(network, [Fraction(v) for v in x])[0]
    assert abs(Fraction(float(network(torch.as_tensor(x[None])))) - exact) <= Fraction(seen.own_error)
    assert 0 < seen.own_error < 1e-13


# In what compress says.


@pytest.mark.parametrize("dtype", [None, "float32", "float64", "bfloat16-check"])
def test_the_type_is_observed_and_nothing_else_depends_on_it(dtype):
    network = relutrim.load(relutrim.demo_model())
    plain = relutrim.compress(network, Box(0, 1), method="bounds")
    result = relutrim.compress(network, Box(0, 1), method="bounds", dtype=dtype)
    deviation = result.deviation
    assert deviation.dtype == (dtype or "float32")
    assert deviation.observed_float32 == plain.deviation.observed_float32
    assert result.stored.dtype == "float32"
    assert all(
        np.array_equal(a.operator.weight, b.operator.weight)
        for a, b in zip(plain.stored.nodes, result.stored.nodes, strict=True)
        if a.operator.kind == "Linear"
    )
    assert deviation.found <= deviation.proven
    assert deviation.found > deviation.proven / 20
    if dtype == "bfloat16-check":
        assert deviation.original_error > 1e-3
        assert 0.9 < deviation.predictions.agree <= 1
    elif dtype == "float64":
        assert deviation.observed <= deviation.proven + 2 * deviation.original_error
    else:
        assert deviation.observed == deviation.observed_float32
    assert result.at("rounding").deviation.dtype == deviation.dtype
    assert result.at("rounding", dtype="float64").deviation.dtype == "float64"
    jsonschema.validate(result.report, schema("compression"))
    assert result.report["deviation"]["dtype"] == deviation.dtype


def test_float32_means_float32_for_float64_files_too():
    network = dense(linear([[1 + 2.0**-30], [1.0]], [1.0, -0.5]), linear([[1.0, 1.0]]), dtype="float64")
    deviation = compressed(network, 0, 1).deviation
    assert deviation.dtype == "float64"
    assert deviation.original_error < 1e-14
    assert deviation.original_float32_error > 1e-10


def test_types_that_do_not_exist_are_refused():
    for dtype in ("float16", "bfloat16", ""):
        with pytest.raises(InputError, match="float32, float64, bfloat16-check"):
            relutrim.compress(relutrim.demo_model(), Box(0, 1), dtype=dtype)


def test_the_summary_says_what_bfloat16_does(tmp_path, capsys):
    command = ["compress", relutrim.demo_model(), tmp_path / "out.onnx", "--box", "0", "1"]
    options = ["--method", "bounds", "--no-latency"]
    done = call(capsys, *command, *options, "--dtype", "bfloat16-check")
    assert done.code == 0
    assert "observed in bfloat16 on " in done.out
    assert "predictions in bfloat16 on " in done.out
    done = call(capsys, *command, *options)
    assert "observed in float32 on " in done.out
    assert "largest deviation that a search found: " in done.out
    assert "predictions" not in done.out
