"""The network before and after, each layer a bar whose height is its number of neurons, all to one scale."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from relutrim.errors import one_line
from relutrim.graph.graph import Network
from relutrim.prove.stability import Stability
from relutrim.report.html.neuron_map import VERDICTS
from relutrim.report.html.numbers import middle_out

_HEIGHT = 180.0
_LEAST = 1.5
"""Less than this would not be seen."""
_BAR = 30
_TOP = 14
_FEW, _SOME = 5, 7
"""How many columns have room for long names in half of a page, and how many fit there at all."""


@dataclass(frozen=True)
class Bar:
    """One layer: its parts from the top (kind, y, height), and the outline of what it was."""

    name: str
    short: str
    size: int
    label: str
    x: float
    y: float
    height: float
    parts: list[tuple[str, float, float]] = field(default_factory=list)
    ghost: tuple[float, float] | None = None


@dataclass(frozen=True)
class Drawing:
    """A network: its bars, and the areas between them where values go from one to the next."""

    title: str
    bars: list[Bar]
    areas: list[str]
    width: float
    words: str
    chain: bool
    half: bool
    height: float = _TOP + _HEIGHT + 44
    bar: int = _BAR
    base: float = _TOP + _HEIGHT


def drawings(original: Network, stored: Network | None, stability: Stability) -> list[Drawing]:
    """The original, its bars split by verdict, and the stored network in the places of the original's
    layers.
    """
    largest = max(1, *original.widths, *(stored.widths if stored is not None else ()))
    scale = _HEIGHT / largest
    counts: dict[str | int, list[tuple[str, int]]] = {
        layer.name: [(verdict.word, layer.count(verdict)) for verdict in VERDICTS]
        for layer in stability.layers
    }
    found = [_drawing("Before" if stored is not None else "The network", original, scale, counts, None)]
    if stored is not None:
        found.append(_drawing("After", stored, scale, {}, original))
    return found


def _drawing(
    title: str,
    network: Network,
    scale: float,
    counts: dict[str | int, list[tuple[str, int]]],
    former: Network | None,
) -> Drawing:
    """A network's picture; with a ``former`` one, layers stand where they were, and what is gone is an
    outline.
    """
    sizes = _sizes(network)
    places = _sizes(former) if former is not None and sizes.keys() <= _sizes(former).keys() else sizes
    shapes: dict[str | int, tuple[int, ...]] = {r.name: network.shapes[r.name] for r in network.relus}
    step, longest = (104, 14) if len(places) <= _FEW else (70, 10)
    bars = []
    for column, (key, was) in enumerate(places.items()):
        size = sizes.get(key, 0)
        height = max(scale * size, _LEAST) if size else 0.0
        old = max(scale * was, _LEAST)
        x, middle = 24.0 + step * column, _TOP + _HEIGHT / 2
        name = one_line(key) if isinstance(key, str) else ("input", "output")[key]
        bars.append(
            Bar(
                name=name,
                short=middle_out(name, longest),
                size=size,
                label=_label(size, shapes.get(key)),
                x=x,
                y=middle - height / 2,
                height=height,
                parts=_parts(middle - height / 2, height, counts.get(key, [("plain", size)])),
                ghost=(middle - old / 2, old) if size != was else None,
            )
        )
    chain = _is_chain(network)
    there = [bar for bar in bars if bar.size]
    areas = [_area(a, b) for a, b in pairwise(there)] if chain else []
    words = ", ".join(f"{bar.name} {bar.size:,}" for bar in bars)
    wide = 48 + step * (len(bars) - 1) + _BAR
    return Drawing(title, bars, areas, wide, words, chain, len(bars) <= _SOME)


_INPUT, _OUTPUT = 0, 1
"""Keys that no node has: names are strings, and may be any."""


def _sizes(network: Network) -> dict[str | int, int]:
    widths = network.widths
    return {
        _INPUT: widths[0],
        **{relu.name: network.size(relu.name) for relu in network.relus},
        _OUTPUT: widths[-1],
    }


def _label(size: int, shape: tuple[int, ...] | None) -> str:
    if shape is not None and len(shape) > 1:
        return "×".join(map(str, shape))
    return f"{size:,}" if size else "gone"


def _parts(y: float, height: float, counts: list[tuple[str, int]]) -> list[tuple[str, float, float]]:
    total = sum(count for _, count in counts)
    parts = []
    for kind, count in counts:
        if count:
            own = height * count / total
            parts.append((kind, y, own))
            y += own
    return parts


def _area(left: Bar, right: Bar) -> str:
    x, end = left.x + _BAR, right.x
    corners = (
        (x, left.y),
        (end, right.y),
        (end, right.y + right.height),
        (x, left.y + left.height),
    )
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)


def _is_chain(network: Network) -> bool:
    """Whether values go from layer to layer and nowhere else; only then areas between bars tell the truth."""
    names = [network.input.name, *(node.name for node in network.nodes)]
    return all(len(node.inputs) == 1 for node in network.nodes) and all(
        len(network.readers(name)) + network.is_output(name) <= 1 for name in names
    )
