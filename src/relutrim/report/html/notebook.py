"""What notebooks show: a small fragment without scripts that takes the notebook's own colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from relutrim.errors import one_line
from relutrim.prove.verdict import Evidence
from relutrim.report.html import numbers
from relutrim.report.html.neuron_map import VERDICTS
from relutrim.report.html.page import environment
from relutrim.report.html.prose import hindrances

if TYPE_CHECKING:
    from relutrim.prove.stability import Stability
    from relutrim.result import Compression

_EVIDENCE = (Evidence.PROOF, Evidence.WITNESS, Evidence.SOLVER, Evidence.DATA)


def stability_fragment(stability: Stability) -> str:
    """Verdicts per layer and what they rest on."""
    rows = [
        (
            one_line(layer.name),
            layer.size,
            [layer.count(verdict) for verdict in VERDICTS],
            ", ".join(f"{n} {e.word}" for e in _EVIDENCE if (n := int((layer.evidence == e).sum()))),
        )
        for layer in stability.layers
    ]
    template = environment().get_template("stability.html")
    return template.render(rows=rows, words=[v.word for v in VERDICTS], summary=str(stability))


def compression_fragment(result: Compression) -> str:
    """The sizes, what is proven, and the verdicts."""
    before, after = result.original, result.stored
    sizes = [
        (word, old, new, numbers.removed(old, new))
        for word, old, new in (
            ("neurons", before.neurons, after.neurons),
            ("connections", before.connections, after.connections),
            ("parameters", before.parameters, after.parameters),
        )
    ]
    template = environment().get_template("compression.html")
    return template.render(
        sizes=sizes,
        widths=["-".join(map(str, network.widths)) for network in (before, after)],
        proven=result.deviation.proven,
        remarks=[
            one_line(text) for text in hindrances({"obstacle": result.obstacle, "remark": result.remark})
        ],
        verdicts=Markup(stability_fragment(result.stability)),
    )
