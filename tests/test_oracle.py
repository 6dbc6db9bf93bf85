"""The oracle against hand-computed truths, and against sampling that knows nothing of cells or vertices."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from oracle import (
    EmptyDomain,
    Polytope,
    evaluate,
    exact_output_ranges,
    exact_ranges,
    exact_value_ranges,
    largest_deviations,
    outputs,
    random_points,
    vertices,
)
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from strategies import RandomDomain, networks, problems

F = Fraction


def linear(weight: list[list[float]], bias: list[float]) -> Linear:
    return Linear(np.array(weight, dtype=float), np.array(bias, dtype=float))


def chain(inputs: int, *layers: tuple[list[list[float]], list[float]]) -> Network:
    """Linear layers with ReLUs (relu0, relu1, ...) between them."""
    nodes, current = [], "x"
    for k, (weight, bias) in enumerate(layers):
        nodes.append(Node(f"linear{k}", linear(weight, bias), (current,)))
        current = f"linear{k}"
        if k < len(layers) - 1:
            nodes.append(Node(f"relu{k}", Relu(), (current,)))
            current = f"relu{k}"
    return Network(Port("x", (inputs,)), tuple(nodes), (Output("y", current),))


def box(n: int, lo: float = -1, hi: float = 1, **rows: list) -> Polytope:
    return Polytope.of([lo] * n, [hi] * n, **rows)


# relu(u) - relu(-u) = u
IDENTITY = chain(1, ([[1], [-1]], [0, 0]), ([[1, -1]], [0]))
# |x| and then |x| - 1/2, a tent whose pre-activation is seen only by combining cells
TENT = chain(1, ([[1], [-1]], [0, 0]), ([[1, 1], [-1, -1]], [-0.5, 1]), ([[1, 1]], [0]))


@pytest.mark.parametrize(
    ("network", "domain", "expected"),
    [
        pytest.param(IDENTITY, box(1), {"relu0": [(-1, 1), (-1, 1)]}, id="opposite pair"),
        pytest.param(IDENTITY, box(1, 0, 2), {"relu0": [(0, 2), (-2, 0)]}, id="tie at y = 0"),
        pytest.param(
            TENT, box(1), {"relu0": [(-1, 1), (-1, 1)], "relu1": [(F(-1, 2), F(1, 2)), (0, 1)]}, id="tent"
        ),
        pytest.param(
            chain(2, ([[0, 0], [0, 0]], [0, -3]), ([[1, 1]], [0])),
            box(2),
            {"relu0": [(0, 0), (-3, -3)]},
            id="zero rows",
        ),
        pytest.param(
            chain(2, ([[1, 1], [1, -1]], [0, 0]), ([[-1, -1]], [0]), ([[1]], [0])),
            box(2),
            {"relu0": [(-2, 2), (-2, 2)], "relu1": [(-2, 0)]},
            id="largest value exactly 0",
        ),
        pytest.param(
            chain(2, ([[1, 1]], [-1]), ([[1]], [0])),
            box(2, 0, 1, matrix=[[1, 1]], lower=[0.25], upper=[0.75]),
            {"relu0": [(F(-3, 4), F(-1, 4))]},
            id="stable only by the constraint",
        ),
        pytest.param(
            chain(2, ([[1, 2]], [-3]), ([[1]], [0])),
            box(2, 0, 1, matrix=[[1, -1]], lower=[-np.inf], upper=[-0.5]),
            {"relu0": [(-2, F(-1, 2))]},
            id="one-sided constraint",
        ),
        pytest.param(
            chain(2, ([[1, 0]], [0]), ([[1]], [0])),
            box(2, 0, 1, matrix=[[1, 1]], lower=[0], upper=[0]),
            {"relu0": [(0, 0)]},
            id="domain that is a single point",
        ),
        pytest.param(
            chain(2, ([[1, 1], [1, -1]], [0, 0]), ([[1, 1]], [-1]), ([[1]], [0])),
            Polytope.of([0.5, -1], [0.5, 1]),
            {"relu0": [(F(-1, 2), F(3, 2)), (F(-1, 2), F(3, 2))], "relu1": [(0, F(1, 2))]},
            id="flat box",
        ),
        pytest.param(
            chain(1, ([[1e-200]], [0]), ([[1e150]], [-1e-60]), ([[1]], [0])),
            box(1),
            {"relu0": [(-F(1e-200), F(1e-200))], "relu1": [(-F(1e-60), F(1e-200) * F(1e150) - F(1e-60))]},
            id="numbers whose products round in float64",
        ),
        pytest.param(
            chain(2, (np.zeros((0, 2)), []), ([[], [], []], [1, 0, -1]), ([[1, 1, 1]], [0])),
            box(2),
            {"relu0": [], "relu1": [(1, 1), (0, 0), (-1, -1)]},
            id="empty layer",
        ),
    ],
)
def test_ranges_computed_by_hand(network: Network, domain: Polytope, expected: dict) -> None:
    assert exact_ranges(network, domain) == expected


def test_a_network_with_every_operator() -> None:
    nodes = (
        Node("flat", Reshape((1, 2), (2,)), ("x",)),
        Node("scale", Scale.exactly(np.array([2.0, -1.0]), 0.5), ("flat",)),
        Node("linear", linear([[1, 1]], [-1]), ("scale",)),
        Node("side", linear([[0, 1]], [0]), ("flat",)),
        Node("sum", Add(2), ("linear", "side")),
        Node("relu", Relu(), ("sum",)),
    )
    network = Network(Port("x", (1, 2)), nodes, (Output("y", "relu"),))
    # (2 x0 + 1/2) + (-x1 + 1/2) - 1 + x1 = 2 x0
    assert evaluate(network, [F(1, 3), F(5)])["sum"] == [F(2, 3)]
    assert exact_ranges(network, box(2)) == {"relu": [(-2, 2)]}
    assert exact_output_ranges(network, box(2)) == [(0, 2)]


def test_linear_keeps_leading_axes() -> None:
    nodes = (Node("linear", linear([[1, 10]], [1]), ("x",)), Node("relu", Relu(), ("linear",)))
    network = Network(Port("x", (2, 2)), nodes, (Output("y", "relu"),))
    assert evaluate(network, [F(1), F(2), F(3), F(-4)])["relu"] == [22, 0]
    assert exact_ranges(network, box(4)) == {"relu": [(-10, 12), (-10, 12)]}


def test_a_scale_known_only_up_to_a_radius_is_refused() -> None:
    node = Node("scale", Scale.divide(np.array([3.0])), ("x",))
    network = Network(Port("x", (1,)), (node,), (Output("y", "scale"),))
    with pytest.raises(NotImplementedError, match="radius"):
        evaluate(network, [F(1)])


@pytest.mark.parametrize(
    "domain",
    [
        Polytope.of([1], [0]),
        box(2, 0, 1, matrix=[[1, 1]], lower=[3], upper=[np.inf]),
        box(2, 0, 1, matrix=[[1, 1], [1, 1]], lower=[1, -np.inf], upper=[np.inf, 0.5]),
    ],
)
def test_an_empty_domain_is_an_error(domain: Polytope) -> None:
    with pytest.raises(EmptyDomain):
        vertices(domain)


def test_vertices_of_a_cut_cube() -> None:
    # The simplex, the cube with a corner cut off, and the hexagon in which sum = 3/2 meets the cube.
    simplex = box(3, 0, 1, matrix=[[1, 1, 1]], lower=[-np.inf], upper=[1])
    assert sorted(vertices(simplex)) == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    blunt = box(3, 0, 1, matrix=[[1, 1, 1]], lower=[-np.inf], upper=[2.5])
    assert len(vertices(blunt)) == 10
    hexagon = box(3, 0, 1, matrix=[[1, 1, 1]], lower=[1.5], upper=[1.5])
    assert {tuple(sorted(v)) for v in vertices(hexagon)} == {(0, F(1, 2), 1)}
    assert len(vertices(hexagon)) == 6
    # Constraints through vertices, and the same one twice.
    half = box(2, 0, 1, matrix=[[1, 1], [2, 2]], lower=[1, 2], upper=[np.inf, np.inf])
    assert sorted(vertices(half)) == [(0, 1), (1, 0), (1, 1)]
    # The diagonal goes through two corners and becomes an edge that the next constraint cuts.
    wedge = box(2, 0, 1, matrix=[[1, -1], [1, 1]], lower=[0, -np.inf], upper=[np.inf, 1])
    assert sorted(vertices(wedge)) == [(0, 0), (F(1, 2), F(1, 2)), (1, 0)]


@given(problems())
def test_random_points_lie_in_the_domain_and_their_values_in_the_ranges(
    problem: tuple[Network, RandomDomain],
) -> None:
    network, domain = problem
    polytope = domain.polytope
    assert polytope.contains([F(v) for v in domain.point.tolist()])
    names = [node.name for node in network.nodes]
    ranges = exact_value_ranges(network, polytope, names)
    for x in [*random_points(polytope, 12), [F(v) for v in domain.point.tolist()]]:
        assert polytope.contains(x)
        values = evaluate(network, x)
        for name in names:
            for value, (low, high) in zip(values[name], ranges[name], strict=True):
                assert low <= value <= high


@given(problems(max_inputs=2, max_layers=3, max_width=3, extreme=False, rows=0))
def test_ranges_are_no_wider_than_a_fine_grid_says(problem: tuple[Network, RandomDomain]) -> None:
    """A grid point is within half a step of every point, so its value is within Lipschitz times that."""
    network, domain = problem
    steps = 16 if network.input.size == 2 else 64
    axes = [
        [low + (high - low) * F(k, steps) for k in range(steps + 1)] if low < high else [low]
        for low, high in zip(domain.polytope.lo, domain.polytope.hi, strict=True)
    ]
    grid = [evaluate(network, x) for x in product(*axes)]
    half_step = max(
        (high - low) / (2 * steps) for low, high in zip(domain.polytope.lo, domain.polytope.hi, strict=True)
    )
    lipschitz = lipschitz_constants(network)
    for node in network.relus:
        source = node.inputs[0]
        for k, (low, high) in enumerate(exact_ranges(network, domain.polytope)[node.name]):
            seen = [values[source][k] for values in grid]
            slack = lipschitz[source][k] * half_step
            assert low <= min(seen) <= low + slack
            assert high - slack <= max(seen) <= high


def lipschitz_constants(network: Network) -> dict[str, list[Fraction]]:
    """How much each entry can change per unit of the largest change of an input, by absolute weights."""
    positive = [Node(node.name, absolute(node), node.inputs) for node in network.nodes]
    ones = [F(1)] * network.input.size
    return evaluate(Network(network.input, tuple(positive), network.outputs), ones)


def absolute(node: Node):
    operator = node.operator
    if isinstance(operator, Linear):
        return Linear(np.abs(operator.weight), np.zeros_like(operator.bias))
    return Scale.exactly(np.abs(operator.scale), 0.0) if isinstance(operator, Scale) else operator


@given(networks(extreme=False), st.integers(0, 100))
def test_evaluation_agrees_with_the_float_network(network: Network, seed: int) -> None:
    x = np.random.default_rng(seed).uniform(-2, 2, network.input.size)
    exact = outputs(network, [F(v) for v in x.tolist()])
    found = network(torch.as_tensor(x)[None]).flatten().tolist()
    assert found == pytest.approx([float(v) for v in exact], rel=1e-9, abs=1e-6)


@given(problems(max_neurons=6, extreme=False), st.data())
def test_the_deviation_of_a_network_from_itself_is_0_and_sees_a_shift(problem, data) -> None:
    network, domain = problem
    assert not any(largest_deviations(network, network, domain.polytope))
    assume("output" in network.sources)
    last = network["output"]
    shift = np.zeros_like(last.operator.bias)
    shift[data.draw(st.integers(0, len(shift) - 1))] = 2.0**-20
    moved = Node("output", Linear(last.operator.weight, last.operator.bias + shift), last.inputs)
    changed = network.edit(change={"output": moved})
    expected = [abs(F(a) - F(b)) for a, b in zip(moved.operator.bias, last.operator.bias, strict=True)]
    assert largest_deviations(network, changed, domain.polytope)[: len(shift)] == expected
