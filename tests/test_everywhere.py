"""All real inputs: what needs no domain goes, and nothing else; on the command line where none is given."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relutrim
from command_line import call
from relutrim.errors import DomainError, InputError
from relutrim.graph import (
    Add,
    BatchNorm,
    Concat,
    Convolution,
    Linear,
    Mean,
    Network,
    Node,
    Output,
    Port,
    Relu,
)
from relutrim.io import save
from relutrim.prove.verdict import Verdict

DEAD = ("gain", "negative", "filter")
"""Ways of a channel to be dead behind a ReLU: scale and shift 0, scale 0 and a shift below it, a filter of
zeros and a batch norm that leaves 0 as it is.
"""


class Maker:
    """A residual network in the making, and what it must lose, kept apart from it."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.lost: dict[str, set[int]] = {}

    def add(self, name: str, operator, *inputs: str) -> str:
        self.nodes.append(Node(name, operator, inputs))
        return name

    def normed(
        self, name: str, source: str, inputs: int, outputs: int, dead: dict[int, str], unread=()
    ) -> str:
        """A convolution that does not read some of its inputs, and a batch norm; ``dead`` outputs are so in
        their own ways.
        """
        draw = self.random
        weight = draw.normal(size=(outputs, inputs, 3, 3)).astype(np.float32).astype(float)
        weight[..., 0, 0], weight[..., 1, 1] = -abs(weight[..., 0, 0]), abs(weight[..., 1, 1])
        weight[:, list(unread)] = 0  # all others make either sign of what is never below 0
        gain, bias, mean = (draw.normal(size=outputs).astype(np.float32).astype(float) for _ in range(3))
        for channel, how in dead.items():
            if how == "filter":
                weight[channel], bias[channel], mean[channel] = 0, 0, 0
            else:
                gain[channel], bias[channel] = 0, 0 if how == "gain" else -1
        ones = (1, 1), ((1, 1), (1, 1)), (1, 1)
        self.add(f"{name}.conv", Convolution(weight, np.zeros(outputs), *ones), source)
        wide = (outputs, 1, 1)
        norm = BatchNorm.of(
            gain.reshape(wide), bias.reshape(wide), mean.reshape(wide), np.ones(wide), float(np.float32(1e-5))
        )
        return self.add(f"{name}.norm", norm, f"{name}.conv")


