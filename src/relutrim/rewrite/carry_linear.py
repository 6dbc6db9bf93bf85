"""Carry the linear part: as many neurons as the readers can tell apart.

Readers see a layer's active neurons only through ``M x + c`` with ``M = D_Q W_Q``. If ``M = A B`` with ``k``
rows in ``B``, then ``k`` carriers ``B x + s`` do for all of them, however many they were: the readers'
weights become ``A``, and their bias makes up for ``s``, which keeps the carriers non-negative on the domain.
``k`` is at most the number of the readers' rows: behind the last hidden layer of a classifier, its classes.

1. **Propose**: the rows of ``B`` are rows of ``M`` that the others depend on (:func:`dependent_rows`); or,
   where the outputs may move, the leading singular vectors of ``M``, each row weighed by what it means to
   the outputs and each column by how far its input ranges.
2. **Account**: what the readers get in place of the old sum is bounded through the residual ``D_Q W_Q - A B``
   itself, rounding included, so no solve has to be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from relutrim.bounds.interval import node_interval
from relutrim.graph.graph import Node
from relutrim.graph.operators import Array, Linear
from relutrim.graph.slicing import Kept
from relutrim.intervals import Interval
from relutrim.rewrite.budget import Share
from relutrim.rewrite.draft import Draft, Step, at_most, middle
from relutrim.rewrite.layers import DenseLayer, finite
from relutrim.rewrite.merge_active import dependent_rows
from relutrim.rewrite.storage import held
from relutrim.rounding import ETA, UNIT, gamma

NAME = "carry-linear"
_SLACK = 1e-6
"""How far carriers stay away from 0, as a share of their range: stored weights are rounded."""


@dataclass(frozen=True, eq=False)
class _Factors:
    """``M = outward @ (inward @ M)``, exactly or nearly."""

    outward: Array
    inward: Array


def carry_linear(draft: Draft, layer: DenseLayer, share: Share | None = None) -> Draft:
    """The draft in which no more neurons of the layer are linear than its readers can tell apart; with a
    share of what the outputs may move, than they need to.
    """
    active = np.flatnonzero(layer.active(draft))
    if not layer.readers or not len(active):
        return draft
    weight, bias = layer.operator.weight[active], layer.operator.bias[active]
    outward = np.concatenate([_weight(reader)[:, active] for reader in layer.readers])
    product = outward @ weight
    if not finite(product):
        return draft
    centre, radius = middle(draft.ranges[layer.linear.inputs[0]])
    found = _exactly(product) if share is None else _nearly(product, radius[0].numpy(), share)
    if found is None or len(found.inward) >= len(active):
        return draft
    others = np.setdiff1d(np.arange(layer.size), active)
    if not len(found.inward) and not len(others):
        found = _Factors(np.zeros((len(outward), 1)), np.zeros((1, len(outward))))
    # Numbers that the file holds cost nothing when they are stored: their rounding is in the residual.
    dtype = "float64" if share is None else draft.network.dtype
    made = _carriers(draft, layer, held(found.inward @ product, dtype), found.inward @ outward, dtype)
    if made is None:
        return draft
    carriers, pre = made
    change: dict[str, Node | None] = {}
    moved = {}
    start = 0
    for reader in layer.readers:
        old = reader.operator
        assert isinstance(old, Linear)
        own, part = (array[start : start + len(old.bias)] for array in (found.outward, product))
        own = held(own, dtype)
        start += len(old.bias)
        constant = old.bias + old.weight[:, active] @ bias - own @ carriers.bias
        if share is not None:
            constant = constant + (part - own @ carriers.weight) @ centre[0].numpy()
        if not finite(own, constant):
            return draft
        new = Linear(np.concatenate([old.weight[:, others], own], axis=1), constant)
        change[reader.name] = Node(reader.name, new, reader.inputs)
        moved[reader.name] = _residual(
            (centre, radius),
            (old.weight[:, active], old.bias, weight, bias),
            (own, constant, carriers.weight, carriers.bias),
        )
    rows = np.concatenate([layer.operator.weight[others], carriers.weight])
    shifts = np.concatenate([layer.operator.bias[others], carriers.bias])
    change[layer.linear.name] = Node(layer.linear.name, Linear(rows, shifts), layer.linear.inputs)
    gone = layer.neurons(len(active) - len(carriers.bias))
    text = f"{len(carriers.bias)} {layer.entries} carry the linear part of {len(active)} active ones"
    kept = torch.as_tensor(others)
    news = np.zeros(len(carriers.bias), dtype=np.bool_)
    return draft.rewritten(
        draft.network.edit(change=change),
        Step(NAME, layer.relu.name, text, gone),
        moved=moved,
        identity={layer.relu.name: np.concatenate([layer.active(draft)[others], ~news])},
        zero={layer.relu.name: np.concatenate([layer.inactive(draft)[others], news])},
        ranges={
            layer.linear.name: _joined(draft.ranges[layer.linear.name], kept, pre),
            # They stand for the identity: where their range dips below 0, so does their value.
            layer.relu.name: _joined(draft.ranges[layer.relu.name], kept, pre),
        },
        kept={
            name: Kept(0, np.concatenate([others, np.full(len(news), -1)]))
            for name in (layer.linear.name, layer.relu.name)
        },
    )


def _weight(reader: Node) -> Array:
    assert isinstance(reader.operator, Linear)
    return reader.operator.weight


def _exactly(product: Array) -> _Factors:
    """Rows that the others depend on, and all rows in terms of those."""
    basis, rest, found = dependent_rows(product)
    factors = np.zeros((len(product), len(basis)))
    factors[basis, np.arange(len(basis))] = 1.0
    factors[rest] = found
    return _Factors(factors, np.eye(len(product))[basis])


def _nearly(product: Array, radius: Array, share: Share) -> _Factors | None:
    """As few directions as the share of the outputs' budget allows for."""
    weigh = share.prices.max(axis=0, initial=0.0)
    weigh = weigh / max(weigh.max(initial=0.0), 1e-300)
    scaled = weigh[:, None] * product * radius
    if not finite(scaled):
        return None
    try:
        left, values, right = np.linalg.svd(scaled, full_matrices=False)
    except np.linalg.LinAlgError:
        return None
    inverse = np.divide(1.0, weigh, out=np.zeros_like(weigh), where=weigh > 0)

    def affordable(count: int) -> bool:
        rest = np.abs((left[:, count:] * values[count:]) @ right[count:]).sum(1) * inverse
        return bool((share.prices @ rest <= share.part).all())

    low, high = 0, len(values)
    while low < high:
        count = (low + high) // 2
        low, high = (low, count) if affordable(count) else (count + 1, high)
    return _Factors(inverse[:, None] * left[:, :low], left[:, :low].T * weigh)


