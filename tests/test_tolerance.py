"""Compression within a tolerance: what is allowed is never exceeded, on the whole domain."""

from __future__ import annotations

import json
import math
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
from relutrim.compression import compress_network
from relutrim.domain import Box
from relutrim.errors import InputError
from relutrim.report.json import schema
from relutrim.result import Compression
from relutrim.rewrite.budget import Budget, cheapest
from relutrim.rewrite.gains import gains
from rewriting import QUICK, compressed, dense, gap, linear, names, start

slow = settings(suppress_health_check=list(HealthCheck))


@settings(slow, max_examples=80)
@given(strategies.problems(), st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 3.0, "rounding"]))
def test_no_output_moves_by_more_than_is_allowed(problem, tolerance):
    network, random = problem
    box = Box(random.lo, random.hi)
    if len(random.matrix):
        box = box.constrain(random.matrix, random.lower, random.upper)
    result = compress_network(network, box, tolerance=tolerance, **QUICK)
    assert result.network.parameters <= network.parameters
    for smaller, claimed in (
        (result.network, result.deviation.proven_float64),
        (result.stored, result.deviation.proven),
    ):
        assert claimed is not None
        largest = oracle.largest_deviations(network, smaller, random.polytope)
        assert all(distance <= Fraction(claimed) for distance in largest)
        assert claimed <= (result.allowed if tolerance == "rounding" else tolerance)


@settings(slow, max_examples=60)
@given(strategies.problems(extreme=False))
def test_gains_bound_what_a_change_does_to_the_outputs(problem):
    """A change of one linear node's bias, in the exact network."""
    network, random = problem
    nothing = {relu.name: np.zeros(network.size(relu.name), dtype=bool) for relu in network.relus}
    for name in [node.name for node in network.nodes if node.operator.kind == "Linear"]:
        size = network.size(name)
        if not size or len(network.shapes[name]) != 1:
            continue
        found = gains(network, nothing, [name])[name].numpy()
        moved = network.edit(change={name: _with_bias(network[name], 1 / 64)})
        for x in oracle.random_points(random.polytope, 3):
            before, after = oracle.evaluate(network, x), oracle.evaluate(moved, x)
            differences = [
                abs(a - b)
                for source in network.sources
                for a, b in zip(before[source], after[source], strict=True)
            ]
            for difference, row in zip(differences, found, strict=True):
                assert difference <= Fraction(float(row.sum()) * (1 + 1e-9) / 64) + Fraction(1, 10**30)


def _with_bias(node, shift):
    operator = node.operator
    moved = np.asarray(operator.bias) + shift
    return type(node)(node.name, type(operator)(operator.weight, moved), node.inputs)


@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=1, max_size=8)
    ),
    st.floats(0, 2),
)
def test_what_is_chosen_as_cheapest_is_affordable(columns, part):
    costs = np.array(columns).T
    chosen = cheapest(costs, part)
    assert len(set(chosen.tolist())) == len(chosen)
    assert (costs[:, chosen].sum(axis=1) <= part + 1e-12).all()


def test_nothing_can_be_spent_where_nothing_is_left():
    network = dense(linear([[1.0, -1.0]], [0.0]), linear([[1.0]]))
    draft = start(network, 0, 1)
    assert Budget({"output": torch.zeros(1, 1, dtype=torch.float64)}).share(draft, ["output"], 1.0) is None


def test_a_neuron_of_little_effect_goes_and_its_middle_stays():
    network = dense(
        linear([[1.0, -1.0], [1.0, -2.0]], [0.0, 0.0]), linear([[1.0, 1e-6]], [0.0]), dtype="float64"
    )
    result = compressed(network, 0, 1, tolerance=1e-5)
    assert result.network.widths == [2, 1, 1]
    assert "drop-negligible" in names(result)
    assert 0 < gap(network, result.network, 0, 1) <= Fraction(1, 10**6)
    assert compressed(network, 0, 1, tolerance=1e-8).network.widths == [2, 2, 1]


def test_connections_of_little_effect_are_zero():
    network = dense(
        linear([[1.0, -1.0, 1e-7], [1.0, -2.0, 0.5]], [0.0, 0.0]), linear([[1.0, 1.0]]), dtype="float64"
    )
    result = compressed(network, 0, 1, tolerance=1e-6)
    assert result.network["linear1"].operator.weight[0, 2] == 0
    assert result.network.zeros == 1
    assert gap(network, result.network, 0, 1) <= Fraction(1, 10**6)