@st.composite
def residual(draw: st.DrawFn) -> tuple[Network, dict[str, set[int]]]:
    """A trunk with residual blocks, a branch that is concatenated to it, and per value the channels that must
    go: of a block or the branch each that is dead or that nobody reads, of the trunk those that are 0 in the
    stem and in all blocks.
    """
    make = Maker(draw(st.integers(0, 2**16)))
    width, blocks = draw(st.integers(2, 4)), draw(st.integers(0, 2))

    def some(count: int) -> set[int]:
        return draw(st.sets(st.integers(0, count - 1), max_size=count - 1))

    def ways(channels: set[int], *among: str) -> dict[int, str]:
        return {channel: draw(st.sampled_from(among)) for channel in sorted(channels)}

    zero = [some(width) for _ in range(blocks + 1)]
    gone = set.intersection(*zero)
    value = make.normed("stem", "x", 3, width, ways(zero[0], "gain", "filter"))
    value = make.add("stem.relu", Relu(), value)
    lost = dict.fromkeys(("stem.conv", "stem.norm", "stem.relu"), gone)
    for block in range(blocks):
        inner, name = draw(st.integers(1, 4)), f"block{block}"
        dead = some(inner)
        unread = some(inner)
        if len(dead | unread) == inner:  # a branch that is constant goes as a whole, and more with it
            unread = set()
        first = make.normed(f"{name}.one", value, width, inner, ways(dead, *DEAD))
        first = make.add(f"{name}.relu", Relu(), first)
        second = make.normed(
            f"{name}.two", first, inner, width, ways(zero[block + 1], "gain", "filter"), unread
        )
        value = make.add(f"{name}.sum", Add(2), value, second)
        value = make.add(f"{name}.out", Relu(), value)
        lost |= dict.fromkeys((f"{name}.one.conv", f"{name}.one.norm", f"{name}.relu"), dead | unread)
        lost |= dict.fromkeys((f"{name}.two.conv", f"{name}.two.norm", f"{name}.sum", f"{name}.out"), gone)
    beside = draw(st.integers(1, 3))
    dead = some(beside)
    branch = make.normed("branch", "x", 3, beside, ways(dead, *DEAD))
    branch = make.add("branch.relu", Relu(), branch)
    lost |= dict.fromkeys(("branch.conv", "branch.norm", "branch.relu"), dead)
    joined = make.add("joined", Concat(0, (width, beside)), value, branch)
    lost["joined"] = gone | {width + channel for channel in dead}
    mean = make.add("mean", Mean((1, 2), False), joined)
    weight = make.random.normal(size=(2, width + beside)).astype(np.float32).astype(float)
    make.add("y", Linear(weight, np.zeros(2)), mean)
    network = Network(Port("x", (3, 4, 4)), tuple(make.nodes), (Output("y", "y"),))
    return network, lost


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(residual())
def test_just_the_channels_go_that_an_independent_count_names(drawn):
    network, lost = drawn
    result = relutrim.compress(network)
    assert result.deviation.proven == 0
    assert result.deviation.proven_float64 == 0
    for name, channels in lost.items():
        assert result.stored.shapes[name][0] == network.shapes[name][0] - len(channels), name
    for node in result.stored:
        before = network[node.name].operator
        if isinstance(node.operator, BatchNorm) and node.name in lost:
            kept = np.setdiff1d(np.arange(len(before.gain)), sorted(lost[node.name]))
            for field in ("gain", "bias", "mean", "variance"):
                assert np.array_equal(getattr(node.operator, field), getattr(before, field)[kept])
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(5, *network.input.shape)))
    torch.testing.assert_close(result.stored(x), network(x))


def dense(weights: list[np.ndarray], biases: list[np.ndarray]) -> Network:
    nodes, value = [], "x"
    for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        nodes.append(Node(f"linear{k}", Linear(weight, bias), (value,)))
        value = f"linear{k}"
        if k < len(weights) - 1:
            nodes.append(Node(f"relu{k}", Relu(), (value,)))
            value = f"relu{k}"
    return Network(Port("x", (weights[0].shape[1],)), tuple(nodes), (Output("y", value),))


def test_dense_layers_lose_what_is_dead_unread_or_there_twice():
    first = np.array([[1.0, 2.0], [0.0, 0.0], [2.0, 4.0], [3.0, -1.0], [-1.0, 1.0]])
    second = np.array([[1.0, 5.0, 0.5, 0.0, 1.0], [1.0, 5.0, 0.25, 0.0, -1.0]])
    network = dense([first, second], [np.array([0.5, -1.0, 1.0, 0.0, 0.0]), np.zeros(2)])
    result = relutrim.compress(network, relutrim.Everywhere())
    assert result.stored.widths == [2, 2, 2]
    assert result.deviation.proven == 0


def test_a_half_open_box_is_enough_for_what_it_decides():
    weight = np.array([[1.0, 1.0], [-1.0, -2.0], [1.0, -1.0]])
    network = dense([weight, np.ones((1, 3))], [np.array([0.0, -1.0, 0.0]), np.zeros(1)])
    layer = relutrim.analyze(network, relutrim.Box(0, np.inf)).layers[0]
    assert layer.which(Verdict.ACTIVE) == [0]
    assert layer.which(Verdict.INACTIVE) == [1]
    assert layer.which(Verdict.UNSTABLE) == [2]
    assert relutrim.analyze(network).count(Verdict.UNSTABLE) == 3


