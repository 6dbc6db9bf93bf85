"""Modules come back as themselves with smaller layers, or as their program with the reason why."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations, prune

import relutrim
from cutting import free_labels, label, without
from relutrim.errors import CheckFailed, InputError
from relutrim.graph import Network
from relutrim.graph.slicing import Kept
from relutrim.io.torch.apply import applied
from relutrim.io.torch.edit import edited
from relutrim.io.torch.module import record


def cut(module: nn.Module, shape: tuple[int, ...], value: str, channel: int) -> tuple[Any, str | None]:
    """A module without a channel of a value, and why it is not of its class."""
    recording = record(module, shape)
    network = recording.reading.network
    return cut_label(module, shape, label(network, value, channel))


def cut_label(module: nn.Module, shape: tuple[int, ...], gone: int) -> tuple[Any, str | None]:
    """A module without a label of its network."""
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    recording = record(module, shape)
    network = recording.reading.network
    assert gone in free_labels(network)
    after, kept = without(network, {gone})
    found, obstacle = applied(module, recording, edited(recording.program, recording.reading, after, kept))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name])
    assert_computes_what_is_left(found, network, kept)
    assert found.training == module.training
    return found, obstacle


def assert_computes_what_is_left(module: nn.Module, network: Network, kept: Mapping[str, Kept]) -> None:
    """What the module computes is what the network does with zeros for what is gone."""
    x = torch.randn(3, *network.input.shape, dtype=getattr(torch, network.dtype))
    values = {network.input.name: x.double()}
    for node in network:
        value = node.operator.forward([values[name] for name in node.inputs])
        if node.name in kept:
            mask = torch.zeros(value.shape[kept[node.name].axis + 1], dtype=value.dtype)
            mask[torch.as_tensor(kept[node.name].indices)] = 1
            value = (value.movedim(kept[node.name].axis + 1, -1) * mask).movedim(-1, kept[node.name].axis + 1)
        values[node.name] = value
    evaluated = copy.deepcopy(module).eval()
    with torch.no_grad():
        results = evaluated(x)
    results = results if isinstance(results, tuple) else (results,)
    for output, found in zip(network.outputs, results, strict=True):
        torch.testing.assert_close(found.double(), values[output.source], rtol=1e-4, atol=1e-4)


def assert_rest_is_the_same(
    module: nn.Module, found: nn.Module, smaller: Mapping[str, tuple[int, ...]]
) -> None:
    """All of the state but for these tensors is the same to the last bit."""
    before, after = module.state_dict(), found.state_dict()
    assert list(before) == list(after)
    assert type(found) is type(module)
    for name, tensor in after.items():
        assert tensor.dtype == before[name].dtype
        assert tuple(tensor.shape) == smaller.get(name, tuple(before[name].shape)), name
        assert name in smaller or torch.equal(tensor, before[name])


class Small(nn.Module):
    """Something of every kind of layer that says its size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.bend = nn.PReLU(6)
        self.deep = nn.Conv2d(6, 6, 3, groups=6)
        self.up = nn.ConvTranspose2d(6, 4, 2)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.last = nn.Linear(16, 3)
        self.register_buffer("mean", torch.full((3,), 0.5), persistent=False)
        self.remark = ["what the user keeps here"]
        for layer in (self.norm,):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias)
            layer.running_mean.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
            layer.num_batches_tracked += 7

    def forward(self, x: Tensor) -> Tensor:
        x = self.deep(self.bend(self.norm(self.conv(x))))
        return self.last(self.pool(self.up(x)).flatten(1)) + self.mean


CHANNEL = {
    "conv.weight": (5, 2, 3, 3),
    **dict.fromkeys(["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"], (5,)),
    "bend.weight": (5,),
    "deep.weight": (5, 1, 3, 3),
    "deep.bias": (5,),
    "up.weight": (5, 4, 2, 2),
}


