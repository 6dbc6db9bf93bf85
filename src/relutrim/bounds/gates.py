"""Gates: sums of ReLUs of one value, such as ``clip(x, 0, 6) = relu(x) - relu(x - 6)``, bounded as one.

The interval of a sum takes its terms for independent, and what it gives away grows with depth. A gate is a
value that is computed entry by entry from one other value ``y``, through ReLUs, scales and sums alone:

    f(y) = a y + b + sum_i c_i relu(s_i y + t_i)

It is piecewise linear, so on a range it is least and largest at an end, or at a kink ``-t_i / s_i`` within.

**Rounding.** Every coefficient is a pair of ends, because a scale may be known up to a radius only, and every
operation rounds outwards: a sum where its rounding error (Knuth's TwoSum) says that it rounds, a product
unless a factor is 0, 1 or -1. So what is exact stays exact: the largest value of ``clip(x, 0, 6)`` is 6.

**Infinite ends.** At an end each ReLU is known to be on or off, and those that are on are summed before they
are multiplied: ``relu(y) - relu(y - 6)`` is ``0 y + 6`` there, and 0 times infinity is 0. Where nothing is
known of ``y`` (NaN), its range is all real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Add, Relu, Scale
from relutrim.intervals import Interval

_MOST_NODES = 32
"""A gate is computed by no more nodes than these."""
_MOST_TERMS = 8
"""And has no more ReLUs than these."""


@dataclass(frozen=True, eq=False)
class Term:
    """``c relu(s y + t)``, with ``c s`` and ``c t``; ``before`` is the value that this ReLU reads.

    ``kink`` is where ``s y + t`` is 0 (no number where ``s`` is 0), and ``value`` is what the gate is there.
    """

    before: str
    factor: Interval
    scale: Interval
    shift: Interval
    scaled: Interval
    shifted: Interval
    kink: Interval
    value: Interval


@dataclass(frozen=True, eq=False)
class Gate:
    """A value as a piecewise linear function of the value ``source``. All coefficients broadcast.

    ``nodes`` are those between the two in their order, the last one included, and ``steepness`` is no less
    than the magnitude of any slope.
    """

    source: str
    slope: Interval
    offset: Interval
    terms: tuple[Term, ...]
    nodes: tuple[Node, ...]
    steepness: Tensor

    def range(self, values: Mapping[str, Interval]) -> Interval:
        """The hull of the function over what is known of its argument."""
        y = self._argument(values)
        ends = torch.stack([y.lo, y.hi])
        found = _at(self.slope, self.offset, self.terms, Interval(ends, ends))
        lo, hi = found.lo.amin(0), found.hi.amax(0)
        for term in self.terms:
            kink, value = _beside(term.kink, lo), _beside(term.value, lo)
            within = (kink.hi >= y.lo) & (kink.lo <= y.hi)
            lo, hi = (
                torch.where(within, lo.minimum(value.lo), lo),
                torch.where(within, hi.maximum(value.hi), hi),
            )
        return _known(Interval(lo, hi))

    def _argument(self, values: Mapping[str, Interval]) -> Interval:
        """What is known of ``y``, which may be more for ``y + t`` or ``t - y``."""
        y = _known(values[self.source])
        for term in self.terms:
            if term.before == self.source or not _is_unit(term.scale) or not _is_exact(term.shift):
                continue
            scale, shift = _beside(term.scale, y.lo), _beside(term.shift, y.lo)
            y = y.meet(_times(scale, _plus(_known(values[term.before]), _minus(shift))))
        return y


def gates(network: Network) -> Mapping[str, Gate]:
    """The gates of a network by the names of their values, found once."""
    found = _FOUND.get(network)
    if found is None:
        found = _FOUND[network] = _gates(network)
    return found


_FOUND: WeakKeyDictionary[Network, dict[str, Gate]] = WeakKeyDictionary()


def _gates(network: Network) -> dict[str, Gate]:
    """Sums that close a gate, and exact scales of such sums."""
    order = {node.name: number for number, node in enumerate(network.nodes)}
    found: dict[str, Gate] = {}
    for node in network.nodes:
        if isinstance(node.operator, Add):
            source = _source(network, node, order)
        elif isinstance(node.operator, Scale) and node.operator.exact and node.inputs[0] in found:
            source = found[node.inputs[0]].source
        else:
            continue
        gate = None if source is None else _gate(network, node, source)
        if gate is not None:
            found[node.name] = gate
    return found


def _source(network: Network, node: Node, order: Mapping[str, int]) -> str | None:
    """The nearest value that every way to a node leads through, if only ReLUs, scales and sums follow."""
    waiting, seen = {*node.inputs}, 0
    while len(waiting) > 1:
        last = max(waiting, key=lambda name: order.get(name, -1))
        before = network.get(last)
        seen += 1
        if before is None or not isinstance(before.operator, Add | Relu | Scale) or seen > _MOST_NODES:
            return None
        waiting.remove(last)
        waiting.update(before.inputs)
    return next(iter(waiting), None)


@dataclass(frozen=True, eq=False)
class _Form:
    """``a y + b + sum_i c_i r_i`` for ReLUs ``r_i`` by their names."""

    slope: Interval
    offset: Interval
    factors: Mapping[str, Interval]

    def map(self, change: Callable[[Interval], Interval], offset: Interval) -> _Form:
        """The form with every coefficient changed, and with another offset."""
        return _Form(change(self.slope), offset, {n: change(one) for n, one in self.factors.items()})

    def plus(self, other: _Form) -> _Form:
        """Their sum."""
        factors = dict(self.factors)
        for name, one in other.factors.items():
            factors[name] = _plus(factors[name], one) if name in factors else one
        return _Form(_plus(self.slope, other.slope), _plus(self.offset, other.offset), factors)


def _gate(network: Network, node: Node, source: str) -> Gate | None:
    """A node's value as a function of another one; None where a ReLU reads another of them, or none is
    left.
    """
    form = _form(network, node.name, {source: _Form(_point(1.0), _point(0.0), {})})
    if form is None or not form.factors or len(form.factors) > _MOST_TERMS:
        return None
    inner: dict[str, _Form] = {}
    for name in form.factors:
        before = _form(network, network[name].inputs[0], {source: _Form(_point(1.0), _point(0.0), {})})
        if before is None or before.factors:
            return None
        inner[name] = before
    terms = [_term(network[name].inputs[0], factor, inner[name]) for name, factor in form.factors.items()]
    found = tuple(_with_values(form, terms))
    between = _between(network, source, node)
    return Gate(source, form.slope, form.offset, found, between, _steepness(form.slope, found))


def _between(network: Network, source: str, last: Node) -> tuple[Node, ...]:
    """The nodes of a gate in their order."""
    needed, waiting = {source}, [last.name]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += network[name].inputs
    return tuple(node for node in network.nodes if node.name in needed and node.name != source)


def _steepness(slope: Interval, terms: tuple[Term, ...]) -> Tensor:
    """Every piece of the function has a kink or infinity beside it, where a ReLU is on, off, or either."""
    endless = (_point(-math.inf), _point(math.inf))
    most = torch.zeros((), dtype=torch.float64)
    for y in (*endless, *(term.kink for term in terms)):
        total = slope
        for term in terms:
            before = _known(_plus(_times(term.scale, y), term.shift))
            least, greatest = term.scaled.lo.clamp(max=0), term.scaled.hi.clamp(min=0)
            either = _where(before.lo > 0, term.scaled, Interval(least, greatest))
            none = Interval(torch.zeros_like(least), torch.zeros_like(least))
            total = _plus(total, _where(before.hi < 0, none, either))
        most = most.maximum(_known(total).magnitude)
    return most


def _form(network: Network, name: str, known: dict[str, _Form]) -> _Form | None:
    """A value as a sum of ReLUs and of what is known; None where it is anything else."""
    if name in known:
        return known[name]
    node = network.get(name)
    if node is None or not isinstance(node.operator, Add | Relu | Scale):
        return None
    if isinstance(node.operator, Relu):
        made = _Form(_point(0.0), _point(0.0), {name: _point(1.0)})
    else:
        read = [_form(network, one, known) for one in node.inputs]
        if any(one is None for one in read):
            return None
        forms = [one for one in read if one is not None]
        made = forms[0]
        if isinstance(node.operator, Scale):
            made = _scaled(made, node.operator)
        else:
            for other in forms[1:]:
                made = made.plus(other)
    known[name] = made
    return made


def _scaled(form: _Form, operator: Scale) -> _Form:
    """``scale * form + shift``, both numbers within their radii."""
    scale, shift = (
        _around(torch.tensor(value), torch.tensor(radius))
        for value, radius in (
            (operator.scale, operator.scale_radius),
            (operator.shift, operator.shift_radius),
        )
    )
    return form.map(lambda one: _times(scale, one), _plus(_times(scale, form.offset), shift))


def _term(before: str, factor: Interval, inner: _Form) -> Term:
    """A ReLU of ``s y + t``, without the gate's value at its kink."""
    scale, shift = inner.slope, inner.offset
    nothing = _point(0.0)
    kink = _quotient(_minus(shift), scale)
    return Term(before, factor, scale, shift, _times(factor, scale), _times(factor, shift), kink, nothing)


