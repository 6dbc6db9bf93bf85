"""More of what once broke the rewrites, or would have: networks in which linear layers follow one another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from relutrim.errors import InputError
from relutrim.graph import Node, Port, Relu, Reshape
from relutrim.io import load, save
from rewriting import compressed, dense, graph, linear


def bottleneck(dtype="float32"):
    """A network 4-1-4 whose hidden neuron is active: folding it would make it larger."""
    return dense(linear([[1.0, 2.0, -1.0, 0.5]], [8.0]), linear([[1.0], [-2.0], [3.0], [4.0]]), dtype=dtype)


# A state dict holds no ReLUs, so that what is read back may have some that nobody wrote.


def test_a_state_dict_without_a_relu_is_not_read_as_an_mlp(tmp_path):
    """Once: 4-1-4 fits, and its hidden value, which is negative here, came back as 0."""
    result = compressed(bottleneck(), -1, 1)
    assert not result.stored.relus
    path = tmp_path / "smaller.pt"
    save(result.stored, path)
    with pytest.raises(InputError, match="no mlp"):
        load(path, arch="mlp:4-1-4")
    state = torch.load(path, weights_only=True)
    names = [node.name for node in result.stored.nodes]
    assert list(state) == [f"{name}.{leaf}" for name in names for leaf in ("weight", "bias")]


@pytest.mark.parametrize("end", ["relu", "branch", "second output"])
def test_a_state_dict_of_something_else_is_not_read_as_an_mlp(tmp_path, end):
    square = linear([[1.0, 0.0], [0.0, 1.0]])
    nodes = [("a", square, "x"), ("r", Relu(), "a"), ("b", square, "x" if end == "branch" else "r")]
    network = graph(2, [*nodes, ("s", Relu(), "b")], *(["a"] if end == "second output" else []), "b")
    if end == "relu":
        network = graph(2, [*nodes, ("s", Relu(), "b")], "s")
    save(network, tmp_path / "model.pt")
    with pytest.raises(InputError, match="no mlp"):
        load(tmp_path / "model.pt", arch="mlp:2-2-2")


def test_a_state_dict_of_an_mlp_is_read_as_one(tmp_path):
    layers = linear([[1.0, 2.0], [3.0, 4.0]], [0.5, -1.0]), linear([[1.0, -1.0]])
    plain = dense(*layers, dtype="float32")
    flattened = replace(
        plain,
        input=Port("image", (1, 2)),
        nodes=(Node("x", Reshape((1, 2), (2,)), ("image",)), *plain.nodes),
    )
    for network in (plain, flattened):
        save(network, tmp_path / "model.pt")
        found = load(tmp_path / "model.pt", arch="mlp:2-2-1")
        x = torch.tensor([[0.25, -1.0], [2.0, 1.0]], dtype=torch.float64)
        assert torch.equal(found(x), network(x))
