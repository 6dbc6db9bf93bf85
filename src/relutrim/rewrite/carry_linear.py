"""Carry the linear part: as many neurons as the readers can tell apart.

Readers see a layer's active neurons only through ``M x + c`` with ``M = D_Q W_Q``. If ``M = A B`` with ``k``
rows in ``B``, then ``k`` carriers ``B x + s`` do for all of them, however many they were: the readers'
weights become ``A``, and their bias makes up for ``s``, which keeps the carriers non-negative on the domain.
``k`` is at most the number of the readers' rows: behind the last hidden layer of a classifier, its classes.

1. **Propose**: the rows of ``B`` are rows of ``M`` that the others depend on (:func:`dependent_rows`).
2. **Account**: what the readers get in place of the old sum is bounded through the residual ``D_Q W_Q - A B``
   itself, rounding included, so no solve has to be trusted.
"""

from __future__ import annotations

import numpy as np
import torch

from relutrim.bounds.interval import node_interval
from relutrim.bounds.values import Interval
from relutrim.network.graph import Node
from relutrim.network.operators import Array, Linear
from relutrim.rewrite.draft import Draft, Step, at_most
from relutrim.rewrite.layers import DenseLayer, finite
from relutrim.rewrite.merge_active import dependent_rows
from relutrim.rounding import ETA, gamma

NAME = "carry-linear"
_SLACK = 1e-6
"""How far carriers stay away from 0, as a share of their range: stored weights are rounded."""


def carry_linear(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft in which no more neurons of the layer are linear than its readers can tell apart."""
    active = np.flatnonzero(draft.identity[layer.relu.name])
    if not layer.readers or not len(active):
        return draft
    weight, bias = layer.operator.weight[active], layer.operator.bias[active]
    outward = np.concatenate([_weight(reader)[:, active] for reader in layer.readers])
    product = outward @ weight
    if not finite(product):
        return draft
    basis, factors = _factorised(product, len(active))
    if factors is None:
        return draft
    others = np.setdiff1d(np.arange(layer.size), active)
    if not len(basis) and not len(others):
        basis, factors = np.zeros(1, dtype=np.int64), np.zeros((len(outward), 1))
    carriers = _carriers(draft, layer, product[basis], outward[basis])
    if carriers is None:
        return draft
    change: dict[str, Node | None] = {}
    moved = {}
    start = 0
    for reader in layer.readers:
        old = reader.operator
        assert isinstance(old, Linear)
        own = factors[start : start + len(old.bias)]
        start += len(old.bias)
        constant = old.bias + old.weight[:, active] @ bias - own @ carriers.bias
        if not finite(own, constant):
            return draft
        new = Linear(np.concatenate([old.weight[:, others], own], axis=1), constant)
        change[reader.name] = Node(reader.name, new, reader.inputs)
        moved[reader.name] = _residual(
            draft.reach(layer.linear.inputs[0]),
            (old.weight[:, active], old.bias, weight, bias),
            (own, constant, carriers.weight, carriers.bias),
        )
    rows = np.concatenate([layer.operator.weight[others], carriers.weight])
    shifts = np.concatenate([layer.operator.bias[others], carriers.bias])
    change[layer.linear.name] = Node(layer.linear.name, Linear(rows, shifts), layer.linear.inputs)
    gone = len(active) - len(carriers.bias)
    text = f"{len(carriers.bias)} neurons carry the linear part of {len(active)} active ones"
    kept = torch.as_tensor(others)
    pre = node_interval(Node("", carriers, layer.linear.inputs), dict(draft.ranges))
    news = np.zeros(len(carriers.bias), dtype=np.bool_)
    return draft.rewritten(
        draft.network.edit(change=change),
        Step(NAME, layer.relu.name, text, gone),
        moved=moved,
        identity={layer.relu.name: np.concatenate([draft.identity[layer.relu.name][others], ~news])},
        zero={layer.relu.name: np.concatenate([draft.zero[layer.relu.name][others], news])},
        ranges={
            layer.linear.name: _joined(draft.ranges[layer.linear.name], kept, pre),
            layer.relu.name: _joined(
                draft.ranges[layer.relu.name], kept, Interval(pre.lo.clamp(min=0), pre.hi.clamp(min=0))
            ),
        },
    )


def _weight(reader: Node) -> Array:
    assert isinstance(reader.operator, Linear)
    return reader.operator.weight


def _factorised(product: Array, most: int) -> tuple[np.ndarray, Array | None]:
    """Rows that the others depend on, and all rows in terms of those; None if they are not fewer than
    ``most``.
    """
    basis, rest, found = dependent_rows(product)
    if len(basis) >= most:
        return basis, None
    factors = np.zeros((len(product), len(basis)))
    factors[basis, np.arange(len(basis))] = 1.0
    factors[rest] = found
    return basis, factors


def _carriers(draft: Draft, layer: DenseLayer, rows: Array, outward: Array) -> Linear | None:
    """The rows with biases that keep them non-negative on the domain."""
    plain = Linear(rows, np.zeros(len(rows)))
    span = node_interval(Node("", plain, layer.linear.inputs), dict(draft.ranges))
    lower, width = span.lo[0].numpy(), (span.hi - span.lo)[0].numpy()
    active = np.flatnonzero(draft.identity[layer.relu.name])
    pre = draft.ranges[layer.linear.name]
    lo, hi = (end[0].numpy()[active] for end in (pre.lo, pre.hi))
    # What is known of the old neurons may say more than the layer's inputs do.
    least = np.minimum(outward * lo, outward * hi).sum(1) - outward @ layer.operator.bias[active]
    size = np.abs(outward) @ (np.maximum(np.abs(lo), np.abs(hi)) + np.abs(layer.operator.bias[active]))
    known = least - 2 * gamma(len(active) + 4) * size - 2 * len(active) * ETA
    shift = -np.fmax(lower, known) + _SLACK * width
    return Linear(rows, shift) if finite(shift) else None


def _joined(old: Interval, kept: torch.Tensor, new: Interval) -> Interval:
    return Interval(torch.cat([old.lo[:, kept], new.lo], 1), torch.cat([old.hi[:, kept], new.hi], 1))


def _residual(
    reach: torch.Tensor,
    before: tuple[Array, Array, Array, Array],
    after: tuple[Array, Array, Array, Array],
) -> torch.Tensor:
    """How far ``D (W x + b) + c`` can move if all four are others: the difference of what they multiply out
    to, and the rounding of computing that.
    """
    (d, c, w, b), (a, e, v, s) = before, after
    gap = at_most(d @ w - a @ v, (d @ b + c) - (a @ s + e), reach)
    size = at_most(d, c, at_most(w, b, reach)) + at_most(a, e, at_most(v, s, reach))
    terms = len(w) + len(v) + 4
    return gap + gamma(terms) * size + terms * ETA * (2 + float(reach.sum()))