def test_a_channel_goes_through_layers_of_every_kind():
    module = Small().eval()
    found, obstacle = cut(module, (2, 5, 5), "norm", 2)
    assert obstacle is None
    assert_rest_is_the_same(module, found, CHANNEL)
    kept = [0, 1, 3, 4, 5]
    for name in CHANNEL:
        whole = module.state_dict()[name]
        assert torch.equal(found.state_dict()[name], whole[kept])
    layers = found.conv, found.norm, found.bend, found.deep, found.up
    assert [str(layer) for layer in layers] == [
        "Conv2d(2, 5, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)",
        "BatchNorm2d(5, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)",
        "PReLU(num_parameters=5)",
        "Conv2d(5, 5, kernel_size=(3, 3), stride=(1, 1), groups=5)",
        "ConvTranspose2d(5, 4, kernel_size=(2, 2), stride=(1, 1))",
    ]
    assert found.remark == module.remark
    assert torch.equal(found.mean, module.mean)
    assert found.norm.num_batches_tracked == 7


def test_the_channels_behind_it_go_too():
    module = Small().eval()
    found, obstacle = cut(module, (2, 5, 5), "up", 1)
    assert obstacle is None
    smaller = {"up.weight": (6, 3, 2, 2), "up.bias": (3,), "last.weight": (3, 12)}
    assert_rest_is_the_same(module, found, smaller)
    assert (found.up.out_channels, found.last.in_features) == (3, 12)


@pytest.mark.filterwarnings("ignore:the module is in training mode")
def test_hooks_modes_and_what_is_to_be_learnt_stay():
    module = Small().train()
    module.norm.eval()
    module.conv.weight.requires_grad_(False)
    module.deep.half_of_it = 3
    seen = []
    module.bend.register_forward_hook(lambda layer, _, value: seen.append((layer, tuple(value.shape))))
    found, obstacle = cut(module, (2, 5, 5), "norm", 2)
    assert obstacle is None
    assert [part.training for part in found.modules()] == [part.training for part in module.modules()]
    learnt = {name: tensor.requires_grad for name, tensor in module.named_parameters()}
    assert {name: tensor.requires_grad for name, tensor in found.named_parameters()} == learnt
    assert found.deep.half_of_it == 3
    seen.clear()
    found(torch.randn(2, 2, 5, 5))
    assert [shape for _, shape in seen] == [(2, 5, 5, 5)]
    assert seen[0][0] is found.bend


def test_what_comes_back_is_trained_and_exported():
    found, _ = cut(Small().eval(), (2, 5, 5), "norm", 2)
    found.train()
    optimiser = torch.optim.SGD(found.parameters(), lr=0.1)
    before = {name: tensor.clone() for name, tensor in found.named_parameters()}
    found(torch.randn(4, 2, 5, 5)).square().sum().backward()
    optimiser.step()
    assert all(not torch.equal(tensor, before[name]) for name, tensor in found.named_parameters())
    x = torch.randn(2, 2, 5, 5)
    program = torch.export.export(found.eval(), (x,), strict=False)
    torch.testing.assert_close(program.module()(x), found(x))
    again = Small()
    with pytest.raises(RuntimeError, match="size mismatch"):
        again.load_state_dict(found.state_dict())
    copy.deepcopy(found).load_state_dict(found.state_dict())


class Tied(nn.Module):
    """Two layers with the same weight, whose channels are added."""

    def __init__(self, *, apart: bool = False) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 2)
        self.two.weight = self.one.weight
        self.other = nn.Linear(5, 2)
        self.apart = apart

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.one(x), self.two(x)
        return self.last(one.relu()) + self.other(two.relu()) if self.apart else self.last((one + two).relu())


def test_tied_weights_stay_tied():
    module = Tied().eval()
    found, obstacle = cut(module, (4,), "one", 3)
    assert obstacle is None
    smaller = {**dict.fromkeys(["one.weight", "two.weight"], (4, 4)), "last.weight": (2, 4)}
    assert_rest_is_the_same(module, found, {**smaller, "one.bias": (4,), "two.bias": (4,)})
    assert found.one.weight is found.two.weight


def test_tied_weights_of_which_one_gets_smaller_make_it_a_program():
    module = Tied(apart=True).eval()
    found, obstacle = cut(module, (4,), "one", 3)
    assert obstacle == "layers that share a tensor would need different ones"
    assert isinstance(found, fx.GraphModule)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.named_parameters()}
    assert shapes["one.bias"] == (4,)
    assert shapes["two.bias"] == (5,)
    assert sorted(shape for shape in shapes.values() if shape[1:] == (4,)) == [(2, 4), (4, 4), (5, 4)]


