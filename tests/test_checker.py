"""The checker's own parts: its reader against the package's, its bounds against exact arithmetic."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
from certifying import certified, files, packed_leaf, small
from relutrim.certificate.check import prove_ranges
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.ranges import Ranges
from relutrim.certificate.check.read import read
from relutrim.certificate.hinting import run
from relutrim.certificate.trees import Leaf, Split, UnitProof, of_boxes, of_states, stream_of, streams
from relutrim.errors import CheckFailed, RelutrimError, UnsupportedError
from relutrim.io.onnx.write import network_to_proto
from spatial import spatial_networks
from strategies import domains, problems

SLOW = settings(max_examples=40, suppress_health_check=list(HealthCheck))


def graph_of(network):
    return read(network_to_proto(network).SerializeToString())


def domain_of(random):
    return Domain(random.lo, random.hi, random.matrix, random.lower, random.upper)


@SLOW
@given(spatial_networks(extreme=False) | problems(extreme=False).map(lambda pair: pair[0]))
def test_it_reads_what_the_package_reads(network):
    graph = graph_of(network)
    x = np.random.default_rng(0).uniform(-1, 2, (5, network.input.size))
    values = run(graph, x)
    theirs = network(torch.as_tensor(x)).numpy()
    mine = {name: values[output.number] for name, output in graph.outputs.items()}
    for output in network.outputs:
        one = network.run(torch.as_tensor(x))[output.source].reshape(len(x), -1).numpy()
        np.testing.assert_allclose(mine[output.name], one, rtol=1e-9, atol=1e-9)
    assert theirs.shape[0] == len(x)
    assert mine


@SLOW
@given(problems(max_layers=3, max_width=4, max_neurons=8))
def test_its_ranges_hold_every_value(problem):
    network, random = problem
    try:
        graph = graph_of(network)
        ranges = prove_ranges(graph, domain_of(random))
    except RelutrimError:
        return
    exact = oracle.exact_ranges(network, random.polytope)
    assert len(ranges.layers) == len(network.relus)
    for layer, relu in zip(ranges.layers, network.relus, strict=True):
        for entry, (low, high) in enumerate(exact[relu.name]):
            assert not np.isfinite(layer.lo[entry]) or Fraction(layer.lo[entry]) <= low
            assert not np.isfinite(layer.hi[entry]) or Fraction(layer.hi[entry]) >= high


@SLOW
@given(st.integers(1, 3).flatmap(lambda inputs: domains(inputs, rows=3)))
def test_a_narrowed_box_holds_every_point(random):
    with np.errstate(all="ignore"):
        found = domain_of(random).narrowed()
    assert (random.lo <= found.lo).all()
    assert (found.hi <= random.hi).all()
    for point in oracle.vertices(random.polytope):
        for low, x, high in zip(found.lo, point, found.hi, strict=True):
            assert Fraction(low) <= x <= Fraction(high)


INF = float("inf")


@pytest.mark.parametrize(
    ("rows", "lower", "upper", "ends"),
    [
        ([[-1.0, 0.0]], [-INF], [-1.0], [(1, 1), (-1, 1)]),
        ([[0.0, 2.0]], [-1.0], [INF], [(-1, 1), (-0.5, 1)]),
        ([[1.0, -2.0]], [2.5], [INF], [(0.5, 1), (-1, -0.75)]),
        ([[1.0, 1.0], [1.0, -1.0]], [2.0, -INF], [INF, 0.0], [(1, 1), (1, 1)]),
        ([[0.0, 0.0]], [-INF], [0.0], [(-1, 1), (-1, 1)]),
        ([[0.0, 0.0]], [1.0], [1.0], [(-1, 1), (-1, 1)]),  # no point at all, which nothing shows
        ([[1.0, 1.0]], [INF], [INF], [(-1, 1), (-1, 1)]),
        ([[1e308, 1e308]], [-1e308], [1e308], [(-1, 1), (-1, 1)]),
        ([[1e308, 1e308], [1.0, 0.0]], [-1e308, 0.0], [1e308, 1.0], [(0, 1), (-1, 1)]),
        ([[1e-310, 0.0]], [0.0], [INF], [(-1, 1), (-1, 1)]),  # no multiplier is large enough
    ],
)
def test_a_box_is_narrowed_by_each_constraint(rows, lower, upper, ends):
    box = Domain(-np.ones(2), np.ones(2), np.array(rows), np.array(lower), np.array(upper))
    with np.errstate(all="ignore"):
        found = box.narrowed()
    for (low, high), at in zip(ends, range(2), strict=True):
        assert low - 1e-12 <= found.lo[at] <= low
        assert high <= found.hi[at] <= high + 1e-12


def test_a_box_without_points_is_not_narrowed():
    box = Domain(-np.ones(2), np.ones(2), np.ones((1, 2)), np.array([3.0]), np.array([INF]))
    with np.errstate(all="ignore"), pytest.raises(CheckFailed, match="no input at all"):
        box.narrowed()


@st.composite
def trees(draw, layers, inputs, shapes, depth=2):
    """Cases, parts and multipliers that nobody chose with a purpose."""
    if depth and draw(st.booleans()):
        first, second = (draw(trees(layers, inputs, shapes, depth - 1)) for _ in range(2))
        place = st.tuples(st.integers(-1, layers), st.integers(0, 4)) | st.integers(0, inputs - 1)
        return Split(draw(place), first, second, draw(st.floats(-4, 4)))
    if draw(st.booleans()):
        return Leaf()
    return Leaf(packed_leaf(draw(st.randoms(use_true_random=False)), shapes))


@st.composite
def levels(draw, layers):
    """Some units of some layers, and places, not all of which are there."""
    found = []
    for layer in range(layers):
        units = draw(st.lists(st.integers(-1, 5), unique=True, max_size=5))
        width = draw(st.integers(0, 4))
        own = st.lists(st.integers(-2, 12), unique=True, min_size=width, max_size=width)
        places = [draw(own) for _ in units]
        if draw(st.booleans()):
            found.append((layer, units, np.array(places, dtype=np.int64).reshape(len(units), width)))
    return found


@st.composite
def unit_proofs(draw, layers, inputs):
    own = draw(levels(layers))
    tree = draw(trees(layers, inputs, [places.shape for _, _, places in own]))
    return UnitProof(layers, 0, draw(st.sampled_from([1, -1])), tree, own)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(problems(max_layers=3, max_width=4, max_neurons=8), st.data())
def test_no_proof_proves_what_is_false(problem, data):
    network, random = problem
    try:
        graph = graph_of(network)
    except RelutrimError:
        return
    ranges = Ranges(graph, domain_of(random))
    exact = oracle.exact_ranges(network, random.polytope)
    relus = iter(network.relus)
    with np.errstate(all="ignore"):
        while (layer := ranges.advance()) is not None:
            proof = data.draw(unit_proofs(len(ranges.layers), len(random.lo)))
            for entry, (low, high) in enumerate(exact[next(relus).name]):
                stream = stream_of(streams([replace(proof, unit=entry)]))
                stream.use(ranges, layer)
                assert stream.layer() == -1
                assert not np.isfinite(layer.lo[entry]) or Fraction(layer.lo[entry]) <= low
                assert not np.isfinite(layer.hi[entry]) or Fraction(layer.hi[entry]) >= high
            ranges.close(layer)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), st.integers(1, 3)), max_size=9
    )
)
def test_boxes_make_a_tree_only_if_every_cell_is_in_one(boxes):
    lows = np.array([[a, b] for a, b, _, _ in boxes], float).reshape(-1, 2)
    highs = lows + np.array([[c, d] for _, _, c, d in boxes], float).reshape(-1, 2)
    cells = [((lows <= [x, y]) & (highs >= [x + 1, y + 1])).all(1).any() for x in range(4) for y in range(4)]
    if of_boxes(np.zeros(2), np.full(2, 4.0), lows, highs) is not None:
        assert all(cells)


@given(
    st.lists(st.dictionaries(st.tuples(st.just(0), st.integers(0, 3)), st.booleans(), max_size=3), max_size=8)
)
def test_states_make_a_tree_just_if_they_cover_every_case(cases):
    assignments = [{(0, k): bool(bits >> k & 1) for k in range(4)} for bits in range(16)]
    every = all(any(case.items() <= one.items() for case in cases) for one in assignments)
    tree = of_states([(case, Leaf(bytes([number]))) for number, case in enumerate(cases)])
    assert (tree is not None) == every
    for one in assignments if tree is not None else ():
        while isinstance(tree, Split):
            tree = tree.second if one[tree.place] else tree.first
        assert tree is not None
        assert tree.packed is not None
        assert cases[tree.packed[0]].items() <= one.items()
        tree = of_states([(case, Leaf(bytes([number]))) for number, case in enumerate(cases)])


_BARE = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "highspy", "click", "rich", "onnxruntime", "scipy", "jsonschema"}:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Nothing())
from relutrim.certificate.check.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_it_runs_where_numpy_and_onnx_are_all_there_is(tmp_path):
    paths = [tmp_path / name for name in ("model.onnx", "out.onnx", "c.zip")]
    for path, content in zip(paths, files(certified(small())), strict=True):
        path.write_bytes(content)

    def checked(*arguments):
        return subprocess.run(
            [sys.executable, "-c", _BARE, *map(str, paths), *arguments], capture_output=True, text=True
        )

    done = checked("--box", "0", "1", "--tolerance", "1e-5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "accepted" in done.stdout
    assert checked("--box", "0", "2").returncode == 1
    assert checked("--sum-between", "0", "1").returncode == 2
    paths[2].write_bytes(b"PK")
    assert checked().returncode == 2


def test_an_operator_it_does_not_read_is_named(tmp_path):
    import onnx

    proto = network_to_proto(small())
    for node in proto.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Elu"
    with pytest.raises(UnsupportedError, match="Elu"):
        read(proto.SerializeToString())
    assert onnx.__version__


def onnx_file(nodes, shape, constants):
    """A float64 model from ``x`` to ``y``."""
    import onnx
    from onnx import helper, numpy_helper

    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, size)
        for name, size in (("x", shape), ("y", None))
    ]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [ends[0]], [ends[1]], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("kind", ["Erf", "Max", "ConvTranspose", "HardSigmoid", "Cast"])
def test_operators_that_are_not_certified_are_refused_by_name(kind):
    from onnx import helper

    model = onnx_file([helper.make_node(kind, ["x"], ["y"])], [1, 2], {})
    with pytest.raises(UnsupportedError, match=kind):
        read(model.SerializeToString())


def test_two_nodes_may_not_make_the_same_tensor():
    from onnx import helper

    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["y"])]
    with pytest.raises(RelutrimError, match="'y' is made twice"):
        read(onnx_file(nodes, [1, 2], {}).SerializeToString())


@pytest.mark.parametrize("what", ["attribute", "initializer", "input", "metadata"])
def test_what_is_there_twice_is_refused(what):
    """The first one counts for some readers, and the last one for others."""
    from onnx import helper

    model = onnx_file([helper.make_node("Gemm", ["x", "w"], ["y"])], [1, 2], {"w": np.ones((2, 2))})
    read(model.SerializeToString())
    match what:
        case "attribute":
            model.graph.node[0].attribute.extend(helper.make_attribute("transB", k) for k in (0, 1))
        case "initializer":
            model.graph.initializer.append(model.graph.initializer[0])
        case "input":
            entry = helper.make_tensor_value_info("w", 1, [2, 2])
            model.graph.input.extend([entry, entry])
        case "metadata":
            for value in ("none", "some"):
                model.metadata_props.add(key="relutrim.batch_axis", value=value)
    with pytest.raises(RelutrimError, match="twice"):
        read(model.SerializeToString())


def test_reading_a_model_ends_in_time():
    from onnx import helper

    model = onnx_file([helper.make_node("Relu", ["x"], ["y"])], [1, 2], {})
    with pytest.raises(RelutrimError, match="longer to read than the limit"):
        read(model.SerializeToString(), deadline=0.0)


def test_an_output_without_a_name_moves_no_other():
    from onnx import helper

    sizes = np.array([1, 1, 2])
    nodes = [helper.make_node("Split", ["x", "s"], ["a", "", "y"], axis=1)]
    graph = read(onnx_file(nodes, [1, 4], {"s": sizes}).SerializeToString())
    assert run(graph, np.array([[1.0, 2.0, 3.0, 4.0]]))[graph.outputs["y"].number].tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("kind", ["Gather", "Concat"])
def test_constants_do_not_grow_beyond_what_is_read(kind):
    from onnx import helper

    constants = {"c": np.zeros(2**13), "i": np.zeros(2**12, np.int64), "j": np.zeros(2**13, np.int64)}
    nodes = [helper.make_node("Gather", ["c", "i"], ["d"]), helper.make_node("Add", ["x", "f"], ["y"])]
    if kind == "Gather":
        nodes.insert(1, helper.make_node("Unsqueeze", ["d", "z"], ["e"]))
        nodes.insert(2, helper.make_node("Gather", ["e", "j"], ["f"]))
        constants |= {"z": np.array([0]), "j": np.zeros(2**13, np.int64)}
    else:
        nodes.insert(1, helper.make_node("Concat", ["d"] * 2**13, ["f"], axis=0))
    with pytest.raises(UnsupportedError, match="beyond what the checker reads"):
        read(onnx_file(nodes, [1, 1], constants).SerializeToString())


def test_all_nodes_together_have_a_limit():
    from onnx import helper

    constants = {"c": np.zeros(2**22), "s": np.array([1, -1])}
    many = [helper.make_node("Concat", ["c", "c", "c"], [f"c{k}"], axis=0) for k in range(9)]
    last = [helper.make_node("Sum", ["x", *(f"c{k}" for k in range(9))], ["y"])]
    with pytest.raises(RelutrimError, match="too large"):
        read(onnx_file([*many, *last], [1, 1], constants).SerializeToString())
