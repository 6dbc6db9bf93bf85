"""Merge active: the paper's merge of linearly dependent active neurons.

If the active rows ``W_Q`` have rank ``r < |Q|``, every one is a combination of ``r`` of them, ``w_i = sum_j
a_ij w_j``, and so is its output up to a constant. The readers then read those ``r`` alone:
``D'_j = D_j + sum_i D_i a_ij`` and ``b' = b + sum_i D_i (b_i - sum_j a_ij b_j)``.

1. **Propose**: Gram-Schmidt with pivoting on rows scaled to unit length finds a well-conditioned basis;
   float64.
2. **Verify**: a row counts as dependent only if what is left of it is at the level of rounding, entry by
   entry, with moderate coefficients. When in doubt it stays.
3. **Account**: the readers' deviation is bounded through the residual ``D_Q W_Q - D' W_basis`` itself, so
   neither the basis nor the coefficients have to be trusted.
"""

from __future__ import annotations

import numpy as np
import torch

from relutrim.network.operators import Array, Linear
from relutrim.rewrite.draft import Draft, Mask, Step
from relutrim.rewrite.layers import DenseLayer, keep_neurons
from relutrim.rounding import ETA, UNIT, gamma

NAME = "merge-active"
_PROPOSE = 1e-11
"""Relative length of what is left of a row below which it is proposed as dependent."""
_LARGEST = 1e3
"""Coefficients beyond this would magnify the rounding of stored weights."""


def merge_active(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft in which the layer's active neurons are linearly independent, as far as that can be had
    exactly.
    """
    active = np.flatnonzero(draft.identity[layer.relu.name])
    basis, rest, factors = dependent_rows(layer.operator.weight[active])
    if not len(rest):
        return draft
    kept, gone = active[basis], active[rest]
    keep: Mask = np.ones(layer.size, dtype=np.bool_)
    keep[gone] = False
    offset = layer.operator.bias[gone] - factors @ layer.operator.bias[kept]
    readers, moved = {}, {}
    for reader in layer.readers:
        assert isinstance(reader.operator, Linear)
        old = reader.operator
        weight = old.weight.copy()
        weight[:, kept] += old.weight[:, gone] @ factors
        new = Linear(weight[:, keep], old.bias + old.weight[:, gone] @ offset)
        readers[reader.name] = new
        moved[reader.name] = _residual(draft, layer, old, weight, new.bias, active, kept)
    text = f"merged {len(active)} active neurons into {len(kept)} of them"
    return keep_neurons(draft, layer, keep, readers, Step(NAME, layer.relu.name, text, len(gone)), moved)


def dependent_rows(rows: Array) -> tuple[np.ndarray, np.ndarray, Array]:
    """Indices of a basis, indices of rows that depend on it, and the factors: ``rows[rest] = factors @
    rows[basis]``.
    """
    count = len(rows)
    everything = np.arange(count)
    lengths = np.linalg.norm(rows, axis=1)
    # A power of two changes no digit; it only keeps tiny and huge rows apart from the question of direction.
    scale = np.ones(count)
    positive = (lengths > 0) & np.isfinite(lengths)
    scale[positive] = np.exp2(-np.round(np.log2(lengths[positive])))
    scaled = rows * scale[:, None]
    if not np.isfinite(scaled).all() or not np.isfinite(lengths).all():
        return everything, everything[:0], np.zeros((0, count))
    if positive.all() and count <= rows.shape[1] and _clearly_independent(scaled):
        return everything, everything[:0], np.zeros((0, count))
    basis = _pivots(scaled)
    rest = np.setdiff1d(everything, basis)
    if not len(rest):
        return everything, rest, np.zeros((0, count))
    while True:
        factors = _factors(scaled, basis, rest)
        good = _verified(scaled, basis, rest, factors)
        if good.all():
            break
        # What cannot be verified joins the basis, where it may serve the others.
        basis, rest = np.sort(np.concatenate([basis, rest[~good]])), rest[good]
    return basis, rest, factors * scale[basis] / scale[rest][:, None]


def _clearly_independent(rows: Array) -> bool:
    values = np.linalg.svd(rows, compute_uv=False)
    return bool(len(values) == 0 or values[-1] > 1e-9 * max(1.0, float(values[0])))


def _pivots(rows: Array) -> np.ndarray:
    """A maximal set of numerically independent rows: always the one with most left, orthogonalised twice."""
    left = rows.copy()
    found: list[int] = []
    directions: list[Array] = []
    for _ in range(min(rows.shape)):
        sizes = np.linalg.norm(left, axis=1)
        pivot = int(sizes.argmax())
        if sizes[pivot] <= _PROPOSE:
            break
        direction = left[pivot]
        for other in directions:
            direction = direction - (direction @ other) * other
        direction = direction / np.linalg.norm(direction)
        directions.append(direction)
        found.append(pivot)
        left = left - np.outer(left @ direction, direction)
        left[found] = 0
    return np.sort(np.array(found, dtype=np.int64))


def _factors(rows: Array, basis: np.ndarray, rest: np.ndarray) -> Array:
    if not len(basis) or not len(rest):
        return np.zeros((len(rest), len(basis)))
    solution: Array = np.linalg.lstsq(rows[basis].T, rows[rest].T, rcond=None)[0].T
    # One step of refinement; then factors that are integers or halves up to rounding are taken as such
    # (copies, negatives).
    solution = (
        solution + np.linalg.lstsq(rows[basis].T, (rows[rest] - solution @ rows[basis]).T, rcond=None)[0].T
    )
    simple = np.round(solution * 2) / 2
    chosen: Array = np.where(np.abs(solution - simple) < 1e-12, simple, solution)
    return chosen


def _verified(rows: Array, basis: np.ndarray, rest: np.ndarray, factors: Array) -> Mask:
    """Rows whose residual is no more than rounding of their own terms, entry by entry."""
    residual = np.abs(rows[rest] - factors @ rows[basis])
    terms = np.abs(rows[rest]) + np.abs(factors) @ np.abs(rows[basis])
    # A least-squares solution is accurate relative to the row, not to each entry; both are rounding.
    allowed = (
        64
        * (len(basis) + 4)
        * UNIT
        * np.maximum(terms, terms.max(axis=1, initial=0.0, keepdims=True) * 2.0**-6)
    )
    verdict: Mask = (residual <= allowed).all(axis=1) & (np.abs(factors) <= _LARGEST).all(axis=1)
    return verdict


def _residual(
    draft: Draft,
    layer: DenseLayer,
    old: Linear,
    weight: Array,
    bias: Array,
    active: np.ndarray,
    kept: np.ndarray,
) -> torch.Tensor:
    """How far a reader's value can move: ``|D_Q W_Q - D'_B W_B| m + |...|`` plus the rounding of computing
    that.
    """
    rows, offsets = layer.operator.weight, layer.operator.bias
    before, after = old.weight[:, active], weight[:, kept]
    gap = Linear(
        np.abs(before @ rows[active] - after @ rows[kept]),
        np.abs((before @ offsets[active] + old.bias) - (after @ offsets[kept] + bias)),
    )
    reach = draft.reach(layer.linear.inputs[0])
    sizes = [
        Linear(np.abs(w), np.abs(b)).magnitude(
            [Linear(np.abs(rows[i]), np.abs(offsets[i])).magnitude([reach])]
        )
        for w, b, i in ((before, old.bias, active), (after, bias, kept))
    ]
    terms = len(active) + 4
    return (
        gap.magnitude([reach]) + gamma(terms) * (sizes[0] + sizes[1]) + terms * ETA * (2 + float(reach.sum()))
    )
