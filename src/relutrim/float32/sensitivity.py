"""How far an output moves at most if an entry of a value moves by 1, with what cancels along the way.

As in :mod:`relutrim.rewrite.gains`, ``J = W_n D W_(n-1) D ... W`` with a number from [0, 1] per ReLU is
pulled back node by node. Here a row of ``J`` is a zonotope, ``C + sum_k e_k G_k +- R`` with ``e_k`` in
[-1, 1]: what an uncertain slope does to one entry goes on with its sign, so it cancels where the weights do.
For an entry ``m`` in ``[C - r, C + r]`` (``r`` is ``sum |G_k| + R``) and any ``d`` in [0, 1]

    d m  =  c + l (m - C)  +-  max(|C - c| + (1 - l) r,  |c| + l r)

for every ``c`` and ``l``, since the left side less ``c + l (m - C)`` is bilinear, hence largest at an end of
both ranges. Where the sign of ``m`` is open, ``c = C`` and ``l = (r - |C|) / 2r``; where it is not, ``c`` is
half of the largest ``m`` and ``l`` is 0. The maximum is ``(|C| + r) / 2`` then, and ``d m`` stays in the hull
of 0 and ``[C - r, C + r]``.

A new generator per uncertain neuron takes memory; where there is no room for it, its part goes to ``R``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from relutrim.float32.norms import largest_sum
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Affine, MaxPool, Relu
from relutrim.intervals import flat
from relutrim.memory import AMPLE, MemoryBudget
from relutrim.rewrite.gains import adjoint_spread
from relutrim.rounding import ETA
from relutrim.rounding import gamma as gamma64

_BYTES = 64 * 2**20
"""What the generators of one value may take at most."""
_PRODUCTS = 2**31
"""How many products pulling the generators through one node may take."""
_ROUNDED = 2.0**-46
"""Pays for a few float64 roundings, relative to the magnitudes that take part."""


@dataclass(frozen=True, eq=False)
class Slopes:
    """Per ReLU, the entries whose slope is certainly 1, and those whose slope is certainly 0: booleans
    (1, *shape).
    """

    one: Mapping[str, Tensor]
    zero: Mapping[str, Tensor]
    memory: MemoryBudget = AMPLE

    @property
    def room(self) -> int:
        """What the generators of one value may take."""
        return self.memory.share(_BYTES)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of ``J`` over one value: the middle (rows, *shape), generators by the ReLU that made them (rows,
    k, *shape), and the radius.
    """

    middle: Tensor
    generators: Mapping[str, Tensor]
    radius: Tensor

    @property
    def around(self) -> Tensor:
        """How far from the middle."""
        spread = sum((g.abs().sum(1) for g in self.generators.values()), torch.zeros_like(self.radius))
        return (spread * (1 + 2.0**-20) + self.radius) * (1 + 2.0**-50)

    @property
    def size(self) -> Tensor:
        """The largest magnitudes."""
        return (self.middle.abs() + self.around) * (1 + 2.0**-40)

    @property
    def count(self) -> int:
        """How many generators."""
        return sum(g.shape[1] for g in self.generators.values())

    def largest_sums(self, weights: Tensor) -> Tensor:
        """Per row, at least ``sum_i w_i |m_i|`` for every ``m`` in the zonotope and weights ``w >= 0``."""
        fixed = flat((self.middle.abs() + self.radius) * weights).sum(1)
        for generator in self.generators.values():
            weighed = (generator * weights).reshape(*generator.shape[:2], weights.numel())
            fixed = fixed + largest_sum(weighed) + weighed[0].numel() * ETA
        return (fixed + weights.numel() * ETA) * (1 + 2.0**-20)

    def flattened(self) -> Rows:
        """The same with all generators in the radius."""
        return Rows(self.middle, {}, self.around) if self.generators else self

    def fits(self, room: int, numbers: int, more: int = 0) -> bool:
        """Whether there is room for the generators over a value of so many numbers."""
        return 8 * len(self.middle) * (self.count + more) * numbers <= room

    def __add__(self, other: Rows) -> Rows:
        middle = self.middle + other.middle
        joined = dict(self.generators)
        for name, generator in other.generators.items():
            joined[name] = joined[name] + generator if name in joined else generator
        rounded = _ROUNDED * (self.size + other.size)
        return Rows(middle, joined, (self.radius + other.radius) * (1 + 2.0**-40) + rounded)


def sensitivities(
    network: Network,
    slopes: Slopes,
    wanted: frozenset[str],
    outputs: tuple[int, int],
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[str, Rows, Rows | None]]:
    """For each wanted node, from the last to the first, how far each output from the first up to the second
    number moves at most. The outputs are the entries of all sources, one after the other.

    Where nothing but one ReLU reads the node, with the rows over that ReLU's value, before its slopes.

    Ends early once ``stopped`` says so.
    """
    needed = _leading_to(network, wanted)
    waiting = _units(network, *outputs)
    behind: dict[str, Rows] = {}
    for node in reversed(network.nodes):
        if node.name not in waiting or node.name not in needed:
            continue
        if stopped():
            return
        rows = waiting.pop(node.name)
        if node.name in wanted:
            yield node.name, rows, behind.pop(node.name, None)
        if isinstance(node.operator, Relu) and _only_reader(network, node):
            behind[node.inputs[0]] = rows
        if not any(name in needed for name in node.inputs):
            continue
        for name, pulled in zip(node.inputs, _pulled(network, node, rows, slopes), strict=True):
            waiting[name] = waiting[name] + pulled if name in waiting else pulled