@pytest.mark.parametrize("tolerance", ["-1", -1e-3, math.nan, math.inf, "inf", "some", None])
def test_tolerances_that_make_no_sense_are_refused(tolerance):
    with pytest.raises(InputError, match="tolerance"):
        relutrim.compress(relutrim.demo_model(), Box(0, 1), tolerance=tolerance)


def test_the_papers_algorithm_has_no_tolerance():
    with pytest.raises(InputError, match="leo"):
        relutrim.compress(relutrim.demo_model(), Box(0, 1), tolerance=1e-6, rewrites="leo++")


@pytest.mark.parametrize("tolerance", ["rounding", 1e-6, 1e-4])
def test_the_demo_gets_smaller_within_its_tolerance(tolerance):
    network = relutrim.load(relutrim.demo_model())
    exact = relutrim.compress(network, Box(0, 1), method="bounds")
    result = relutrim.compress(network, Box(0, 1), tolerance=tolerance, method="bounds")
    assert result.network.parameters < exact.network.parameters
    x = torch.rand(2000, 784, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).round()
    moved = (network(x) - result.stored(x)).abs().amax(0)
    if tolerance == "rounding":
        assert float(moved.max()) <= 2.0**-24 * float(network(x).abs().max()) * 2
    else:
        assert result.deviation.proven <= tolerance
        assert float(moved.max()) <= result.deviation.proven
    assert bool((network(x).argmax(1) == result.stored(x).argmax(1)).all())


def test_another_tolerance_needs_no_other_analysis():
    exact = relutrim.compress(relutrim.demo_model(), Box(0, 1), method="bounds")
    more = exact.at(1e-6)
    assert more.stability is exact.stability
    assert more.tolerance == 1e-6
    assert more.network.connections < exact.network.connections
    assert exact.at("exact").network.widths == exact.network.widths


def test_what_rounding_would_remove_is_said_when_asked(tmp_path, capsys, monkeypatch):
    command = ["compress", relutrim.demo_model(), tmp_path / "out.onnx", "--box", "0", "1"]
    done = call(capsys, *command, "--method", "bounds")
    assert "would remove" not in done.out
    done = call(capsys, *command, "--method", "bounds", "--suggest")
    assert "--tolerance rounding would remove" in done.out
    done = call(capsys, *command, "--method", "bounds", "--suggest", "--json")
    found = json.loads(done.out)
    assert found["suggestion"]["connections"] < found["compressed"]["connections"]
    jsonschema.validate(found, schema("compression"))
    done = call(capsys, *command, "--suggest", "--time-limit", "0")
    assert "there was no time left to tell what" in done.out
    monkeypatch.setattr(Compression, "suggestion", None)
    assert call(capsys, *command, "--suggest", "-q").code == 0
    done = call(capsys, *command, "--tolerance", "1e-6", "--json")
    found = json.loads(done.out)
    assert found["tolerance"] == 1e-6
    assert found["deviation"]["proven"] <= 1e-6
    jsonschema.validate(found, schema("compression"))


def test_connections_of_a_paper_network_that_go_within_1e6(shared):
    network = relutrim.load(shared / "networks" / "paper" / "mnist_2x400_l1_0.0002_s0.onnx")
    for tolerance in ("rounding", 1e-6):
        result = relutrim.compress(network, Box(0, 1), tolerance=tolerance, time_limit=20)
        assert result.network.connections <= 0.11 * network.connections
        assert result.deviation.proven <= 1.5e-6


def test_rounding_never_leaves_more_than_exact_where_spending_leads_nowhere():
    """Integers of rank 2, whose factors round nothing: what is spent on others does not fit."""
    torch.manual_seed(0)
    left, right = torch.randint(-2, 3, (12, 2)).float(), torch.randint(-2, 3, (2, 12)).float()
    module = torch.nn.Sequential(
        *(torch.nn.Linear(12, 12), torch.nn.ReLU(), torch.nn.Linear(12, 12), torch.nn.ReLU()),
        torch.nn.Linear(12, 3),
    )
    with torch.no_grad():
        module[2].weight.copy_(left @ right)
    exact = relutrim.compress(module.eval(), Box(-1, 1))
    assert exact.network.parameters < exact.original.parameters
    rounding = relutrim.compress(module, Box(-1, 1), tolerance="rounding")
    assert rounding.network.parameters <= exact.network.parameters
