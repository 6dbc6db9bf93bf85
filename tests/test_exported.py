"""Exported programs: read without unpickling, written with a free batch size."""

from __future__ import annotations

import json
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from relutrim.errors import InputError, RelutrimError, UnsupportedError
from relutrim.graph import Fresh, Linear
from relutrim.io import exported_archive
from relutrim.io.exported import read_exported, write_exported
from relutrim.io.torch.module import read_module
from relutrim.io.torch.source import TorchSource

pytestmark = [
    pytest.mark.filterwarnings("ignore:Initializing zero-element tensors"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]


class Everything(nn.Module):
    """Most of what can be read, in one program, because exporting takes its time."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(1, 2, 2, dtype=torch.float64))
        self.a = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)
        self.w = nn.Parameter(torch.randn(6, 6))
        self.constant = torch.randn(6, dtype=torch.float64)
        self.drop = nn.Dropout()
        self.b = nn.Linear(6, 3, bias=False)

    def forward(self, x):
        x = ((x - self.mean) / 255).view(x.size(0), -1)
        x = F.relu(self.norm(self.a(x.reshape(x.shape[0], 4))), inplace=True)
        y = self.drop(x @ self.w + self.constant * 2) * 0.5
        z = 1 - torch.relu(y).flatten(1) - x
        return self.b(z).softmax(-1), z


def save(module, path, shape, *, free=True, decompose=False):
    free_shapes = ({0: torch.export.Dim("batch")},) if free else None
    program = torch.export.export(
        module, (torch.randn(2, *shape).to(next(module.parameters())),), dynamic_shapes=free_shapes
    )
    torch.export.save(program.run_decompositions() if decompose else program, path)
    return path


def mlp(*widths):
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The program of a small network, as bytes of the parts of its archive."""
    path = save(mlp(3, 4, 2), tmp_path_factory.mktemp("small") / "small.pt2", (3,))
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path, parts):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def edited(path, parts, name, change):
    """The archive with one of its JSON parts changed."""
    parts = dict(parts)
    content = json.loads(parts[name])
    change(content)
    parts[name] = json.dumps(content).encode()
    return packed(path, parts)


