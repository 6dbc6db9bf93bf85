"""The set of valid inputs, as a user states it, and what it means for a given network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.errors import DomainError
from relutrim.graph.graph import Network, Node, Port
from relutrim.graph.operators import Array, Scale, Shape

if TYPE_CHECKING:
    from relutrim.domain.region import Region

Numbers: TypeAlias = float | npt.ArrayLike


@dataclass(frozen=True, eq=False)
class Constraint:
    """``lower <= rows @ x <= upper`` on the flat input; a single number in ``rows`` weighs every input
    alike.
    """

    rows: Array
    lower: Array
    upper: Array


@dataclass(frozen=True, eq=False)
class Domain:
    """A box in raw units, cut by linear constraints in raw units, that the network sees as ``(x - mean) /
    std``.

    Without ``mean`` and ``std`` raw units are the network's own. Data and constraints are always in raw
    units.

    >>> domain = Box(0, 1).sum_between(15, 320).constrain([[1, -1]], [-0.5], [0.5])
    >>> domain.describe()["constraints"][0]
    {'rows': 1.0, 'lower': [15.0], 'upper': [320.0]}
    """

    lo: Array
    hi: Array
    constraints: tuple[Constraint, ...] = ()
    mean: Array | None = None
    std: Array | None = None
    origin: str = field(default="box", compare=False)

    def __post_init__(self) -> None:
        for name, array, never in (("lower", self.lo, np.inf), ("upper", self.hi, -np.inf)):
            if np.isnan(array).any() or (array == never).any():
                raise DomainError(
                    f"the {name} end of the domain is {never:g} or NaN somewhere, where no input is; an "
                    f"input that may be any number goes from -inf to inf"
                )
        try:
            empty = self.lo > self.hi
        except ValueError:
            raise DomainError(
                f"lower ends of shape {self.lo.shape} do not go with upper ends of shape {self.hi.shape}"
            ) from None
        if np.any(empty):
            where = int(np.flatnonzero(np.atleast_1d(empty).ravel())[0])
            low, high = (float(np.broadcast_to(a, empty.shape).ravel()[where]) for a in (self.lo, self.hi))
            raise DomainError(
                f"the domain is empty: input {where} would have to lie between {low:g} and {high:g}"
            )

    @property
    def bounded(self) -> bool:
        """Whether every input has a finite range."""
        return bool(np.isfinite(self.lo).all() and np.isfinite(self.hi).all())

    def sum_between(self, lower: float, upper: float) -> Domain:
        """The part where the raw inputs add up to a number in ``[lower, upper]``: the paper's input
        constraint.
        """
        return self.constrain(np.ones((1, 1)), [lower], [upper])

    def constrain(self, rows: npt.ArrayLike, lower: npt.ArrayLike, upper: npt.ArrayLike) -> Domain:
        """The part where ``lower <= rows @ x <= upper`` holds for the flat raw input."""
        rows, lower, upper = (
            np.atleast_2d(np.asarray(rows, float)),
            *(np.atleast_1d(np.asarray(e, float)) for e in (lower, upper)),
        )
        if rows.ndim != 2 or lower.shape != rows.shape[:1] or upper.shape != rows.shape[:1]:
            raise DomainError(
                "constraints need a matrix and one lower and upper end per row; found shapes "
                f"{rows.shape}, {lower.shape}, {upper.shape}"
            )
        if not np.isfinite(rows).all() or np.isnan(lower).any() or np.isnan(upper).any():
            raise DomainError(
                "the constraints hold NaN or infinite numbers; coefficients must be finite, "
                "ends may be infinite"
            )
        if (lower > upper).any() or (lower == np.inf).any() or (upper == -np.inf).any():
            where = int(np.flatnonzero((lower > upper) | (lower == np.inf) | (upper == -np.inf))[0])
            raise DomainError(
                f"the domain is empty: constraint {where} asks for a value between "
                f"{lower[where]:g} and {upper[where]:g}"
            )
        if not self.bounded:
            raise DomainError(
                "constraints are for a bounded domain; give every input a finite range, with Box(0, 1) say"
            )
        return replace(self, constraints=(*self.constraints, Constraint(rows, lower, upper)))

    def fit(self, network: Network) -> Problem:
        """This domain and a network put together; raises :class:`DomainError` where they do not fit."""
        shape = network.input.shape
        lo, hi = (
            self._flat(array, shape, what) for array, what in ((self.lo, "lower end"), (self.hi, "upper end"))
        )
        rows, lower, upper = self._all_rows(lo.size)
        from relutrim.domain.nonempty import check_nonempty

        check_nonempty(lo, hi, rows, lower, upper)
        if self.mean is None or self.std is None:
            return Problem(network, lo, hi, rows, lower, upper)
        mean, std = self._spread(self.mean, shape, "mean"), self._spread(self.std, shape, "std")
        return Problem(_normalised(network, mean, std), lo, hi, rows, lower, upper)

    def _all_rows(self, size: int) -> tuple[Array, Array, Array]:
        rows = [np.zeros((0, size))]
        for constraint in self.constraints:
            if constraint.rows.shape[1] not in (1, size):
                raise DomainError(
                    f"a constraint over {constraint.rows.shape[1]} inputs meets a network with {size}"
                )
            rows.append(np.broadcast_to(constraint.rows, (constraint.rows.shape[0], size)))
        lower = [constraint.lower for constraint in self.constraints]
        upper = [constraint.upper for constraint in self.constraints]
        return (
            np.concatenate(rows),
            np.concatenate([np.zeros(0), *lower]),
            np.concatenate([np.zeros(0), *upper]),
        )

    @staticmethod
    def _flat(array: Array, shape: Shape, what: str) -> Array:
        size = int(np.prod(shape))
        if array.size == 1:
            return np.full(size, float(array.reshape(())))
        if array.size != size:
            raise DomainError(
                f"the {what} of the domain has {array.size} numbers, the network's input of "
                f"shape {shape} has {size}"
            )
        return array.reshape(size).astype(np.float64)

    @staticmethod
    def _spread(array: Array, shape: Shape, what: str) -> Array:
        """A mean or std per input: one number, one per channel (the first axis), or one per input."""
        if array.size == 1:
            return np.full(shape, float(array.reshape(())))
        if array.size == int(np.prod(shape)):
            return array.reshape(shape)
        if array.ndim == 1 and len(shape) > 1 and array.size == shape[0]:
            return np.broadcast_to(array.reshape(-1, *[1] * (len(shape) - 1)), shape).copy()
        raise DomainError(
            f"{array.size} numbers for the {what} fit neither one number, nor the first axis, "
            f"nor all of the input's shape {shape}"
        )

    def describe(self) -> dict[str, Any]:
        """The domain for a report: scalars where all inputs agree, lists elsewhere."""
        text: dict[str, Any] = {"kind": self.origin, "lower": _short(self.lo), "upper": _short(self.hi)}
        if self.mean is not None and self.std is not None:
            text |= {"mean": _short(self.mean), "std": _short(self.std)}
        text["constraints"] = [
            {"rows": _short(c.rows), "lower": _ends(c.lower), "upper": _ends(c.upper)}
            for c in self.constraints
        ]
        return text


@dataclass(frozen=True, eq=False)
class Problem:
    """A network and the region of its inputs. The network includes the normalisation, if there is one."""

    network: Network
    lo: Array
    hi: Array
    rows: Array
    lower: Array
    upper: Array

    def region(self, device: str = "cpu") -> Region:
        """The region as tensors on ``device``."""
        import torch

        from relutrim.domain.region import Region

        return Region(
            *(
                torch.as_tensor(np.array(a), dtype=torch.float64, device=device)
                for a in (self.lo, self.hi, self.rows, self.lower, self.upper)
            )
        )


def Box(lo: Numbers, hi: Numbers, shape: Sequence[int] | None = None) -> Domain:
    """All inputs between ``lo`` and ``hi``: numbers, or arrays with one entry per input.

    >>> Box(0, 1).sum_between(15, 320).origin
    'box'
    """
    low, high = (_numbers(end, name) for end, name in ((lo, "lo"), (hi, "hi")))
    if shape is not None:
        try:
            low, high = np.broadcast_to(low, tuple(shape)), np.broadcast_to(high, tuple(shape))
        except ValueError:
            raise DomainError(
                f"ends of shapes {low.shape} and {high.shape} do not broadcast to {tuple(shape)}"
            ) from None
    return Domain(low, high)


def Everywhere(shape: Sequence[int] | None = None) -> Domain:
    """All real inputs, of a ``shape`` where the model does not tell. What holds there holds wherever the
    model is used.

    >>> import relutrim
    >>> str(relutrim.analyze(relutrim.demo_model(), Everywhere())).partition(",")[0]
    '200 neurons in 2 layers: 0 active'
    """
    return replace(Box(-np.inf, np.inf, shape), origin="everywhere")


def NormalizedBox(lo: Numbers, hi: Numbers, mean: Numbers, std: Numbers) -> Domain:
    """Raw inputs between ``lo`` and ``hi`` that the network sees as ``(x - mean) / std``: numbers, or one per
    channel or input.

    >>> NormalizedBox(0, 1, mean=[0.49, 0.48, 0.45], std=0.25).std.item()
    0.25
    """
    centre, spread = _numbers(mean, "mean"), _numbers(std, "std")
    if not (np.isfinite(centre).all() and np.isfinite(spread).all() and (spread > 0).all()):
        raise DomainError("normalisation needs a finite mean and a finite, positive standard deviation")
    return replace(Box(lo, hi), mean=centre, std=spread, origin="normalized-box")


def Ball(center: Numbers, radius: float) -> Domain:
    """The box of half-width ``radius`` around a point, its ends rounded outward to float64.

    >>> ball = Ball([0.5, 0.75], 0.25)
    >>> ball.lo.tolist(), ball.hi.tolist()
    ([0.25, 0.5], [0.75, 1.0])
    """
    middle = _numbers(center, "center")
    if not (np.isfinite(radius) and radius >= 0):
        raise DomainError(f"a radius of {radius} makes no box; it must be finite and not negative")
    low, high = middle - radius, middle + radius
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise DomainError("an end of the ball is not finite; it is farther out than float64 reaches")
    # The rounding error of a float sum is itself a float (Knuth's TwoSum); its sign says which way to step.
    low = np.where(_two_sum_error(middle, -radius, low) >= 0, low, np.nextafter(low, -np.inf))
    high = np.where(_two_sum_error(middle, radius, high) <= 0, high, np.nextafter(high, np.inf))
    return replace(Box(low, high), origin="ball")


def _two_sum_error(a: Array, b: float, total: Array) -> Array:
    part = total - a
    error: Array = (a - (total - part)) + (b - part)
    return error


def _numbers(values: Numbers, name: str) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DomainError(
            f"{name} must be a number or an array of numbers, not {type(values).__name__}"
        ) from None


def _normalised(network: Network, mean: Array, std: Array) -> Network:
    """The network with ``(x - mean) / std`` in front; the old input's name now names the normalised value."""
    raw = f"{network.input.name}.raw"
    while raw in network:
        raw += "_"
    scale = Node(network.input.name, Scale.normalise(mean, std), (raw,))
    return replace(
        network, input=Port(raw, network.input.shape, network.input.batch), nodes=(scale, *network.nodes)
    )


def _short(array: Array) -> float | list[Any] | None:
    """One number where all are the same; infinite ones as None, because JSON has no infinity."""
    first = float(array.flat[0]) if array.size else 0.0
    if array.size and (array == first).all():
        return first if np.isfinite(first) else None
    found = array.astype(object)
    found[~np.isfinite(array)] = None
    listed: list[Any] = found.tolist()
    return listed


def _ends(array: Array) -> list[float | None]:
    return [float(end) if np.isfinite(end) else None for end in array]
