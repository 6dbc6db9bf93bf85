"""Convolutional and branching modules: read and written, as modules, state dicts and exported programs."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from command_line import call
from relutrim.errors import InputError, UnsupportedError
from relutrim.graph import Fresh, Network, Node, Output, Port
from relutrim.graph.operators import AveragePool, Convolution, MaxPool, Mean, Take
from relutrim.io import load, save
from relutrim.io.exported import read_exported, write_exported
from relutrim.io.onnx import network_from_proto, network_to_proto
from relutrim.io.torch.graph_module import module_of
from relutrim.io.torch.module import read_module

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
IMAGE, SIGNAL = (4, 8, 6), (4, 9)


def forward(function, *parts):
    """A module that calls ``function`` with its parts and the input."""

    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            for index, part in enumerate(parts):
                setattr(self, f"part{index}", part)

        def forward(self, x):
            return function(x, *(getattr(self, f"part{index}") for index in range(len(parts))))

    return Custom()


def norm(layer):
    with torch.no_grad():
        layer.running_mean.uniform_(-1, 1)
        layer.running_var.uniform_(0.5, 2)
        layer.weight.uniform_(-2, 2)
        layer.bias.uniform_(-1, 1)
    return layer


def attention_free(x, a, b):
    return torch.cat([a(x), F.relu(b(x)), x[:, :2]], dim=1)


def in_place(x, conv):
    return F.relu6(conv(x), inplace=True) + F.leaky_relu(conv(x), 0.1, True)


IMAGES = {
    "convolution": nn.Conv2d(4, 3, 3),
    "all of a convolution": nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 2), (2, 1), groups=2, bias=False),
    "same": nn.Conv2d(4, 3, (4, 3), padding="same", dilation=(1, 2)),
    "valid": nn.Conv2d(4, 3, 2, padding="valid"),
    "reflected": nn.Conv2d(4, 3, 3, padding=(2, 1), padding_mode="reflect"),
    "replicated": nn.Conv2d(4, 3, 3, padding=1, padding_mode="replicate"),
    "circular": nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"),
    "transposed": nn.ConvTranspose2d(4, 6, 3, (2, 1), (1, 0), (1, 0), groups=2, dilation=(1, 2)),
    "functional": forward(lambda x, w: F.conv2d(x, w, None, 2, 1), nn.Parameter(torch.randn(2, 4, 3, 3))),
    "batch norm": nn.Sequential(nn.Conv2d(4, 3, 3), norm(nn.BatchNorm2d(3)), nn.ReLU(), nn.Dropout2d()),
    "max pool": nn.MaxPool2d(2),
    "all of max pool": nn.MaxPool2d((3, 2), (2, 1), (1, 1), (1, 2), ceil_mode=True),
    "max pool function": forward(lambda x: F.max_pool2d(F.max_pool2d(x, 2, stride=1), kernel_size=(2, 1))),
    "average pool": nn.AvgPool2d(2),
    "counted padding": nn.AvgPool2d(3, 2, 1),
    "padding that does not count": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "ceil": nn.AvgPool2d(3, 2, ceil_mode=True),
    "ceil with padding": nn.AvgPool2d((4, 3), 3, 1, ceil_mode=True, count_include_pad=False),
    "divisor": nn.AvgPool2d(2, divisor_override=3),
    "average function": forward(lambda x: F.avg_pool2d(x, 2)),
    "adaptive": nn.AdaptiveAvgPool2d(1),
    "adaptive to several": nn.AdaptiveAvgPool2d((4, None)),
    "adaptive maximum": nn.AdaptiveMaxPool2d((2, 3)),
    "adaptive function": forward(lambda x: F.adaptive_avg_pool2d(x, (1, 1)).flatten(1)),
    "mean": forward(lambda x: x.mean(dim=(2, 3))),
    "mean kept": forward(lambda x: torch.mean(x, -1, keepdim=True)),
    "sum": forward(lambda x: x.sum(1)),
    "zero pad": nn.ZeroPad2d((1, 2, 0, 3)),
    "constant pad": nn.ConstantPad2d((1, 0, 2, 0), 1.5),
    "pad function": forward(lambda x: F.pad(x, (1, -1, 0, 2))),
    "reflection pad": nn.ReflectionPad2d(2),
    "slices": forward(lambda x: x[:, 1:3, ..., ::2]),
    "index": forward(lambda x: x[:, 1, None, 2:]),
    "narrow": forward(lambda x: x.narrow(1, 1, 2)),
    "select": forward(lambda x: x.select(2, -1)),
    "split": forward(lambda x: torch.relu(x.split(3, 1)[0]).sum(1) + torch.split(x, [1, 3], dim=1)[0][:, 0]),
    "chunk": forward(lambda x: torch.chunk(x, 2, dim=1)[1]),
    "cat": forward(attention_free, nn.Conv2d(4, 2, 1), nn.Conv2d(4, 1, 1)),
    "cat with itself": forward(lambda x: torch.cat((x, F.relu(x), x), 2)),
    "permute": forward(lambda x: x.permute(0, 2, 3, 1).contiguous()),
    "transpose": forward(lambda x: torch.transpose(x, 1, -1)),
    "squeeze": forward(lambda x: x[:, :1].squeeze(1).unsqueeze(-1)),
    "residual": forward(lambda x, c: F.relu(x + c(x)), nn.Conv2d(4, 4, 3, padding=1)),
    "broadcast": forward(lambda x: x - x.mean((2, 3), keepdim=True)),
    "in place": forward(in_place, nn.Conv2d(4, 2, 3)),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(-0.3, 0.7),
    "leaky relu": nn.LeakyReLU(0.2),
    "prelu": nn.PReLU(4),
    "hardsigmoid": nn.Hardsigmoid(),
    "clamp": forward(lambda x: torch.clamp(x, -0.5, 0.25) + x.clamp(min=0) + x.clamp_max(0.1)),
    "extremes": forward(lambda x: torch.maximum(x, -x) + torch.minimum(x, 2 * x) - x.abs()),
}
SIGNALS = {
    "convolution": nn.Conv1d(4, 3, 3, 2, 1, 2),
    "same": nn.Conv1d(4, 3, 4, padding="same"),
    "transposed": nn.ConvTranspose1d(4, 3, 3, 2, 1, 1),
    "max pool": nn.MaxPool1d(3, 2, 1, ceil_mode=True),
    "average pool": nn.AvgPool1d(3, 2, 1),
    "adaptive": nn.AdaptiveAvgPool1d(3),
    "batch norm": norm(nn.BatchNorm1d(4)),
}
MODULES = {
    **{name: (module, IMAGE) for name, module in IMAGES.items()},
    **{f"1-d {name}": (module, SIGNAL) for name, module in SIGNALS.items()},
}


def differ(module, other, shape) -> float:
    x = torch.randn(5, *shape) * 2
    with torch.no_grad():
        return float((module.eval()(x.clone()) - other(x)).abs().max())


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_read_written_and_read_again(name):
    module, shape = MODULES[name]
    network = read_module(module, shape)  # which compares the two
    again = module_of(network)
    assert differ(module, again, shape) < 1e-4
    assert differ(module, module_of(read_module(again, shape)), shape) < 1e-4
    through_onnx = network_from_proto(network_to_proto(network))
    assert differ(module, lambda x: through_onnx.run(x.double())[through_onnx.sources[0]], shape) < 1e-4


EXPORTED = (
    *(
        "all of a convolution",
        "same",
        "batch norm",
        "all of max pool",
        "counted padding",
        "mean",
        "pad function",
    ),
    *(
        "slices",
        "index",
        "split",
        "cat",
        "residual",
        "broadcast",
        "leaky relu",
        "clamp",
        "reflected",
        "prelu",
    ),
)
DECOMPOSED = ("transposed", "batch norm", "all of max pool", "ceil", "adaptive", "split", "permute", "relu6")


@pytest.mark.parametrize(
    ("name", "decompose"), [*((name, False) for name in EXPORTED), *((name, True) for name in DECOMPOSED)]
)
def test_an_exported_program_is_read(name, decompose, tmp_path):
    module, shape = MODULES[name]
    free = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(module.eval(), (torch.randn(2, *shape),), dynamic_shapes=free)
    if decompose:
        program = program.run_decompositions()
    torch.export.save(program, tmp_path / "p.pt2")
    assert differ(module, module_of(read_exported(tmp_path / "p.pt2")), shape) < 1e-4


@pytest.mark.parametrize(
    "name", ["all of a convolution", "same", "reflected", "cat", "ceil", "permute", "slices"]
)
def test_a_network_is_written_as_an_exported_program(name, tmp_path):
    module, shape = MODULES[name]
    write_exported(read_module(module, shape), tmp_path / "p.pt2")
    assert differ(module, module_of(read_exported(tmp_path / "p.pt2")), shape) < 1e-4


def test_the_module_that_is_written_has_the_same_state():
    module = lenet()
    again = module_of(read_module(module, (3, 32, 32)))
    assert {key: value.shape for key, value in again.state_dict().items()} == {
        key: value.shape for key, value in module.state_dict().items()
    }


def test_picks_of_every_kind():
    shape = (4, 5)
    picks = ([-1, 2, 0, -1, 2], [-1, 1, 2, 3, -1, -1])
    for pair in (
        (picks[0], None),
        (None, picks[1]),
        picks,
        ([], None),
        ([-1, -1], picks[1]),
        ([1, 3], [4, 3]),
    ):
        operator = Take(tuple(None if pick is None else np.array(pick, np.int64) for pick in pair))
        network = Network(Port("x", shape), (Node("y", operator, ("x",)),), (Output("y", "y"),))
        x = torch.randn(3, *shape, dtype=torch.float64)
        expected = network.run(x)["y"]
        module = module_of(network)
        assert torch.equal(module.double()(x), expected)
        again = read_module(module, shape)
        assert torch.equal(again.run(x)[again.sources[0]], expected)


def one(operator, shape) -> Network:
    return Network(Port("x", shape), (Node("y", operator, ("x",)),), (Output("y", "y"),))


@pytest.mark.parametrize(
    "operator",
    [
        Convolution(np.ones((2, 4, 3, 2)), np.ones(2), (1, 2), ((2, 0), (0, 1)), (1, 1)),
        AveragePool((3, 3), (2, 2), ((0, 1), (1, 2)), count_padding=True),
        AveragePool((3, 3), (2, 2), ((1, 1), (1, 1))),
        Mean((0, 2), keep=False),
    ],
    ids=lambda operator: operator.kind,
)
def test_what_torch_says_otherwise_is_written_all_the_same(operator):
    network = one(operator, IMAGE)
    x = torch.randn(3, *IMAGE)
    assert torch.allclose(module_of(network)(x), network.run(x)["y"], atol=1e-5)


def test_padding_that_torch_cannot_say_is_refused():
    for operator in (
        MaxPool((3, 3), (2, 2), ((2, 0), (0, 0)), (1, 1)),
        AveragePool((3, 3), (1, 1), ((1, 2), (0, 0))),
    ):
        with pytest.raises(UnsupportedError, match=r"'y'.*padding.*\.onnx"):
            module_of(one(operator, IMAGE))


REFUSED = {
    "three axes": (nn.Conv3d(4, 2, 1), IMAGE, InputError, "does not run on inputs"),
    "other channels": (nn.Conv2d(3, 2, 1), IMAGE, InputError, "expected input.*4 channels"),
    "other rank": (nn.Conv1d(4, 2, 1), IMAGE, InputError, "does not run on inputs"),
    "too large": (nn.Conv2d(4, 2, 9), IMAGE, InputError, "Kernel size"),
    "huge padding": (nn.ConstantPad2d(2**40, 0.0), IMAGE, UnsupportedError, "more than the"),
    "huge padded convolution": (nn.Conv2d(4, 2, 1, padding=2**40), IMAGE, UnsupportedError, "more than"),
    "no shape": (nn.Conv2d(4, 2, 1), None, InputError, "input_shape"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_represented_is_refused_with_its_place_and_reason(name):
    module, shape, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        read_module(module, shape)


OPAQUE = {
    "where the maxima are": (nn.MaxPool2d(2, return_indices=True), ["getitem"]),
    "uneven windows": (nn.AdaptiveAvgPool2d(5), ["adaptive_avg_pool2d"]),
    "ceil that counts": (nn.AvgPool2d(4, 3, 1, ceil_mode=True), ["avg_pool2d"]),
    "three axes": (forward(lambda x, c: c(x[:, None]), nn.Conv3d(1, 2, 1)), ["part0"]),
    "batch index": (forward(lambda x: x[0]), []),
    "part of the batch": (forward(lambda x: x[:1]), []),
    "mask": (forward(lambda x: x[:, x[0, :, 0, 0] > 0]), []),
    "cat of the batch": (forward(lambda x: torch.cat([x, x])), []),
    "mean of everything": (forward(lambda x: x.mean()), []),
    "mean of the batch": (forward(lambda x: x - x.mean(0)), ["sub"]),
    "moved batch": (forward(lambda x: x.permute(1, 0, 2, 3)), []),
    "computed kernel": (forward(lambda x: F.conv2d(x, x)), []),
    "softsign": (nn.Sequential(nn.Softsign()), ["div"]),
    "instance norm": (nn.InstanceNorm2d(4), ["instance_norm"]),
    "interpolation": (nn.Upsample(scale_factor=2), ["upsample_nearest2d"]),
    "squeeze and excite": (forward(lambda x, c: x * torch.sigmoid(c(x)), nn.Conv2d(4, 4, 1)), ["mul"]),
    "log softmax in the middle": (nn.Sequential(nn.LogSoftmax(1), nn.Conv2d(4, 2, 1)), ["0"]),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_what_is_not_known_is_opaque(name):
    module, fresh = OPAQUE[name]
    network = read_module(module.eval(), IMAGE)
    made = [node.name for node in network if isinstance(node.operator, Fresh)]
    assert [one.split("_1")[0] for one in made] == fresh
    assert network.pinned


@pytest.mark.parametrize("name", MODULES)
def test_nothing_of_it_is_opaque(name):
    module, shape = MODULES[name]
    network = read_module(module.eval(), shape)
    assert not network.pinned
    assert all(node.origin is not None for node in network)


MOVED = {
    "pixel shuffle": nn.PixelShuffle(2),
    "channel shuffle": nn.ChannelShuffle(2),
    "stack": forward(lambda x: torch.stack([x, 2 * x], 2)),
    "unbind": forward(lambda x: x.unbind(1)[0] + x.unbind(1)[2]),
    "flip": forward(lambda x: x.flip(1, 3)),
    "expand": forward(lambda x: x[:, :1].expand(-1, 3, -1, -1) + x[:, 1:]),
    "index": forward(lambda x: x[:, [2, 0, 0]]),
    "a view that changes": forward(lambda x: (x + 1)[:, :2].relu_() * 3),
    "in place on another name": forward(
        lambda x, c: (lambda y: y.mul_(2) * 0 + F.relu_(y))(c(x)), nn.Conv2d(4, 2, 1)
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_moves_are_read_right(name):
    module = MOVED[name].eval()
    network = read_module(module, IMAGE)
    assert not network.pinned
    x = torch.randn(5, *IMAGE)
    torch.testing.assert_close(network(x).reshape(module(x.clone()).shape), module(x.clone()))


def lenet():
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def lenet_bn():
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120),
        nn.BatchNorm1d(120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


@pytest.fixture
def factories(monkeypatch):
    """A module ``convolutional`` with factories that say the shape of an input."""
    home = types.ModuleType("convolutional")
    home.lenet = lambda: (lenet(), (3, 32, 32))
    home.lenet_bn = lambda: (lenet_bn(), (3, 32, 32))
    home.silent = lenet
    home.wrong = lambda: (lenet(), (3, 0, 32))
    home.strange = lambda: (lenet(), "3x32x32")
    monkeypatch.setitem(sys.modules, "convolutional", home)


@pytest.mark.parametrize("name", ["lenet", "lenet_bn"])
def test_the_shared_state_dicts(name, shared, factories, tmp_path):
    path = shared / "networks" / "lenet" / f"{name}_l1_0.000175.pt"
    network = load(path, arch=f"convolutional:{name}")
    module = {"lenet": lenet, "lenet_bn": lenet_bn}[name]()
    module.load_state_dict(torch.load(path, weights_only=True))
    assert differ(module, module_of(network), (3, 32, 32)) < 1e-4
    for file in ("again.onnx", "again.pt2"):
        save(network, tmp_path / file)
        assert load(tmp_path / file).widths == network.widths
    save(network, tmp_path / "again.pt")
    assert set(torch.load(tmp_path / "again.pt", weights_only=True)) >= {"0.weight", "0.bias"}


def test_a_factory_must_say_the_shape_of_images(tmp_path, factories, capsys):
    path = tmp_path / "model.pt"
    torch.save(lenet().state_dict(), path)
    for name, text in (("silent", "input_shape"), ("wrong", "shape of one input"), ("strange", "3x32x32")):
        with pytest.raises(InputError, match=text):
            load(path, arch=f"convolutional:{name}")
    assert call(capsys, "inspect", path, "--arch", "convolutional:lenet").code == 0
