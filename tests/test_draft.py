"""The accounting: how far a draft can be from the original, and why."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from relutrim.analysis import analyze_network
from relutrim.compression import compress_network
from relutrim.domain import Box, NormalizedBox
from relutrim.errors import InputError
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.intervals import Interval
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.draft import Draft, Step, at_most
from rewriting import QUICK, assert_true, compressed, dense, gap, graph, linear, start


def nudged(draft: Draft, **shifts: float) -> Draft:
    """Linear nodes with biases moved, and said to be."""
    change, moved = {}, {}
    for name, shift in shifts.items():
        node = draft.network[name]
        change[name] = Node(name, Linear(node.operator.weight, node.operator.bias + shift), node.inputs)
        moved[name] = torch.full_like(draft.ranges[name].lo, abs(shift))
    return draft.rewritten(draft.network.edit(change=change), Step("test", "", ""), moved=moved)


# Propagation.


def test_a_start_deviates_by_nothing():
    network = dense(linear([[1.0], [-1.0]], [0.5, 0.5]), linear([[1, 1]]))
    draft = start(network, 0, 1)
    assert draft.proven == 0.0
    assert draft.realise().proven == 0.0
    assert draft.steps == ()


def test_what_moves_is_carried_through_relus_to_the_outputs():
    network = dense(linear([[1.0], [-1.0]], [-0.5, 0.5]), linear([[2, -3], [0, 1]]))
    after = nudged(start(network, 0, 1), linear1=0.25)
    assert after.deviation["output"][0].tolist() == pytest.approx([1.25, 0.25], rel=1e-5)
    assert after.steps[0].deviation == pytest.approx(1.25, rel=1e-5)
    assert_true(network, after, 0, 1)


def test_steps_add_up():
    network = dense(linear([[1.0], [-1.0]], [-0.5, 0.5]), linear([[2, -3]]))
    after = nudged(nudged(start(network, 0, 1), linear1=0.25), output=-0.5)
    assert after.proven == pytest.approx(1.75, rel=1e-5)
    assert_true(network, after, 0, 1)


def test_a_value_that_an_add_reads_twice_moves_it_twice():
    network = graph(1, [("a", linear([[1.0]]), "x"), ("y", Add(2), ("a", "a"))], "y")
    after = nudged(start(network, 0, 1), a=0.25)
    assert after.proven == pytest.approx(0.5, rel=1e-5)
    assert_true(network, after, 0, 1)


def test_outputs_that_nothing_reaches_do_not_deviate():
    network = graph(1, [("a", linear([[1.0]]), "x"), ("y", linear([[1.0]]), "x")], "a", "y")
    after = nudged(start(network, 0, 1), a=0.25)
    assert float(after.deviation["y"].max()) == 0.0
    assert after.proven >= 0.25


def test_ranges_are_widened_by_what_moves_them():
    network = dense(linear([[1.0], [-1.0]], [-0.5, 0.5]), linear([[2, -3]]))
    before = start(network, 0, 1)
    after = nudged(before, linear1=0.25)
    for name, by in (("linear1", 0.25), ("relu1", 0.25), ("output", 1.25)):
        assert (after.ranges[name].lo <= before.ranges[name].lo - by).all()
        assert (after.ranges[name].hi >= before.ranges[name].hi + by).all()
    assert after.ranges["x"] is before.ranges["x"]


def test_a_shift_whose_products_underflow_is_not_lost():
    network = graph(
        1, [("a", linear([[1.0]]), "x"), ("b", linear([[1e-200]]), "a"), ("y", linear([[1e300]]), "b")], "y"
    )
    after = nudged(start(network, 0, 0), a=1e-200)
    assert gap(network, after.network, 0, 0) > 0
    assert_true(network, after, 0, 0)


def test_a_scale_known_up_to_a_radius_carries_more():
    scale = Scale(np.array([1.0]), np.array([0.0]), np.array([0.5]), np.array([0.0]))
    network = graph(1, [("a", linear([[1.0]]), "x"), ("y", scale, "a")], "y")
    assert nudged(start(network, 0, 1), a=1.0).proven >= 1.5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nothing_is_proven_of_what_is_not_finite(bad):
    network = dense(linear([[1.0]], [-0.5]), linear([[0.0], [1.0]]))
    draft = start(network, 0, 1)
    after = draft.rewritten(network, None, moved={"linear1": torch.tensor([[bad]])})
    assert not math.isfinite(after.proven)


def test_a_magnitude_is_never_too_small():
    random = np.random.default_rng(0)
    for _ in range(50):
        weight = random.normal(size=(3, 4)) * 10.0 ** random.integers(-200, 100, size=(3, 4))
        bias, reach = random.normal(size=3), np.abs(random.normal(size=4)) * 10.0 ** random.integers(-200, 5)
        bound = at_most(weight, bias, torch.as_tensor(reach)[None])[0].tolist()
        for row, b, claimed in zip(weight.tolist(), bias.tolist(), bound, strict=True):
            true = sum(abs(Fraction(w)) * Fraction(m) for w, m in zip(row, reach.tolist(), strict=True))
            assert true + abs(Fraction(b)) <= Fraction(claimed)


# As the file holds it.


def test_weights_that_the_file_holds_anyway_cost_nothing():
    network = dense(linear([[0.5], [-1.25]], [-0.5, 0.5]), linear([[2, -3]]), dtype="float32")
    stored = start(network, 0, 1).stored()
    assert stored.proven == 0.0
    assert stored.network["linear1"] is network["linear1"]


@pytest.mark.parametrize("seed", range(5))
def test_rounding_to_float32_is_charged(seed):
    random = np.random.default_rng(seed)
    network = dense(
        linear(random.normal(size=(3, 2)), random.normal(size=3)),
        linear(random.normal(size=(3, 3)), random.normal(size=3)),
        linear(random.normal(size=(2, 3)), random.normal(size=2)),
        dtype="float32",
    )
    stored = start(network, 0, 1).stored()
    for node in stored.network:
        if isinstance(node.operator, Linear):
            assert (node.operator.weight.astype(np.float32) == node.operator.weight).all()
    true = gap(network, stored.network, 0, 1)
    assert 0 < true <= Fraction(stored.proven) < Fraction(1, 10**4)


def test_what_is_rounded_up_and_what_is_rounded_down_do_not_add_up():
    """Of one layer on inputs that are not negative, the bound is what the worst input makes of it."""
    rng = np.random.default_rng(0)
    network = graph(
        8, [("y", Linear(rng.normal(size=(2, 8)), rng.normal(size=2)), "x")], "y", dtype="float32"
    )
    stored = start(network, 0, 1).stored()
    truth = gap(network, stored.network, 0, 1)
    assert truth <= Fraction(stored.proven) <= truth * Fraction(1001, 1000)


def test_weights_below_the_smallest_float32_become_0_and_are_charged():
    network = dense(linear([[1e-50]], [0.0]), linear([[2.0**100]]), dtype="float32")
    stored = start(network, 0, 1).stored()
    assert stored.network["linear1"].operator.weight[0, 0] == 0.0
    assert Fraction(stored.proven) >= gap(network, stored.network, 0, 1) > 0


@pytest.mark.parametrize(
    "large",
    [linear([[1e39]]), Scale.exactly(1e39), Scale.exactly(1.0, 1e39)],
    ids=["linear", "scale", "shift"],
)
def test_a_weight_that_no_float32_holds_is_not_written(tmp_path, large):
    network = graph(1, [("a", large, "x"), ("y", linear([[1.0]]), "a")], "y", dtype="float32")
    assert math.isnan(start(network, 0, 1).stored().proven)
    result = compressed(network, 0, 1)
    assert result.unchanged
    with pytest.raises(InputError, match="tolerance"):
        result.save(tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_a_radius_is_charged_when_the_number_is_stored():
    scale = Scale(np.array([2.0]), np.array([1.0]), np.array([0.25]), np.array([0.5]))
    network = graph(1, [("s", scale, "x"), ("y", linear([[1.0]]), "s")], "y")
    stored = start(network, 0, 2).stored()
    assert stored.network["s"].operator.exact
    assert 1.0 <= stored.proven < 1.001


def test_values_of_higher_rank_are_stored_too():
    random = np.random.default_rng(0)
    network = Network(
        Port("x", (2, 3)),
        (
            Node("a", linear(random.normal(size=(2, 3)), random.normal(size=2)), ("x",)),
            Node("r", Relu(), ("a",)),
            Node("f", Reshape((2, 2), (4,)), ("r",)),
            Node("y", linear(random.normal(size=(1, 4))), ("f",)),
        ),
        (Output("y", "y"),),
    )
    result = compressed(network, 0, 1)
    assert [step.rewrite for step in result.steps] == ["straighten"]
    assert 0 < gap(network, result.stored, 0, 1) <= Fraction(result.deviation.proven)


# Neurons that stand for the identity become ReLUs.


def test_an_active_neuron_that_stays_above_0_is_free():
    network = dense(linear([[1.0]], [0.5]), linear([[1.0]]))
    after = nudged(start(network, 0, 1), linear1=-0.25)
    assert after.realise().proven == after.proven


def test_an_active_neuron_that_dips_below_0_is_charged_for_it():
    network = dense(linear([[1.0]], [0.125]), linear([[4.0]]))
    after = nudged(start(network, 0, 1), linear1=-0.25)
    assert after.proven == pytest.approx(1.0, rel=1e-5)
    assert after.realise().proven == pytest.approx(1.5, rel=1e-5)
    assert_true(network, after, 0, 1)


def test_what_is_charged_at_one_layer_moves_the_next():
    network = dense(linear([[1.0]], [0.0]), linear([[1.0]], [0.0]), linear([[1.0]]))
    after = nudged(start(network, 0, 1), linear1=-0.25)
    # 0.25 at the first ReLU on top of 0.25; the second may then dip by 0.5 and is charged for that as well.
    assert after.realise().proven == pytest.approx(1.0, rel=1e-4)
    assert_true(network, after, 0, 1)


def test_unstable_and_inactive_neurons_are_real_relus_and_are_not_charged():
    network = dense(linear([[1.0], [-1.0]], [-0.5, 0.0]), linear([[1.0, 1.0]]))
    after = nudged(start(network, 0, 1), linear1=0.25)
    assert after.realise().proven == after.proven
    assert_true(network, after, 0, 1)


def test_an_unknown_range_is_charged_without_limit():
    network = dense(linear([[1.0]], [0.5]), linear([[1.0]]))
    draft = start(network, 0, 1)
    nan = torch.full((1, 1), torch.nan, dtype=torch.float64)
    unknown = draft.rewritten(network, None, ranges={"linear1": Interval(nan, nan)})
    assert not math.isfinite(unknown.realise().proven)


def test_a_merged_neuron_near_0_is_safe_in_float32():
    # Layer 2 keeps one of two active copies. Stored in float32, its 0.1 x - 0.1 x' may fall below 0.
    network = dense(
        linear([[0.1, 0.7], [0.3, 0.9]], [0.05, 0.05]),
        linear([[1 / 3, -1 / 7], [2 / 3, -2 / 7], [1.0, -1.0]], [0.04, 0.08, 0.0]),
        linear([[0.3, 0.7, 1.0]]),
        dtype="float32",
    )
    result = compressed(network, 0, 1, rewrites="leo++")
    assert 0 < gap(network, result.stored, 0, 1) <= Fraction(result.deviation.proven)


# Where drafts start.


def test_only_evidence_that_is_strong_enough_counts():
    network = dense(linear([[1.0], [-1.0]], [0.5, -0.5]), linear([[1, 1]]))
    rows = np.array([[0.75], [1.0]])
    options = {**QUICK, "method": "data"}
    stability = analyze_network(network, Box([-1.0], [1.0]), data=rows, **options)
    proof, data = (Draft.start(network, stability, e) for e in (Evidence.PROOF, Evidence.DATA))
    assert not proof.identity["relu1"].any()
    assert not proof.zero["relu1"].any()
    assert data.identity["relu1"].tolist() == [True, False]
    assert data.zero["relu1"].tolist() == [False, True]


def test_a_compression_by_data_proves_nothing():
    network = dense(linear([[1.0], [-1.0]], [0.5, -0.5]), linear([[1, 1]]))
    result = compressed(
        network, -1, 1, method="data", data=np.array([[0.75], [1.0]]), evidence="data", rewrites="leo++"
    )
    assert result.network.neurons == 0
    assert gap(network, result.network, -1, 1) > 0
    assert result.deviation.proven is None
    assert result.deviation.proven_float64 is None


def test_a_normalised_domain_is_about_what_the_network_sees():
    # Raw inputs in [0, 255] are seen in [-1, 1]; x + 2 is active there, and x - 2 inactive.
    network = dense(linear([[1.0], [1.0], [1.0]], [2.0, -2.0, 0.0]), linear([[1, 1, 1]]), dtype="float32")
    result = compress_network(network, NormalizedBox(0, 255, 127.5, 127.5), **QUICK)
    assert result.network.widths == [1, 2, 1]
    assert result.network.input == network.input
    # (x - mean) / std rounds, so the network may see a little more than [-1, 1]; the claim is about [-1, 1].
    assert gap(network, result.stored, -1, 1) <= Fraction(result.deviation.proven)
    assert result.deviation.observed_float32 <= 1e-5
