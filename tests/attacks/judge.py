"""Whether what the checker accepted is true, by other means than its own: many inputs, exact arithmetic.

Networks are read by the package's reader, not by the checker's. Points are looked for in float64; the worst
are evaluated in rational numbers, and only those accuse.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch

import attacks.proof_mutations  # noqa: F401, because it adds to the mutations
import oracle
from attacks.forging import network_of, unpacked
from attacks.mutations import MUTATIONS, Mutant
from attacks.victims import Victim
from certifying import entries
from relutrim.certificate.check import check
from relutrim.certificate.check.archive import sha256
from relutrim.errors import RelutrimError
from relutrim.graph import Network

POINTS = 400
SECONDS = 30.0
"""How long one check may take before it counts as hanging."""
_EXACT = 20_000
"""Networks with more weights are judged in float64 with a margin."""


def points_in(arrays: dict[str, np.ndarray], rng: np.random.Generator, more: np.ndarray | None) -> np.ndarray:
    """Inputs of a certified domain: corners, edges and inner points that satisfy its constraints, and those
    of ``more`` in it.
    """
    lo, hi = arrays["domain.lo"], arrays["domain.hi"]
    share = rng.random((POINTS, lo.size))
    share[: POINTS // 2] = share[: POINTS // 2].round()
    share[POINTS // 2 : POINTS * 3 // 4] = np.clip(share[POINTS // 2 : POINTS * 3 // 4] * 3 - 1, 0, 1)
    x = np.clip(lo + share * (hi - lo), lo, hi)
    if more is not None and more.shape[1:] == lo.shape:
        x = np.concatenate([x, more[((lo <= more) & (more <= hi)).all(1)]])
    rows, lower, upper = (arrays[f"domain.{name}"] for name in ("rows", "lower", "upper"))
    sums = x @ rows.T
    room = 1e-9 * (1 + np.abs(sums))
    inside: np.ndarray = x[((sums >= lower + room) & (sums <= upper - room)).all(1)]
    return inside


def falsehood(victim: Victim, mutant: Mutant, bounds: list[np.ndarray]) -> str | None:
    """What is false of an accepted mutant; None if nothing was found."""
    document, arrays, _ = unpacked(mutant.certificate)
    for key, content in (("model", mutant.model), ("out", mutant.out)):
        if sha256(content) != document[key]["sha256"]:
            return f"the hash of {key} is another"
    parts = entries(mutant.certificate)
    for name, said in document["arrays"].items():
        if sha256(parts[f"arrays/{name}.bin"]) != said["sha256"]:
            return f"the hash of {name} is another"
    if mutant.asked is not None:
        lo, hi = (np.asarray(end) for end in (mutant.asked.lo, mutant.asked.hi))
        if not ((arrays["domain.lo"] <= lo) & (hi <= arrays["domain.hi"])).all():
            return "more was asked for than is certified"
        if len(arrays["domain.rows"]) and mutant.asked.rows is None:
            return "constraints were not asked for"
        if ("domain.mean" in arrays) == (mutant.asked.mean is None):
            return "another normalisation was asked for"
    claimed = arrays["outputs.bound"]
    if mutant.tolerance is not None and claimed.max(initial=0.0) > mutant.tolerance:
        return "a smaller bound was asked for"
    rng = np.random.default_rng(7)
    x = points_in(arrays, rng, victim.points)
    if not len(x):
        return None
    if "domain.mean" in arrays:
        x = (x - arrays["domain.mean"]) / arrays["domain.std"]
    limit = np.minimum(claimed, np.concatenate(bounds))
    before, after = network_of(mutant.model), network_of(mutant.out)
    return _beyond(before, after, x, limit) or _verdicts(arrays, before, x)


def _beyond(before: Network, after: Network, x: np.ndarray, limit: np.ndarray) -> str | None:
    """An input where an output differs by more than its bound."""
    shaped = torch.as_tensor(x.reshape(len(x), *before.input.shape))
    gaps = (before(shaped) - after(shaped)).abs().reshape(len(x), -1).numpy() - limit
    if np.isnan(gaps).any():
        return None
    if sum(array.size for array in _weights(before)) > _EXACT:
        room = 1e-6 * (1 + before(shaped).abs().max().item())
        return "OUT differs by more than its bound" if gaps.max() > room else None
    for at in np.argsort(-gaps.max(1))[:2]:
        point = [Fraction(float(v)) for v in x[at]]
        pairs = zip(oracle.outputs(before, point), oracle.outputs(after, point), limit, strict=True)
        if any(abs(a - b) > Fraction(float(most)) for a, b, most in pairs):
            return "OUT differs by more than its bound"
    return None


def _weights(network: Network) -> list[np.ndarray]:
    return [node.operator.weight for node in network.nodes if hasattr(node.operator, "weight")]


def _verdicts(arrays: dict[str, np.ndarray], network: Network, x: np.ndarray) -> str | None:
    """A unit called linear or zero that is seen to be something else."""
    values = network.run(torch.as_tensor(x.reshape(len(x), *network.input.shape)))
    read = [values[relu.inputs[0]].reshape(len(x), -1).numpy() for relu in network.relus]
    if len(read) != len(arrays["layers.slack"]):  # maxima are layers of the checker's too
        return None
    kinds = np.split(arrays["layers.kind"], np.cumsum([y.shape[1] for y in read]))
    for y, kind, slack in zip(read, kinds, arrays["layers.slack"], strict=False):
        room = slack + 1e-9 * (1 + np.abs(y).max(0))
        if (y[:, kind == 1] < -room[kind == 1]).any() or (y[:, kind == 2] > room[kind == 2]).any():
            return "a unit is not what it is said to be"
    return None


@dataclass
class Tally:
    """What became of a campaign."""

    tried: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def merge(self, other: Tally) -> None:
        self.tried += other.tried
        self.accepted += other.accepted
        self.wrong += other.wrong
        self.crashes += other.crashes
        self.slowest = max(self.slowest, other.slowest)


def attack(
    victims: list[Victim], count: int, seed: int, names: list[str] | None = None, *, first: bool = False
) -> Tally:
    """So many mutations, of all kinds in turn and of any victim that a kind finds something to change in;
    ``first``: until one is wrongly accepted.
    """
    rng, tally = np.random.default_rng(seed), Tally()
    every = names or sorted(MUTATIONS)
    at = 0
    while tally.tried.total() < count and at < 20 * count and not (first and tally.wrong):
        name = every[at % len(every)]
        at += 1
        for number in rng.permutation(len(victims)):
            mutant = MUTATIONS[name](rng, victims[number])
            if mutant is not None:
                tally.tried[name] += 1
                judged(tally, name, victims[number], mutant)
                break
    return tally


def judged(tally: Tally, name: str, victim: Victim, mutant: Mutant) -> None:
    """Check one mutant, and judge the answer."""
    begin, where = time.monotonic(), f"{name} of {victim.name}"
    try:
        report = check(
            mutant.model, mutant.out, mutant.certificate, mutant.asked, mutant.tolerance, seconds=SECONDS
        )
    except RelutrimError as error:
        if error.exit_code not in (1, 2, 3) or not str(error):
            tally.crashes.append(f"{where}: {error!r}")
        return
    except Exception as error:
        tally.crashes.append(f"{where}: {error!r}")
        return
    finally:
        took = time.monotonic() - begin
        tally.slowest = max(tally.slowest, took)
        if took > 2 * SECONDS:
            tally.crashes.append(f"{where}: {took:.0f} s")
    tally.accepted[name] += 1
    try:
        why = falsehood(victim, mutant, report.bounds)
    except (RelutrimError, ValueError, KeyError, json.JSONDecodeError) as error:
        why = f"accepted, and nobody else can read it ({error!r})"
    if why is not None:
        tally.wrong.append(f"{where}: {why}")
