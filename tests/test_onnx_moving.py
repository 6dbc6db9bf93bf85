"""Slice, Split, Gather, Pad, Transpose, Concat, broadcasting: as onnxruntime does it, or refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from onnx_models import assert_reads, assert_same, model, numbers, op, opaque, run, sample, values_at
from relutrim.errors import InputError
from relutrim.graph import Network, Node, Output, Port
from relutrim.graph.operators import Concat, Take, Transpose
from relutrim.io.onnx import network_from_proto, network_to_proto
from relutrim.io.sizes import TooLarge

FAR = 2**31 - 1


def kinds(network) -> list[type]:
    return [type(node.operator) for node in network]


def ints(*numbers_: int) -> np.ndarray:
    return np.array(numbers_, np.int64)


SLICES = {
    "front": ([0], [2], [1], None),
    "back": ([-2], [FAR], [2], None),
    "middle of two axes": ([1, 1], [3, -1], [1, 2], None),
    "every other": ([0], [FAR], [2], [2]),
    "backwards": ([-1], [-(2**31)], [1], [-1]),
    "backwards in steps": ([3], [0], [2], [-2]),
    "with the whole batch": ([0, 1], [FAR, 2], None, None),
    "nothing left out": ([0], [FAR], [1], None),
    "beyond the end": ([1], [100], [-1], None),
}


@pytest.mark.parametrize("case", SLICES)
def test_slices(case):
    starts, ends, axes, steps = SLICES[case]
    given = {"s": starts, "e": ends, "a": axes, "t": steps}
    names = [name if found is not None else "" for name, found in given.items()]
    weights = {name: ints(*found) for name, found in given.items() if found is not None}
    assert_reads(model([op("Slice", ["x", *names])], ["n", 4, 5], weights))
    if steps is None:
        attributes = {"starts": starts, "ends": ends} | ({"axes": axes} if axes else {})
        assert_reads(model([op("Slice", ["x"], **attributes)], ["n", 4, 5], opset=9))


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("parts", [None, (1, 3, 2), (2, 2, 2)])
def test_split(opset, parts):
    weights = {"p": ints(*parts)} if parts and opset >= 13 else {}
    attributes = {"split": parts} if parts and opset < 13 else {}
    if opset == 18 and not parts:
        attributes["num_outputs"] = 3
    node = helper.make_node("Split", ["x", *weights], ["a", "b", "c"], name="split", axis=-1, **attributes)
    nodes = [node, op("Relu", ["c"], "y"), op("Relu", ["a"], "z")]
    network = assert_reads(model(nodes, ["n", 2, 6], weights, outputs=("y", "z"), opset=opset))
    assert sorted(node.name for node in network) == ["a", "c", "y", "z"]  # nobody reads b


def test_split_into_parts_of_different_size():
    node = helper.make_node("Split", ["x"], ["a", "y"], name="split", axis=1, num_outputs=2)
    network = assert_reads(model([node], ["n", 5], outputs=("a", "y"), opset=18))
    assert [network.shapes[name] for name in ("a", "y")] == [(3,), (2,)]


@pytest.mark.parametrize("found", [ints(2, 0, 0, -1), ints([1, 2], [0, 3]), np.array(1), np.array(-4)])
@pytest.mark.parametrize("axis", [1, -1])
def test_gather(found, axis):
    assert_reads(model([op("Gather", ["x", "i"], axis=axis)], ["n", 4, 3, 4], {"i": found}))


PADS = {
    "front": [0, 1, 0, 0, 0, 0],
    "everywhere": [0, 1, 2, 0, 3, 1],
    "cut off": [0, -1, 0, 0, 0, -2],
    "cut off and put on": [0, -1, 2, 0, 1, -1],
    "nothing": [0] * 6,
}


@pytest.mark.parametrize("case", PADS)
@pytest.mark.parametrize("constant", [None, 0.0, 1.5])
def test_pad(case, constant):
    weights = {"p": ints(*PADS[case])}
    if constant is not None:
        weights["c"] = np.array(constant, np.float32)
    assert_reads(model([op("Pad", ["x", *weights])], ["n", 3, 4], weights))
    value = {} if constant is None else {"value": constant}
    assert_reads(model([op("Pad", ["x"], pads=PADS[case], **value)], ["n", 3, 4], opset=10))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pad_with_the_value_itself(mode):
    weights = {"p": ints(0, 1, 2, 0, 0, 3)}
    assert_reads(model([op("Pad", ["x", "p"], mode=mode)], ["n", 3, 4], weights, opset=19))


def test_pad_of_some_axes():
    weights = {"p": ints(1, 2), "a": ints(-1)}
    assert_reads(model([op("Pad", ["x", "p", "", "a"])], ["n", 3, 4], weights, opset=18))


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (0, 2, 3, 1), (0, 1, 3, 2)])
def test_transpose(order):
    network = assert_reads(model([op("Transpose", ["x"], perm=order)], ["n", 2, 3, 4]))
    assert kinds(network) == [Transpose]


@pytest.mark.parametrize("axis", [1, -1])
def test_concat_of_branches(axis):
    nodes = [op("Relu", ["x"], "r"), op("Neg", ["x"], "s"), op("Concat", ["r", "s", "x"], axis=axis)]
    network = assert_reads(model(nodes, ["n", 2, 3]))
    assert kinds(network)[-1] is Concat


def test_concat_of_one_value_with_itself_reads_it_once():
    nodes = [op("Relu", ["x"], "r"), op("Concat", ["r", "x", "r"], axis=1)]
    network = assert_reads(model(nodes, ["n", 2, 3]))
    assert all(len(set(node.inputs)) == len(node.inputs) for node in network)
    network = assert_reads(model([op("Concat", ["x", "x"], axis=2)], ["n", 2, 3]))
    assert kinds(network) == [Take]


@pytest.mark.parametrize("order", [("c", "x"), ("x", "c"), ("c", "x", "d", "r"), ("d", "c", "x")])
def test_concat_with_constants(order):
    nodes = [op("Relu", ["x"], "r"), op("Concat", order, axis=1), op("Relu", ["r"], "z")]
    weights = {"c": numbers(1, 2, 3), "d": numbers(1, 1, 3)}
    assert_reads(model(nodes, [1, 4, 3], weights, outputs=("y", "z")))


@pytest.mark.parametrize("kind", ["Add", "Sub", "Sum", "Max", "Min"])
def test_branches_that_broadcast(kind):
    nodes = [op("ReduceMean", ["x"], "m", axes=[2, 3]), op(kind, ["m", "x"])]
    assert_reads(model(nodes, ["n", 2, 3, 4]))
    assert_reads(model([nodes[0], op(kind, ["x", "m"])], ["n", 2, 3, 4]))


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_constants_that_repeat_the_value(kind):
    weights = {"c": abs(numbers(3, 4)) + 1}
    assert_reads(model([op(kind, ["x", "c"])], ["n", 3, 1], weights))


def test_shapes_that_are_computed_from_the_batch_size():
    nodes = [
        op("Shape", ["x"], "s"),
        op("Gather", ["s", "zero"], "n"),
        op("Unsqueeze", ["n", "front"], "m"),
        op("Concat", ["m", "rest"], "t", axis=0),
        op("Reshape", ["x", "t"]),
    ]
    weights = {"zero": np.array(0), "front": ints(0), "rest": ints(-1)}
    for batch in (1, 4, "n"):
        network = assert_reads(model(nodes, [batch, 2, 3], weights))
        assert not network.pinned


@given(st.data())
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_any_pick_is_written_and_read_again(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    picks = []
    for size in shape:
        pick = st.lists(st.integers(-1, size - 1), max_size=6)
        runs = st.tuples(st.integers(0, size), st.integers(0, size), st.integers(0, 2), st.integers(0, 2))
        stretch = runs.map(lambda r: [-1] * r[2] + list(range(min(r[:2]), max(r[:2]))) + [-1] * r[3])
        picks.append(data.draw(st.none() | pick | stretch))
    operator = Take(tuple(None if pick is None else ints(*pick) for pick in picks))
    batch = data.draw(st.sampled_from(["n", 2, None]))
    network = Network(Port("x", shape, batch), (Node("y", operator, ("x",)),), (Output("y", "y"),))
    x = sample(network)
    proto = network_to_proto(network)
    (expected,) = values_at(network, x)
    assert_same(run(proto, x)[0], expected)
    assert_same(values_at(network_from_proto(proto), x)[0], expected)


BAD_MOVES = {
    "slice of the batch": ([op("Slice", ["x", "s", "e"])], {"s": ints(1), "e": ints(2)}, "of the batch"),
    "steps of 0": (
        [op("Slice", ["x", "s", "e", "e", "z"])], {"s": ints(0), "e": ints(1), "z": ints(0)},
        "steps of 0",
    ),
    "slice of no such axis": (
        [op("Slice", ["x", "s", "s", "a"])], {"s": ints(0), "a": ints(7)}, "do not exist",
    ),
    "limits that do not match": (
        [op("Slice", ["x", "s", "e"])], {"s": ints(0), "e": ints(1, 2)}, "not as many",
    ),
    "computed limits": ([op("Slice", ["x", "x", "x"])], {}, "'x' is computed"),
    "gather beyond the end": ([op("Gather", ["x", "i"], axis=1)], {"i": ints(3)}, "entry 3 of an axis of 3"),
    "gather from the batch": ([op("Gather", ["x", "i"])], {"i": ints(0)}, "of the batch"),
    "gather by the input": ([op("Gather", ["c", "x"])], {"c": numbers(3)}, "'x' is computed"),
    "gather by numbers": ([op("Gather", ["x", "c"], axis=1)], {"c": numbers(3)}, "should hold integers"),
    "pad of the batch": ([op("Pad", ["x", "p"])], {"p": ints(1, 0, 0, 0)}, "pads the batch"),
    "pad beyond measure": ([op("Pad", ["x", "p"])], {"p": ints(0, 2**40, 0, 2**40)}, "more than the"),
    "pad of nothing beyond measure": (
        [op("Unsqueeze", ["x", "two"], "h"), op("Pad", ["h", "p"])],
        {"two": ints(2), "p": ints(0, 2**40, -1, 0, 0, 0)}, "more than the",
    ),
    "cut off more than there is": ([op("Pad", ["x", "p"])], {"p": ints(0, -2, 0, -2)}, "do not go with"),
    "too few pads": ([op("Pad", ["x", "p"])], {"p": ints(0, 1)}, "two numbers for each of 2 axes"),
    "reflected too far": ([op("Pad", ["x", "p"], mode="reflect")], {"p": ints(0, 3, 0, 0)}, "reflect more"),
    "unknown mode": ([op("Pad", ["x", "p"], mode="mirror")], {"p": ints(0, 1, 0, 0)}, "'mirror'"),
    "pad with NaN": (
        [op("Pad", ["x", "p", "c"])], {"p": ints(0, 1, 0, 0), "c": np.array(np.nan, np.float32)}, "NaN",
    ),
    "concat of the batch": ([op("Concat", ["x", "x"], axis=0)], {}, "along the batch axis"),
    "concat of other shapes": ([op("Concat", ["x", "c"], axis=1)], {"c": numbers(1, 2, 2)}, "of a batch"),
    "not an order": ([op("Transpose", ["x"], perm=[0, 0])], {}, "not an order"),
    "split that does not add up": (
        [helper.make_node("Split", ["x", "p"], ["y", "z"], name="bad", axis=1)], {"p": ints(1, 1)},
        "parts of",
    ),
    "uneven split": ([helper.make_node("Split", ["x"], ["y", "z"], name="bad", axis=1)], {}, "2 equal parts"),
    "more entries than fit": (
        [op("Gather", ["x", "i"], "h", axis=1), op("Reshape", ["h", "s"], "k"),
         op("Reshape", ["h", "t"], "l"), op("Add", ["k", "l"])],
        {"i": np.zeros(20000, np.int64), "s": ints(-1, 20000, 1), "t": ints(-1, 1, 20000)},
        "more than the",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MOVES)
def test_moves_that_cannot_be_read_say_where_and_why(case):
    nodes, weights, text = BAD_MOVES[case]
    proto = model(nodes, ["n", 3], weights)
    try:
        message = opaque(proto)
    except (InputError, TooLarge) as error:
        message = str(error)
    assert re.search(text, message)
    assert f"'{nodes[-1].name}'" in message