def _carriers(
    draft: Draft, layer: DenseLayer, rows: Array, outward: Array, dtype: str
) -> tuple[Linear, Interval] | None:
    """The rows with biases that keep them non-negative on the domain, and the range of their values. Without
    a ReLU there is nothing to keep: the biases are 0.
    """
    if not finite(rows):
        return None
    plain = Linear(rows, np.zeros(len(rows)))
    span = node_interval(Node("", plain, layer.linear.inputs), dict(draft.ranges))
    # What is known of the old neurons may say more than the layer's inputs do.
    active = np.flatnonzero(layer.active(draft))
    weight, bias = layer.operator.weight[active], layer.operator.bias[active]
    pre = draft.ranges[layer.linear.name]
    lo, hi = (end[0].numpy()[active] for end in (pre.lo, pre.hi))
    ends = (outward * lo, outward * hi)
    constant = outward @ bias
    reach = draft.reach(layer.linear.inputs[0])
    size = np.abs(outward) @ (np.maximum(np.abs(lo), np.abs(hi)) + np.abs(bias))
    differ = at_most(rows - outward @ weight, np.zeros(len(rows)), reach)[0].numpy()
    terms = len(active) + 8
    computed = at_most(np.abs(outward), np.zeros(len(rows)), at_most(weight, bias, reach))[0].numpy()
    room = differ + gamma(terms) * (2 * size + computed) + terms * ETA * (2 + float(reach.sum()))
    known = Interval(
        torch.as_tensor(np.minimum(*ends).sum(1) - constant - room)[None],
        torch.as_tensor(np.maximum(*ends).sum(1) - constant + room)[None],
    )
    both = span.meet(known)
    lower, upper = both.lo[0].numpy(), both.hi[0].numpy()
    if layer.straight:
        return plain, both
    shift = held(-lower + _SLACK * (upper - lower + np.abs(lower)), dtype)
    if not finite(shift):
        return None
    moved = 4 * UNIT * (np.abs(lower) + np.abs(upper) + np.abs(shift)) + ETA
    low, high = (torch.as_tensor(end)[None] for end in (lower + shift - moved, upper + shift + moved))
    return Linear(rows, shift), Interval(low, high)


def _joined(old: Interval, kept: torch.Tensor, new: Interval) -> Interval:
    return Interval(torch.cat([old.lo[:, kept], new.lo], 1), torch.cat([old.hi[:, kept], new.hi], 1))


def _residual(
    inputs: tuple[torch.Tensor, torch.Tensor],
    before: tuple[Array, Array, Array, Array],
    after: tuple[Array, Array, Array, Array],
) -> torch.Tensor:
    """How far ``D (W x + b) + c`` can move if all four are others: the difference of what they multiply out
    to, over the inputs' range around its centre, and the rounding of computing that.
    """
    (d, c, w, b), (a, e, v, s) = before, after
    centre, radius = inputs
    gap = d @ w - a @ v
    offset = (d @ b + c) - (a @ s + e) + gap @ centre[0].numpy()
    reach = centre.abs() + radius
    size = at_most(d, c, at_most(w, b, reach)) + at_most(a, e, at_most(v, s, reach))
    terms = len(w) + len(v) + w.shape[1] + 8
    rounding: torch.Tensor = gamma(terms) * size + terms * ETA * (2 + float(reach.sum()))
    return at_most(gap, offset, radius) + rounding