def _with_values(form: _Form, terms: list[Term]) -> list[Term]:
    """The terms with the gate's value at each kink: there a term is 0 itself."""
    found = []
    for number, term in enumerate(terms):
        others = (*terms[:number], *terms[number + 1 :])
        value = _known(_at(form.slope, form.offset, others, term.kink))
        found.append(replace(term, value=value))
    return found


def _at(slope: Interval, offset: Interval, terms: tuple[Term, ...], y: Interval) -> Interval:
    """The function at numbers between ends. ReLUs that are on everywhere there are part of the line."""
    slope, offset = _beside(slope, y.lo), _beside(offset, y.lo)
    rest: Interval | None = None
    for term in terms:
        beside = [_beside(one, y.lo) for one in (term.scale, term.shift, term.scaled, term.shifted)]
        before = _known(_plus(_times(beside[0], y), beside[1]))
        off, on = before.hi <= 0, before.lo >= 0
        slope = _where(on & ~off, _plus(slope, beside[2]), slope)
        offset = _where(on & ~off, _plus(offset, beside[3]), offset)
        if not bool((on | off).all()):
            clipped = Interval(before.lo.clamp(min=0), before.hi.clamp(min=0))
            none = torch.zeros_like(before.lo)
            more = _where(on | off, Interval(none, none), _times(_beside(term.factor, y.lo), clipped))
            rest = more if rest is None else _plus(rest, more)
    found = _plus(_times(slope, y), offset)
    return found if rest is None else _plus(found, rest)


