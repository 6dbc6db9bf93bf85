"""Exported programs on disk, edited: what changes is in the archive, and all else stays byte for byte."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relutrim
from command_line import call
from relutrim.errors import InputError
from relutrim.graph.operators import BatchNorm
from relutrim.io.exported_archive import Archive
from relutrim.io.source import Source
from relutrim.origins import KEY

pytestmark = [pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")]
BOX = relutrim.Box(0, 1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


class Convolutional(nn.Module):
    """Two batch norms, of which the second loses nothing."""

    def __init__(self):
        super().__init__()
        self.a, self.first = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.b, self.second = nn.Conv2d(6, 3, 3, bias=False), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.second(self.b(torch.relu(self.first(self.a(x))))).mean((2, 3))


class Branching(nn.Module):
    """A sum, a split, a concatenation and a flattening, and a convolution in groups."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.c, self.d = nn.Linear(12 * 16, 5), nn.Linear(5, 2)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = torch.cat([h + torch.relu(self.b(h)), h], 1)
        one, other = torch.split(h, [6, 6], 1)
        h = torch.cat([other, one], 1).reshape(x.shape[0], -1)
        return self.d(torch.relu(self.c(h)))


class Opaque(nn.Module):
    """Something in the middle that relutrim does not follow."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 6), nn.Linear(6, 4), nn.LayerNorm(4)
        self.c, self.d = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        x = self.norm(x + self.b(torch.relu(self.a(x))))
        x = x.reshape(x.shape[0] * 2, 2).reshape(x.shape[0], 4)
        return self.d(torch.relu(self.c(x)))


class Tied(nn.Module):
    """One matrix in two places."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.d = nn.Linear(6, 2)
        self.c.weight = self.b.weight

    def forward(self, x):
        return self.d(torch.relu(self.c(torch.relu(self.b(torch.relu(self.a(x)))))))


CASES: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "mlp": (Mlp, (4,)),
    "batch norm": (Convolutional, (1, 6, 6)),
    "branches": (Branching, (1, 4, 4)),
    "opaque": (Opaque, (4,)),
    "tied": (Tied, (4,)),
}


def made(kind: type[nn.Module], dead: tuple[int, ...] = (1, 3)) -> nn.Module:
    """A module of whole numbers, so that sums are the same in any order; these units of its hidden layers are
    always 0, and no others are.
    """
    generator = torch.Generator().manual_seed(0)
    module = kind().eval()
    layers = dict(module.named_children())
    hidden = ["first"] if "first" in layers else [*layers][:-1]
    with torch.no_grad():
        for tensor in module.parameters():
            signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
            tensor.copy_(torch.randint(1, 4, tensor.shape, generator=generator) * signs)
        for name, layer in layers.items():
            if name in hidden or name == "a":  # all on for large inputs, all off for zeros
                layer.weight.copy_(layer.weight.abs())
                layer.bias.fill_(-1)
            if name in hidden and len(layer.bias) > 4:
                layer.bias[list(dead)] = -30000
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.copy_(torch.arange(len(layer.bias)) / 3)
    return module


def save(module: nn.Module, path: Path, shape: tuple[int, ...], *, free=True, decompose=False, **more: Any):
    batch = ({0: torch.export.Dim("batch")},) if free else None
    program = torch.export.export(module, (torch.rand(2, *shape),), dynamic_shapes=batch, **more)
    torch.export.save(program.run_decompositions({}) if decompose else program, path)
    return path


