"""Searches for the states of neurons that no input has shown yet, from quick to strong.

Every input that a search comes up with is looked at for all neurons, so that what is found for one may well
show something of others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relutrim.bounds.relaxation import Slope
from relutrim.search.anneal import anneal
from relutrim.search.climb import Targets, climb, grouped, standing

if TYPE_CHECKING:
    from relutrim.prove.cascade import Cascade

_STUBBORN = 64
"""So few missing states get all there is."""
_STEPS = 100
_HEATS = (0.1, 0.4)
_RESTARTS = 128
"""Inputs that one round of restarts begins from, over all missing states."""
_ROUNDS = 8
_RESTART_HEATS = (0.1, 0.03, 0.4)
_KEPT, _COMPARED, _KEPT_BYTES = 4096, 2**23, 256 * 2**20
"""Inputs among which they are chosen, fewer where very many states are missing; and what they may take."""


@dataclass(eq=False)
class Hunt:
    """The searches of a cascade, each for all missing states at once."""

    cascade: Cascade
    _round: int = field(default=0, init=False)

    def quickly(self) -> None:
        """Gradient steps from the most promising inputs met so far."""
        for steps in (8, 24):
            self._climb(steps)

    def thoroughly(self, more: Tensor | None = None, phase: str = "anneal") -> None:
        """The strongest search: from the inputs where linear bounds are smallest, or from ``more``. ``phase``
        is what a journal calls it.
        """
        targets = self._findable()
        if not len(targets) or self.cascade.deadline.passed:
            return
        few = len(targets) <= _STUBBORN
        if more is None:
            slopes = (Slope.ADAPTIVE, Slope.ZERO, Slope.CHORD) if few else (Slope.ADAPTIVE,)
            starts = [targets.starts, *(self._minimisers(targets, slope) for slope in slopes)]
        else:
            starts = [point.expand_as(targets.starts) for point in more[-max(1, _STUBBORN // len(targets)) :]]
        points = torch.cat(starts * len(_HEATS))
        rows = torch.arange(len(targets), device=points.device).repeat(len(starts) * len(_HEATS))
        heat = torch.tensor(_HEATS, dtype=points.dtype).repeat_interleave(len(targets) * len(starts))
        self._anneal(
            replace(targets.take(rows), starts=points), heat.to(points), _STEPS if few else _STEPS // 4, phase
        )

    def again(self, phase: str) -> None:
        """The strongest search from inputs that were kept for what they show of other neurons: for every
        missing state from those that come nearest to it, further ones with every round; more rounds as long
        as they find anything. What only a narrow part of the domain shows may be within reach from where a
        related neuron shows something.
        """
        for _ in range(_ROUNDS):
            before = len(self.cascade.missing())
            self._restart(phase)
            if len(self.cascade.missing()) == before:
                return

    def _restart(self, phase: str) -> None:
        turn, self._round = self._round, self._round + 1
        cascade, targets = self.cascade, self._findable()
        kept = cascade.witnesses.latest(self._kept(len(targets)))
        if not len(targets) or not len(kept) or cascade.deadline.passed:
            return
        parts = torch.split(kept, cascade.witnesses.chunk)
        near = torch.cat([standing(cascade.network, part, targets) for part in parts])
        each = min(len(kept), max(1, _RESTARTS // len(targets)))
        places = (turn * each + torch.arange(each, device=near.device)) % len(kept)
        chosen = near.argsort(dim=0, descending=True, stable=True)[places].flatten()
        rows = torch.arange(len(targets), device=near.device).repeat(each)
        heats = torch.tensor(_RESTART_HEATS, dtype=near.dtype, device=near.device)
        heat = heats[(turn + torch.arange(each, device=near.device)) % len(heats)]
        self._anneal(
            replace(targets.take(rows), starts=kept[chosen]),
            heat.repeat_interleave(len(targets)),
            _STEPS,
            phase,
        )

    def _kept(self, targets: int) -> int:
        """How many inputs restarts are chosen from."""
        bytes_ = self.cascade.memory.share(_KEPT_BYTES) // (8 * max(1, self.cascade.region.size))
        return max(1, min(_KEPT, _COMPARED // max(1, targets), bytes_))

    def _climb(self, steps: int) -> None:
        cascade = self.cascade

        def search(chosen: Targets, _: Tensor) -> Tensor:
            return climb(cascade.network, cascade.region, chosen, steps, cascade.deadline)

        self._batches(self._findable(), "climb", max(1, cascade.witnesses.chunk // 16), search)

    def _anneal(self, targets: Targets, heat: Tensor, steps: int, phase: str) -> None:
        cascade = self.cascade

        def search(chosen: Targets, part: Tensor) -> Tensor:
            enough = cascade.witnesses.certain(chosen)
            return anneal(
                cascade.network, cascade.region, chosen, heat[part], steps, cascade.deadline, enough=enough
            )

        self._batches(targets, phase, cascade.witnesses.chunk // 16 + 1, search)

    def _batches(
        self, targets: Targets, phase: str, most: int, search: Callable[[Targets, Tensor], Tensor]
    ) -> None:
        """A search for so many targets at a time; it is given which they are."""
        rows = torch.arange(len(targets), device=targets.index.device)
        for part in torch.split(rows, most) if len(rows) else ():
            if self.cascade.deadline.passed:
                return
            self.cascade.look(phase, partial(search, targets.take(part), part))
            self.cascade.report("search")

    def _minimisers(self, targets: Targets, slope: Slope) -> Tensor:
        """Per target the input at which its linear bound is smallest; its start where time is up before."""
        cascade, points = self.cascade, targets.starts.clone()
        for name, rows in grouped(targets).items():
            for sign in (1.0, -1.0):
                chosen = rows[targets.sign[rows] == sign]
                for part in torch.split(chosen, cascade.rows):
                    if cascade.deadline.passed:
                        return points
                    pre = cascade.network[name].inputs[0]
                    forms = cascade.backward.neurons(pre, targets.index[part], -sign, slope).forms
                    points[part] = cascade.region.minimisers(forms)
        return points

    def _findable(self) -> Targets:
        """The missing states that an input could show: where the range ends within what a forward pass can be
        wrong, at a tie say, none would count.
        """
        cascade, targets = self.cascade, self.cascade.missing()
        certain, end = cascade.witnesses.certain(targets), torch.zeros_like(targets.sign)
        for name, rows in grouped(targets).items():
            pre, index = cascade.values[cascade.network[name].inputs[0]], targets.index[rows]
            end[rows] = torch.where(targets.sign[rows] > 0, pre.hi.flatten()[index], -pre.lo.flatten()[index])
        return targets.take((certain.isfinite() & ~(end <= certain)).nonzero()[:, 0])
