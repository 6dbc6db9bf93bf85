"""A linear node behind a flattening reads only what varies."""

from __future__ import annotations

import numpy as np
import torch

from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.graph.operators import Convolution, Take
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.drop_columns import drop_columns
from rewriting import QUICK


def border(shift: float = 0.0) -> Network:
    """One row of five: the sum of three neighbours, less 2.5; so 0 at both ends, where the padding is. A
    shift behind the ReLU makes a constant of that.
    """
    rng = np.random.default_rng(0)
    kernel = Convolution(np.ones((1, 1, 3)), np.array([-2.5]), (1,), ((1, 1),), (1,))
    nodes = (
        Node("conv", kernel, ("x",)),
        Node("relu", Relu(), ("conv",)),
        Node("norm", Scale.exactly(1.0, shift), ("relu",)),
        Node("flat", Reshape((1, 5), (5,)), ("norm",)),
        Node("y", Linear(rng.normal(size=(4, 5)), rng.normal(size=4)), ("flat",)),
    )
    return Network(Port("x", (1, 5)), nodes, (Output("y", "y"),), dtype="float64")


def dropped(network: Network) -> Draft:
    stability = analyze_network(network, Box(0, 1), data=None, **QUICK)
    draft = drop_columns(Draft.start(network, stability, Evidence.PROOF))
    x = torch.rand(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gap = float((network(x) - draft.network(x)).abs().max())
    assert gap <= 1e-14
    return draft


def test_entries_that_are_always_0_are_not_read():
    draft = dropped(border())
    assert draft.proven == 0
    linear = draft.network["y"].operator
    assert isinstance(linear, Linear)
    assert linear.weight.shape == (4, 3)
    (taken,) = [node.operator for node in draft.network.nodes if isinstance(node.operator, Take)]
    assert taken.picks[0].tolist() == [1, 2, 3]
    assert drop_columns(draft) is draft


def test_entries_that_are_constant_become_bias():
    draft = dropped(border(shift=0.25))
    assert draft.network["y"].operator.weight.shape == (4, 3)
    assert 0 < draft.proven < 1e-14


def test_entries_whose_weights_are_fewer_than_the_indices_of_others_stay():
    few = border()
    last = Node("y", Linear(np.ones((1, 5)), np.zeros(1)), ("flat",))
    few = few.edit(change={"y": last})
    stability = analyze_network(few, Box(0, 1), data=None, **QUICK)
    draft = Draft.start(few, stability, Evidence.PROOF)
    assert drop_columns(draft) is draft


def test_a_dense_layer_is_left_to_others():
    first = Linear(np.array([[1.0], [-1.0]]), np.array([0.5, -0.5]))
    nodes = (
        Node("first", first, ("x",)),
        Node("relu", Relu(), ("first",)),
        Node("y", Linear(np.ones((1, 2)), np.zeros(1)), ("relu",)),
    )
    network = Network(Port("x", (1,)), nodes, (Output("y", "y"),))
    draft = Draft.start(network, analyze_network(network, Box(0, 1), data=None, **QUICK), Evidence.PROOF)
    assert drop_columns(draft) is draft
