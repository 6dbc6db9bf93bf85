"""What a person sees on the terminal."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from relutrim.errors import one_line
from relutrim.graph import Fresh
from relutrim.graph.graph import Network
from relutrim.prove.verdict import Evidence, Verdict

if TYPE_CHECKING:  # these load torch, which ``relutrim inspect`` does without
    from relutrim.accuracy import Accuracy
    from relutrim.holdout import Holdout
    from relutrim.latency import Latency
    from relutrim.prove.stability import LayerStability, Stability
    from relutrim.result import Compression, Deviation
    from relutrim.rewrite.pipeline import Rewritten

_GOOD, WARNING = "green", "bold red"
_WIDTH = 10_000
"""Wide enough that a file or a pipe gets every row on one line."""
_LOOK = 0.5
"""Seconds for looking at outputs."""
_MOST_WIDTHS = 14
"""Of more layers than this a table shows the first and the last."""
_FEW = 5
"""How many names are listed unless more are asked for."""


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


def show_network(
    network: Network, console: Console, constants: Sequence[str] = (), *, more: bool = False
) -> None:
    """The size of a network, its nodes, one a line, which inputs of its file are ``constants``, and with
    ``more`` what else its file says.
    """
    console.print(
        f"{_widths(network)}: {network.neurons:,} neurons, {network.connections:,} "
        f"connections, {network.parameters:,} parameters, {network.dtype}",
        style="bold",
    )
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
    if constants:
        named = [one_line(name) for name in (constants if more else constants[:_FEW])]
        others = len(constants) - len(named)
        console.print(
            f"inputs that count as constants, since the file stores values for them: {len(constants):,} "
            f"({', '.join(named)}{f' and {others:,} more' if others else ''})",
            soft_wrap=True,
        )
    unknown = [node for node in network.nodes if isinstance(node.operator, Fresh)]
    if unknown or network.pinned:
        console.print(
            f"{len(unknown):,} values come from what relutrim does not know; {len(network.pinned):,} that it "
            "reads must stay as they are"
        )
    if more:
        console.print(f"{len(network.unread_inputs):,} of {network.input.size:,} inputs are not read")
        console.print(f"{network.zeros:,} weights are 0")
        for key, value in network.metadata.items():
            console.print(f"metadata: {one_line(key)} = {one_line(value)}", soft_wrap=True)


def show_stability(stability: Stability, console: Console, holdout: Holdout | None = None) -> None:
    """How many neurons have which verdict, then per layer, and what that rests on."""
    console.print(str(stability), style="bold")
    table = Table(
        _name("layer"),
        *(_right(word) for word in ("neurons", "active", "inactive", "unstable", "unknown")),
        "rests on",
        show_edge=False,
    )
    spatial = any(layer.channels is not None for layer in stability.layers)
    if spatial:
        table.add_column("channels")
    for layer in stability.layers:
        counts = [
            layer.count(v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)
        ]
        rests = ", ".join(
            f"{number} {evidence.word}"
            for evidence in (Evidence.PROOF, Evidence.WITNESS, Evidence.SOLVER, Evidence.DATA)
            if (number := int((layer.evidence == evidence).sum()))
        )
        table.add_row(
            one_line(layer.name),
            str(layer.size),
            *map(str, counts[:-1]),
            Text(str(counts[-1]), style="yellow" if counts[-1] else ""),
            rests,
            *([_channels(layer)] if spatial else []),
        )
    console.print(table)
    if stability.data_rows_outside:
        console.print(
            f"{stability.data_rows_outside} of {stability.data_rows} data rows do not provably "
            "lie in the domain and were passed over"
        )
    if holdout is not None:
        share = "" if holdout.share is None else f" ({100 * holdout.share:.2f}%)"
        console.print(
            f"NOT EXACT: of {holdout.stable} neurons that the data leaves stable, "
            f"{holdout.contradicted}{share} are not on {holdout.rows} held-out rows",
            style=WARNING,
        )
    for remark in stability.remarks:
        console.print(one_line(remark))
    if stability.interrupted:
        console.print("interrupted: neurons that were not decided by then are unknown", style=WARNING)


def show_compression(
    result: Compression,
    console: Console,
    latency: Latency | None = None,
    holdout: Holdout | None = None,
    accuracy: Accuracy | None = None,
) -> None:
    """What came out in one line, then the analysis, the sizes before and after, the rewrites, the deviation
    and the latency.
    """
    console.print(_headline(result), style="bold")
    show_stability(result.stability, console, holdout)
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
    positions = any(len(before.shapes[relu.name]) > 1 for relu in before.relus)
    table.add_row("channels" if positions else "widths", _widths(before), _widths(after), "")
    console.print(table)
    if result.remark is not None:
        console.print(f"no longer of the module's class: {one_line(result.remark)}", soft_wrap=True)
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
            f"NOT EXACT: no deviation is proven, since {before.dtype} cannot hold the numbers of the network",
            style=WARNING,
        )
    elif deviation.proven is None:
        console.print(
            f"NOT EXACT: verdicts resting on {result.evidence} were used, so no deviation is proven",
            style=WARNING,
        )
    elif deviation.proven == 0:
        console.print("proven deviation on the whole domain: 0 (no kept weight was changed)", style=_GOOD)
    else:
        console.print(
            f"proven deviation on the whole domain: {deviation.proven:.2e} (file), "
            f"{deviation.proven_float64:.2e} (float64)",
            style=_GOOD,
        )
    if deviation.proven_float32 and deviation.proven_float32 < _largest(result):
        console.print(
            "as both run in float32, whatever the order of summation: no output differs by more than "
            f"{deviation.proven_float32:.2e} (proven)"
        )
    if result.left_out is not None and not result.unchanged:
        console.print(f"left out: {_left_out(result)}")
    _show_observed(deviation, console)
    if accuracy is not None:
        console.print(
            f"accuracy in {accuracy.dtype} on {accuracy.rows:,} rows of the data: {_share(accuracy.before)} "
            f"before, {_share(accuracy.after)} after"
        )
    if after.unread_inputs:
        console.print(
            f"{len(after.unread_inputs)} of {after.input.size} inputs are not read "
            f"({len(before.unread_inputs)} before); the network still takes them"
        )
    if latency is not None:
        _show_latency(latency, console)
    if result.stability.spared:
        console.print(
            f"{result.stability.spared:,} channels, or units that are read one by one, of this large network "
            "might still go; they were left at what linear bounds say (--time-limit none)",
            style="yellow",
        )
    elif result.time_was_up:
        count = result.stability.count(Verdict.UNKNOWN)
        console.print(
            f"time was up with {count:,} neurons undecided; more may decide them (--time-limit S, or none)",
            style="yellow",
        )


def show_suggestion(result: Compression, more: Rewritten | None, console: Console, *, late: bool) -> None:
    """What the tolerance ``rounding`` would remove: ``more``, all there was time for if it is ``late``."""
    if more is None and late:
        console.print(
            "there was no time left to tell what --tolerance rounding would remove (--time-limit S, or none)",
            style="yellow",
        )
        return
    if not result.stability.domain.bounded:
        console.print("--tolerance rounding is for bounded domains")
        return
    if more is None:
        console.print("--tolerance rounding would remove nothing more")
        return
    share = 100 - 100 * more.stored.connections / result.original.connections
    console.print(
        f"--tolerance rounding would remove {share:.1f}% of the connections, with a proven deviation of "
        f"{more.deviation_stored:.2e}"
    )


def _headline(result: Compression) -> str:
    """What went, and what is promised."""
    before, after, proven = result.original, result.stored, result.deviation.proven
    if proven is None:
        promise = "NOT EXACT: nothing is proven about the outputs"
    elif proven == 0:
        promise = "every output is the same on the whole domain (proven)"
    else:
        promise = f"no output moves by more than {proven:.2e} on the whole domain (proven)"
    gone = before.parameters - after.parameters
    if result.unchanged:
        return f"{_why_unchanged(result)}; the model comes back as it was (deviation 0)"
    if not gone and before.neurons == after.neurons:
        return f"nothing to remove; {promise}"
    share = f"{100 * gone / before.parameters:.1f}% of the parameters" if before.parameters else "nothing"
    return f"{before.neurons - after.neurons:,} of {before.neurons:,} neurons and {share} removed; {promise}"


def _largest(result: Compression) -> float:
    """The largest value that an output was seen to take: what may differ by more is not worth a line. Where
    the tolerance did not go by that, some inputs are looked at.
    """
    if isinstance(result.tolerance, str):
        return (result.allowed or 0.0) * 2.0**24
    from relutrim.observe import largest_outputs
    from relutrim.prove.deadline import Deadline

    network = result.original
    seen = largest_outputs(network, result.stability, None, Deadline(_LOOK))
    count = sum(network.size(source) for source in {output.source for output in network.outputs})
    return float(seen[:count].max()) if count else 0.0


def _why_unchanged(result: Compression) -> str:
    """Why nothing was removed."""
    if result.obstacle is not None:
        return f"left as it is, since the model cannot say what would be left: {one_line(result.obstacle)}"
    return "nothing to remove" if result.left_out is None else f"left as it is: {_left_out(result)}"


def _left_out(result: Compression) -> str:
    """What did not fit."""
    left, before = result.left_out, result.original.parameters
    assert left is not None
    moves = (
        f"an output could move by {left.worst:.2e}"
        if math.isfinite(left.deviation)
        else "nothing could be proved"
    )
    share = f"{100 * (before - left.parameters) / before:.1f}%" if before else "more"
    return (
        f"with {share} of the parameters removed {moves}, and --tolerance {result.tolerance} allows "
        f"{'it ' if left.allowed < (result.allowed or 0) else ''}{left.allowed:.2e}"
    )


def _channels(layer: LayerStability) -> str:
    """How many channels are active or inactive at every position."""
    found = layer.channels
    if found is None:
        return ""
    words = ((found.active, "active"), (found.inactive, "inactive"), (found.mixed, "mixed"))
    return ", ".join(f"{number} {word}" for number, word in words if number)


def _show_observed(deviation: Deviation, console: Console) -> None:
    """What a search found, and what rounding makes of both networks."""
    if deviation.proven != 0:
        console.print(f"largest deviation that a search found: {deviation.found:.2e}")
    dtype = deviation.dtype.removesuffix("-check")
    most = "at most " if dtype == "float64" else ""
    if math.isnan(deviation.observed):
        console.print(f"nothing was observed in {dtype}: no output could be computed here as a number")
        return
    console.print(
        f"observed in {dtype} on {deviation.samples} inputs: {deviation.observed:.2e} "
        f"(the original's own rounding error: {most}{deviation.original_error:.2e})"
    )
    seen = deviation.predictions
    if seen is not None and (dtype == "bfloat16" or min(seen.original, seen.compressed, seen.agree) < 1):
        console.print(
            f"predictions in {dtype} on {seen.inputs} {'rows of the data' if seen.from_data else 'inputs'}: "
            f"{_share(seen.agree)} the same before and after; {_share(seen.original)} before and "
            f"{_share(seen.compressed)} after are those of the original in float64"
        )


def _show_latency(latency: Latency, console: Console) -> None:
    """The file's size and onnxruntime's times."""
    if latency.bytes_before is not None and latency.bytes_after is not None:
        console.print(f"ONNX file: {latency.bytes_before:,} bytes before, {latency.bytes_after:,} after")
    if latency.remark is not None:
        console.print(f"latency: not measured; {latency.remark}")
        return
    times = "; ".join(
        f"{'one input' if timing.inputs == 1 else f'{timing.inputs} inputs'} "
        f"{timing.before_us:,.0f} us before, {timing.after_us:,.0f} us after"
        for timing in latency.timings
    )
    console.print(f"latency: {times} ({latency.runtime}, one thread, medians)")


def _share(part: float) -> str:
    """A percentage that says 100 only where nothing is missing."""
    return "100%" if part == 1 else f"{min(100 * part, 99.99):.2f}%"


def _name(word: str) -> Column:
    return Column(word, overflow="fold")


def _right(word: str) -> Column:
    return Column(word, justify="right")


def _widths(network: Network) -> str:
    """The sizes of the input, the layers of neurons and the output; channels where there are positions. The
    middle of a long list is left out.
    """
    names = [network.input.name, *(relu.name for relu in network.relus)]
    shapes = [network.input.shape, *(network.shapes[name] for name in names[1:])]
    sizes = [str(shape[0] if len(shape) > 1 else math.prod(shape)) for shape in shapes]
    sizes.append(str(network.widths[-1]))
    if len(sizes) > _MOST_WIDTHS:
        half = _MOST_WIDTHS // 2
        sizes = [*sizes[:half], "...", *sizes[-half:]]
    return "-".join(sizes)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
