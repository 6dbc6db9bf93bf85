"""A set of inputs ``{x : lo <= x <= hi, a <= G x <= b}`` and what the prover asks of it.

A box may have infinite ends (then there are no constraints): a form that is not 0 there has no lower bound,
one that is exactly 0 takes nothing from there. Inputs are always finite numbers.

Three questions, each with an answer that can be relied on:

* :meth:`Region.lower`: a number that ``c . x`` never falls below on the region, rounding included. Over a box
  that is the corner that minimises; with constraints it is the Lagrangian bound
  ``c . x >= min_box (c - l G) . x + sum_j min(l_j a_j, l_j b_j)``, valid for **every** ``l``; the multipliers
  are chosen well (for one constraint optimally, it is a continuous knapsack) but nothing depends on how.
* :meth:`Region.minimisers`: inputs that nearly attain that bound: where to look for witnesses.
* :meth:`Region.inside`: which inputs provably lie in the region. Nothing else may become a witness.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from relutrim.intervals import Interval
from relutrim.rounding import ETA, gamma, widen_down

_SWEEPS = 4
_VANISHES = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Reduced costs that are a smaller part of what they are made of may be 0 as well."""
_FAR = 1e3
"""Where an input has no end, searches go this far from its other end, or from 0."""
_HARDLY, _VERY = 1e-3, 1e9
"""Where inputs have no end, random ones go between so far and so far."""


