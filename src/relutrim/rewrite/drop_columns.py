"""Drop columns: a linear node behind a flattening reads only the entries that vary.

Units of a channel that are constant at some positions only cannot go from the convolution, but the linear
node that reads them all one by one needs no weights for them: those that are 0 go, and others become part of
the bias. What is left is picked from the flattened value (:class:`~relutrim.graph.operators.Take`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Linear, Relu, Take
from relutrim.intervals import Interval
from relutrim.rewrite.draft import Draft, Step, at_most
from relutrim.rewrite.drop_channels import can_be_nonzero
from relutrim.rewrite.layers import finite
from relutrim.rounding import ETA, gamma

NAME = "drop-columns"

_PER_INDEX = 1
"""How many weights an index takes as much as: it has 32 bits."""


def drop_columns(draft: Draft) -> Draft:
    """The draft in which no linear node reads entries that are constant, where it reads more than a dense
    layer.
    """
    nonzero = can_be_nonzero(draft)
    for node in draft.network.nodes:
        if not isinstance(node.operator, Linear) or not _flattened(draft.network, node.inputs[0]):
            continue
        source = node.inputs[0]
        known = draft.ranges[source]
        constant = (known.lo == known.hi)[0].numpy() | ~nonzero[source]
        values = np.where(nonzero[source], known.lo[0].numpy(), 0.0)
        if constant.any() and not constant.all():
            found = _without(draft, node, constant, np.where(constant, values, 0.0))
            if found is not None:
                return drop_columns(found)
    return draft


def _flattened(network: Network, source: str) -> bool:
    """Whether a value is a vector that is no dense layer's: of those, neurons go as a whole."""
    if len(network.shapes[source]) != 1 or source not in network:
        return False
    before = network[source]
    return not isinstance(before.operator, Relu | Linear)


def _without(draft: Draft, node: Node, constant: np.ndarray, values: np.ndarray) -> Draft | None:
    operator, source = node.operator, node.inputs[0]
    assert isinstance(operator, Linear)
    kept = np.flatnonzero(~constant)
    if operator.weight[:, constant].size <= _PER_INDEX * len(kept):
        return None  # the indices of what stays would take as much
    bias = operator.bias + operator.weight @ values
    if not finite(bias):
        return None
    name = draft.network.free_name(f"{source}.varying")
    pick = Node(name, Take((kept,)), (source,))
    smaller = Node(node.name, Linear(operator.weight[:, kept], bias), (name,))
    moved = {}
    if values.any():
        size = at_most(operator.weight, operator.bias, torch.as_tensor(np.abs(values))[None])
        terms = len(values) + 2
        moved[node.name] = gamma(terms) * size + terms * ETA
    nodes = []
    for other in draft.network.nodes:
        nodes += [pick, smaller] if other.name == node.name else [other]
    index = torch.as_tensor(kept)
    ranges = draft.ranges[source]
    gone = int(constant.sum())
    return draft.rewritten(
        replace(draft.network, nodes=tuple(nodes)),
        Step(NAME, node.name, f"no longer reads {gone} of {len(constant)} entries, which are constant"),
        moved=moved,
        ranges={name: Interval(ranges.lo[:, index], ranges.hi[:, index])},
    )