def _only_reader(network: Network, node: Node) -> bool:
    source = node.inputs[0]
    return len(network.readers(source)) == 1 and not network.is_output(source)


def _leading_to(network: Network, wanted: frozenset[str]) -> set[str]:
    """Values that are wanted or made from one that is."""
    needed = set(wanted)
    for node in network.nodes:
        if any(name in needed for name in node.inputs):
            needed.add(node.name)
    return needed


def _units(network: Network, first: int, last: int) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    start = 0
    for source in network.sources:
        size = network.size(source)
        places = torch.arange(first, last)[:, None] == torch.arange(start, start + size)[None]
        unit = places.to(torch.float64).reshape(last - first, *network.shapes[source])
        found[source] = Rows(unit, {}, torch.zeros_like(unit))
        start += size
    return found


def _pulled(network: Network, node: Node, rows: Rows, slopes: Slopes) -> list[Rows]:
    operator = node.operator
    if isinstance(operator, Affine):
        return _through_affine(network, node, operator, rows, slopes.room)
    if isinstance(operator, Relu):
        one, zero = slopes.one[node.name], slopes.zero[node.name]
        return [_scaled(rows, one, zero, node.name, slopes.room)]
    assert isinstance(operator, MaxPool)
    # Each entry of a window counts with some share from [0, 1].
    none = torch.zeros(1, dtype=torch.bool)
    shape = network.shapes[node.inputs[0]]
    shared = _scaled(rows, none, none, None, slopes.room)
    if not shared.fits(slopes.room, network.size(node.inputs[0])):
        shared = shared.flattened()
    rounded = gamma64(operator.overlap(shape)) * shared.size

    def window(forms: Tensor) -> Tensor:
        return operator.to_window(forms, shape)

    generators = {name: _each(g, window) for name, g in shared.generators.items()}
    radius = window(shared.radius + rounded) * (1 + 2.0**-30)
    return [Rows(window(shared.middle), generators, radius)]


def _through_affine(network: Network, node: Node, operator: Affine, rows: Rows, room: int) -> list[Rows]:
    shapes = [network.shapes[name] for name in node.inputs]
    products = len(rows.middle) * rows.count * operator.multiply_adds(network.size(node.name))
    if products > _PRODUCTS or not rows.fits(room, max(map(network.size, (*node.inputs, node.name)))):
        rows = rows.flattened()
    middles = operator.adjoint(rows.middle, shapes)
    radii = adjoint_spread(operator, rows.size, rows.radius, shapes)
    # What rounds in the generators' products is charged with the middle's, as the size holds both; what
    # underflows there is charged here.
    lost = rows.count * operator.terms(shapes) * ETA
    found = [Rows(middle, {}, radius + lost) for middle, radius in zip(middles, radii, strict=True)]
    for name, generator in rows.generators.items():
        count, k = generator.shape[:2]
        if not k:
            continue
        parts = operator.adjoint(generator.flatten(0, 1), shapes)
        for at, part in enumerate(parts):
            own = part.reshape(count, k, *shapes[at])
            found[at] = Rows(found[at].middle, {**found[at].generators, name: own}, found[at].radius)
    return found


def _each(generator: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    count, k = generator.shape[:2]
    made = function(generator.flatten(0, 1))
    return made.reshape(count, k, *made.shape[1:])


def _scaled(rows: Rows, one: Tensor, zero: Tensor, name: str | None, room: int) -> Rows:
    """Each entry times a number from [0, 1]: certainly 1, certainly 0, or any. With a name, what is new
    becomes generators of that name.
    """
    middle, around = rows.middle, rows.around
    size = rows.size
    known = middle.abs() >= around
    share = ((around - middle.abs()) / (2 * around)).nan_to_num(0.0).clamp(0, 1)
    share = torch.where(known, 0.0, share)
    centre = torch.where(known, middle.sign() * (size / 2), middle)
    fresh = torch.maximum((middle - centre).abs() + (1 - share) * around, centre.abs() + share * around)
    fresh = fresh + _ROUNDED * size + ETA * (size != 0).to(size)
    share = torch.where(one, 1.0, torch.where(zero, 0.0, share))
    centre = torch.where(one, middle, torch.where(zero, 0.0, centre))
    fresh = torch.where(one | zero, 0.0, fresh)
    # Products with a share may underflow, one for each generator.
    radius = share * rows.radius + torch.where(one | zero, 0.0, ETA * (rows.count + 1.0))
    generators = {other: g * share[:, None] for other, g in rows.generators.items()}
    open_ = (~(one | zero)).expand(1, *middle.shape[1:])[0].flatten().nonzero()[:, 0]
    if name is None or not rows.fits(room, middle[0].numel(), len(open_)):
        return Rows(centre, generators, radius + fresh)
    new = torch.zeros(len(middle), len(open_), middle[0].numel(), dtype=middle.dtype)
    new[:, torch.arange(len(open_)), open_] = flat(fresh)[:, open_]
    generators[name] = new.reshape(len(middle), len(open_), *middle.shape[1:])
    return Rows(centre, generators, radius)