class Doubled(nn.Module):
    """A value that is added to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        return self.last(y + y)


def test_a_value_that_is_added_to_itself_still_is():
    module = Doubled().eval()
    found, obstacle = cut(module, (4,), "first", 3)
    assert obstacle is None
    smaller = {"first.weight": (4, 4), "first.bias": (4,), "last.weight": (2, 4)}
    assert_rest_is_the_same(module, found, smaller)


class Folded(nn.Module):
    """Two convolutions in a row, which are one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(3, 3, 3, padding=1, stride=2, bias=False),
            nn.Conv2d(3, 2, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x.relu()))


class Joined(nn.Module):
    """Two values, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x).relu(), self.two(x).relu()], 1)


def test_two_values_that_a_node_reads_may_change_places():
    recording = record(Joined().eval(), (4,))
    (joined,) = (node for node in recording.reading.network if len(node.inputs) == 2)
    turned = replace(joined, inputs=joined.inputs[::-1])
    after = recording.reading.network.edit(change={joined.name: turned})
    found = edited(recording.program, recording.reading, after)
    assert found.program.calls[-1].reads == recording.program.calls[-1].reads[::-1]


class Parted(nn.Module):
    """A value of which only the first part is read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu().split([2, 3], 1)[0])


def test_of_a_split_whose_second_part_nobody_reads_the_rest_is_what_is_left():
    recording = record(Parted().eval(), (4,))
    network = recording.reading.network
    after, kept = without(network, {label(network, "first", 3)})
    found = edited(recording.program, recording.reading, after, kept)
    (split,) = (call for call in found.program.calls if call.kind == "split_with_sizes")
    assert split.arguments["split_sizes"] == [2, 2]


def test_where_two_convolutions_become_one_its_windows_are_said_anew():
    module = Folded().eval()
    found = relutrim.compress(module, relutrim.Box(-1, 1, shape=(3, 6, 6)), tolerance=1e-3)
    assert found.stored.parameters < found.original.parameters
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(found.model(x), module(x), rtol=1e-4, atol=1e-4)


class Gained(nn.Module):
    """Numbers that the module reshapes before it uses them; some channels have nothing but zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1)
        self.gain, self.shift = nn.Parameter(torch.tensor([1.0, 0.0, 0.0, 0.0])), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x) * self.gain.view(1, -1, 1, 1)
        return self.last((y + self.shift.view(1, -1, 1, 1)).relu())


def test_numbers_that_cannot_be_cut_where_they_are_stored_make_it_a_program():
    found, obstacle = cut(Gained().eval(), (2, 3, 3), "conv", 0)
    assert obstacle is not None
    assert isinstance(found, fx.GraphModule)


def test_a_layer_that_is_used_twice_may_go_once():
    layer, twist = nn.Linear(2, 3), nn.Linear(3, 3)

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.twist = layer, twist

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.twist(self.layer(x.flip(1))), self.layer(x)

    module = Again().double().eval()
    found = relutrim.compress(module, relutrim.Box(-1, 1, shape=(2,)), tolerance=1e-6)
    assert found.remark is not None
    x = torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(found.model(x), module(x))


class Sized(nn.Module):
    """A size that forward() holds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 4, 3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.conv(x).relu().view(-1, 16))


def test_a_size_in_forward_makes_it_a_program():
    module = Sized().eval()
    found, obstacle = cut(module, (2, 4, 4), "conv", 1)
    assert obstacle is not None
    assert "shape '[-1, 16]' is invalid" in obstacle
    assert "with smaller layers its forward() does not run" in obstacle
    assert "input_shape" not in obstacle
    assert "--arch" not in obstacle
    assert isinstance(found, fx.GraphModule)
    assert {name: tuple(tensor.shape) for name, tensor in found.named_parameters()} == {
        "conv.weight": (3, 2, 3, 3),
        "conv.bias": (3,),
        "last.weight": (3, 12),
        "last.bias": (3,),
    }
    assert torch.equal(found.get_parameter("last.bias"), module.last.bias)
    found(torch.randn(2, 2, 4, 4)).sum().backward()
    assert all(tensor.grad is not None for tensor in found.parameters())
    torch.export.export(found, (torch.randn(2, 2, 4, 4),), strict=False)