def parts(path: Path) -> dict[str, bytes]:
    """The files in an archive, by their names without the folder that torch puts them in."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def tensors(path: Path) -> dict[str, np.ndarray]:
    with Archive(path) as archive:
        names = [name for folder in ("weights", "constants") for name in archive.table(folder)["config"]]
        return {name: archive.tensor(name) for name in names}


def graph(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(parts(path)["models/model.json"])["graph_module"]
    return found


def nodes(path: Path) -> list[tuple[str, str]]:
    return [(node["name"], node["target"]) for node in graph(path)["graph"]["nodes"]]


def layouts(program: torch.export.ExportedProgram) -> list[tuple[str, str, tuple[Any, ...]]]:
    """What a program says of the tensors that it makes; the batch has another name each time."""
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "call_function"]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [(str(one.dtype), str(tuple(one.shape[1:])), one.stride()) for one in tensors]


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_an_edited_program_computes_the_same_and_says_what_torch_would_say_of_it(
    tmp_path, name, decompose, free
):
    kind, shape = CASES[name]
    module = made(kind)
    model = save(module, tmp_path / "m.pt2", shape, free=free, decompose=decompose)
    result = relutrim.compress(model, BOX, tolerance=0)
    assert result.stored.parameters < result.original.parameters
    assert result.deviation.proven == 0
    result.save(tmp_path / "out.pt2")
    program = torch.export.load(tmp_path / "out.pt2")
    x = torch.randint(0, 2, (2, *shape)).float()
    torch.testing.assert_close(program.module()(x), module(x), rtol=0, atol=0)
    batch = ({0: torch.export.Dim("batch")},) if free else None
    again = torch.export.export(program.module(), (x,), dynamic_shapes=batch)
    assert layouts(program) == layouts(again)


def test_what_no_edit_touches_stays_byte_for_byte(tmp_path):
    model = save(made(Mlp), tmp_path / "m.pt2", (4,))
    relutrim.compress(model, BOX, tolerance=0).save(tmp_path / "out.pt2")
    before, after = parts(model), parts(tmp_path / "out.pt2")
    weights = [name for name in before if name.startswith("data/weights/")]
    changed = {name for name in before if after.get(name) != before[name]}
    config = "data/weights/model_weights_config.json"
    assert changed == {*weights, config, "models/model.json"} - {"data/weights/weight_5"}  # the last bias
    assert after.keys() - before.keys() == {"extra/relutrim.origins"}
    assert before["data/sample_inputs/model.pt"] == after["data/sample_inputs/model.pt"]
    assert nodes(model) == nodes(tmp_path / "out.pt2")
    one, other = graph(model), graph(tmp_path / "out.pt2")
    assert one["signature"] == other["signature"]
    assert one["module_call_graph"] == other["module_call_graph"]
    for mine, theirs in zip(one["graph"]["nodes"], other["graph"]["nodes"], strict=True):
        assert mine == theirs  # nothing in an MLP says a size
    old, new = tensors(model), tensors(tmp_path / "out.pt2")
    assert list(old) == list(new)
    stay = [0, 2, 4, 5]
    np.testing.assert_array_equal(new["a.weight"], old["a.weight"][stay])
    np.testing.assert_array_equal(new["b.weight"], old["b.weight"][[0, 2, 4]][:, stay])


def test_a_batch_norm_stays_a_node_with_its_own_numbers(tmp_path):
    model = save(made(Convolutional), tmp_path / "m.pt2", (1, 6, 6))
    result = relutrim.compress(model, BOX, tolerance=0)
    result.save(tmp_path / "out.pt2")
    assert nodes(model) == nodes(tmp_path / "out.pt2")
    assert sum(isinstance(node.operator, BatchNorm) for node in relutrim.load(tmp_path / "out.pt2")) == 2
    old, new = tensors(model), tensors(tmp_path / "out.pt2")
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert new[f"second.{name}"].tobytes() == old[f"second.{name}"].tobytes()
        assert new[f"first.{name}"].tobytes() == old[f"first.{name}"][[0, 2, 4, 5]].tobytes()
    assert new["first.num_batches_tracked"] == old["first.num_batches_tracked"]


def test_tensors_that_share_memory_share_it_afterwards(tmp_path):
    """The matrix is cut in both places alike, and the name under which nothing reads it follows."""
    module = made(Tied)
    save(module, tmp_path / "m.pt2", (4,))
    relutrim.compress(tmp_path / "m.pt2", BOX, tolerance=0).save(tmp_path / "out.pt2")
    state = torch.export.load(tmp_path / "out.pt2").state_dict
    assert state["b.weight"].shape == (4, 4)
    assert state["b.weight"].data_ptr() == state["c.weight"].data_ptr()


def test_one_of_two_readers_of_a_tensor_gets_its_own(tmp_path):
    """Only one of the layers between which they are shared has units that are 0."""
    module = made(Tied)
    with torch.no_grad():
        module.a.bias.fill_(1)
        module.c.bias.fill_(30000)
    save(module, tmp_path / "m.pt2", (4,))
    result = relutrim.compress(tmp_path / "m.pt2", BOX, tolerance=0)
    result.save(tmp_path / "out.pt2")
    assert result.stored.neurons < result.original.neurons
    program = torch.export.load(tmp_path / "out.pt2")
    x = torch.randint(0, 2, (7, 4)).float()
    torch.testing.assert_close(program.module()(x), module(x), rtol=0, atol=0)


def test_a_program_that_stays_is_copied(tmp_path):
    module = made(Mlp, dead=())
    with torch.no_grad():
        for layer in (module.a, module.b):  # every unit is on and off
            layer.weight.copy_(layer.weight.abs())
            layer.bias.fill_(-1)
    model = save(module, tmp_path / "m.pt2", (4,))
    result = relutrim.compress(model, BOX, tolerance=0)
    assert result.unchanged
    result.save(tmp_path / "out.pt2")
    assert (tmp_path / "out.pt2").read_bytes() == model.read_bytes()


def test_new_nodes_bring_their_tensors_with_them(tmp_path):
    """A matrix of rank 1 becomes a column and a row, which can be learnt; the matrix is gone."""
    module = made(Mlp, dead=())
    module.c = nn.Linear(5, 9)
    with torch.no_grad():
        module.c.weight.copy_(torch.outer(torch.arange(1.0, 10), torch.arange(1.0, 6)))
    model = save(module, tmp_path / "m.pt2", (4,))
    result = relutrim.compress(model, BOX)
    result.save(tmp_path / "out.pt2")
    assert len(nodes(tmp_path / "out.pt2")) == len(nodes(model)) + 1
    program = torch.export.load(tmp_path / "out.pt2")
    x = torch.rand(7, 4)
    torch.testing.assert_close(program.module()(x), module(x), rtol=1e-5, atol=1e-5)
    assert sum(tensor.numel() for tensor in program.state_dict.values()) == result.stored.parameters
    assert all(isinstance(tensor, nn.Parameter) for tensor in program.state_dict.values())
    assert all(tensor.requires_grad for tensor in program.state_dict.values())
    assert all(node.users for node in program.graph.find_nodes(op="placeholder"))
    assert program.run_decompositions({}).graph_signature.user_inputs == ("x",)
    again = relutrim.load(tmp_path / "out.pt2")
    assert [node.name for node in again] == [node.name for node in result.stored]


def test_origins_are_kept_in_the_file_and_composed(tmp_path):
    module = made(Mlp)
    model = save(module, tmp_path / "m.pt2", (4,))
    relutrim.compress(model, BOX, tolerance=0).save(tmp_path / "one.pt2")
    origins = json.loads(relutrim.load(tmp_path / "one.pt2").metadata[KEY])
    assert [one["units"] for one in origins.values()] == [[0, 2, 4, 5], [0, 2, 4]]
    program = torch.export.load(tmp_path / "one.pt2")
    with torch.no_grad():
        program.state_dict["a.bias"][2] = -1000
    extra = {KEY: json.dumps(origins)}
    torch.export.save(program, tmp_path / "two.pt2", extra_files=extra)
    relutrim.compress(tmp_path / "two.pt2", BOX, tolerance=0).save(tmp_path / "three.pt2")
    found = json.loads(relutrim.load(tmp_path / "three.pt2").metadata[KEY])
    assert next(iter(found.values()))["units"] == [0, 2, 5]


def test_nothing_is_loaded_and_what_is_pickled_is_not_opened(tmp_path, monkeypatch, capsys):
    model = packed(tmp_path / "m.pt2", save(made(Mlp), tmp_path / "m.pt2", (4,)), sample_inputs=b"no pickle")
    for module, name in ((torch.export, "load"), (torch, "load"), (torch, "save")):
        monkeypatch.setattr(module, name, None)
    done = call(capsys, "compress", model, tmp_path / "out.pt2", "--box", "0", "1", "--json")
    assert done.code == 0
    assert json.loads(done.out)["compressed"]["neurons"] < 11
    assert parts(tmp_path / "out.pt2")["data/sample_inputs/model.pt"] == b"no pickle"


def packed(
    path: Path, source: Path, change: Any = None, *, sample_inputs: bytes | None = None, how: int = 0
) -> Path:
    """The archive with another program, other inputs, or packed in another way."""
    with zipfile.ZipFile(io.BytesIO(source.read_bytes())) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if sample_inputs is not None and "sample_inputs" in name:
                content = sample_inputs
            if change is not None and name.endswith("models/model.json"):
                document = json.loads(content)
                change(document["graph_module"])
                content = json.dumps(document).encode()
            new.writestr(name, content, how)
    return path


def drop_names(module: dict[str, Any]) -> None:
    """As an older torch writes it."""
    for node in module["graph"]["nodes"]:
        del node["name"]
        for entry in node["inputs"]:
            del entry["kind"]


def test_older_and_packed_files_are_edited_as_well(tmp_path):
    module = made(Mlp)
    source = save(module, tmp_path / "m.pt2", (4,))
    packed(tmp_path / "old.pt2", source, drop_names, how=zipfile.ZIP_DEFLATED)
    relutrim.compress(tmp_path / "old.pt2", BOX, tolerance=0).save(tmp_path / "out.pt2")
    x = torch.randint(0, 2, (7, 4)).float()
    program = torch.export.load(tmp_path / "out.pt2")
    torch.testing.assert_close(program.module()(x), module(x), rtol=0, atol=0)


def missing_stride(module: dict[str, Any]) -> None:
    module["graph"]["tensor_values"]["relu"]["strides"].pop()


def other_signature(module: dict[str, Any]) -> None:
    tree = module["module_call_graph"][0]["signature"]
    said = {
        **tree,
        "inputs": [{"as_tensor": {"name": "p_a_weight"}}],
        "outputs": [{"as_tensor": {"name": "relu"}}],
    }
    module["module_call_graph"][1]["signature"] = said


@pytest.mark.parametrize(
    ("change", "tolerance", "why"),
    [
        (missing_stride, 0, "tensor 'relu'.*damaged"),
        (other_signature, "exact", "tensor '(relu|p_a_weight)'.*signature of the submodule 'a'"),
    ],
)
def test_what_the_file_cannot_say_is_left_as_it_is_with_the_reason(tmp_path, change, tolerance, why):
    torch.manual_seed(0)
    module = made(Mlp)
    with torch.no_grad():
        module.a.bias += 60000 * (tolerance == "exact")  # all active: the layer goes
    model = packed(tmp_path / "m.pt2", save(module, tmp_path / "m.pt2", (4,)), change)
    result = relutrim.compress(model, BOX, tolerance=tolerance)
    assert result.unchanged
    assert result.obstacle is not None
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(result.obstacle)
    result.save(tmp_path / "out.pt2")
    assert (tmp_path / "out.pt2").read_bytes() == model.read_bytes()


def test_a_file_that_has_changed_meanwhile_is_not_edited(tmp_path):
    model = save(made(Mlp), tmp_path / "m.pt2", (4,))
    source = Source.of(model)
    network = relutrim.load(model)
    packed(model, model, how=zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match="changed since it was read"):
        source.edited(network, network, {}, {})


def test_into_another_format_it_is_converted(tmp_path):
    module = made(Convolutional)
    model = save(module, tmp_path / "m.pt2", (1, 6, 6))
    relutrim.compress(model, BOX).save(tmp_path / "out.onnx")
    x = torch.rand(3, 1, 6, 6)
    network = relutrim.load(tmp_path / "out.onnx")
    found = network.run(x.double())[network.outputs[0].source]
    torch.testing.assert_close(found.float(), module(x), rtol=1e-4, atol=1e-4)


def test_functional_layers_in_place_stay_in_place(tmp_path):
    class InPlace(Mlp):
        def forward(self, x):
            return self.c(F.relu_(self.b(F.relu(self.a(x), inplace=True))))

    model = save(made(InPlace), tmp_path / "m.pt2", (4,))
    relutrim.compress(model, BOX, tolerance=0).save(tmp_path / "out.pt2")
    assert nodes(model) == nodes(tmp_path / "out.pt2")


@pytest.mark.parametrize("blind", [False, True])
def test_what_is_written_is_read_again_and_tried(tmp_path, monkeypatch, blind):
    """A weight that is another one is found by reading it, and if that were blind, by what is computed. The
    result is the model then, with the reason.
    """
    edit = Archive.edited

    def damaged(archive, parts):
        name, content = next(item for item in parts.items() if "weight_" in item[0] and item[1])
        return edit(archive, {**parts, name: np.frombuffer(content, np.float32)[::-1].tobytes()})

    monkeypatch.setattr(Archive, "edited", damaged)
    if blind:
        monkeypatch.setattr("relutrim.io.exported_edit.check_equal", lambda one, other: None)
    result = relutrim.compress(save(made(Mlp), tmp_path / "m.pt2", (4,)), BOX, tolerance=0)
    assert result.unchanged
    assert result.obstacle is not None
    assert ("something else" if blind else "bug in relutrim") in result.obstacle
    assert "please report it" in result.obstacle
