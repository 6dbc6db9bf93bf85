"""Merge active: the paper's merge of linearly dependent active neurons.

If the active rows ``W_Q`` have rank ``r < |Q|``, every one is a combination of ``r`` of them, ``w_i = sum_j
a_ij w_j``, and so is its output up to a constant. The readers then read those ``r`` alone:
``D'_j = D_j + sum_i D_i a_ij`` and ``b' = b + sum_i D_i (b_i - sum_j a_ij b_j)``.

1. **Propose**: Gram-Schmidt with pivoting on rows scaled to unit length finds a well-conditioned basis;
   float64.
2. **Verify**: a row counts as dependent only if what is left of it is at the level of rounding, entry by
   entry, and if what the readers add up in its place is not much larger than its own value. When in doubt it
   stays.
3. **Account**: the readers' deviation is bounded through the residual ``D_Q W_Q - D' W_basis`` itself, so
   neither the basis nor the coefficients have to be trusted.
"""

from __future__ import annotations

import numpy as np
import torch

from relutrim.graph.operators import Array, Linear
from relutrim.rewrite.draft import Draft, Mask, Step, at_most
from relutrim.rewrite.layers import DenseLayer, finite, keep_neurons
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
    active = np.flatnonzero(layer.active(draft))
    values = draft.reach(layer.linear.name)[0].numpy()[active]
    basis, rest, factors = dependent_rows(layer.operator.weight[active], values)
    if len(rest) and len(rest) == layer.size:
        # All are constant. A layer keeps at least one neuron.
        basis, rest, factors = rest[:1], rest[1:], np.zeros((len(rest) - 1, 1))
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
        bias = old.bias + old.weight[:, gone] @ offset
        if not finite(weight, bias):
            return draft
        readers[reader.name] = Linear(weight[:, keep], bias)
        moved[reader.name] = _residual(draft, layer, old, weight, bias, active, kept)
    text = f"merged {len(active)} active {layer.entries} into {len(kept)} of them"
    step = Step(NAME, layer.relu.name, text, layer.neurons(len(gone)))
    return keep_neurons(draft, layer, keep, readers, step, moved)


def dependent_rows(rows: Array, values: Array | None = None) -> tuple[np.ndarray, np.ndarray, Array]:
    """Indices of a basis, indices of rows that depend on it, and the factors: ``rows[rest] = factors @
    rows[basis]``. Where the linear algebra fails, no row depends on others.

    ``values`` are the largest magnitudes of the neurons' values, biases included. A tiny row with a large
    bias makes a bad basis: large factors would multiply that bias, and the rounding of the factors with it.
    """
    try:
        return _dependent_rows(rows, values)
    except np.linalg.LinAlgError:
        return np.arange(len(rows)), np.arange(0), np.zeros((0, len(rows)))


def _dependent_rows(rows: Array, values: Array | None) -> tuple[np.ndarray, np.ndarray, Array]:
    count = len(rows)
    everything = np.arange(count)
    # Powers of two change no digit; they only keep tiny and huge rows apart from the question of direction.
    scaled, exponents = _unit_rows(rows)
    if scaled.any(axis=1).all() and count <= rows.shape[1] and _clearly_independent(scaled):
        return everything, everything[:0], np.zeros((0, count))
    basis = _pivots(scaled if values is None else _last_if_biased(scaled, exponents, values))
    rest = np.setdiff1d(everything, basis)
    while True:
        factors = _factors(scaled, basis, rest)
        shift = exponents[rest][:, None] - exponents[basis]
        with np.errstate(over="ignore", under="ignore"):
            unscaled = np.ldexp(factors, shift)
            unharmed = (np.ldexp(unscaled, -shift) == factors).all(axis=1)
        good = _verified(scaled, basis, rest, factors) & unharmed
        if values is not None:
            good &= np.abs(unscaled) @ values[basis] <= _LARGEST * values[rest]
        if good.all():
            return basis, rest, unscaled
        # What cannot be verified joins the basis, where it may serve the others.
        basis, rest = np.sort(np.concatenate([basis, rest[~good]])), rest[good]


def _unit_rows(rows: Array) -> tuple[Array, np.ndarray]:
    """The rows times powers of two that make their lengths about 1 (zero stays zero), and the exponents."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    exponents = np.frexp(largest)[1].astype(np.int64)
    lengths = np.linalg.norm(np.ldexp(rows, -exponents[:, None]), axis=1)
    exponents[largest > 0] += np.round(np.log2(lengths[largest > 0])).astype(np.int64)
    return np.ldexp(rows, -exponents[:, None]), exponents


def _last_if_biased(scaled: Array, exponents: np.ndarray, values: Array) -> Array:
    """The rows, those whose values are mostly bias made so short that others become the basis before
    them.
    """
    nonzero = scaled.any(axis=1)
    slope = exponents - np.frexp(values)[1]
    biased = nonzero & (slope < slope.max(where=nonzero, initial=-(2**31)) - 10)
    shortened: Array = np.ldexp(scaled, -10 * biased.astype(np.int64)[:, None])
    return shortened


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
    # One step of refinement; then factors that are short binary fractions up to rounding are taken as such
    # (copies, negatives, multiples).
    solution = (
        solution + np.linalg.lstsq(rows[basis].T, (rows[rest] - solution @ rows[basis]).T, rcond=None)[0].T
    )
    simple = np.round(solution * 256) / 256
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
    reach = draft.reach(layer.linear.inputs[0])
    gap = at_most(
        before @ rows[active] - after @ rows[kept],
        (before @ offsets[active] + old.bias) - (after @ offsets[kept] + bias),
        reach,
    )
    sizes = [
        at_most(w, b, at_most(rows[i], offsets[i], reach))
        for w, b, i in ((before, old.bias, active), (after, bias, kept))
    ]
    terms = len(active) + 4
    return gap + gamma(terms) * (sizes[0] + sizes[1]) + terms * ETA * (2 + float(reach.sum()))