class Bent(nn.Module):
    """A step of forward() itself that is the identity where the first layer is active."""

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        self.first, self.last, self.twice = nn.Linear(3, 4), nn.Linear(4, 2), twice
        nn.init.constant_(self.first.bias, 10.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(y + y.relu() if self.twice else (y.relu() + 1).relu())


def test_a_step_that_forward_would_have_to_leave_out_makes_it_a_program():
    module = Bent(twice=False).double().eval()
    found = relutrim.compress(module, relutrim.Box(0, 1, shape=(3,)), tolerance=1e-9)
    assert found.stored.widths == [3, 2]
    assert "would have to leave out 'relu'" in found.remark
    assert isinstance(found.model, fx.GraphModule)
    x = torch.rand(9, 3, dtype=torch.float64)
    torch.testing.assert_close(found.model(x), module(x))


class Called(nn.Module):
    """A ReLU that forward() calls, the identity where the first layer is active."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 5)
        nn.init.constant_(self.first.bias, 10.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


def test_the_papers_algorithm_folds_whatever_class_that_leaves():
    module = Called().double().eval()
    found = relutrim.compress(module, relutrim.Box(0, 1, shape=(3,)), rewrites="leo++")
    assert found.stored.widths == [3, 5]
    assert found.remark is not None


@pytest.mark.parametrize("twice", [False, True])
def test_a_step_that_is_all_that_would_go_stays(twice):
    module = Bent(twice=twice).double().eval()
    found = relutrim.compress(module, relutrim.Box(0, 1, shape=(3,)), tolerance=0)
    assert found.unchanged
    assert found.remark is None
    assert type(found.model) is Bent


def masked(layer: nn.Module) -> nn.Module:
    return prune.random_unstructured(layer, "weight", 0.5)


def renormed(layer: nn.Module) -> nn.Module:
    return parametrizations.weight_norm(layer)


@pytest.mark.parametrize("change", [masked, renormed])
def test_masks_and_parametrisations_come_back_as_what_they_compute(change: Callable[[nn.Module], nn.Module]):
    module = nn.Sequential(change(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 2)).eval()
    weight = module[0].weight.detach().clone()
    found, obstacle = cut(module, (4,), "0", 3)
    assert obstacle is None
    assert list(found.state_dict()) == ["0.bias", "0.weight", "2.weight", "2.bias"]
    assert type(found[0]) is nn.Linear
    assert torch.equal(found[0].weight, weight[[0, 1, 2, 4, 5]])
    assert found[0].out_features == 5


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda module: torch.compile(module, backend="eager")])
def test_what_is_wrapped_around_a_module_is_taken_off(wrap):
    module = Small().eval()
    found, obstacle = cut(module, (2, 5, 5), "norm", 2)
    inside, obstacle_inside = applied_to(wrap(module))
    assert (obstacle, obstacle_inside) == (None, None)
    assert type(inside) is Small
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, inside.state_dict()[name])


def applied_to(module: nn.Module) -> tuple[nn.Module, str | None]:
    """The same cut of a module that is wrapped up."""
    recording = record(module, (2, 5, 5))
    network = recording.reading.network
    after, kept = without(network, {label(network, "norm", 2)})
    return applied(module, recording, edited(recording.program, recording.reading, after, kept))


def test_an_exported_program_keeps_its_names():
    module = Small().eval()
    with torch.no_grad():
        module.norm.weight[2], module.norm.bias[2], module.deep.bias[2] = 0, 0, 0
    program = torch.export.export(module, (torch.randn(2, 2, 5, 5),), strict=False)
    found = relutrim.compress(program, relutrim.Everywhere((2, 5, 5)))
    assert isinstance(found.model, torch.export.ExportedProgram)
    assert {*found.model.state_dict} == {*program.state_dict}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.model.state_dict.items()}
    before = {name: tuple(tensor.shape) for name, tensor in program.state_dict.items()}
    assert {name: shape for name, shape in shapes.items() if shape != before[name]} == CHANNEL
    x = torch.randn(2, 2, 5, 5)
    torch.testing.assert_close(found.model.module()(x), module(x))


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
                case "half":
                    values[made] = given[0].chunk(2, 1)[1]
                case "gate":
                    values[made] = given[0] * given[1].sigmoid()
                case "flatten":
                    values[made] = given[0].flatten(1)
        return values[made]


@st.composite
def planned(draw: st.DrawFn) -> Planned:
    plan: list[tuple[str, ...]] = []
    layers: dict[str, nn.Module] = {}
    sizes = {"x": 2}
    torch.manual_seed(draw(st.integers(0, 2**16)))

    def add(kind: str, size: int, *reads: str) -> str:
        made = f"v{len(plan)}"
        plan.append((made, kind, *reads))
        sizes[made] = size
        return made

    def layer(made: nn.Module, size: int, read: str) -> str:
        layers[f"v{len(plan)}"] = made
        return add("layer", size, read)

    for _ in range(draw(st.integers(3, 8))):
        value = draw(st.sampled_from([*sizes]))
        size = sizes[value]
        alike = [name for name, one in sizes.items() if one == size]
        kinds = "conv conv conv deep norm relu relu sum cat half prelu tied gate"
        match draw(st.sampled_from(kinds.split())):
            case "conv":
                made = draw(st.integers(2, 5))
                layer(nn.Conv2d(size, made, 1, bias=draw(st.booleans())), made, value)
            case "deep":
                layer(nn.Conv2d(size, size, 3, padding=1, groups=size), size, value)
            case "norm":
                norm = nn.BatchNorm2d(size)
                norm.running_mean.uniform_(-1, 1)
                norm.running_var.uniform_(0.5, 2)
                layer(norm, size, value)
            case "relu":
                add("relu", size, value)
            case "prelu":
                layer(nn.PReLU(size), size, value)
            case "sum":
                add("sum", size, value, draw(st.sampled_from(alike)))
            case "gate":
                add("gate", size, value, draw(st.sampled_from(alike)))
            case "cat":
                other = draw(st.sampled_from([*sizes]))
                add("cat", size + sizes[other], value, other)
            case "half" if size % 2 == 0:
                add("half", size // 2, value)
            case "tied":
                same = [
                    one for one in layers.values() if isinstance(one, nn.Conv2d) and one.in_channels == size
                ]
                if same:
                    again = draw(st.sampled_from(same))
                    layer(again, again.out_channels, value)
    read = {name for step in plan for name in step[2:]}
    ends = [name for name in sizes if name not in read]
    value = ends[0]
    for other in ends[1:]:
        value = add("cat", sizes[value] + sizes[other], value, other)
    layer(nn.Conv2d(sizes[value], 3, 1), 3, value)
    add("flatten", 3, f"v{len(plan) - 1}")
    return Planned(plan, layers).eval()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(planned(), st.integers(0, 2**16))
def test_a_channel_goes_from_random_modules(module, chosen):
    network = record(module, (2, 3, 3)).reading.network
    free = free_labels(network)
    if not free or network.pinned:
        return
    found, obstacle = cut_label(module, (2, 3, 3), free[chosen % len(free)])
    if obstacle is None:
        assert type(found) is Planned
        assert list(found.state_dict()) == list(module.state_dict())
        assert found.plan == module.plan
    else:
        assert isinstance(found, fx.GraphModule)


class WithSide(nn.Module):
    """Beside what it returns it computes something that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.side = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x):
        y = self.first(x).relu()
        self.side(y)
        return self.last(y)


