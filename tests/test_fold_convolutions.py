"""Two convolutions are one where nothing but padding that makes no difference is between them."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import oracle
import spatial
from relutrim.graph import Linear, Relu, Reshape
from relutrim.graph.edits import difference
from relutrim.graph.operators import Convolution
from relutrim.rewrite.cost import Cost
from relutrim.rewrite.drop_channels import drop_channels
from relutrim.rewrite.fold_convolutions import fold_convolutions
from relutrim.rewrite.pipeline import rewrite
from rewriting import start
from test_merge_channels import analysed, holds, network

RNG = np.random.default_rng(2)


def kernel(
    inputs: int,
    outputs: int,
    size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    bias: float = 1.0,
) -> Convolution:
    weight = RNG.integers(-3, 4, (outputs, inputs, size)).astype(float)
    return Convolution(weight, bias * RNG.normal(size=outputs), (stride,), ((padding, padding),), (dilation,))


def folded(first: Convolution, second: Convolution, size: int = 7) -> Convolution | None:
    """The product as it is, or None where there is none."""
    original = network((first.weight.shape[1], size), ("c", first, "x"), ("y", second, "c"))
    draft = fold_convolutions(start(original, -1, 1), "c")
    holds(original, draft, points=4)
    if draft.network is original:
        return None
    operator = draft.network["y"].operator
    assert isinstance(operator, Convolution)
    return operator


def test_without_padding_between_them_they_fold():
    one = folded(kernel(1, 2, 3, stride=2, padding=1), kernel(2, 2, 2, stride=1))
    assert one is not None
    assert (one.weight.shape, one.stride, one.padding, one.dilation) == ((2, 1, 5), (2,), ((1, 1),), (1,))


def test_dilations_fold_into_the_largest_that_holds_all_taps():
    one = folded(kernel(1, 2, 3, dilation=4), kernel(2, 2, 2, dilation=2), size=16)
    assert one is not None
    assert (one.weight.shape, one.dilation) == ((2, 1, 6), (2,))


def test_padding_behind_a_kernel_of_one_and_no_bias_folds():
    one = folded(kernel(1, 3, 1, bias=0), kernel(3, 2, 3, padding=1))
    assert one is not None
    assert (one.weight.shape, one.padding) == ((2, 1, 3), ((1, 1),))


def test_a_flattening_that_is_another_value_is_not_taken_for_a_part_of_the_old_one():
    """Of what is flattened then more goes than was flattened before."""
    second = Convolution(np.array([[[1.0], [0], [0], [1]]]), np.zeros(1), (1,), ((0, 0),), (1,))
    nodes = ("f", Reshape((1, 2), (2,)), "d"), ("y", Linear(np.eye(2), np.zeros(2)), "f")
    original = network((1, 2), ("c", kernel(1, 4, 1), "x"), ("r", Relu(), "c"), ("d", second, "r"), *nodes)
    draft = drop_channels(fold_convolutions(start(original, -1, 1), "d"))
    holds(original, draft, points=4)
    assert (draft.network.shapes["r"], draft.network.shapes["f"]) == ((2, 2), (4,))
    assert (draft.kept["f"].indices == -1).all()
    difference(original, draft.network, draft.kept)


def test_padding_behind_a_bias_does_not_fold():
    assert folded(kernel(1, 3, 1), kernel(3, 2, 3, padding=1)) is None


def test_padding_behind_a_wider_kernel_does_not_fold():
    """The product would read the input where the second kernel reads 0."""
    assert folded(kernel(1, 3, 3, padding=1, bias=0), kernel(3, 2, 3, padding=1)) is None


def test_padding_that_covers_the_first_kernel_folds():
    assert folded(kernel(1, 3, 3, padding=2, bias=0), kernel(3, 2, 3, padding=1)) is not None


@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_folds_is_the_same_in_rational_arithmetic(data):
    """Integers, so that nothing rounds: the product is the very same function."""
    shape = data.draw(spatial.shapes(channels=2, largest=5))
    first = data.draw(spatial.convolutions(shape).filter(lambda one: spatial.fits(one, shape)))
    between = first.output_shape([shape])
    second = data.draw(spatial.convolutions(between).filter(lambda two: spatial.fits(two, between)))
    original = network(shape, ("c", first, "x"), ("y", second, "c"))
    draft = fold_convolutions(start(original, -1, 1), "c")
    assume(draft.network is not original)
    for seed in range(3):
        draw = np.random.default_rng(seed)
        x = [Fraction(int(v)) for v in draw.integers(-9, 10, original.input.size)]
        assert oracle.outputs(original, x) == oracle.outputs(draft.network, x)


def test_every_way_of_padding_and_striding():
    """All small cases along one axis: a fold is right, and those without padding between always fold."""
    count = 0
    for k, m, s, t, d, e, p, q in product((1, 2, 3), (1, 2), (1, 2), (1, 2), (1, 2), (1, 2), (0, 1), (0, 1)):
        first = kernel(1, 1, k, stride=s, dilation=d, padding=p, bias=0)
        second = kernel(1, 1, m, stride=t, dilation=e, padding=q)
        one = folded(first, second, size=10)
        assert one is not None or q
        count += one is not None
    assert count > 200


def test_groups_fold_with_the_same_groups_only():
    def grouped(groups: int) -> Convolution:
        return Convolution(
            RNG.normal(size=(4, 4 // groups, 2)), RNG.normal(size=4), (1,), ((0, 0),), (1,), groups
        )

    one = folded_groups(grouped(2), grouped(2))
    assert one is not None
    assert one.groups == 2
    assert folded_groups(grouped(2), grouped(1)) is None
    assert folded_groups(grouped(1), grouped(4)) is None


def folded_groups(first: Convolution, second: Convolution) -> Convolution | None:
    original = network((4, 6), ("c", first, "x"), ("y", second, "c"))
    draft = fold_convolutions(start(original, -1, 1), "c")
    holds(original, draft, points=4)
    operator = draft.network["y"].operator
    assert isinstance(operator, Convolution)
    return None if draft.network is original else operator


def lifted(inputs: int, outputs: int, size: int) -> Convolution:
    """Active on [-1, 1] whatever it reads."""
    return Convolution(
        RNG.normal(size=(outputs, inputs, size)), np.full(outputs, 30.0), (1,), ((0, 0),), (1,)
    )


def test_an_active_convolution_folds_only_where_that_is_less():
    """1x1 into many channels and back is less as one; a bottleneck is not, and keeps its channels."""
    for middle, folds in ((9, True), (1, False)):
        original = network(
            (4, 6), ("c", lifted(4, middle, 1), "x"), ("r", Relu(), "c"), ("y", kernel(middle, 5, 1), "r")
        )
        result = rewrite(original, analysed(original, -1, 1))
        found = [step.rewrite for step in result.steps]
        assert ("fold-convolutions" in found or "merge-channels" in found) == folds
        assert result.network.parameters <= original.parameters
        assert not result.network.relus


def test_what_is_not_active_everywhere_does_not_fold():
    first = lifted(1, 2, 2)
    first = Convolution(first.weight, np.array([30.0, 0.0]), (1,), ((0, 0),), (1,))
    original = network((1, 6), ("c", first, "x"), ("r", Relu(), "c"), ("y", kernel(2, 2, 1), "r"))
    draft = start(original, -1, 1)
    assert fold_convolutions(draft, "c") is draft


@pytest.mark.parametrize("outputs", [("y", "c"), ("y", "r")])
def test_what_an_output_shows_does_not_fold(outputs):
    original = network(
        (1, 6), ("c", lifted(1, 2, 2), "x"), ("r", Relu(), "c"), ("y", kernel(2, 2, 1), "r"), outputs=outputs
    )
    draft = start(original, -1, 1)
    assert fold_convolutions(draft, "c") is draft


def test_all_who_read_it_take_the_product():
    original = network(
        (1, 6),
        ("c", lifted(1, 3, 2), "x"),
        ("r", Relu(), "c"),
        ("a", kernel(3, 2, 2), "r"),
        ("f", Reshape((3, 5), (15,)), "r"),
        ("b", Linear(RNG.normal(size=(2, 15)), RNG.normal(size=2)), "f"),
        outputs=("a", "b"),
    )
    draft = fold_convolutions(start(original, -1, 1), "c")
    holds(original, draft)
    assert not draft.network.relus
    assert draft.network["b"].operator.weight.shape == (2, 6)
    assert draft.proven < 1e-11


def test_a_linear_node_behind_a_flattening_takes_any_padding():
    first = lifted(2, 4, 3)
    first = Convolution(first.weight, first.bias, (2,), ((2, 1),), (2,))
    original = network((2, 7), ("c", first, "x"), ("r", Relu(), "c"), *_head(first, (2, 7)))
    draft = fold_convolutions(start(original, -1, 1), "c")
    holds(original, draft)
    assert draft.network["y"].operator.weight.shape == (2, 14)


def _head(first: Convolution, shape: tuple[int, ...]):
    between = first.output_shape([shape])
    size = int(np.prod(between))
    return (
        ("f", Reshape(between, (size,)), "r"),
        ("y", Linear(RNG.normal(size=(2, size)), RNG.normal(size=2)), "f"),
    )


def test_the_cost_that_is_asked_for_decides():
    """Windows that overlap: few weights, used many times."""
    first = lifted(1, 1, 8)
    original = network((1, 12), ("c", first, "x"), ("r", Relu(), "c"), *_head(first, (1, 12)))
    for cost, folds in ((Cost.PARAMETERS, False), (Cost.MULTIPLY_ADDS, True)):
        result = rewrite(original, analysed(original, -1, 1), cost=cost)
        assert ("fold-convolutions" in [step.rewrite for step in result.steps]) == folds
