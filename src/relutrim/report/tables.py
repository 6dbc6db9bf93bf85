"""What a person sees on the terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from relutrim.errors import one_line
from relutrim.network.graph import Network
from relutrim.prove.verdict import Evidence, Verdict

if TYPE_CHECKING:  # these load torch, which ``relutrim inspect`` does without
    from relutrim.compression import Compression
    from relutrim.prove.stability import Stability

_WIDTH = 10_000
"""Wide enough that a file or a pipe gets every row on one line."""


def console() -> Console:
    """Standard output. Names come from files, so nothing in them is taken for markup."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return Console(
        width=None if terminal else _WIDTH,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def show_network(network: Network, console: Console) -> None:
    """The nodes of a network, one a line."""
    table = Table(_name("node"), "operator", "shape", _right("parameters"), show_edge=False)
    table.add_row(one_line(network.input.name), "input", _shape(network.input.shape), "")
    for node in network.nodes:
        count = node.operator.parameters
        table.add_row(
            one_line(node.name),
            node.operator.kind,
            _shape(network.shapes[node.name]),
            f"{count:,}" if count else "",
        )
    for output in network.outputs:
        tail = " -> ".join(step.kind for step in output.tail)
        table.add_row(
            one_line(output.name),
            f"output{f' ({tail})' if tail else ''}",
            _shape(network.shapes[output.source]),
            "",
        )
    console.print(table)
    console.print(
        f"{network.neurons:,} neurons, {network.connections:,} connections, "
        f"{network.parameters:,} parameters, {network.dtype}"
    )


def show_stability(stability: Stability, console: Console) -> None:
    """Verdicts per layer, and what they rest on."""
    table = Table(
        _name("layer"),
        *(_right(word) for word in ("neurons", "active", "inactive", "unstable", "unknown")),
        "rests on",
        show_edge=False,
    )
    for layer in stability.layers:
        counts = [
            layer.count(v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)
        ]
        rests = ", ".join(
            f"{number} {evidence.word}"
            for evidence in (Evidence.PROOF, Evidence.WITNESS, Evidence.SOLVER, Evidence.DATA)
            if (number := int((layer.evidence == evidence).sum()))
        )
        table.add_row(one_line(layer.name), str(layer.size), *map(str, counts), rests)
    console.print(table)
    console.print(str(stability))
    if stability.data_rows_outside:
        console.print(
            f"{stability.data_rows_outside} of {stability.data_rows} data rows do not provably "
            "lie in the domain and were passed over"
        )
    for remark in stability.remarks:
        console.print(one_line(remark))
    if stability.interrupted:
        console.print("interrupted: neurons that were not decided by then are unknown")


def show_compression(result: Compression, console: Console) -> None:
    """The analysis, the sizes before and after, the rewrites and the deviation."""
    show_stability(result.stability, console)
    console.print()
    before, after = result.original, result.stored
    table = Table("", _right("before"), _right("after"), _right("removed"), show_edge=False)
    for word, old, new in (
        ("neurons", before.neurons, after.neurons),
        ("connections", before.connections, after.connections),
        ("parameters", before.parameters, after.parameters),
        ("multiply-adds", before.multiply_adds, after.multiply_adds),
    ):
        same = (old, new) == (before.connections, after.connections)
        if word == "multiply-adds" and same and result.cost != word:
            continue  # so it is without scales
        table.add_row(word, f"{old:,}", f"{new:,}", f"{100 * (old - new) / old:.1f}%" if old else "")
    if after.zeros or before.zeros:
        table.add_row("zero weights", f"{before.zeros:,}", f"{after.zeros:,}", "")
    table.add_row("widths", "-".join(map(str, before.widths)), "-".join(map(str, after.widths)), "")
    console.print(table)
    for step in result.steps:
        where = f"{step.rewrite} at {step.node}" if step.node else step.rewrite
        console.print(
            f"  {one_line(where)}: {step.text}"
            + (f", deviation <= {step.deviation:.1e}" if step.deviation else "")
        )
    console.print()
    deviation = result.deviation
    if deviation.proven is None and result.evidence == "proof":
        console.print(
            f"NOT EXACT: no deviation is proven, since {before.dtype} cannot hold the numbers of the network"
        )
    elif deviation.proven is None:
        console.print(
            f"NOT EXACT: verdicts resting on {result.evidence} were used, so no deviation is proven"
        )
    elif deviation.proven == 0:
        console.print("proven deviation on the whole domain: 0 (no kept weight was changed)")
    else:
        console.print(
            f"proven deviation on the whole domain: {deviation.proven:.2e} (file), "
            f"{deviation.proven_float64:.2e} (float64)"
        )
    console.print(
        f"observed in {before.dtype} on {deviation.samples} inputs: {deviation.observed_float32:.2e} "
        f"(the original's own rounding error: {deviation.original_float32_error:.2e})"
    )
    if result.tolerance == "exact" and result.rewrites == "all" and deviation.proven is not None:
        more = result.at("rounding")
        if more.stored.connections < after.connections and more.deviation.proven is not None:
            share = 100 - 100 * more.stored.connections / before.connections
            console.print(
                f"--tolerance rounding would remove {share:.1f}% of the connections, with a proven deviation "
                f"of {more.deviation.proven:.2e}"
            )


def _name(word: str) -> Column:
    return Column(word, overflow="fold")


def _right(word: str) -> Column:
    return Column(word, justify="right")


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
