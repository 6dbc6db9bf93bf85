"""``max over e in [-1, 1]^k of sum_i |sum_k A_ki e_k|``, bounded by a spectral norm.

For any positive ``p`` and ``q``, with ``B_ki = A_ki / sqrt(p_i q_k)``, it is at most
``sqrt(sum p) sqrt(sum q) |B|_2`` by Cauchy and Schwarz. With ``p`` and ``q`` the sums of the columns and rows
of ``|A|`` that is ``sum |A|`` times ``|B|_2 <= 1``: much less than ``sum |A|`` where signs are mixed.

``|B|_2^2`` is the norm of ``M = B B'``. A symmetric matrix has ``|M|^2 = |M^2|``, and the Frobenius norm is
never below the norm; so squaring a few times gives as good a bound as is wanted, and what rounds is added.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SQUARINGS = 6
_SAFETY = 1 + 2.0**-20
_LARGEST = 512
"""How many rows a matrix may have to be squared."""


def largest_sum(matrix: Tensor) -> Tensor:
    """The bound for each matrix (k, n) of a batch, with a sign for each of its rows."""
    size = matrix.abs()
    plain = size.sum((1, 2)) * _SAFETY
    if not matrix.numel() or min(matrix.shape[1:]) > _LARGEST:
        return plain
    p, q = _positive(size.sum(1)), _positive(size.sum(2))
    scaled = matrix / p.sqrt()[:, None, :] / q.sqrt()[:, :, None]
    if scaled.shape[1] > scaled.shape[2]:
        scaled = scaled.transpose(1, 2)
    frobenius = (scaled**2).sum((1, 2))
    gram = scaled @ scaled.transpose(1, 2)
    terms = max(scaled.shape[1:])
    # The product rounds by `terms` units of the Frobenius norm, the quotients by a few of them.
    norm = _norm((gram + gram.transpose(1, 2)) / 2) + (terms + 32) * 2.0**-50 * frobenius
    return torch.fmin(
        plain, (p.sum(1) * _SAFETY).sqrt() * (q.sum(1) * _SAFETY).sqrt() * norm.sqrt() * _SAFETY
    )


def _positive(sums: Tensor) -> Tensor:
    """Any positive numbers will do where a sum is next to nothing."""
    return sums.maximum(sums.amax(1, keepdim=True) * 2.0**-60).clamp(min=2.0**-500)


def _norm(matrix: Tensor, squarings: int = _SQUARINGS) -> Tensor:
    """At least the spectral norm of each symmetric matrix of a batch."""
    size = (matrix**2).sum((1, 2)).sqrt() * _SAFETY
    if not squarings:
        return size
    unit = matrix / size.clamp(min=2.0**-400)[:, None, None]
    square = unit @ unit
    square = (square + square.transpose(1, 2)) / 2
    rounded = (matrix.shape[1] + 32) * 2.0**-50
    return torch.where(
        size < 2.0**-400, size, size * (_norm(square, squarings - 1) + rounded).sqrt() * _SAFETY
    )
