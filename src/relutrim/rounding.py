"""How far a float64 computation can be from the real numbers it stands for.

The model is the standard one (Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 3): every
operation rounds to nearest, ``fl(a op b) = (a op b)(1 + d) + e`` with ``|d| <= u = 2**-53`` and
``|e| <= 2**-1075``, ``e`` only where a product underflows. A sum of ``k`` products evaluated **in any order,
with or without fused multiply-add**, is then off by at most ``gamma(k) * sum|a_i b_i| + k * ETA``.

Two habits make this cheap and keep exact results exact:

* the sum of magnitudes is taken over the very terms that are summed, so terms that are exactly zero
  contribute no radius and a bound of exactly 0 stays a proof;
* ``gamma`` is inflated a little, which pays for the rounding of the radius itself: that is a sum of at most
  ``2**30`` non-negative numbers, so its own relative error is below 1e-6.

Nothing here holds with flushed denormals, reduced-precision products (TF32) or Winograd/FFT convolutions;
:func:`require_ieee` checks or sets what can be checked or set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

UNIT = 2.0**-53
"""Unit roundoff of float64."""

ETA = 2.0**-1074
"""Smallest positive float64; an underflowing product is off by at most half of it."""

_MOST_TERMS = 2**30


def gamma(terms: int) -> float:
    """A safe ``gamma_k = k u / (1 - k u)`` for sums of ``terms`` products, with room for its own use."""
    if terms > _MOST_TERMS:
        return float("inf")
    return (terms + 8) * UNIT * (1 + 2.0**-10)


def widen_down(value: Tensor, radius: Tensor) -> Tensor:
    """A float at most ``value - radius``; ``value`` itself, unchanged, where the radius is exactly 0.

    NaN where ``value`` overflowed upwards: the real number may be finite, so not even the largest float is
    safe.
    """
    import torch

    value = value.where(value != torch.inf, torch.full_like(value, torch.nan))
    lowered = torch.nextafter(value - radius, torch.full_like(value, -torch.inf))
    return torch.where(radius == 0, value, lowered)


def widen_up(value: Tensor, radius: Tensor) -> Tensor:
    """A float at least ``value + radius``; ``value`` itself, unchanged, where the radius is exactly 0."""
    return -widen_down(-value, radius)


def require_ieee() -> None:
    """Make sure the assumptions above hold in this process, or raise.

    Convolutions see to it themselves that cuDNN, which may choose FFT or Winograd, is left out in float64
    (:mod:`relutrim.graph.operators.correlate`).
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    tiny = torch.tensor([ETA], dtype=torch.float64)
    if not bool((tiny * 1.0 > 0).item()):
        from relutrim.errors import RelutrimError

        raise RelutrimError(
            "this process flushes denormal numbers to zero, so rounding radii would not hold; "
            "do not call torch.set_flush_denormal(True) before relutrim"
        )
