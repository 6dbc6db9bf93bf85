"""State dicts: the right layers in the right order, nothing run that the file asks for."""

from __future__ import annotations

import pickle
import random
import sys
import types
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from relutrim.errors import InputError, RelutrimError, UnsupportedError
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.io import state_dict as module_under_test
from relutrim.io.state_dict import read_state_dict, write_state_dict


def saved(tmp_path, state):
    path = tmp_path / "model.pt"
    torch.save(state, path)
    return path


def mlp(*widths):
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def state_of(*names, width=3):
    """Square layers of the given names, so that only the names tell their order; biases count them."""
    state = {}
    for i, name in enumerate(names):
        state[f"{name}.weight"] = torch.eye(width)
        state[f"{name}.bias"] = torch.full((width,), float(i))
    return state


def biases(network):
    return [float(node.operator.bias[0]) for node in network if isinstance(node.operator, Linear)]


@pytest.fixture
def factories(monkeypatch):
    home = types.ModuleType("some_factories")
    monkeypatch.setitem(sys.modules, "some_factories", home)
    return home


def test_an_mlp_is_read(tmp_path):
    module = mlp(4, 7, 5, 3)
    network = read_state_dict(saved(tmp_path, module.state_dict()), "mlp:4-7-5-3")
    assert [node.name for node in network] == ["0", "1", "2", "3", "4"]
    assert network.widths == [4, 7, 5, 3]
    x = torch.randn(8, 4, dtype=torch.float64)
    torch.testing.assert_close(network(x), module.double()(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "names",
    [
        ["0", "2", "4"],
        ["fc1", "fc2", "out"],
        [f"layer{i}" for i in range(1, 13)],
        [f"net.{2 * i}" for i in range(8)],
        ["input", "hidden"],
    ],
)
def test_names_of_layers_are_free(tmp_path, names):
    widths = range(2, len(names) + 3)
    state = {}
    for i, name in enumerate(names):
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.randn(i + 3, i + 2), torch.randn(i + 3)
    network = read_state_dict(saved(tmp_path, state), "mlp:" + "-".join(map(str, widths)))
    assert network.widths == list(widths)
    assert [node.name for node in network if isinstance(node.operator, Linear)] == names


@settings(max_examples=20, deadline=None)
@given(
    st.integers(2, 25),
    st.sampled_from(["layer{}", "{}", "net.{}.fc", "b{}x"]),
    st.randoms(use_true_random=False),
)
def test_layers_follow_their_numbers_whatever_the_order_of_the_file(
    tmp_path_factory, count, pattern, shuffler
):
    names = [pattern.format(3 * i) for i in range(count)]
    items = list(state_of(*names).items())
    shuffler.shuffle(items)
    path = saved(tmp_path_factory.mktemp("shuffled"), dict(items))
    network = read_state_dict(path, "mlp:" + "-".join(["3"] * (count + 1)))
    assert biases(network) == list(range(count))


def test_the_tenth_layer_comes_after_the_ninth(tmp_path):
    names = [f"layer{i}" for i in range(1, 12)]
    state = dict(sorted(state_of(*names).items()))
    assert list(state)[2] == "layer10.bias"
    assert biases(read_state_dict(saved(tmp_path, state), "mlp:" + "-".join(["3"] * 12))) == list(range(11))


def test_an_order_that_cannot_be_told_is_asked_for(tmp_path):
    path = saved(tmp_path, state_of("input", "hidden", "output"))
    with pytest.raises(InputError, match="factory"):
        read_state_dict(path, "mlp:3-3-3-3")


def test_float64_is_kept(tmp_path):
    module = mlp(4, 3, 2).double()
    network = read_state_dict(saved(tmp_path, module.state_dict()), "mlp:4-3-2")
    assert network.dtype == "float64"
    np.testing.assert_array_equal(network["0"].operator.weight, module[0].weight.detach())


def test_a_factory_makes_the_architecture(tmp_path, factories):
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    factories.make = lambda: nn.Sequential(
        *(type(layer)(*args) for layer, args in zip(module, ARGS, strict=True))
    )
    path = saved(tmp_path, module.state_dict())
    network = read_state_dict(path, "some_factories:make", input_shape=(2, 2))
    x = torch.randn(5, 2, 2)
    torch.testing.assert_close(network(x), module.eval()(x))


ARGS = [(), (4, 3), (3,), (), (3, 2)]


def test_a_factory_does_not_round_the_weights_of_the_file(tmp_path, factories):
    factories.make = lambda: mlp(4, 3, 2)
    module = mlp(4, 3, 2).double()
    network = read_state_dict(saved(tmp_path, module.state_dict()), "some_factories:make")
    assert network.dtype == "float64"
    np.testing.assert_array_equal(network["0"].operator.weight, module[0].weight.detach())


def test_what_is_written_is_read_again(tmp_path):
    path = saved(tmp_path, mlp(4, 7, 5, 3).state_dict())
    network = read_state_dict(path, "mlp:4-7-5-3")
    other = tmp_path / "other.pt"
    write_state_dict(network, other)
    assert list(torch.load(other, weights_only=True)) == list(torch.load(path, weights_only=True))
    again = read_state_dict(other, "mlp:4-7-5-3")
    for a, b in zip(network, again, strict=True):
        assert a.name == b.name
        if isinstance(a.operator, Linear):
            np.testing.assert_array_equal(a.operator.weight, b.operator.weight)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.pt", "other.pt"]


def test_written_keys_keep_the_names_of_the_layers(tmp_path):
    network = read_state_dict(saved(tmp_path, state_of("net.fc1", "net.fc2")), "mlp:3-3-3")
    write_state_dict(network, tmp_path / "other.pt")
    keys = list(torch.load(tmp_path / "other.pt", weights_only=True))
    assert keys == ["net.fc1.weight", "net.fc1.bias", "net.fc2.weight", "net.fc2.bias"]


def test_a_layer_of_width_zero_survives(tmp_path):
    nodes = (
        Node("0", Linear(np.zeros((0, 3)), np.zeros(0)), ("x",)),
        Node("1", Relu(), ("0",)),
        Node("2", Linear(np.zeros((2, 0)), np.ones(2)), ("1",)),
    )
    network = Network(Port("x", (3,)), nodes, (Output("y", "2"),))
    write_state_dict(network, tmp_path / "empty.pt")
    again = read_state_dict(tmp_path / "empty.pt", "mlp:3-0-2")
    assert torch.equal(again(torch.randn(4, 3)), torch.ones(4, 2))


def test_a_missing_folder_is_named(tmp_path):
    network = read_state_dict(saved(tmp_path, mlp(2, 2).state_dict()), "mlp:2-2")
    with pytest.raises(InputError, match="does not exist"):
        write_state_dict(network, tmp_path / "nowhere" / "model.pt")


class Evil:
    def __reduce__(self):
        return (print, ("code was run",))


def nan_state():
    state = mlp(4, 3, 2).state_dict()
    state["2.weight"][0, 0] = torch.nan
    return state


GOOD = mlp(4, 3, 2).state_dict()
REFUSED = {
    "wrong widths": (GOOD, "mlp:4-5-2", InputError, r"\(5, 4\).*found were 0: \(3, 4\)"),
    "too few widths": (GOOD, "mlp:4-2", InputError, "expected"),
    "missing bias": (
        {k: v for k, v in GOOD.items() if k != "0.bias"},
        "mlp:4-3-2",
        InputError,
        "missing: 0.bias",
    ),
    "unexpected": (
        {**GOOD, "1.running_mean": torch.ones(3)},
        "mlp:4-3-2",
        InputError,
        "unexpected: 1.running_mean",
    ),
    "empty": ({}, "mlp:4-3-2", InputError, "no weights"),
    "nan": (nan_state(), "mlp:4-3-2", InputError, "layer '2'.*NaN"),
    "half": ({k: v.half() for k, v in GOOD.items()}, "mlp:4-3-2", UnsupportedError, "float16"),
    "mixed": ({**GOOD, "0.bias": torch.ones(3).double()}, "mlp:4-3-2", InputError, "mixes precisions"),
    "whole model": (mlp(4, 3, 2), "mlp:4-3-2", InputError, "not loaded.*state_dict"),
    "code": ({"0.weight": Evil()}, "mlp:4-3-2", InputError, "not loaded"),
    "list": ([torch.ones(2)], "mlp:4-3-2", InputError, "holds a list"),
    "checkpoint": ({"epoch": 3, "model": dict(GOOD)}, "mlp:4-3-2", InputError, "'model' is the state dict"),
    "bad widths": (GOOD, "mlp:4-x-2", InputError, "mlp:784-100-10"),
    "no outputs": (GOOD, "mlp:4-3-0", InputError, "no outputs"),
    "bad arch": (GOOD, "resnet", InputError, "package.module:factory"),
    "no such module": (GOOD, "no_such_module_here:make", InputError, "cannot be imported"),
    "no such factory": (GOOD, "some_factories:nothing", InputError, "cannot be imported"),
    "broken factory": (GOOD, "some_factories:broken", InputError, "failed.*ZeroDivisionError"),
    "factory of something": (GOOD, "some_factories:number", InputError, "made a int"),
    "factory that does not fit": (GOOD, "some_factories:other", InputError, "size mismatch for 0.weight"),
    "factory with other keys": (GOOD, "some_factories:bare", InputError, "(?s)Unexpected key.*2.weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(tmp_path, factories, capfd, name):
    factories.broken = lambda: 1 / 0
    factories.number = lambda: 3
    factories.other = lambda: mlp(4, 8, 2)
    factories.bare = lambda: mlp(4, 3)
    content, arch, kind, message = REFUSED[name]
    path = saved(tmp_path, content)
    with pytest.raises(kind, match=message) as caught:
        read_state_dict(path, arch)
    assert str(path) in str(caught.value)
    assert "code was run" not in capfd.readouterr().out


def test_code_in_a_plain_pickle_is_not_run(tmp_path, capfd):
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps({"0.weight": Evil()}, protocol=2))
    with pytest.raises(InputError, match="not loaded"):
        read_state_dict(path, "mlp:4-3-2")
    assert "code was run" not in capfd.readouterr().out


def test_damaged_files_are_refused(tmp_path):
    whole = saved(tmp_path, GOOD).read_bytes()
    shuffler = random.Random(0)
    path = tmp_path / "damaged.pt"
    for content in (b"", b"hello", whole[: len(whole) // 2], shuffler.randbytes(200)):
        path.write_bytes(content)
        with pytest.raises(RelutrimError):
            read_state_dict(path, "mlp:4-3-2")
    with pytest.raises(InputError, match="no such file"):
        read_state_dict(tmp_path / "nothing.pt", "mlp:4-3-2")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(10**6))
    monkeypatch.setattr(module_under_test, "LARGEST_FILE", 10**5)
    monkeypatch.setattr(torch, "load", None)
    assert path.stat().st_size < 10**4
    with pytest.raises(InputError, match="unpacks to more than"):
        read_state_dict(path, "mlp:4-3-2")
