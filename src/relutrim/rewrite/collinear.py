"""Merge collinear neurons, stable or not.

If ``(w_i, b_i) = c (w_j, b_j)`` with ``c > 0``, then ``relu(u_i) = c relu(u_j)``: the readers weigh ``j`` by
as much more, and ``i`` goes. With ``c < 0``, ``relu(u_i) = |c| (relu(u_j) - u_j)``: ``i`` becomes a neuron
that carries ``u_j``, which pays where the linear part of the layer is carried anyway
(:mod:`relutrim.rewrite.carry_linear`), or where the readers' weights of ``j`` cancel.

Collinear means up to the last digits of the weights. With ``e = u_i - c u_j`` small, ``relu(u_i)`` is off by
at most ``|e|``; that and every rounding of a weight is charged to the readers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from relutrim.graph.graph import Node
from relutrim.graph.operators import Array, Linear
from relutrim.intervals import Interval
from relutrim.rewrite.draft import Draft, Mask, Step, at_most
from relutrim.rewrite.exactness import equal_times, exact_sum, power_of_two
from relutrim.rewrite.layers import DenseLayer, finite, keep_neurons, new_units
from relutrim.rounding import ETA, UNIT, gamma

NAME = "merge-collinear"
_DIGITS = 9
_SLACK = 1e-6
"""How far a neuron that carries a linear part stays away from 0, as a share of its range."""


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Neurons ``one``, each a multiple of another, and the factors."""

    one: np.ndarray
    other: np.ndarray
    factor: Array

    def __len__(self) -> int:
        return len(self.factor)


