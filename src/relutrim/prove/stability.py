"""What is known about every neuron of a network on a domain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from relutrim.domain.domain import Domain, Problem
from relutrim.errors import ContradictionError
from relutrim.graph.operators import Array, Shape
from relutrim.intervals import Interval
from relutrim.prove.parts import AnyProof
from relutrim.prove.verdict import Evidence, Verdict

Codes = npt.NDArray[np.int8]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Channels:
    """Slices of a layer's first axis: how many are active at every position, inactive at every position, or
    neither.
    """

    active: int
    inactive: int
    mixed: int

    @property
    def count(self) -> int:
        """All of them."""
        return self.active + self.inactive + self.mixed


@dataclass(frozen=True, eq=False)
class LayerStability:
    """One ReLU: per neuron, flat in C order, the verdict, what it rests on, and what is known besides.

    ``lower`` and ``upper`` are proven bounds of the pre-activation (NaN: none). Witnesses are rows of
    :attr:`Stability.witnesses`, -1 where a state was never seen. ``claimed`` is the margin of verdicts that
    rest on a solver's word.
    """

    name: str
    shape: Shape
    verdict: Codes
    evidence: Codes
    lower: Array
    upper: Array
    active_witness: Rows
    inactive_witness: Rows
    claimed: Array | None = None

    @property
    def size(self) -> int:
        """How many neurons."""
        return int(self.verdict.size)

    def which(self, verdict: Verdict, weakest: Evidence = Evidence.NONE) -> list[int]:
        """Neurons with a verdict that rests on at least ``weakest``."""
        chosen = (self.verdict == verdict) & (self.evidence >= weakest)
        return [int(i) for i in np.flatnonzero(chosen)]

    def count(self, verdict: Verdict) -> int:
        """How many neurons have a verdict."""
        return int((self.verdict == verdict).sum())

    @property
    def channels(self) -> Channels | None:
        """What becomes of whole channels; None for a layer that has no positions."""
        if len(self.shape) < 2:
            return None
        by_channel = self.verdict.reshape(self.shape[0], math.prod(self.shape[1:]))
        inactive = (by_channel == Verdict.INACTIVE).all(1)
        active = (by_channel == Verdict.ACTIVE).all(1) & ~inactive
        whole = int(active.sum()), int(inactive.sum())
        return Channels(*whole, len(by_channel) - sum(whole))

    @property
    def margin(self) -> Array:
        """How far a stable neuron stays from 0, by proof or by a solver's word; NaN for others."""
        gap = np.where(self.verdict == Verdict.ACTIVE, self.lower, -self.upper)
        stable = np.isin(self.verdict, (Verdict.ACTIVE, Verdict.INACTIVE))
        proven = np.where(stable & (gap >= 0), gap, np.nan)
        if self.claimed is None:
            return proven
        return np.where(self.evidence == Evidence.SOLVER, self.claimed, proven)

    def told(self, *, inactive: Array, active: Array) -> LayerStability:
        """With a solver's word, given as margins (NaN: none), for neurons that nothing better decides. Where
        it says both, it says nothing.
        """
        verdict, evidence = self.verdict.copy(), self.evidence.copy()
        claimed = np.full(self.size, np.nan)
        for word, margin in ((Verdict.ACTIVE, active), (Verdict.INACTIVE, inactive)):
            chosen = (self.verdict == Verdict.UNKNOWN) & (margin > 0) & ~((active > 0) & (inactive > 0))
            verdict[chosen], evidence[chosen] = word, Evidence.SOLVER
            claimed[chosen] = margin[chosen]
        return replace(self, verdict=verdict, evidence=evidence, claimed=claimed)