class WithReshapedSide(WithSide):
    def forward(self, x):
        y = self.first(x).relu()
        self.side(y.reshape(-1, 6))
        return self.last(y)


def without_rows(module: nn.Module, layer: nn.Linear, rows: list[int]) -> nn.Module:
    with torch.no_grad():
        layer.weight[rows], layer.bias[rows] = 0, 0
    return module.eval()


def test_layers_that_nobody_reads_do_not_stand_in_the_way():
    module = WithSide()
    found = relutrim.compress(without_rows(module, module.first, [1, 4]), relutrim.Everywhere((4,)))
    assert found.remark is None
    assert (found.model.first.out_features, found.model.last.in_features) == (4, 4)
    x = torch.rand(7, 4)
    torch.testing.assert_close(found.model(x), module(x))


def test_a_step_that_nobody_reads_goes_where_forward_could_no_longer_take_it():
    module = WithReshapedSide()
    found = relutrim.compress(without_rows(module, module.first, [1, 4]), relutrim.Everywhere((4,)))
    assert "shape '[-1, 6]' is invalid" in found.remark
    assert found.model.get_parameter("first.weight").shape == (4, 4)
    x = torch.rand(7, 4)
    torch.testing.assert_close(found.model(x), module(x))


class Branching(nn.Module):
    """Four batch norms; its ReLUs are layers, calls, or one layer that is used again and again."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style
        self.convolutions = nn.ModuleList(nn.Conv2d(3 if i == 0 else 6, 6, 3, bias=False) for i in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(4))
        self.relus = nn.ModuleList(nn.ReLU() for _ in range(4 if style == "layers" else 1))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        for at, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = norm(convolution(x))
            x = torch.relu(x) if self.style == "calls" else self.relus[at % len(self.relus)](x)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("style", ["layers", "calls", "one layer"])
def test_a_relu_that_is_the_identity_costs_no_module_its_class(style):
    torch.manual_seed(0)
    module = Branching(style).eval()
    with torch.no_grad():
        for norm in module.norms:
            norm.weight[:2], norm.bias[:2] = 0.0, -1.0
        module.norms[1].bias[2:] = 40.0  # active as a whole but for what is dead
        module.norms[2].bias[:] = 40.0
    found = relutrim.compress(module, relutrim.Box(0, 1, shape=(3, 12, 12)), tolerance=0)
    assert found.remark is None
    assert type(found.model) is Branching
    assert found.deviation.proven == 0
    assert [norm.num_features for norm in found.model.norms[:2]] == [4, 4]
    x = torch.rand(3, 3, 12, 12)
    torch.testing.assert_close(found.model(x), module(x))


def test_a_layer_behind_a_relu_that_goes_is_cut_where_it_is():
    """The layer then reads another value, of which the same channels are left."""
    layers = (nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, bias=False))
    module = nn.Sequential(*layers, nn.BatchNorm2d(3)).eval()
    with torch.no_grad():
        module[1].weight[0], module[1].bias[0], module[1].bias[1:] = 0.0, 0.0, 50.0
    found = relutrim.compress(module, relutrim.Box(0, 1, shape=(2, 8, 8)), tolerance=0)
    assert type(found.model) is nn.Sequential
    assert {*found.model.state_dict()} == {*module.state_dict()}
    assert found.model[3].weight.shape == (3, 3, 3, 3)


class Sum(nn.Module):
    """Two inputs, of which the second one is not looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 6), nn.Linear(2, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))) + self.second(y)[:, :2]