# Ends that hold what exact arithmetic makes of any numbers between the ends of its operands. An operation
# that finds no end leaves NaN, which `_known` makes infinite.


def _point(value: float) -> Interval:
    number = torch.tensor(value, dtype=torch.float64)
    return Interval(number, number)


def _around(value: Tensor, radius: Tensor) -> Interval:
    """All numbers within a radius."""
    return _plus(Interval(value, value), Interval(-radius, radius))


def _known(x: Interval) -> Interval:
    """Where there is no number, there is no end."""
    return Interval(
        x.lo.nan_to_num(-torch.inf, torch.inf, -torch.inf), x.hi.nan_to_num(torch.inf, torch.inf, -torch.inf)
    )


def _beside(x: Interval, like: Tensor) -> Interval:
    lo = x.lo.to(like)
    return Interval(lo, lo if x.lo is x.hi else x.hi.to(like))


def _where(mask: Tensor, x: Interval, y: Interval) -> Interval:
    return Interval(torch.where(mask, x.lo, y.lo), torch.where(mask, x.hi, y.hi))


def _is_exact(x: Interval) -> bool:
    return bool((x.lo == x.hi).all())


def _is_unit(x: Interval) -> bool:
    """Whether it is exactly 1 or -1 everywhere."""
    return _is_exact(x) and bool((x.lo.abs() == 1).all())


def _minus(x: Interval) -> Interval:
    return Interval(-x.hi, -x.lo)


def _plus(x: Interval, y: Interval) -> Interval:
    return Interval(_sum_below(x.lo, y.lo), -_sum_below(-x.hi, -y.hi))


def _sum_below(a: Tensor, b: Tensor) -> Tensor:
    """``a + b``, rounded down where it rounds up: by TwoSum, whose error is exact but where it overflows."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    return torch.where((error >= 0) & error.isfinite(), total, _below(total))


def _times(x: Interval, y: Interval) -> Interval:
    """0 times anything is 0."""
    lefts, rights = _ends(x), _ends(y)
    pairs = [(a, b) for a in lefts for b in rights]
    lower = [torch.where((a == 0) | (b == 0), 0.0, a * b) for a, b in pairs]
    upper = lower
    if not (all(map(_all_simple, lefts)) or all(map(_all_simple, rights))):
        exact = [_simple(a) | _simple(b) for a, b in pairs]
        lower, upper = (
            [torch.where(e, p, _below(p)) for e, p in zip(exact, lower, strict=True)],
            [torch.where(e, p, -_below(-p)) for e, p in zip(exact, lower, strict=True)],
        )
    return Interval(reduce(torch.minimum, lower), reduce(torch.maximum, upper))


def _ends(x: Interval) -> list[Tensor]:
    return [x.lo] if x.lo is x.hi else [x.lo, x.hi]


def _all_simple(x: Tensor) -> bool:
    return bool(_simple(x).all())


def _simple(x: Tensor) -> Tensor:
    """Where a product with it does not round."""
    return (x == 0) | (x.abs() == 1)


def _quotient(x: Interval, y: Interval) -> Interval:
    """``x / y``: NaN where ``y`` is exactly 0, any number where it may be 0 or where both have overflowed."""
    ends = [(a, b) for a in (x.lo, x.hi) for b in (y.lo, y.hi)]
    exact = [(a == 0) | (b.abs() == 1) for a, b in ends]
    raw = [a / b for a, b in ends]
    lower = reduce(torch.minimum, [torch.where(e, q, _below(q)) for e, q in zip(exact, raw, strict=True)])
    upper = reduce(torch.maximum, [torch.where(e, q, -_below(-q)) for e, q in zip(exact, raw, strict=True)])
    perhaps, always = (y.lo <= 0) & (y.hi >= 0), (y.lo == 0) & (y.hi == 0)
    perhaps = perhaps | lower.isnan() | upper.isnan()
    lower = torch.where(always, torch.nan, torch.where(perhaps, -torch.inf, lower))
    return Interval(lower, torch.where(always, torch.nan, torch.where(perhaps, torch.inf, upper)))


def _below(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, -torch.inf))