@dataclass(frozen=True, eq=False)
class Region:
    """All tensors float64, flat, on one device: ``lo``, ``hi`` (n,), ``rows`` (m, n), ``lower``, ``upper``
    (m,).
    """

    lo: Tensor
    hi: Tensor
    rows: Tensor
    lower_ends: Tensor
    upper_ends: Tensor

    @property
    def size(self) -> int:
        """The dimension."""
        return int(self.lo.shape[0])

    @property
    def constrained(self) -> bool:
        """Whether there is more than the box."""
        return self.rows.shape[0] > 0

    @cached_property
    def bounded(self) -> bool:
        """Whether every input has a finite range."""
        return bool((self.lo.isfinite() & self.hi.isfinite()).all())

    @cached_property
    def _near(self) -> Tensor:
        """For each input a number of its range: an end if there is a finite one, or else 0."""
        zero = torch.zeros_like(self.lo)
        return torch.where(self.lo.isfinite(), self.lo, torch.where(self.hi.isfinite(), self.hi, zero))

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """Ends of the box, or numbers of it that are far away where there are none."""
        low = torch.where(self.lo.isfinite(), self.lo, self._near - _FAR)
        high = torch.where(self.hi.isfinite(), self.hi, self._near + _FAR)
        return low, high

    @cached_property
    def width(self) -> Tensor:
        """How far every input can go; where it has no end, how far searches take it at most."""
        low, high = self._ends
        return high - low

    def box(self) -> Interval:
        """The box, as a batch of one."""
        return Interval(self.lo[None], self.hi[None])

    def lower(self, forms: Tensor) -> Tensor:
        """A lower bound of each linear form over the region, in spite of rounding. ``forms`` is (k, n)."""
        plain = self._box_lower(forms)
        if not self.constrained or not forms.shape[0]:
            return plain
        multipliers = self._multipliers(forms)
        shifted = forms - multipliers @ self.rows
        ends = torch.where(multipliers > 0, self.lower_ends, self.upper_ends)
        paid = torch.where(multipliers == 0, multipliers, multipliers * ends)
        total = self._box_lower(shifted) + paid.sum(1)
        # c . x = shifted . x + l G x + (c - l G - shifted) . x: the last bracket is the rounding of
        # `shifted`.
        magnitude = self.lo.abs().maximum(self.hi.abs())
        moved = (forms.abs() + multipliers.abs() @ self.rows.abs()) @ magnitude
        terms = self.rows.shape[0] + 2
        radius = gamma(terms) * (moved + paid.abs().sum(1) + total.abs()) + terms * ETA * (
            2 + magnitude.sum()
        )
        cut = widen_down(total, radius)
        return torch.fmax(plain, cut.where((multipliers != 0).any(1), plain))

    def minimisers(self, forms: Tensor) -> Tensor:
        """For each linear form an input of the region (up to rounding) where it is smallest, or nearly so."""
        if not self.constrained:
            return torch.where(forms > 0, *self._ends)
        return self.project(self.relaxed(forms)[1])

    def relaxed(self, forms: Tensor) -> tuple[Tensor, Tensor]:
        """For each linear form the Lagrangian bound without a charge for rounding, and an input of the box
        where it is attained. With one constraint that input satisfies it, up to rounding; with several, those
        of them that have multipliers, as far as inputs without a reduced cost allow.
        """
        multipliers = self._multipliers(forms)
        reduced = forms - multipliers @ self.rows
        points = torch.where(reduced > 0, self.lo, self.hi)
        ends = torch.where(multipliers > 0, self.lower_ends, self.upper_ends)
        paid = torch.where(multipliers == 0, multipliers, multipliers * ends)
        bound = (reduced * points).sum(1) + paid.sum(1)
        for j in range(len(self.rows)):
            points = self._fill(points, forms, reduced, multipliers, j)
        return bound, points

    def to(self, device: torch.device, dtype: torch.dtype) -> Region:
        """The same numbers on a device, in a precision. Only float64 proves anything."""
        ends = (self.lo, self.hi, self.rows, self.lower_ends, self.upper_ends)
        return Region(*(part.to(device, dtype) for part in ends))

    def _fill(self, points: Tensor, forms: Tensor, reduced: Tensor, multipliers: Tensor, j: int) -> Tensor:
        """At the optimum of a constraint, the coordinates whose reduced cost vanishes (mostly just one) lie
        between their ends, such that the constraint holds with equality where its multiplier is not zero.
        """
        row, force, alone = self.rows[j], multipliers[:, j], len(self.rows) == 1
        usable = (row != 0) & (self.hi > self.lo)
        cost = reduced.abs().masked_fill(~usable, torch.inf)
        free = cost <= _VANISHES[cost.dtype] * (forms.abs() + multipliers.abs() @ self.rows.abs())
        if not alone:
            free &= force[:, None] != 0  # else it would undo what others need
        free |= (cost <= cost.amin(1, keepdim=True)) & (force != 0)[:, None] & (j == len(self.rows) - 1)
        free &= usable
        start = torch.where(free, torch.where(row > 0, self.lo, self.hi), points)
        end = torch.where(free, torch.where(row > 0, self.hi, self.lo), points)
        low, high, _ = self._inset_ends(j)
        target = torch.where(force > 0, low, torch.where(force < 0, high, (start @ row).clamp(low, high)))
        share = ((target - start @ row) / ((end - start) @ row)).clamp(0, 1)[:, None]
        return torch.where(free & torch.isfinite(share), start + share * (end - start), points)

    def project(self, points: Tensor) -> Tensor:
        """Points moved into the region, or near it where the constraints resist; ask :meth:`inside` before
        use.
        """
        points = points.clamp(self.lo, self.hi)
        if not self.constrained:
            return points
        for _ in range(1 if self.rows.shape[0] == 1 else 5 * self.rows.shape[0]):
            before = points
            for j in range(self.rows.shape[0]):
                points = self._onto(points, j)
            if torch.equal(points, before):
                break
        return points

    def inside(self, points: Tensor) -> Tensor:
        """Which points provably lie in the region. NaN lies nowhere, and neither does what is infinite."""
        good = ((points >= self.lo) & (points <= self.hi)).all(1)
        if not self.bounded:
            good &= points.isfinite().all(1)
        if self.constrained:
            values = points @ self.rows.T
            radius = gamma(self.size) * (points.abs() @ self.rows.abs().T) + self.size * ETA
            some = (points != 0).to(points) @ (self.rows != 0).to(points).T
            radius = radius.where(some > 0, torch.zeros_like(radius))
            good &= ((values - radius >= self.lower_ends) & (values + radius <= self.upper_ends)).all(1)
        return good

    def sample(
        self, count: int, generator: torch.Generator, far: tuple[float, float] = (_HARDLY, _VERY)
    ) -> Tensor:
        """Random points, half of them uniform and half random corners, moved into the region. Where inputs
        have no end, every point goes as far as it likes, between the two numbers ``far``.
        """
        half = (count // 2, self.size)
        uniform = torch.rand((count - half[0], self.size), generator=generator, dtype=torch.float64)
        share = torch.rand((half[0], 1), generator=generator)
        corners = torch.rand(half, generator=generator) < share
        mix = torch.cat([uniform, corners.to(uniform)]).to(self.lo.device)
        if self.bounded:
            return self.project(self.lo + mix * (self.hi - self.lo))
        powers = torch.rand((count, 1), generator=generator, dtype=torch.float64).to(self.lo.device)
        distance = far[0] * (far[1] / far[0]) ** powers
        low = torch.where(self.lo.isfinite(), self.lo, self._near - distance)
        high = torch.where(self.hi.isfinite(), self.hi, self._near + distance)
        return self.project(low + mix * (high - low))

    def _box_lower(self, forms: Tensor) -> Tensor:
        if self.bounded:
            return self._corner(forms, self.lo, self.hi)
        left, right = self.lo == -torch.inf, self.hi == torch.inf
        zero = torch.zeros_like(self.lo)
        found = self._corner(forms, torch.where(left, zero, self.lo), torch.where(right, zero, self.hi))
        falls = ((forms > 0) & left | (forms < 0) & right).any(1)
        return torch.where(falls & ~found.isnan(), -torch.inf, found)

    def _corner(self, forms: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
        """Smallest values at ends that are finite: at a corner of the box."""
        up, down = forms.clamp(min=0), forms.clamp(max=0)
        at_lo = up @ torch.stack([lo, lo.abs()], 1)
        at_hi = down @ torch.stack([hi, -hi.abs()], 1)
        value, magnitude = (at_lo + at_hi).unbind(1)
        radius = gamma(self.size) * magnitude + self.size * ETA
        nothing = (magnitude == 0).nonzero()[:, 0]
        if len(nothing):  # no product at all, or products that underflow
            few = forms[nothing]
            some = ((few > 0) & (lo != 0)).any(1) | ((few < 0) & (hi != 0)).any(1)
            radius[nothing] = radius[nothing].where(some, 0.0)
        # clamp may pass over NaN coefficients: a form that holds one is bounded by nothing.
        value = value.where(~forms.sum(1).isnan(), torch.nan)
        return widen_down(value, radius)

    def _multipliers(self, forms: Tensor) -> Tensor:
        """Good multipliers for each form: coordinate ascent on the dual, each coordinate solved by
        sorting.
        """
        count = self.rows.shape[0]
        multipliers = forms.new_zeros(forms.shape[0], count)
        for _ in range(1 if count == 1 else _SWEEPS):
            for j in range(count):
                others = multipliers.clone()
                others[:, j] = 0
                multipliers[:, j] = self._best_multiplier(forms - others @ self.rows, j)
        return torch.where(torch.isfinite(multipliers), multipliers, torch.zeros_like(multipliers))

    def _best_multiplier(self, forms: Tensor, j: int) -> Tensor:
        """The maximiser of ``l -> min_box (c - l g) . x + min(l a, l b)``.

        As ``l`` grows, the minimising corner's ``g . x`` climbs in steps of ``|g_i| (hi_i - lo_i)`` at ``l =
        c_i / g_i``; the best ``l`` is where it reaches ``a`` (or comes down to ``b``), and 0 if it starts
        between them.
        """
        knapsack = self._knapsacks[j]
        if not len(knapsack.used):
            return forms.new_zeros(forms.shape[0])
        points, order = _sorted(forms[:, knapsack.used] / knapsack.row)
        climbs = knapsack.climbs[order]
        climbed, start = climbs.cumsum(1), knapsack.start
        at_zero = start + (climbs * (points < 0)).sum(1)
        lower, upper = self.lower_ends[j], self.upper_ends[j]
        target = torch.where(at_zero < lower, lower, torch.where(at_zero > upper, upper, at_zero))
        index = ((start + climbed) < target[:, None]).sum(1).clamp(max=points.shape[1] - 1)
        found = points.gather(1, index[:, None])[:, 0]
        found = torch.where(
            at_zero < lower, found.clamp(min=0), torch.where(at_zero > upper, found.clamp(max=0), found)
        )
        return found.where((at_zero < lower) | (at_zero > upper), torch.zeros_like(found))

    @cached_property
    def _knapsacks(self) -> list[_Knapsack]:
        """What finding a multiplier needs of each constraint."""
        return [_Knapsack.of(self.lo, self.hi, row) for row in self.rows]

    def _inset_ends(self, j: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ends of constraint ``j``, moved inward far enough for rounding not to lead outside, and how
        far.
        """
        low, high = self.lower_ends[j], self.upper_ends[j]
        reach = self.rows[j].abs() @ self.lo.abs().maximum(self.hi.abs())
        inset = torch.minimum(1e-10 * reach, (high - low) / 4)
        return low + inset, high - inset, inset

    def _onto(self, points: Tensor, j: int) -> Tensor:
        """Points of the box pushed along row ``j`` and clipped to the box until the constraint holds.

        As the step grows, every coordinate goes on until it is at its end: ``g . x`` climbs in pieces, which
        sorting finds. Points that are off by less than half of what ends are moved inward are left alone.
        """
        row, used = self.rows[j], self.rows[j] != 0
        low, high, inset = self._inset_ends(j)
        values = points @ row
        missing = values.clamp(low, high) - values
        off = (missing.abs() > inset / 2).nonzero()[:, 0]
        if not off.numel() or not bool(used.any()):
            return points
        moving, missing = points[off], missing[off]
        largest = row.abs().max()
        row = row / largest
        forward = torch.where(missing[:, None] > 0, row, -row)
        room = (torch.where(forward > 0, self.hi, self.lo) - moving).abs()[:, used]
        size, missing = row.abs()[used], missing.abs() / largest
        steps, order = (room / size).nan_to_num(0.0, 1e300).sort(1)
        rates = (size**2)[order]
        ended = _before((room * size).gather(1, order))
        going = rates.flip(1).cumsum(1).flip(1)
        # The first coordinate at whose end enough is gained: all before it are at theirs.
        at = (ended + going * steps < missing[:, None]).sum(1, keepdim=True).clamp(max=steps.shape[1] - 1)
        step = ((missing[:, None] - ended.gather(1, at)) / going.gather(1, at)).nan_to_num(0.0, 1e300)
        step = step.clamp(max=steps.gather(1, at))
        points = points.clone()
        points[off] = (moving + step * forward).clamp(self.lo, self.hi)
        return points


@dataclass(frozen=True, eq=False)
class _Knapsack:
    """The inputs that a constraint ``g`` weighs and that can vary: their places, their weights, and how far
    ``g . x`` climbs as each goes from one end to the other. ``start`` is the least ``g . x`` of the box.
    """

    used: Tensor
    row: Tensor
    climbs: Tensor
    start: Tensor

    @classmethod
    def of(cls, lo: Tensor, hi: Tensor, weights: Tensor) -> _Knapsack:
        """That of one constraint."""
        used = ((weights != 0) & (hi > lo)).nonzero()[:, 0]
        row = weights[used]
        start = torch.where(weights > 0, weights * lo, weights * hi).sum()
        return cls(used, row, row.abs() * (hi - lo)[used], start)


def _sorted(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of each row in order, and where they were. On a CPU numpy is several times as quick."""
    if rows.device.type != "cpu":
        return rows.sort(dim=1)
    order = torch.from_numpy(rows.numpy().argsort(axis=1))
    return rows.gather(1, order), order


def _before(terms: Tensor) -> Tensor:
    """The sum of what stands before each column."""
    return torch.cat([torch.zeros_like(terms[:, :1]), terms.cumsum(1)[:, :-1]], 1)