@pytest.mark.parametrize("program", [False, True])
def test_of_several_inputs_the_first_one_is_the_networks(program):
    module = Sum()
    with torch.no_grad():
        module.first.weight[:4], module.first.bias[:4] = 0.0, -1.0
        module.first.weight[4:], module.first.bias[4:] = torch.tensor([[1.0, -1, 0], [0, -1, 1]]), 0.0
    examples = (torch.zeros(2, 3), torch.zeros(2, 2))
    if program:
        given = torch.export.export(module, examples, strict=False)
        found = relutrim.compress(given, relutrim.Box(0, 1))
        result = found.model.module()
    else:
        found = relutrim.compress(module, relutrim.Box(0, 1), example_input=examples)
        result = found.model
        assert type(result) is Sum
    assert found.stored.widths == [3, 2, 2]
    x, y = torch.rand(2, 3), torch.randn(2, 2)
    torch.testing.assert_close(result(x, y), module(x, y))


def test_the_shape_of_a_files_input_is_not_asked_for():
    for call in (relutrim.compress, relutrim.analyze):
        with pytest.raises(InputError, match="a file says the shape of its input"):
            call(relutrim.demo_model(), relutrim.Box(0, 1), input_shape=(784,))


def test_examples_that_are_no_tensors_are_refused():
    with pytest.raises(InputError, match="a tuple of such tensors"):
        relutrim.load(Sum(), example_input=(torch.zeros(2, 3), 1.0))


