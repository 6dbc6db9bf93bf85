"""What was proved, in plain words. Every sentence must be true of the numbers it stands beside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from relutrim.errors import one_line
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.report.html.numbers import about, at_least, at_most
from relutrim.result import Compression


@dataclass(frozen=True)
class Claim:
    """The word in the badge, whether it is a guarantee, and the paragraphs behind it."""

    badge: str
    good: bool
    paragraphs: list[str]


def domain_words(domain: dict[str, Any], inputs: int) -> str:
    """The domain of the JSON as part of a sentence.

    >>> domain_words({"kind": "box", "lower": 0.0, "upper": 1.0, "constraints": []}, 784)
    'all inputs whose 784 entries lie between 0 and 1'
    """
    lower, upper = domain["lower"], domain["upper"]
    entries = f"{inputs:,} entries" if inputs != 1 else "one entry"
    lie = "lie" if inputs != 1 else "lies"
    if isinstance(lower, list) or isinstance(upper, list):
        text = (
            f"all inputs whose {entries} {lie} within their own ranges, the widest of them from "
            f"{_widest(lower, upper)}"
        )
    elif lower is None and upper is None:
        text = f"all inputs, whatever their {entries} may be"
    elif upper is None:
        text = f"all inputs whose {entries} {lie} above or at {lower:.15g}"
    elif lower is None:
        text = f"all inputs whose {entries} {lie} below or at {upper:.15g}"
    else:
        text = f"all inputs whose {entries} {lie} between {lower:.15g} and {upper:.15g}"
    if domain["kind"] == "ball":
        text = f"{text} (a box around a point)"
    elif domain["kind"] == "vnnlib":
        text = f"{text} (the input constraints of a VNN-LIB file)"
    if "mean" in domain:
        text = f"{text}, in raw units, before the normalisation (x - mean) / std"
    rows = sum(len(constraint["lower"]) for constraint in domain["constraints"])
    if rows:
        text = f"{text}, cut by {rows} linear {'constraint' if rows == 1 else 'constraints'}"
    return text


def _widest(lower: Any, upper: Any) -> str:
    """The ends of the widest range, outward in the last digit shown."""
    low, high = _flat(lower, -math.inf), _flat(upper, math.inf)
    count = max(len(low), len(high))
    low, high = (ends * count if len(ends) == 1 else ends for ends in (low, high))
    a, b = max(zip(low, high, strict=True), key=lambda ends: ends[1] - ends[0])
    return f"{at_least(a)} to {at_most(b)}"


def _flat(values: Any, endless: float) -> list[float]:
    if isinstance(values, list):
        return [number for value in values for number in _flat(value, endless)]
    return [endless if values is None else float(values)]


def hindrances(report: dict[str, Any]) -> list[str]:
    """Why a model came back as it was, or as something else, according to the JSON.

    >>> hindrances({"obstacle": None, "remark": "forward() holds a size"})
    ["What came back is no longer of the module's class: forward() holds a size"]
    """
    said = (
        ("obstacle", "Left as it is, since the model cannot say what would be left"),
        ("remark", "What came back is no longer of the module's class"),
    )
    return [f"{words}: {report[key]}" for key, words in said if report.get(key) is not None]


def verdict_words(stability: Stability) -> list[str]:
    """What is known about the neurons, and what is not."""
    total = sum(layer.size for layer in stability.layers)
    if not total:
        return ["The network has no ReLU, so there is nothing to decide."]
    stable = [
        (evidence, sum(_stable(stability, evidence, v) for v in (Verdict.ACTIVE, Verdict.INACTIVE)))
        for evidence in (Evidence.PROOF, Evidence.SOLVER, Evidence.DATA)
    ]
    proved = stable[0][1]
    first = (
        f"Of {_many(total, 'neuron')}, {proved:,} {_are(proved)} proved stable: "
        f"{_stable(stability, Evidence.PROOF, Verdict.ACTIVE):,} never negative before the ReLU, "
        f"{_stable(stability, Evidence.PROOF, Verdict.INACTIVE):,} never positive, for every input of the "
        "domain. The bounds behind this include the rounding of their own computation."
    )
    said = [first]
    unstable, unknown = stability.count(Verdict.UNSTABLE), stability.count(Verdict.UNKNOWN)
    if unstable:
        said.append(
            f"{unstable:,} {_are(unstable)} unstable: for each there is an input of the domain that switches "
            "it on and another that switches it off."
        )
    for (evidence, count), word in zip(
        stable[1:],
        ("on the word of a solver, true up to its tolerances", "because no row of the data contradicts it"),
        strict=True,
    ):
        if count:
            said.append(
                f"{count:,} {_are(count)} called stable only {word} (evidence {evidence.word}); that is not "
                "a proof."
            )
    if unknown:
        said.append(
            f"{unknown:,} {_are(unknown)} unknown: neither a proof nor a pair of inputs was found, so "
            "nothing is claimed about them."
        )
    if stability.interrupted:
        said.append("The analysis was interrupted; what was not decided by then is unknown.")
    return [" ".join(said)]


def _stable(stability: Stability, evidence: Evidence, verdict: Verdict) -> int:
    return sum(
        int(((layer.verdict == verdict) & (layer.evidence == evidence)).sum()) for layer in stability.layers
    )


def analysis_claim(stability: Stability) -> Claim:
    """For a report of an analysis alone."""
    inputs = stability.problem.network.input.size
    where = f"The domain is {domain_words(stability.domain.describe(), inputs)}."
    proof = all(
        int(((layer.evidence != Evidence.SOLVER) & (layer.evidence != Evidence.DATA)).sum()) == layer.size
        for layer in stability.layers
    )
    badge = "Every neuron decided" if stability.complete else "Partly decided"
    return Claim(
        badge if proof else "Not exact",
        proof,
        [*verdict_words(stability), f"{where} Outside of it nothing is promised."],
    )


def compression_claim(result: Compression) -> Claim:
    """For a report of a compression: what holds of the smaller network, where, and what is not promised."""
    deviation, inputs = result.deviation, result.original.input.size
    where = domain_words(result.stability.domain.describe(), inputs)
    tails = sorted({step.kind for output in result.original.outputs for step in output.tail})
    before = f" Outputs are compared before the final {', '.join(map(one_line, tails))}." if tails else ""
    if deviation.proven is None:
        why = (
            f"{result.original.dtype} cannot hold the numbers of the network"
            if result.evidence == "proof"
            else f"neurons were taken for stable on evidence that is no proof ({result.evidence})"
        )
        claim = (
            f"No deviation is proven, because {why}. How far the smaller network is from the original was "
            f"only observed, on some inputs. The domain is {where}."
        )
        return Claim("Not exact", False, [claim, *verdict_words(result.stability), *_observed(result)])
    if deviation.proven == 0:
        badge = "Proven equal"
        claim = (
            f"For {where}, the smaller network computes exactly what the original does: no kept weight was "
            "changed, and what was removed is proved to have no effect there."
        )
    else:
        badge = f"Proven within {at_most(deviation.proven)}"
        claim = (
            f"For {where}, no output of the smaller network is farther than {at_most(deviation.proven)} from "
            f"the original's. {_allowance(result)}"
        )
    meaning = (
        "These are statements about real arithmetic, with the weights of both files taken as the exact "
        f"numbers that they store.{before} They hold for the whole domain, not for a sample of it."
    )
    limits = (
        "Not promised: anything outside of the domain, and the rounding of the runtime that executes either "
        "network; that was observed instead."
    )
    return Claim(
        badge,
        True,
        [claim, *verdict_words(result.stability), f"{meaning} {limits}", *_observed(result)],
    )


def _allowance(result: Compression) -> str:
    if result.tolerance == "exact":
        return (
            "Nothing was given up for size: this is what rounding the re-written weights to "
            f"{result.original.dtype} can change at most."
        )
    if result.tolerance == "rounding":
        return (
            "The tolerance allowed for 2^-24 times the largest value that each output was seen to take, "
            "float32's unit roundoff."
        )
    return f"The tolerance allowed for {result.tolerance:g}."


def _observed(result: Compression) -> list[str]:
    deviation = result.deviation
    dtype = deviation.dtype.removesuffix("-check")
    if not (math.isfinite(deviation.observed) and math.isfinite(deviation.original_error)):
        return []
    most = "at most " if dtype == "float64" else ""
    gap = f"differed by up to {about(deviation.observed)}" if deviation.observed else "did not differ"
    text = (
        f"Computed in {dtype} on {_many(deviation.samples, 'input')}, the two networks {gap}; the original's "
        f"own rounding error there is {most}{about(deviation.original_error)}."
    )
    return [text]


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
