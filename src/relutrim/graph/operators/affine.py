"""Affine operators: one line of mathematics, and everything that follows from it.

An affine operator is ``x -> A(p) x + b``, with coefficients ``p`` and ``b`` that are computed from what is
stored. A subclass says what ``A(p) x`` is (:meth:`Affine.product`), what ``p`` and ``b`` are
(:attr:`Affine.coefficients`, :attr:`Affine.offset`) and which shapes fit. The rest is derived by evaluating
the same line with other numbers in the place of ``p`` (:class:`View`): absolute values, positive parts,
negative parts, radii, or 1 for every number that is not 0.

For this, every entry of ``A(p)`` is one coefficient, or the sum of several; or, in an operator without
coefficients, a number that is not negative. So a subtraction takes its 1 and -1 for coefficients; and what
terms are divided by goes through :meth:`Coefficients.over`, which leaves it out where terms are counted.

**Rounding.** A computed value is off by at most ``gamma(k) (|A| |x| + |b|) + k ETA`` for ``k`` terms
(:mod:`relutrim.rounding`). A coefficient that is known up to a radius ``r`` only, such as batch norm's
``gain / sqrt(variance + epsilon)``, moves the value by ``r |x|`` besides.

**Infinite ends.** An interval may end at minus or plus infinity, or at NaN, where nothing is known. A
coefficient of 0 times any of them is 0, and no radius of one end ever reaches the other.

**Speed.** The default adjoint evaluates the product and its gradient, the same numbers to the bit in two to
four times the time. Operators on hot paths have their adjoint written out where it is one call of torch
(``python -m benchmarks.operators``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from relutrim.graph.operators.base import Array, Mask, Operator, Shape
from relutrim.graph.operators.extremes import exact_extremes
from relutrim.intervals import Interval, flat
from relutrim.rounding import ETA, gamma, widen_down, widen_up

if TYPE_CHECKING:
    from torch import Tensor

_SAFETY = 1 + 2.0**-20


@dataclass(frozen=True, eq=False)
class Coefficient:
    """Numbers of a map, and how far each is from the true one at most."""

    value: Array
    radius: Array = field(default_factory=lambda: np.zeros(()))

    @property
    def exact(self) -> bool:
        """Whether these are the true numbers."""
        return not self.radius.any()


class View(Enum):
    """What takes the place of a coefficient ``v`` with radius ``r``."""

    VALUE = auto()
    """``v``."""
    SIZE = auto()
    """``|v|``."""
    UP = auto()
    """``max(v, 0)``: what a lower end of the input does to a lower end of the result."""
    DOWN = auto()
    """``min(v, 0)``: what an upper end of the input does to a lower end of the result."""
    RADIUS = auto()
    """``r``."""
    RADIUS_UP = auto()
    """``r`` where ``v + r`` is positive, else 0."""
    RADIUS_DOWN = auto()
    """``r`` where ``v - r`` is negative, else 0."""
    USED = auto()
    """1 where the true number may not be 0, else 0."""
    USED_UP = auto()
    """1 where the true number may be positive, else 0."""
    USED_DOWN = auto()
    """1 where the true number may be negative, else 0."""

    def of(self, coefficient: Coefficient) -> npt.NDArray[Any]:
        """The numbers that take the place of these."""
        value, radius = coefficient.value, coefficient.radius
        if self not in (View.VALUE, View.SIZE, View.UP, View.DOWN):
            value, radius = np.broadcast_arrays(value, radius)
        numbers: dict[View, Callable[[], npt.ArrayLike]] = {
            View.VALUE: lambda: value,
            View.SIZE: lambda: np.abs(value),
            View.UP: lambda: np.maximum(value, 0.0),
            View.DOWN: lambda: np.minimum(value, 0.0),
            View.RADIUS: lambda: radius,
            View.RADIUS_UP: lambda: np.where(value > -radius, radius, 0.0),
            View.RADIUS_DOWN: lambda: np.where(value < radius, radius, 0.0),
            View.USED: lambda: (value != 0) | (radius != 0),
            View.USED_UP: lambda: value > -radius,
            View.USED_DOWN: lambda: value < radius,
        }
        return np.asarray(numbers[self]())


@dataclass(frozen=True, eq=False)
class Coefficients:
    """The coefficients of an operator in one view, as tensors beside ``like``."""

    operator: Affine
    view: View
    like: Tensor

    def __getitem__(self, name: str) -> Tensor:
        operator, view = self.operator, self.view
        return operator._tensor(
            f"{name} {view.name}", self.like, lambda: view.of(operator.coefficients[name])
        )

    @property
    def offset(self) -> Tensor:
        """``b``, which broadcasts against the value."""
        return self.operator._tensor(
            f"+ {self.view.name}", self.like, lambda: self.view.of(self.operator.offset or _NOTHING)
        )

    def over(self, total: Tensor, count: Tensor | float) -> Tensor:
        """``total / count`` for a sum and a positive number that is exact."""
        return total if self.view in (View.USED, View.USED_UP, View.USED_DOWN) else total / count


_NOTHING = Coefficient(np.zeros(()))


class Affine(Operator):
    """An operator ``x -> A(p) x + b``. ``|A|`` is the matrix of absolute values.

    The shapes of the inputs are given where the output alone does not tell them: a strided convolution leaves
    entries out, a mean forgets how many there were.
    """

    divides: ClassVar[bool] = False
    """Whether :meth:`product` divides."""

    @abstractmethod
    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        """``A(p) x``."""

    @property
    def coefficients(self) -> Mapping[str, Coefficient]:
        """``p``, by name."""
        return {}

    @property
    def offset(self) -> Coefficient | None:
        """``b``, which broadcasts against the value; None for 0."""
        return None

    # The map and its adjoint.

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        p = self._seen(View.VALUE, inputs[0])
        found = self.product(p, inputs)
        return found if self.offset is None else found + p.offset

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        """``a -> a A`` for each linear form ``a`` over the output: one tensor of forms per input."""
        return self.pulled_back(View.VALUE, forms, inputs)

    def adjoint_spread(self, sizes: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        """``s -> s |A|`` for forms ``s`` that are not negative."""
        return self.pulled_back(View.SIZE, sizes, inputs)

    def adjoint_fuzz(self, sizes: Tensor, inputs: Sequence[Shape]) -> list[Tensor] | None:
        """How far ``a A`` moves, for ``|a| <= s``, with coefficients known only up to a radius."""
        if all(one.exact for one in self.coefficients.values()):
            return None
        return self.pulled_back(View.RADIUS, sizes, inputs)

    def pulled_back(self, view: View, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        """``a -> a A`` with the coefficients in one view: the gradient of ``a . A x``, one row per form."""
        import torch

        if not len(forms):
            return [forms.new_zeros(0, *shape) for shape in inputs]
        p = self._seen(view, forms)
        with torch.enable_grad():
            zeros = [forms.new_zeros(len(forms), *shape, requires_grad=True) for shape in inputs]
            # A number is differentiated, and not a tensor: for that torch loads sympy, which takes a second.
            total = (self.product(p, zeros) * forms).sum()
            if not total.requires_grad:  # nothing is read
                return [zero.detach() for zero in zeros]
            deeper = forms.requires_grad
            found = torch.autograd.grad(
                total, zeros, create_graph=deeper, allow_unused=True, materialize_grads=True
            )
        return list(found)

    def constant(self, forms: Tensor) -> Tensor:
        """``a . b`` for each linear form."""
        if self.offset is None:
            return forms.new_zeros(len(forms))
        b = self._seen(View.VALUE, forms).offset
        return flat(forms) @ b.expand(forms.shape[1:]).reshape(-1)

    def rows(self, index: Tensor, like: Tensor, inputs: Sequence[Shape]) -> tuple[Tensor, Tensor]:
        """The rows of ``A`` at flat indices of the output, and the entries of ``b``; for one input."""
        import torch

        shape = self.output_shape(inputs)
        unit = like.new_zeros(len(index), math.prod(shape))
        unit[torch.arange(len(index), device=like.device), index] = 1.0
        unit = unit.reshape(-1, *shape)
        return self.adjoint(unit, inputs)[0], self.constant(unit)

    def exact_extremes(self, row: int, lo: Array, hi: Array) -> tuple[Fraction, Fraction]:
        """Smallest and largest value of the output at the flat index ``row`` over the box ``[lo, hi]``, in
        rational arithmetic; for coefficients that are known exactly, each of which is an entry of ``A``.
        """
        import torch

        like = torch.zeros(1, dtype=torch.float64)
        weights, bias = self.rows(torch.tensor([row]), like, [lo.shape])
        return exact_extremes(weights.numpy().ravel(), float(bias), lo.ravel(), hi.ravel())

    # Magnitudes.

    def magnitude(self, inputs: Sequence[Tensor]) -> Tensor:
        """``|A| m + |b|`` for magnitudes ``m``."""
        found = self._of_sizes(View.SIZE, inputs)
        return found if self.offset is None else found + self._seen(View.SIZE, found).offset

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        return self._of_sizes(View.SIZE, inputs)

    def fuzz(self, inputs: Sequence[Tensor]) -> Tensor | None:
        """How far coefficients known only up to a radius can move the output for inputs of magnitude ``m``;
        None if all are exact.
        """
        if self.exact:
            return None
        found = self._of_sizes(View.RADIUS, inputs)
        some = self._product(View.USED, [(m != 0).to(m) for m in inputs]) > 0
        room = self.terms([tuple(m.shape[1:]) for m in inputs]) * ETA  # products may underflow
        return found.where(~some, found + room) + self._seen(View.RADIUS, found).offset

    def _of_sizes(self, view: View, inputs: Sequence[Tensor]) -> Tensor:
        """``A m`` in a view without negative numbers: infinite or NaN where it reads such a magnitude."""
        found = self._product(view, inputs)
        if bool(found.isfinite().all()):
            return found
        found = self._product(view, [m.where(m.isfinite(), 0.0) for m in inputs])
        for bad in (math.inf, math.nan):
            flags = [(m.isnan() if math.isnan(bad) else m.isinf()).to(m) for m in inputs]
            found = found.where(self._product(View.USED, flags) == 0, bad)
        return found

    # Counting.

    def terms(self, inputs: Sequence[Shape]) -> int:
        """How many terms one entry of ``forward`` or ``adjoint`` is a sum of at most, and one more if a
        coefficient, an offset or a division rounds besides.

        0 means that the operator only moves numbers and rounds nothing.
        """
        most = max(self.summed(inputs))
        return most + 1 if self._computes else most if most > 1 else 0

    def summed(self, inputs: Sequence[Shape]) -> tuple[int, int]:
        """The largest numbers of terms in an entry of ``A x`` and in an entry of ``a A``."""
        key = ("summed", *map(str, inputs))
        if key not in self._cache:
            import torch

            ones = [torch.ones(1, *shape, dtype=torch.float64) for shape in inputs]
            found = self.product(self._seen(View.USED, ones[0]), ones)
            back = self.pulled_back(View.USED, torch.ones_like(found), inputs)
            most = [int(t.max()) if t.numel() else 0 for t in (found, *back)]
            self._cache[key] = most[0], max(most[1:])
        counts: tuple[int, int] = self._cache[key]
        return counts

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        import torch

        forms = torch.as_tensor(np.asarray(wanted)[None], dtype=torch.float64)
        return [part[0].numpy() > 0 for part in self.pulled_back(View.USED, forms, inputs)]

    @property
    def exact(self) -> bool:
        """Whether all coefficients are known exactly."""
        numbers = [*self.coefficients.values(), self.offset]
        return all(one is None or one.exact for one in numbers)

    @property
    def _computes(self) -> bool:
        """Whether there is more to it than sums."""
        return self.divides or self.offset is not None or bool(self.coefficients)

    # Intervals.

    @property
    def rounds(self) -> npt.NDArray[np.bool_] | None:
        """Which entries of the value may round, broadcast against it; None for all of them."""
        return None

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        """Positive coefficients make of a lower end a lower end, negative ones an upper one: the lower end is
        ``max(A, 0) lo + min(A, 0) hi + b``.
        """
        found = self._image([(x.lo, x.hi) for x in inputs])
        if bool((found.lo.isfinite() & found.hi.isfinite()).all()):
            return found
        ends = [(x.lo, x.hi) for x in inputs]
        found = self._image([(lo.where(lo.isfinite(), 0.0), hi.where(hi.isfinite(), 0.0)) for lo, hi in ends])
        below, above = self._any([(~lo.isfinite(), ~hi.isfinite()) for lo, hi in ends])
        return Interval(found.lo.where(~below, -math.inf), found.hi.where(~above, math.inf))

    def _image(self, ends: Sequence[tuple[Tensor, Tensor]]) -> Interval:
        """The image of finite ends."""
        shapes = [tuple(lo.shape[1:]) for lo, _ in ends]
        if not self._computes and self.summed(shapes)[0] <= 1:
            low, high = (self._product(View.UP, [pair[k] for pair in ends]) for k in (0, 1))
            return Interval(low, high)
        sizes = [(lo, hi, lo.abs(), hi.abs()) for lo, hi in ends]
        up, down = self._split(View.UP, View.DOWN, sizes)
        b = self._seen(View.VALUE, up[0]).offset
        low, high = up[0] + down[1] + b, up[1] + down[0] + b
        radii = self._radii(shapes, ends, (up[2] - down[3], up[3] - down[2]))
        return Interval(widen_down(low, radii[0]), widen_up(high, radii[1]))

    def _radii(
        self, shapes: list[Shape], ends: Sequence[tuple[Tensor, Tensor]], sizes: tuple[Tensor, Tensor]
    ) -> list[Tensor]:
        """How far the lower and the upper end are from the truth, with the magnitudes of their products: 0
        where nothing but zeros is added to an offset, and where no entry rounds.
        """
        terms = self.terms(shapes)
        b = self._seen(View.SIZE, sizes[0]).offset
        radii = [gamma(terms) * (size + b) + terms * ETA for size in sizes]
        exact, rounds = self.exact, self.rounds
        if rounds is not None:
            own = self._tensor("rounds", sizes[0], lambda: rounds) != 0
            radii = [radius.where(own, 0.0) for radius in radii]
        if exact and bool(((sizes[0] != 0) & (sizes[1] != 0)).all()):
            return radii
        some = self._any([(lo != 0, hi != 0) for lo, hi in ends])  # products may underflow
        radii = [radius.where(one, 0.0) for radius, one in zip(radii, some, strict=True)]
        if exact:
            return radii
        up, down = self._split(View.RADIUS_UP, View.RADIUS_DOWN, [(lo.abs(), hi.abs()) for lo, hi in ends])
        radius_b = self._seen(View.RADIUS, sizes[0]).offset
        fuzz = [up[0] + down[1], up[1] + down[0]]
        fuzz = [moved.where(~one, moved + terms * ETA) for moved, one in zip(fuzz, some, strict=True)]
        return [radius + (moved + radius_b) * _SAFETY for radius, moved in zip(radii, fuzz, strict=True)]

    def _any(self, flags: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Which lower ends of the result depend on a flagged end of the inputs, and which upper ends."""
        numbers = [(lo.double(), hi.double()) for lo, hi in flags]
        up, down = self._split(View.USED_UP, View.USED_DOWN, numbers)
        return up[0] + down[1] > 0, up[1] + down[0] > 0

    def _split(
        self, up: View, down: View, inputs: Sequence[tuple[Tensor, ...]]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """``A x`` in two views for each of several ``x``."""
        import torch

        rows = max(len(ends[0]) for ends in inputs)
        every = [torch.cat([end.expand(rows, *end.shape[1:]) for end in ends]) for ends in inputs]
        count = len(inputs[0])
        return self._product(up, every).chunk(count), self._product(down, every).chunk(count)

    def _product(self, view: View, inputs: Sequence[Tensor]) -> Tensor:
        """``A x`` in a view; without coefficients, no number is negative or known up to a radius only."""
        found = self.product(self._seen(view, inputs[0]), inputs)
        if not self.coefficients and view not in (View.VALUE, View.SIZE, View.UP, View.USED, View.USED_UP):
            return found.new_zeros(()).expand_as(found)
        return found

    def _seen(self, view: View, like: Tensor) -> Coefficients:
        return Coefficients(self, view, like)
