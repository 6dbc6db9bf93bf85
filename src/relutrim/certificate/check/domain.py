"""The certified set of inputs ``{x : lo <= x <= hi, lower <= G x <= upper}`` and what is asked of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relutrim.certificate.check.rounding import ETA, ROOM, Array, centred, gamma
from relutrim.errors import CheckFailed, InputError

_SWEEPS = 4
_NUMBERS = 2**22
"""How many coefficients are looked at at once."""


@dataclass(frozen=True, eq=False)
class Domain:
    """In raw units; a network behind a normalisation sees ``(x - mean) / std``."""

    lo: Any
    hi: Any
    rows: Any = None
    lower: Any = ()
    upper: Any = ()
    mean: Any = None
    std: Any = None
    deadline: float = field(default=float("inf"), kw_only=True)
    """When it has taken too long to compute with it."""

    def __str__(self) -> str:
        """In words: of a box only the outermost ends, so a reader who wants more asks for a domain."""
        words = f"{self.lo.size} inputs between {self.lo.min():g} and {self.hi.max():g}"
        for lower, upper in zip(self.lower, self.upper, strict=True):
            words += f", {lower:g} <= G x <= {upper:g}"
        return words + (", seen as (x - mean) / std" if self.mean is not None else "")

    def spread(self, size: int, channels: int) -> Domain:
        """Single numbers, or one per channel, for each of so many inputs."""

        def wide(numbers: Any) -> Any:
            found = np.asarray(numbers, np.float64).reshape(-1)
            if found.size not in (1, size, channels) or size % found.size:
                raise InputError(f"{found.size} numbers do not go with {size} inputs")
            return np.repeat(found, size // found.size)

        lo, hi, mean, std = (None if n is None else wide(n) for n in (self.lo, self.hi, self.mean, self.std))
        rows = np.array([wide(row) for row in (() if self.rows is None else self.rows)]).reshape(-1, size)
        lower, upper = (np.asarray(end, np.float64).reshape(len(rows)) for end in (self.lower, self.upper))
        return Domain(lo, hi, rows, lower, upper, mean, std)

    def contains(self, other: Domain) -> str | None:
        """None if every point of ``other`` is in here, else why that is not known."""
        for name in ("mean", "std"):
            mine, theirs = (np.asarray(getattr(one, name), np.float64) for one in (self, other))
            if not np.array_equal(mine, theirs, equal_nan=True):
                return f"it is behind another normalisation ({name})"
        outside = np.flatnonzero(~((self.lo <= other.lo) & (other.hi <= self.hi)))
        for at in outside[:1]:
            inside, wanted = (f"[{one.lo[at]:g}, {one.hi[at]:g}]" for one in (self, other))
            return f"input {at} is certified on {inside} only, not on {wanted}"
        for at, row in enumerate(self.rows):
            low, high = (float(other.least(sign * row[None])[0]) * sign for sign in (1.0, -1.0))
            same = (other.rows == row).all(1)
            low, high = max([low, *other.lower[same]]), min([high, *other.upper[same]])
            if not (low >= self.lower[at] and high <= self.upper[at]):
                return f"it is certified only where {self.lower[at]:g} <= G x <= {self.upper[at]:g}"
        return None

    def narrowed(self) -> Domain:
        """The same points in a smaller box: between the least and the largest value of each input. Of no
        points at all everything is true, so nothing is said of them.
        """
        if not len(self.rows):
            return self
        lo, hi = self.lo.copy(), self.hi.copy()
        for piece in self.pieces(lo.size):
            every = np.eye(len(lo[piece]), lo.size, piece.start)
            lo[piece] = np.fmax(lo[piece], self.least(every))
            hi[piece] = np.fmin(hi[piece], -self.least(-every))
        if not (lo <= hi).all():
            raise CheckFailed("no input at all satisfies the certified domain's constraints")
        return replace(self, lo=lo, hi=hi)

    def pieces(self, count: int) -> list[slice]:
        """So many forms, as many at a time as there may be in memory."""
        step = max(1, _NUMBERS // max(1, self.lo.size))
        return [slice(at, min(at + step, count)) for at in range(0, count, step)]

    def least(self, forms: Array) -> Array:
        """A number below ``c . x`` on the whole domain, for each row ``c``, whatever the rounding.

        With constraints, for any ``l``: ``c x >= min_box (c - l G) x + sum_j min(l_j lower_j, l_j upper_j)``.
        """
        plain = box_least(forms, self.lo, self.hi)
        if not len(self.rows) or not len(forms):
            return plain
        duals = self._multipliers(forms)
        rest = forms - duals @ self.rows
        ends = np.where(duals > 0, self.lower, self.upper)
        paid = np.where(duals == 0, 0.0, duals * ends)
        reach = np.maximum(np.abs(self.lo), np.abs(self.hi))
        size = (np.abs(forms) + np.abs(duals) @ np.abs(self.rows)) @ reach + np.abs(paid).sum(1)
        total = box_least(rest, self.lo, self.hi) + paid.sum(1)
        tiny = (len(self.rows) + 4) * ETA * (4 + reach.sum())
        cut = total - gamma(2 * len(self.rows) + 8) * (size + np.abs(total)) * ROOM - tiny
        found: Array = np.fmax(plain, np.nextafter(cut, -np.inf))
        return found

    def _multipliers(self, forms: Array) -> Array:
        """Good multipliers, one constraint after the other; nothing depends on how good they are."""
        duals = np.zeros((len(forms), len(self.rows)))
        for _ in range(1 if len(self.rows) == 1 else _SWEEPS):
            for j in range(len(self.rows)):
                if time.monotonic() > self.deadline:
                    raise CheckFailed("not checked: the domain's constraints take longer than the limit")
                duals[:, j] = 0
                duals[:, j] = self._best(forms - duals @ self.rows, j)
        return np.where(np.isfinite(duals), duals, 0.0)

    def _best(self, forms: Array, j: int) -> Array:
        """As ``l`` grows, ``G_j x`` at the minimising corner climbs by steps at ``l = c_i / g_i``; the best
        is where it enters its range.
        """
        used = (self.rows[j] != 0) & (self.hi > self.lo)
        row, width, costs = self.rows[j][used], (self.hi - self.lo)[used], forms[:, used]
        if not row.size:
            return np.zeros(len(forms))
        at = costs / row
        order = np.argsort(at, axis=1)
        climbed = np.cumsum((np.abs(row) * width)[order], axis=1)
        start = float(np.where(self.rows[j] > 0, self.rows[j] * self.lo, self.rows[j] * self.hi).sum())
        zero = start + ((at < 0) * (np.abs(row) * width)).sum(1)
        target = np.clip(zero, self.lower[j], self.upper[j])
        place = np.minimum((start + climbed < target[:, None]).sum(1), at.shape[1] - 1)
        found = np.take_along_axis(np.take_along_axis(at, order, 1), place[:, None], 1)[:, 0]
        found = np.where(zero < self.lower[j], np.maximum(found, 0), np.minimum(found, 0))
        return np.where((zero < self.lower[j]) | (zero > self.upper[j]), found, 0.0)


def box_least(forms: Array, lo: Array, hi: Array) -> Array:
    """A number below ``c . x`` on a box; ``forms`` (k, n), or (boxes, k, n) with ends (boxes, n)."""
    middle, radius = centred(lo, hi)
    size = np.abs(forms)
    value, reach = forms @ middle[..., None], size @ np.abs(middle)[..., None]
    spread = size @ radius[..., None]
    count = forms.shape[-1]
    spread = spread + (gamma(count + 2) * (reach + spread) * ROOM + 2 * count * ETA)
    found: Array = np.nextafter(value - spread, -np.inf)[..., 0]
    return found
