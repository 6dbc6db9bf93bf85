"""A section for a model card: what was done to a network, on which inputs that holds, and what is proven.

Written for readers of the model who do not know relutrim: where it says *proven*, it says of what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from relutrim._version import __version__
from relutrim.domain.domain import Domain
from relutrim.errors import one_line
from relutrim.graph.operators import Array
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.report.html.numbers import share

if TYPE_CHECKING:
    from relutrim.accuracy import Accuracy
    from relutrim.result import Compression


def model_card(
    result: Compression,
    before: dict[str, Any],
    after: dict[str, Any],
    command: str | None = None,
    accuracy: Accuracy | None = None,
) -> str:
    """Markdown, with a heading of the second level. ``before`` and ``after`` say where the files are (see
    :func:`relutrim.report.json.model_json`), ``command`` what was run, ``accuracy`` what data says.
    """
    made = (
        f"This network was made from {_file(before)} by relutrim {__version__}, which removes what a ReLU "
        "network does not need on a given set of inputs."
    )
    parts = [
        "## Compression",
        made,
        _promise(result),
        f"**Inputs**: {_domain(result.stability.domain)}. Nothing is promised for any other input.",
        _table(result, accuracy),
        _verdicts(result),
        _steps(result),
        f"Files: {_file(before)} before, {_file(after)} after."
        + (f" Made with:\n\n```console\n$ {one_line(command)}\n```" if command else ""),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _promise(result: Compression) -> str:
    proven = result.deviation.proven
    if proven is None and result.evidence == "proof":
        return (
            f"**Not exact.** No bound on the change of the outputs is proven, since {result.original.dtype} "
            "cannot hold the numbers of the network."
        )
    if proven is None:
        return (
            f"**Not exact.** Units were removed on evidence weaker than a proof ({result.evidence}), so "
            "outputs may differ for some inputs."
        )
    if proven == 0:
        return (
            "**Proven**: on every input below, every output is the same number as before, in real arithmetic "
            "with the weights as stored."
        )
    return (
        f"**Proven**: on every input below, no output (before any softmax or the like) differs from the "
        f"original's by more than {proven:.2e}, in real arithmetic with the weights as stored. In "
        f"{result.deviation.dtype.removesuffix('-check')} the largest difference seen on "
        f"{result.deviation.samples:,} inputs was {result.deviation.observed:.2e}; the original's own "
        f"rounding error there is {result.deviation.original_error:.2e}."
    )


def _domain(domain: Domain) -> str:
    if (domain.lo == -np.inf).all() and (domain.hi == np.inf).all():
        text = "every number, whatever it is"
    elif domain.lo.size == domain.hi.size == 1 or (_same(domain.lo) and _same(domain.hi)):
        text = f"every number between {_number(domain.lo.flat[0])} and {_number(domain.hi.flat[0])}"
    else:
        text = (
            f"a box with an interval of its own for each number, all between "
            f"{_number(domain.lo.min())} and {_number(domain.hi.max())}"
        )
    if domain.mean is not None and domain.std is not None:
        text += (
            f" before normalisation by mean {_some(domain.mean)} and standard deviation {_some(domain.std)}"
        )
    rows = sum(len(constraint.lower) for constraint in domain.constraints)
    return text + (f", subject to {rows} linear constraint{'s' * (rows != 1)}" if rows else "")


def _same(array: Array) -> bool:
    return bool(array.size) and bool((array == array.flat[0]).all())


def _number(value: float) -> str:
    """Short where that is exact."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))


def _some(array: Array) -> str:
    flat = np.unique(array.reshape(-1)) if array.size > 16 else array.reshape(-1)
    shown = ", ".join(_number(number) for number in flat[:16])
    return f"{shown}, ..." if flat.size > 16 else shown


def _table(result: Compression, accuracy: Accuracy | None) -> str:
    before, after = result.original, result.stored
    lines = ["| | before | after |", "|---|---|---|"]
    lines += [
        f"| {word} | {old:,} | {new:,} |"
        for word, old, new in (
            ("neurons", before.neurons, after.neurons),
            ("connections", before.connections, after.connections),
            ("parameters", before.parameters, after.parameters),
        )
    ]
    widths = ("-".join(map(str, network.widths)) for network in (before, after))
    lines.append(f"| widths | {' | '.join(widths)} |")
    if accuracy is not None:
        shares = f"{share(accuracy.before)} | {share(accuracy.after)}"
        lines.append(f"| accuracy ({accuracy.dtype}, {accuracy.rows:,} rows) | {shares} |")
    return "\n".join(lines)


def _verdicts(result: Compression) -> str:
    layers = result.stability.layers
    off, on = (
        sum(len(layer.which(verdict, Evidence.PROOF)) for layer in layers)
        for verdict in (Verdict.INACTIVE, Verdict.ACTIVE)
    )
    both, unknown = (result.stability.count(verdict) for verdict in (Verdict.UNSTABLE, Verdict.UNKNOWN))
    total = sum(layer.size for layer in layers)
    told = total - off - on - both - unknown
    return (
        f"Of {total:,} neurons, {off:,} are proven to be 0 on all of these inputs, {on:,} to be linear on "
        f"all of them, and {both:,} are neither."
        + (f" {told:,} were taken for one or the other on weaker evidence." if told else "")
        + (f" {unknown:,} were not decided, and were kept." if unknown else "")
    )


def _steps(result: Compression) -> str:
    named = [
        (f"{step.rewrite} at {step.node}" if step.node else step.rewrite, step.text) for step in result.steps
    ]
    return "\n".join(f"- {one_line(name)}: {one_line(text)}" for name, text in named)


def _file(model: dict[str, Any]) -> str:
    path, digest = model["path"], model["sha256"]
    name = "a network" if path is None else f"`{one_line(path.replace('`', ' ')).rpartition('/')[2]}`"
    return name if digest is None else f"{name} (SHA-256 `{digest}`)"
