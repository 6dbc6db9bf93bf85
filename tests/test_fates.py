"""What the report says became of neurons: each is counted once, under the name of what was done to it."""

from __future__ import annotations

import ast
import pkgutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import relutrim.rewrite
import strategies
from channelled import channelled
from relutrim.graph import Convolution, Linear, Network, Node, Output, Port, Relu, Reshape
from relutrim.report.html.fates import FATES, NO_NEURONS, WORDS, fates
from rewriting import compressed


@settings(max_examples=40)
@given(strategies.networks() | channelled())
def test_every_neuron_is_accounted_for(network):
    result = compressed(network, -1, 1)
    found = fates(result.original, result.stored, result.steps)
    assert list(found) == [relu.name for relu in network.relus]
    for name, fate in found.items():
        assert fate.size == network.size(name) == sum(fate.gone.values()) + fate.left - fate.added
        assert min(fate.gone.values()) >= 0
        assert fate.gone["other"] == 0
        assert fate.left == sum(result.stored.size(r.name) for r in result.stored.relus if r.name == name)


def names_of_steps() -> set[str]:
    """What a step can be called, read from the source of all rewrites."""
    found = set()
    for name in (
        "again",
        *(f"rewrite.{one.name}" for one in pkgutil.iter_modules(relutrim.rewrite.__path__)),
    ):
        module = import_module(f"relutrim.{name}")
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Step":
                name = node.args[0]
                found.add(
                    name.value if isinstance(name, ast.Constant) else getattr(module, ast.unparse(name))
                )
    return found


def test_every_rewrite_has_a_word():
    assert names_of_steps() == WORDS.keys() | NO_NEURONS
    assert not WORDS.keys() & NO_NEURONS
    assert {*WORDS.values(), "other"} == set(FATES)


def convolved(kernels: list[float], biases: list[float]) -> Network:
    """Four positions in each of three channels, and enough readers that all of them count."""
    weight = np.reshape(np.array(kernels), (3, 1, 1, 1))
    out = np.random.default_rng(0).normal(size=(12, 12))
    return Network(
        Port("x", (1, 2, 2)),
        (
            Node("conv", Convolution(weight, np.array(biases), (1, 1), ((0, 0), (0, 0)), (1, 1)), ("x",)),
            Node("relu", Relu(), ("conv",)),
            Node("flat", Reshape((3, 2, 2), (12,)), ("relu",)),
            Node("out", Linear(out, np.zeros(12)), ("flat",)),
        ),
        (Output("y", "out"),),
        "float64",
    )


@pytest.mark.parametrize(
    ("kernels", "biases", "word"),
    [
        ([1.0, -1.0, 2.5], [-0.5, -0.25, -1.0], "dropped"),  # the second is always 0
        ([1.0, 2.0, -1.0], [-0.5, -1.0, 0.5], "merged"),  # the second is twice the first
        ([1.0, 0.0, -1.0], [-0.5, 2.0, 0.5], "constant"),  # the second is 2
    ],
)
def test_channels_go_under_the_name_of_the_cause(kernels, biases, word):
    result = compressed(convolved(kernels, biases), 0, 1)
    fate = fates(result.original, result.stored, result.steps)["relu"]
    assert {kind: count for kind, count in fate.gone.items() if count} == {word: 4}
    assert (fate.left, fate.added) == (8, 0)