def test_a_clip_that_is_saturated_is_constant():
    """ReLU6 behind a batch norm with scale 0: 7 is 6, whatever comes."""
    norm = BatchNorm.of(np.zeros(2), np.array([7.0, -1.0]), np.zeros(2), np.ones(2), 0.0)
    nodes = (
        Node("first", Linear(np.ones((2, 2)), np.zeros(2)), ("x",)),
        Node("norm", norm, ("first",)),
        Node("low", Relu(), ("norm",)),
        Node("less", Linear(np.eye(2), np.full(2, -6.0)), ("norm",)),
        Node("high", Relu(), ("less",)),
        Node("y", Linear(np.array([[1.0, 1.0]]), np.zeros(1)), ("low",)),
        Node("z", Linear(np.array([[-1.0, 1.0]]), np.zeros(1)), ("high",)),
        Node("sum", Add(2), ("y", "z")),
    )
    network = Network(Port("x", (2,)), nodes, (Output("out", "sum"),), dtype="float64")
    found = relutrim.analyze(network)
    assert found.complete
    assert found["low"].which(Verdict.ACTIVE) == found["high"].which(Verdict.ACTIVE) == [0]
    assert found.ranges["sum"].lo.item() == pytest.approx(6)
    assert found.ranges["sum"].hi.item() == pytest.approx(6)


def test_tolerances_over_all_real_inputs():
    network = dense([np.array([[1.0], [1e-9]]), np.ones((1, 2))], [np.zeros(2), np.zeros(1)])
    with pytest.raises(InputError, match="every input a finite range"):
        relutrim.compress(network, tolerance="rounding")
    for tolerance in ("exact", 0.0, 1e-3):
        assert relutrim.compress(network, tolerance=tolerance).unchanged
    found = relutrim.compress(network, certificate=True)
    assert found.certificate is not None
    assert found.certificate.bound == 0
    with pytest.raises(DomainError, match="bounded domain"):
        relutrim.Everywhere().sum_between(0, 1)


def test_mixed_integer_methods_leave_what_has_no_end_unknown():
    network = dense([np.array([[1.0], [-1.0]]), np.ones((1, 2))], [np.zeros(2), np.zeros(1)])
    found = relutrim.analyze(network, method="isa")
    assert found.count(Verdict.ACTIVE) == found.count(Verdict.INACTIVE) == 0


def test_without_a_domain_compress_takes_all_real_inputs_and_says_so(tmp_path, capsys):
    weight = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]])
    network = dense([weight, np.ones((2, 3))], [np.array([0.0, -1.0, 0.0]), np.zeros(2)])
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    save(network, path)
    done = call(
        capsys, "compress", path, out, "--report", tmp_path / "r.html", "--bounds", tmp_path / "b.json"
    )
    assert done.code == 0
    assert "no domain was given, so this holds for all real inputs; a box such as --box 0 1 may" in done.out
    assert relutrim.load(out).widths == [2, 2, 2]
    assert "whatever their 2 entries may be" in (tmp_path / "r.html").read_text()
    assert json.loads((tmp_path / "b.json").read_text())["layers"][0]["pre"]["lower"] == [None, None]
    for command in (("compress", path, out), ("analyze", path)):
        done = call(capsys, *command, "--everywhere", "--json", "--journal", tmp_path / command[0])
        assert json.loads(done.out)["domain"]["kind"] == "everywhere"
        assert done.code == 0
    assert "no domain was given" not in call(capsys, "compress", path, out, "--everywhere").out


@pytest.mark.parametrize(
    "flags",
    [
        ("--everywhere", "--box", "0", "1"),
        ("--sum-between", "0", "1"),
        ("--everywhere", "--sum-between", "0", "1"),
    ],
)
def test_a_domain_is_stated_once_and_whole(tmp_path, capsys, flags):
    path = tmp_path / "model.onnx"
    save(dense([np.eye(2), np.eye(2)], [np.zeros(2), np.zeros(2)]), path)
    assert call(capsys, "compress", path, tmp_path / "out.onnx", *flags).code == 2


def test_a_network_of_too_many_multiplications_for_a_single_input_is_decided_without_one(monkeypatch) -> None:
    monkeypatch.setattr("relutrim.prove.cascade._ENDLESS_WORK", 1)
    before = relutrim.load(relutrim.demo_model())
    assert relutrim.analyze(before, relutrim.Everywhere()).layers
    assert relutrim.compress(before, relutrim.Everywhere(), time_limit=5).stored.neurons <= before.neurons