@dataclass(frozen=True, eq=False)
class Stability:
    """The outcome of an analysis: what is known about every neuron of every ReLU, in ``layers``.

    >>> import relutrim
    >>> stability = relutrim.analyze(relutrim.demo_model(), relutrim.Box(0, 1))
    >>> stability.complete, stability.count(relutrim.Verdict.INACTIVE)
    (True, 49)
    >>> layer = stability["relu2.out"]
    >>> layer.which(relutrim.Verdict.INACTIVE)[:5], layer.margin.shape
    ([16, 19, 27, 36, 38], (100,))

    In a notebook it shows as a table. ``ranges`` holds proven bounds of every value of ``problem.network``.
    ``proofs`` are the bounds that took a tree or parts of the domain, in the order in which they were found,
    with all that proves them again without a search; ``nodes`` is how many nodes of trees it took.
    ``remarks`` say what went wrong on the way, and ``solver`` whose word it is where evidence is a solver's.
    """

    problem: Problem
    domain: Domain
    layers: tuple[LayerStability, ...]
    witnesses: Array
    ranges: Mapping[str, Interval] = field(repr=False)
    method: str = "auto"
    seconds: float = 0.0
    interrupted: bool = False
    data_rows: int = 0
    data_rows_outside: int = 0
    proofs: tuple[AnyProof, ...] = field(default=(), repr=False)
    nodes: int = 0
    remarks: tuple[str, ...] = ()
    solver: str | None = None
    left: int | None = None
    """How many states are missing that somebody has a use for; None: who knows."""
    spared: int = 0
    """How many of a large network's channels were left at what simple bounds and short searches say."""

    @property
    def complete(self) -> bool:
        """No neuron is unknown."""
        return not any(layer.count(Verdict.UNKNOWN) for layer in self.layers)

    def __getitem__(self, name: str) -> LayerStability:
        return next(layer for layer in self.layers if layer.name == name)

    def count(self, verdict: Verdict) -> int:
        """How many neurons of all layers have a verdict."""
        return sum(layer.count(verdict) for layer in self.layers)

    def undecided(self, weakest: Evidence) -> int:
        """How many neurons have no verdict that rests on at least ``weakest``; unstable ones need none."""
        return sum(
            int(((layer.evidence < weakest) & (layer.verdict != Verdict.UNSTABLE)).sum())
            for layer in self.layers
        )

    def _repr_html_(self) -> str:
        """How notebooks show it."""
        from relutrim.report.html.notebook import stability_fragment

        return stability_fragment(self)

    def __str__(self) -> str:
        words = ", ".join(
            f"{self.count(v)} {v.word}"
            for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)
        )
        neurons = sum(layer.size for layer in self.layers)
        return f"{neurons} neurons in {len(self.layers)} layers: {words} ({self.seconds:.2f} s)"


def judge(
    name: str,
    shape: Shape,
    pre: Interval,
    active: Tensor,
    inactive: Tensor,
    *,
    by_data: Tensor | None = None,
) -> LayerStability:
    """Verdicts from bounds and witnesses. NaN bounds compare false, so they can only leave a neuron unknown.

    ``by_data`` says which neurons were looked at: those of them that showed one state only, or none, are
    called stable with evidence ``data``.
    """
    lower, upper = pre.lo.flatten().cpu().numpy(), pre.hi.flatten().cpu().numpy()
    saw_active, saw_inactive = (t.cpu().numpy() for t in (active, inactive))
    off = upper <= 0
    on = (lower >= 0) & ~off
    if (off & (saw_active >= 0)).any() or (on & (saw_inactive >= 0)).any():
        wrong = np.flatnonzero((off & (saw_active >= 0)) | (on & (saw_inactive >= 0)))
        raise ContradictionError(
            f"neuron {int(wrong[0])} is proved stable and has a witness against it; this is a "
            "bug in relutrim, please report it "
            "with the model and the domain",
            where=f"layer {name!r}",
        )
    verdict = np.full(lower.shape, Verdict.UNKNOWN, dtype=np.int8)
    evidence = np.full(lower.shape, Evidence.NONE, dtype=np.int8)
    if by_data is not None:
        observed = by_data.cpu().numpy()
        verdict[observed & (saw_active >= 0)] = Verdict.ACTIVE
        verdict[observed & (saw_active < 0)] = Verdict.INACTIVE
        evidence[observed] = Evidence.DATA
    for chosen, word, why in (
        ((saw_active >= 0) & (saw_inactive >= 0), Verdict.UNSTABLE, Evidence.WITNESS),
        (on, Verdict.ACTIVE, Evidence.PROOF),
        (off, Verdict.INACTIVE, Evidence.PROOF),
    ):
        verdict[chosen] = word
        evidence[chosen] = why
    return LayerStability(name, shape, verdict, evidence, lower, upper, saw_active, saw_inactive)
