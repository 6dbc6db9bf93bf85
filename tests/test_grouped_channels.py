"""Convolutions in groups: as many channels go from every group, or whole groups do; nothing else changes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from benchmarks.tied_channels import counted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from torch import Tensor, nn

import oracle
import relutrim
from certifying import recheck
from relutrim.graph import Network
from relutrim.graph.operators import Convolution, Linear
from relutrim.result import Compression


class Grouped(nn.Module):
    """A convolution in groups between two others; each of both values has 16 channels, in four groups."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Conv2d(3, 16, 1)
        self.two = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.three = nn.Conv2d(16, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(x).relu()).relu())


class Residual(Grouped):
    """What is read is added to what is made."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.one(x).relu()
        return self.three(first + self.two(first))


@torch.no_grad()
def without(layer: nn.Conv2d, *channels: int) -> None:
    """Let channels be 0."""
    layer.weight[list(channels)] = 0
    if layer.bias is not None:
        layer.bias[list(channels)] = 0


def smaller(module: nn.Module, shape: tuple[int, ...] = (3, 4, 4)) -> Compression:
    """What is left of a module on all real inputs, bit for bit."""
    result = relutrim.compress(
        module.eval(), relutrim.Everywhere(shape), tolerance=0, method="bounds", certificate=True
    )
    assert result.obstacle is None
    assert result.remark is None
    assert type(result.model) is type(module)
    assert result.deviation.proven == 0
    assert result.unchanged or recheck(result).bound == 0
    for layer in result.model.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.weight.shape[:2] == (layer.out_channels, layer.in_channels // layer.groups)
    random = np.random.default_rng(0)
    x = [Fraction(v) for v in random.integers(-4, 5, result.original.input.size).tolist()]
    assert oracle.outputs(result.stored, x) == oracle.outputs(result.original, x)
    return result


def sizes(result: Compression) -> list[tuple[int, int, int]]:
    layers = [layer for layer in result.model.modules() if isinstance(layer, nn.Conv2d)]
    return [(layer.in_channels, layer.out_channels, layer.groups) for layer in layers]


def made(network: Network) -> int:
    """How many channels its layers make."""
    operators = [node.operator for node in network]
    return sum(len(one.weight) for one in operators if isinstance(one, Convolution | Linear))


def test_a_group_goes_with_what_it_alone_reads():
    module = Grouped()
    without(module.two, 4, 5, 6, 7)
    assert sizes(smaller(module)) == [(3, 12, 1), (12, 12, 3), (12, 6, 1)]


def test_a_group_that_reads_nothing_goes_with_what_it_makes():
    module = Grouped()
    without(module.one, 4, 5, 6, 7)
    with torch.no_grad():
        module.two.bias[4:8] = -1.0
    assert sizes(smaller(module)) == [(3, 12, 1), (12, 12, 3), (12, 6, 1)]


def test_of_every_group_as_many_channels_go_as_of_the_one_with_fewest():
    module = Grouped()
    without(module.one, 0, 6, 7, 9, 12, 13, 14)
    without(module.two, 0, 1, 5, 6, 8, 10, 11, 13, 15)
    result = smaller(module)
    assert sizes(result) == [(3, 12, 1), (12, 8, 4), (8, 6, 1)]
    assert made(result.original) - made(result.stored) == counted(module, torch.zeros(1, 3, 4, 4)).removable


def test_where_one_group_keeps_all_the_channels_stay():
    module = Grouped()
    without(module.one, 0, 1, 6, 9)
    without(module.two, 5, 8, 12)
    result = smaller(module)
    assert result.unchanged
    count = counted(module, torch.zeros(1, 3, 4, 4))
    assert count.removable == 0
    assert count.staying == {"a group of a convolution": 7}


def test_what_a_sum_ties_goes_from_both_sides_or_not_at_all():
    module = Residual()
    without(module.one, 0, 1, 5, 8, 12)
    without(module.two, 0, 2, 5, 8, 12)
    result = smaller(module)
    assert sizes(result) == [(3, 12, 1), (12, 12, 4), (12, 6, 1)]


def test_onnx_says_how_many_groups_are_left():
    module = Grouped()
    without(module.two, 4, 5, 6, 7)
    weights = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    nodes = [
        helper.make_node("Conv", ["x", "one.weight", "one.bias"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "two.weight", "two.bias"], ["c"], group=4, pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "three.weight", "three.bias"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, ["N", n, 4, 4]) for name, n in (("x", 3), ("y", 6))]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opset = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    result = relutrim.compress(proto, relutrim.Everywhere(), tolerance=0, method="bounds", certificate=True)
    found = result.model.graph
    assert [node.op_type for node in found.node] == [node.op_type for node in nodes]
    (groups,) = (a.i for a in found.node[2].attribute if a.name == "group")
    assert groups == 3
    kept = np.r_[0:4, 8:16]
    left = {one.name: numpy_helper.to_array(one) for one in found.initializer}
    np.testing.assert_array_equal(left["two.weight"], weights["two.weight"][kept])
    np.testing.assert_array_equal(left["one.weight"], weights["one.weight"][kept])
    assert recheck(result).bound == 0


class Planned(nn.Module):
    """Steps drawn at random: layers by name, and what is done with the values that are there already."""

    def __init__(self, plan: list[tuple[str, ...]], layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.layers, self.plan = nn.ModuleDict(layers), plan

    def forward(self, x: Tensor) -> Tensor:
        values = {"x": x}
        for made, kind, *reads in self.plan:
            given = [values[name] for name in reads]
            match kind:
                case "layer":
                    values[made] = self.layers[made](given[0])
                case "relu":
                    values[made] = given[0].relu()
                case "sum":
                    values[made] = given[0] + given[1]
                case "cat":
                    values[made] = torch.cat(given, 1)
        return values[made]


@torch.no_grad()
def planted(draw: st.DrawFn, layer: nn.Conv2d) -> None:
    """Dyadic weights, and a choice of channels that are 0: of each group some, all or none."""
    layer.weight.copy_(torch.randint(-8, 9, layer.weight.shape) / 8)
    if layer.bias is not None:
        layer.bias.copy_(torch.randint(-8, 9, layer.bias.shape) / 8)
    size = len(layer.weight) // layer.groups
    for group in range(layer.groups):
        dead = draw(st.integers(0, size) | st.just(size))
        order = draw(st.permutations(range(size)))[:dead]
        without(layer, *(group * size + k for k in order))


@st.composite
def modules(draw: st.DrawFn) -> Planned:
    """Convolutions in groups, dilated and padded, one behind the other, tied by sums and concatenations."""
    plan: list[tuple[str, ...]] = []
    layers: dict[str, nn.Module] = {}
    torch.manual_seed(draw(st.integers(0, 2**16)))

    def add(kind: str, *reads: str) -> str:
        plan.append((f"v{len(plan)}", kind, *reads))
        return plan[-1][0]

    def convolution(read: str, before: int, after: int, groups: int) -> str:
        kernel, dilation = draw(st.sampled_from([(1, 1), (2, 2), (3, 1), (3, 2)]))
        spread = dilation * (kernel - 1)
        bias = draw(st.booleans())
        padding = spread // 2
        layer = nn.Conv2d(before, after, kernel, 1, padding, dilation, groups, bias)
        planted(draw, layer)
        layers[f"v{len(plan)}"] = layer
        return add("layer", read)

    size = draw(st.sampled_from([4, 6, 8]))
    current = add("relu", convolution("x", 2, size, 1))
    known = {current: size}
    for _ in range(draw(st.integers(1, 3))):
        after = draw(st.sampled_from([size, size, 4, 6, 8]))
        groups = draw(st.sampled_from([g for g in range(1, size + 1) if size % g == after % g == 0]))
        current, size = convolution(current, size, after, groups), after
        match draw(st.sampled_from(["nothing", "relu", "relu", "sum", "cat"])):
            case "relu":
                current = add("relu", current)
            case "sum":
                same = [name for name, other in known.items() if other == size]
                current = add("sum", current, draw(st.sampled_from(same))) if same else current
            case "cat" if size < 8:
                other = draw(st.sampled_from(sorted(known)))
                if known[other] + size <= 12:
                    current, size = add("cat", current, other), size + known[other]
        known[current] = size
    convolution(current, size, 2, 1)
    return Planned(plan, layers)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(modules())
def test_random_modules_lose_what_a_program_of_its_own_counts_and_nothing_changes(module):
    result = smaller(module, (2, 3, 3))
    count = counted(module, torch.zeros(1, 2, 3, 3))
    assert made(result.original) - made(result.stored) >= count.removable