@pytest.mark.parametrize(("free", "decompose"), [(True, False), (True, True), (False, False)])
def test_the_network_computes_what_the_program_computes(tmp_path, free, decompose):
    torch.manual_seed(0)
    module = Everything().double().eval()
    network = read_exported(save(module, tmp_path / "m.pt2", (2, 2), free=free, decompose=decompose))
    assert network.dtype == "float64"
    assert network.input.batch == ("batch" if free else 2)
    assert network.input.shape == (2, 2)
    assert [step.kind for step in network.outputs[0].tail] == ["Softmax"]
    x = torch.randn(2, 2, 2, dtype=torch.float64)
    probabilities, z = module(x)
    values = network.run(x)
    torch.testing.assert_close(
        values[network.outputs[0].source].softmax(-1), probabilities, rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(values[network.outputs[1].source], z, rtol=1e-12, atol=1e-12)


def test_what_is_written_is_read_again_with_its_names_and_by_torch(tmp_path):
    module = nn.Sequential(nn.Flatten(), *mlp(4, 5, 0, 3), nn.LogSoftmax(-1))
    network = read_module(module, (2, 2))
    path = tmp_path / "out.pt2"
    write_exported(network, path)
    again = read_exported(path)
    assert [node.name for node in again] == [node.name for node in network]
    for a, b in zip(network, again, strict=True):
        if isinstance(a.operator, Linear) and isinstance(b.operator, Linear):
            np.testing.assert_array_equal(a.operator.weight, b.operator.weight)
    assert [step.kind for step in again.outputs[0].tail] == ["LogSoftmax"]
    x = torch.randn(7, 2, 2)
    torch.testing.assert_close(torch.export.load(path).module()(x), module(x))
    assert [file.name for file in tmp_path.iterdir()] == ["out.pt2"]
    with zipfile.ZipFile(path) as archive:
        assert b"site-packages" not in b"".join(archive.read(name) for name in archive.namelist())


def test_nothing_is_unpickled(tmp_path, small, monkeypatch):
    for name in ("load", "save"):
        monkeypatch.setattr(torch, name, None)
    parts = {name: b"not a pickle" if "sample_inputs" in name else content for name, content in small.items()}
    assert read_exported(packed(tmp_path / "m.pt2", parts)).widths == [3, 4, 2]


def part(small, end):
    return next(name for name in small if name.endswith(end))


def weights_entry(content):
    return next(iter(content["config"].values()))


def set_pickled(content):
    weights_entry(content)["use_pickle"] = True


def set_size(content):
    weights_entry(content)["tensor_meta"]["sizes"][0]["as_int"] = 10**9


def set_stride(content):
    meta = weights_entry(content)["tensor_meta"]
    meta["sizes"][0]["as_int"], meta["strides"][0]["as_int"] = 10**9, 0


def set_negative(content):
    weights_entry(content)["tensor_meta"]["storage_offset"]["as_int"] = -4


def set_half(content):
    weights_entry(content)["tensor_meta"]["dtype"] = 6


def set_target(content):
    content["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.gelu.default"


def set_custom(content):
    content["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.evil.linear.default"


def set_mutation(content):
    content["graph_module"]["signature"]["output_specs"] = [{"buffer_mutation": {}}]


def drop_first(content):
    content["graph_module"]["graph"]["nodes"].pop(0)


def double_node(content):
    nodes = content["graph_module"]["graph"]["nodes"]
    nodes.insert(1, nodes[0])


def set_shape(content):
    content["graph_module"]["graph"]["tensor_values"]["linear"]["sizes"][1]["as_int"] = 5


def no_input(content):
    content["graph_module"]["signature"]["input_specs"].pop()


def drop_nodes(content):
    content["graph_module"]["graph"]["nodes"].pop()


def drop_graph(content):
    del content["graph_module"]


def free_width(content):
    sizes = content["graph_module"]["graph"]["tensor_values"]["input"]["sizes"]
    sizes[1] = sizes[0]


WEIGHTS, PROGRAM = "model_weights_config.json", "models/model.json"
REFUSED = {
    "pickled weights": (WEIGHTS, set_pickled, UnsupportedError, "pickle"),
    "beyond the bytes": (WEIGHTS, set_size, InputError, "damaged"),
    "beyond memory": (WEIGHTS, set_stride, InputError, "damaged"),
    "before the bytes": (WEIGHTS, set_negative, InputError, "damaged"),
    "half": (WEIGHTS, set_half, InputError, "float16 numbers, and the program says.*damaged"),
    "operator of another library": (PROGRAM, set_custom, UnsupportedError, "evil"),
    "side effects": (PROGRAM, set_mutation, InputError, "KeyError"),
    "returns what nothing makes": (PROGRAM, drop_nodes, InputError, "linear_1.*nothing makes"),
    "reads what nothing makes": (PROGRAM, drop_first, InputError, "reads 'linear', which nothing makes"),
    "two of a name": (PROGRAM, double_node, InputError, "another node makes too"),
    "another shape": (PROGRAM, set_shape, InputError, "a value of shape .4,., and .5,. is recorded"),
    "no input": (PROGRAM, no_input, UnsupportedError, "takes no tensor"),
    "nothing in it": (PROGRAM, drop_graph, InputError, "not a program"),
    "free width": (PROGRAM, free_width, UnsupportedError, "only the batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_represented_is_refused_with_the_reason(tmp_path, small, name):
    end, change, kind, message = REFUSED[name]
    path = edited(tmp_path / "m.pt2", small, part(small, end), change)
    with pytest.raises(kind, match=message) as caught:
        read_exported(path)
    assert str(path) in str(caught.value)


def test_not_a_number_is_refused(tmp_path, small):
    name = part(small, "weights/weight_0")
    parts = {**small, name: np.full(12, np.nan, np.float32).tobytes()}
    with pytest.raises(InputError, match=r"node '0'.*NaN"):
        read_exported(packed(tmp_path / "m.pt2", parts))


def test_an_operator_that_is_not_known_is_opaque(tmp_path, small):
    network = read_exported(edited(tmp_path / "m.pt2", small, part(small, PROGRAM), set_target))
    assert network.pinned == ("input",)
    assert [node.operator.kind for node in network] == ["Fresh", "Relu", "Linear"]


class Stateful(nn.Module):
    """It counts its calls, and keeps what it saw last."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(4))
        self.register_buffer("last", torch.zeros(2, 4))

    def forward(self, x):
        y = self.a(x)
        self.last.copy_(y)
        return y * 2 + self.calls.add_(1)


def test_what_a_program_changes_is_not_known_and_what_it_keeps_stays(tmp_path):
    program = torch.export.export(Stateful().eval(), (torch.randn(2, 4),))
    torch.export.save(program, tmp_path / "in_place.pt2")
    with pytest.raises(UnsupportedError, match=r"parameter or buffer.*run_decompositions"):
        read_exported(tmp_path / "in_place.pt2")
    torch.export.save(program.run_decompositions({}), tmp_path / "m.pt2")
    for network in (read_exported(tmp_path / "m.pt2"), TorchSource.of(program).network):
        assert "a" in network.pinned
        assert isinstance(network[network.outputs[0].source].operator, Fresh)


def test_a_program_and_its_file_are_the_same_network(tmp_path):
    module = Everything().double().eval()
    program = torch.export.export(
        module, (torch.randn(2, 2, 2).double(),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    torch.export.save(program, tmp_path / "m.pt2")
    one, other = TorchSource.of(program).network, read_exported(tmp_path / "m.pt2")
    assert [(n.name, n.inputs, n.origin) for n in one] == [(n.name, n.inputs, n.origin) for n in other]
    assert one.outputs == other.outputs
    assert one.metadata == other.metadata


def test_damaged_archives_are_refused(tmp_path, small):
    path = tmp_path / "m.pt2"
    whole = packed(path, small).read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(RelutrimError, match=r"m\.pt2"):
            read_exported(path)
    for missing in (PROGRAM, WEIGHTS, "byteorder", "weights/weight_0"):
        packed(path, {name: content for name, content in small.items() if not name.endswith(missing)})
        with pytest.raises(RelutrimError, match=r"m\.pt2"):
            read_exported(path)
    packed(path, {**small, part(small, PROGRAM): b"["})
    with pytest.raises(InputError, match="not a program"):
        read_exported(path)
    with pytest.raises(InputError, match="no such file"):
        read_exported(tmp_path / "nothing.pt2")


def test_archives_that_unpack_to_too_much_are_refused(tmp_path, small, monkeypatch):
    monkeypatch.setattr(exported_archive, "LARGEST_FILE", 100)
    with pytest.raises(InputError, match="unpacks to more than"):
        read_exported(packed(tmp_path / "m.pt2", small))