def merge_multiples(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft in which no two unstable neurons of the layer are positive multiples of each other."""
    pairs = _pairs(draft, layer, positive=True)
    if not len(pairs) or not layer.readers:
        return draft
    keep: Mask = np.ones(layer.size, dtype=np.bool_)
    keep[pairs.one] = False
    readers, moved = {}, {}
    for reader in layer.readers:
        old = reader.operator
        assert isinstance(old, Linear)
        weight = _reweighed(old.weight, pairs)
        if not finite(weight):
            return draft
        readers[reader.name] = Linear(weight[:, keep], old.bias)
        moved[reader.name] = _moved(draft, layer, old.weight, pairs)
    step = Step(NAME, layer.relu.name, f"merged {len(pairs)} neurons into multiples of them", len(pairs))
    return keep_neurons(draft, layer, keep, readers, step, moved)


def merge_exact_multiples(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft without the neurons that are others times a power of two, as far as the readers' new weights
    are exact and the file holds them: nothing moves.
    """
    rows = np.concatenate([layer.operator.weight, layer.operator.bias[:, None]], axis=1)
    outward = [_linear(reader).weight.copy() for reader in layer.readers]
    keep: Mask = np.ones(layer.size, dtype=np.bool_)
    for one, other, factor in multiples(rows, ~layer.inactive(draft), signed=True):
        if factor <= 0 or not power_of_two(factor) or not equal_times(rows[one], factor, rows[other]):
            continue
        taken = [exact_sum(w[:, other], factor, w[:, one], draft.network.dtype) for w in outward]
        found = [column for column in taken if column is not None]
        if len(found) == len(outward):
            keep[one] = False
            for weight, column in zip(outward, found, strict=True):
                weight[:, other] = column
    gone = int((~keep).sum())
    if not gone or not layer.readers:
        return draft
    readers = {
        reader.name: Linear(weight[:, keep], _linear(reader).bias)
        for reader, weight in zip(layer.readers, outward, strict=True)
    }
    step = Step(NAME, layer.relu.name, f"merged {gone} neurons into exact multiples of them", gone)
    return keep_neurons(draft, layer, keep, readers, step)


def split_opposites(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft in which an unstable neuron that is a negative multiple of another carries the linear part of
    the pair instead: as many neurons as before, but fewer that are not linear.
    """
    pairs = _pairs(draft, layer, positive=False)
    if not len(pairs) or not layer.readers:
        return draft
    known = draft.ranges[layer.linear.name]
    lo, hi = known.lo[0].numpy().copy(), known.hi[0].numpy().copy()
    low, high = lo[pairs.other], hi[pairs.other]
    shift = -low + _SLACK * (high - low)
    rows, biases = layer.operator.weight.copy(), layer.operator.bias.copy()
    rows[pairs.one], biases[pairs.one] = rows[pairs.other], biases[pairs.other] + shift
    if not finite(shift, biases):
        return draft
    sizes = np.abs(low) + np.abs(high) + np.abs(shift) + np.abs(layer.operator.bias[pairs.other])
    room = 4 * UNIT * sizes + ETA
    lo[pairs.one], hi[pairs.one] = low + shift - room, high + shift + room
    change: dict[str, Node | None] = {
        layer.linear.name: Node(layer.linear.name, Linear(rows, biases), layer.linear.inputs)
    }
    moved = {}
    for reader in layer.readers:
        old = reader.operator
        assert isinstance(old, Linear)
        weight = _reweighed(old.weight, pairs)
        weight[:, pairs.one] = old.weight[:, pairs.one] * pairs.factor
        bias = old.bias - weight[:, pairs.one] @ shift
        if not finite(weight, bias):
            return draft
        change[reader.name] = Node(reader.name, Linear(weight, bias), reader.inputs)
        moved[reader.name] = _moved(draft, layer, old.weight, pairs) + _shifted(
            old.bias, np.abs(weight[:, pairs.one]), np.abs(shift) + np.abs(layer.operator.bias[pairs.other])
        )
    identity = draft.identity[layer.relu.name].copy()
    identity[pairs.one] = True
    ends = Interval(torch.as_tensor(lo)[None], torch.as_tensor(hi)[None])
    behind = draft.ranges[layer.relu.name]
    behind = Interval(behind.lo.clone(), behind.hi.clone())
    # They stand for the identity: where their range dips below 0, so does their value.
    one = torch.as_tensor(pairs.one)
    behind.lo[:, one], behind.hi[:, one] = ends.lo[:, one], ends.hi[:, one]
    text = f"split {len(pairs)} pairs of opposite neurons into one and its linear part"
    return draft.rewritten(
        draft.network.edit(change=change),
        Step(NAME, layer.relu.name, text),
        moved=moved,
        identity={layer.relu.name: identity},
        ranges={layer.linear.name: ends, layer.relu.name: behind},
        kept={name: new_units(layer.size, pairs.one) for name in (layer.linear.name, layer.relu.name)},
    )


def _pairs(draft: Draft, layer: DenseLayer, *, positive: bool) -> _Pairs:
    """Unstable neurons that are multiples of an earlier one, which is none itself."""
    stable = draft.identity[layer.relu.name] | draft.zero[layer.relu.name]
    rows = np.concatenate([layer.operator.weight, layer.operator.bias[:, None]], axis=1)
    found = [pair for pair in multiples(rows, ~stable, signed=positive) if (pair[2] > 0) == positive]
    return _Pairs(
        np.array([i for i, _, _ in found], dtype=np.int64),
        np.array([j for _, j, _ in found], dtype=np.int64),
        np.array([c for _, _, c in found], dtype=np.float64),
    )


def multiples(rows: Array, among: Mask, *, signed: bool) -> list[tuple[int, int, float]]:
    """Rows ``i`` that are a number times an earlier row ``j`` up to the last digits, with ``j`` and that
    number; of ``among`` only, and no rows of zeros. With ``signed``, opposite rows are of different kinds.
    """
    found: list[tuple[int, int, float]] = []
    first: dict[bytes, int] = {}
    for i in np.flatnonzero(among & rows.any(axis=1)).tolist():
        at = int(np.abs(rows[i]).argmax())
        direction = rows[i] / rows[i, at]
        key = (np.round(direction, _DIGITS) + 0.0).tobytes()
        if signed:
            key += b"+" if rows[i, at] > 0 else b"-"
        j = first.setdefault(key, i)
        if j == i:
            continue
        factor = float(rows[i, at] / rows[j, at])
        same = (np.abs(rows[i] - factor * rows[j]) <= 8 * UNIT * np.abs(rows[i])).all()
        if same and factor != 0 and np.isfinite(factor):
            found.append((i, j, factor))
    return found


def _linear(reader: Node) -> Linear:
    assert isinstance(reader.operator, Linear)
    return reader.operator


def _reweighed(weight: Array, pairs: _Pairs) -> Array:
    """A reader's weights when ``relu(u_j)`` takes over for its multiples."""
    found = weight.copy()
    np.add.at(found.T, pairs.other, (np.abs(pairs.factor) * weight[:, pairs.one]).T)
    return found


def _moved(draft: Draft, layer: DenseLayer, outward: Array, pairs: _Pairs) -> torch.Tensor:
    """How far a reader's value can move: what the neurons differ from multiples by, and the rounding of the
    new weights.
    """
    reach = draft.reach(layer.linear.inputs[0])
    w, b, c = layer.operator.weight, layer.operator.bias, pairs.factor
    other, scaled = np.abs(w[pairs.other]), np.abs(c)[:, None]
    gap = at_most(w[pairs.one] - c[:, None] * w[pairs.other], b[pairs.one] - c * b[pairs.other], reach)
    size = at_most(
        np.abs(w[pairs.one]) + scaled * other,
        np.abs(b[pairs.one]) + np.abs(c * b[pairs.other]),
        reach,
    )
    differ = gap + gamma(4) * size + 4 * ETA * (2 + float(reach.sum()))
    value = at_most(other, np.abs(b[pairs.other]), reach)
    own, taken = np.abs(outward[:, pairs.one]), np.abs(outward[:, pairs.other])
    rounding = gamma(len(pairs) + 4) * (torch.as_tensor(taken) + torch.as_tensor(own * np.abs(c))) * value
    total = (torch.as_tensor(own) * differ).sum(1) + rounding.sum(1)
    return total[None] * (1 + 2.0**-20) + 8 * len(pairs) * ETA * (2 + float(value.sum()))


def _shifted(bias: Array, weight: Array, shift: Array) -> torch.Tensor:
    """Rounding of biases that make up for shifts, and of the shifts added to biases."""
    size = np.abs(bias) + weight @ shift
    terms = weight.shape[1] + 4
    return torch.as_tensor(2 * gamma(terms) * size + 2 * terms * ETA * (2 + weight.sum(1)))[None]