def test_an_exported_program_with_relus_behind_its_outputs_is_smaller():
    module = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    for parameter, value in zip(module.parameters(), (1.0, -0.5, 1.0, 0.0), strict=True):
        nn.init.constant_(parameter, value)
    program = torch.export.export(module, (torch.zeros(2, 1),), strict=False)
    found = relutrim.compress(program, relutrim.Box(0, 1), output_relu=True)
    sizes = [tensor.numel() for tensor in found.model.state_dict.values()]
    assert sum(sizes) < sum(tensor.numel() for tensor in program.state_dict.values())
    x = torch.rand(2, 1)
    torch.testing.assert_close(found.model.module()(x), module(x).relu())


class Residual(nn.Module):
    """Three convolutions with batch norms and a sum; 7 channels are 0 in all that they run through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second, self.second_norm = nn.Conv2d(16, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.third, self.third_norm = nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.head = nn.Linear(24, 10)
        with torch.no_grad():
            for norm, dead in ((self.first_norm, 4), (self.second_norm, 3), (self.third_norm, 4)):
                norm.running_mean.normal_(0, 0.1)
                norm.running_var.uniform_(0.5, 2)
                norm.bias.uniform_(0.2, 0.5)
                norm.weight[:dead], norm.bias[:dead] = 1e-3, -5.0

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first_norm(self.first(x)))
        y = torch.relu(self.second_norm(self.second(x)))
        z = torch.relu(y + self.third_norm(self.third(y)))
        return self.head(z.mean((2, 3)))


def test_columns_that_are_constant_cost_no_module_its_class():
    """To read fewer of them would take a step that forward() does not have."""
    torch.manual_seed(0)
    module = Residual().eval()
    found = relutrim.compress(module, relutrim.Box(0, 1, shape=(3, 16, 16)))
    assert type(found.model) is Residual
    assert found.remark is None
    assert found.deviation.proven == 0
    assert [found.model.first.out_channels, found.model.third_norm.num_features] == [12, 21]
    x = torch.rand(3, 3, 16, 16)
    torch.testing.assert_close(found.model(x), module(x))


class ChangedBehindAView(nn.Module):
    """What is changed in place has a view, read behind it; torch records the view anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        view = y[:, :2]
        y *= -1.0
        return self.last(torch.cat([torch.relu(view), y[:, 2:]], 1))


def test_a_view_of_what_is_changed_in_place_is_written_as_it_is_read():
    torch.manual_seed(0)
    module = ChangedBehindAView().eval()
    result = relutrim.compress(module, relutrim.Box(-1, 1), input_shape=(4,))
    assert result.obstacle is None
    assert not result.unchanged
    x = 2 * torch.rand(64, 4) - 1
    torch.testing.assert_close(result.model(x), module(x))


def test_an_edit_that_fails_its_check_leaves_the_module_as_it_is_and_asks_for_a_report(monkeypatch):
    def fails(*_: object) -> None:
        raise CheckFailed("what was written does not read as it should")

    monkeypatch.setattr("relutrim.io.torch.source.applied", fails)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).eval()
    with torch.no_grad():
        module[0].bias[0] = -9.0
    result = relutrim.compress(module, relutrim.Box(-1, 1))
    assert result.unchanged
    assert result.obstacle is not None
    assert "does not read as it should" in result.obstacle
    assert "please report it" in result.obstacle
    assert torch.equal(result.model[0].weight, module[0].weight)


def test_what_only_sets_weights_to_0_leaves_the_class_as_it_is():
    torch.manual_seed(1)
    layers = [nn.Linear(8, 12, bias=False), nn.ReLU(), nn.Linear(12, 12, bias=False), nn.ReLU()]
    module = nn.Sequential(*layers, nn.Linear(12, 3, bias=False)).eval()
    result = relutrim.compress(module, relutrim.Box(0, 1), tolerance=0.05)
    assert type(result.model) is nn.Sequential
    assert result.remark is None
    x = torch.rand(64, 8)
    assert float((module(x) - result.model(x)).abs().max()) <= 0.05 + 1e-5
