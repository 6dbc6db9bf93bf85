"""Functions of one number that are not piecewise linear but known well: each with its range and its slopes.

The constants are rounded outward; the tests compare them with many digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relutrim.errors import NetworkError
from relutrim.graph.operators.barrier import PRECISION, Curve, Traits
from relutrim.rounding import ETA

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Sigmoid(Curve):
    """``1 / (1 + exp(-x))``."""

    kind = "Sigmoid"
    traits = Traits(least=0.0, greatest=1.0, slopes=(0.0, 0.25))

    def curve(self, x: Tensor) -> Tensor:
        return x.sigmoid()


@dataclass(frozen=True, eq=False)
class Tanh(Curve):
    """The hyperbolic tangent."""

    kind = "Tanh"
    traits = Traits(least=-1.0, greatest=1.0, slopes=(0.0, 1.0))

    def curve(self, x: Tensor) -> Tensor:
        return x.tanh()


@dataclass(frozen=True, eq=False)
class Erf(Curve):
    """The error function; its slope at 0 is ``2 / sqrt(pi)``."""

    kind = "Erf"
    traits = Traits(least=-1.0, greatest=1.0, slopes=(0.0, 1.12838))

    def curve(self, x: Tensor) -> Tensor:
        return x.erf()


@dataclass(frozen=True, eq=False)
class Atan(Curve):
    """The arc tangent."""

    kind = "Atan"
    traits = Traits(least=-1.570797, greatest=1.570797, slopes=(0.0, 1.0))

    def curve(self, x: Tensor) -> Tensor:
        return x.atan()


@dataclass(frozen=True, eq=False)
class Softplus(Curve):
    """``log(1 + exp(x))``.

    Torch takes it for ``x`` itself beyond a ``threshold``, by default 20, which is less by ``exp(-x)``. That
    is part of the rounding here. The slopes are those of the function without the jump, and what is stored is
    that function: the jump is part of the deviation then.
    """

    kind = "Softplus"

    threshold: float = math.inf

    @property
    def traits(self) -> Traits:
        cut = self.jump / self.threshold if self.threshold < math.inf else 0.0
        return Traits(least=0.0, slopes=(0.0, 1.0), precision=PRECISION + cut)

    @property
    def jump(self) -> float:
        """How far the identity is below the function beyond the threshold, at most."""
        return math.exp(-self.threshold) * (1 + 2.0**-40) + ETA

    def curve(self, x: Tensor) -> Tensor:
        return x.clamp(min=0) + x.abs().neg().exp().log1p()


@dataclass(frozen=True, eq=False)
class Elu(Curve):
    """``x`` where positive, else ``alpha (exp(x) - 1)``."""

    kind = "Elu"

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and np.isfinite(self.alpha)):
            raise NetworkError(f"alpha is {self.alpha}; an Elu that rises needs one that is not negative")

    @property
    def traits(self) -> Traits:
        return Traits(least=-self.alpha, slopes=(0.0, max(1.0, self.alpha)))

    def curve(self, x: Tensor) -> Tensor:
        return x.where(x > 0, self.alpha * x.clamp(max=0).expm1())


@dataclass(frozen=True, eq=False)
class Gelu(Curve):
    """``x / 2 (1 + erf(x / sqrt(2)))``, or ``x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``.

    A model that spells the first one out has another number than the root of 2, which is no float: ``spelt``
    says by which operator of ONNX, Div or Mul, and by which number it scales ``x``. That is another function,
    by less than ``|x| 2**-25`` (erf is flat where ``x`` is large), so it is written as it was read; for
    ranges the difference is part of the rounding. ONNX defines the second one with both of its numbers in
    float32, which makes no more of a difference.
    """

    kind = "Gelu"

    approximate: str = "none"
    spelt: tuple[str, float] | None = None

    def __post_init__(self) -> None:
        if self.approximate not in ("none", "tanh"):
            raise NetworkError(f"it is the approximation {self.approximate!r} of a GELU, which is not known")

    @property
    def traits(self) -> Traits:
        exact = self.approximate == "none"
        return Traits(
            least=-0.16998 if exact else -0.170041,
            slopes=(-0.12891, 1.12891) if exact else (-0.128994, 1.128994),
            bottom=(-0.7518, -0.7517) if exact else (-0.752462, -0.752461),
            of_input=True,
            precision=PRECISION if exact and self.spelt is None else 2.0**-25,
        )

    def curve(self, x: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.gelu(x, approximate=self.approximate)


@dataclass(frozen=True, eq=False)
class Silu(Curve):
    """``x sigmoid(x)``, also called swish."""

    kind = "Silu"
    traits = Traits(least=-0.27847, slopes=(-0.09984, 1.09984), bottom=(-1.27847, -1.27846), of_input=True)

    def curve(self, x: Tensor) -> Tensor:
        return x * x.sigmoid()


@dataclass(frozen=True, eq=False)
class HardSwish(Curve):
    """``x min(max(x + 3, 0), 6) / 6``: a parabola between -3 and 3.

    ONNX says that this is its operator too, and defines it by a HardSigmoid whose factor is 1/6 rounded to
    float32. What that moves (less than ``|x| 2**-25``) is part of the rounding here, so that ranges hold
    whichever is meant.
    """

    kind = "HardSwish"
    traits = Traits(
        least=-0.375, slopes=(-0.5, 1.5), bottom=(-1.5, -1.4999999), of_input=True, precision=2.0**-25
    )

    def curve(self, x: Tensor) -> Tensor:
        return x * ((x + 3).clamp(0, 6) / 6)


@dataclass(frozen=True, eq=False)
class Mish(Curve):
    """``x tanh(softplus(x))``."""

    kind = "Mish"
    traits = Traits(least=-0.30885, slopes=(-0.11253, 1.08851), bottom=(-1.19244, -1.19243), of_input=True)

    def curve(self, x: Tensor) -> Tensor:
        return x * (x.clamp(min=0) + x.abs().neg().exp().log1p()).tanh()
