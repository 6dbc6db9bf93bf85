"""The certified set of inputs ``{x : lo <= x <= hi, lower <= G x <= upper}`` and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relutrim.certificate.check.maps import Affine, Node, Pick, Scale, quotient
from relutrim.certificate.check.rounding import ETA, ROOM, Array, centred, gamma

_SWEEPS = 4


@dataclass(frozen=True, eq=False)
class Domain:
    """In raw units; a network behind a normalisation sees ``(x - mean) / std``."""

    lo: Array
    hi: Array
    rows: Array
    lower: Array
    upper: Array
    mean: Array | None = None
    std: Array | None = None

    def front(self) -> list[Node]:
        """The normalisation as nodes before a network."""
        if self.mean is None or self.std is None:
            return []
        shift = Affine((Pick(np.arange(self.lo.size)),), -self.mean)
        return [Node(shift, (0,), "mean"), Node(Affine((Scale(*quotient(self.std)),)), (1,), "std")]

    def __str__(self) -> str:
        """In words: of a box only the outermost ends, so a reader who wants more asks for a domain."""
        words = f"{self.lo.size} inputs between {self.lo.min():g} and {self.hi.max():g}"
        for lower, upper in zip(self.lower, self.upper, strict=True):
            words += f", {lower:g} <= G x <= {upper:g}"
        return words + (", seen as (x - mean) / std" if self.mean is not None else "")

    def contains(self, other: Domain) -> str | None:
        """None if every point of ``other`` is in here, else why that is not known."""
        if self.lo.shape != other.lo.shape:
            return f"it has {self.lo.size} inputs, not {other.lo.size}"
        for mine, theirs, what in ((self.mean, other.mean, "mean"), (self.std, other.std, "std")):
            if (mine is not None or theirs is not None) and not np.array_equal(
                np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
            ):
                return f"it is behind another normalisation ({what})"
        outside = ~((self.lo <= other.lo) & (other.hi <= self.hi))
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            return (
                f"input {at} is certified on [{self.lo[at]:g}, {self.hi[at]:g}] only, not on "
                f"[{other.lo[at]:g}, {other.hi[at]:g}]"
            )
        for at, row in enumerate(self.rows):
            low, high = (float(other.least(sign * row[None])[0]) * sign for sign in (1.0, -1.0))
            same = (other.rows == row).all(1)
            low = max([low, *other.lower[same]])
            high = min([high, *other.upper[same]])
            if not (low >= self.lower[at] and high <= self.upper[at]):
                return (
                    f"it is certified only where {self.lower[at]:g} <= G x <= {self.upper[at]:g} (row {at})"
                )
        return None

    def least(self, forms: Array) -> Array:
        """A number below ``c . x`` on the whole domain, for each row ``c``, whatever the rounding.

        With constraints, for any ``l``: ``c x >= min_box (c - l G) x + sum_j min(l_j lower_j, l_j upper_j)``.
        """
        plain = box_least(forms, self.lo, self.hi)
        if not len(self.rows) or not len(forms):
            return plain
        with np.errstate(all="ignore"):
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
    value, spread, reach = (
        forms @ middle[..., None],
        size @ radius[..., None],
        size @ np.abs(middle)[..., None],
    )
    count = forms.shape[-1]
    spread = spread + (gamma(count + 2) * (reach + spread) * ROOM + 2 * count * ETA)
    found: Array = np.nextafter(value - spread, -np.inf)[..., 0]
    return found
