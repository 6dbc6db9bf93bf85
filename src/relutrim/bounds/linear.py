"""Linear bounds by going backwards (CROWN, DeepPoly): ``c . y >= A x + d`` on the whole domain, for many
``c`` at once.

A linear form over some node's value is pulled back through the graph: affine operators by their adjoint,
ReLUs by the line of
:mod:`relutrim.bounds.relaxation` that keeps the inequality, max pooling by those of
:mod:`relutrim.bounds.maxima`. At the input the domain gives the smallest value, and at a barrier, where no
line takes the operator's place, the range of its own value does. Where ranges have no end a form is worth
nothing, or exactly zero and adds exactly nothing.

**Rounding.** The computed coefficients ``A`` are taken as given numbers. That they are not exactly ``A' W``
costs, at each affine node, at most ``gamma |A'| (|W| m + |b|)`` where ``m`` bounds the magnitude of the
node's input on the domain; at each ReLU at most ``|A|`` times the radius of its relaxation. These are dot
products with one vector per node, so the whole proof costs little more than the bound itself. Forms that are
exactly zero somewhere add exactly nothing there.

Underflow hides in three places: a coefficient that underflows is off by up to ``ETA / 2`` and stands before a
value of any size; a radius that underflows is lost before it meets a coefficient of any size; and so is the
product of both. The first and the last are charged once per node, the second is added to the radius.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from relutrim.bounds.interval import magnitude
from relutrim.bounds.maxima import Maxima, pull, relax_maxima
from relutrim.bounds.relaxation import Relaxation, Slope, relax
from relutrim.domain.region import Region
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Affine, Barrier, Convolution, Linear, MaxPool, Relu
from relutrim.intervals import Interval, flat
from relutrim.memory import AMPLE, MemoryBudget
from relutrim.rounding import ETA, UNIT, gamma, widen_down

Slopes: TypeAlias = Slope | Mapping[str, Tensor]
"""One rule for all ReLUs, or per ReLU the lower slopes (k, *shape) of its unstable neurons, one set for each
form.
"""


_FORM_BYTES = 128 * 2**20
"""What the coefficients of all forms over one value may take at most; a pass holds several such tensors."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """Lower bounds (k,) of k linear forms, and their coefficients (k, n) over the input."""

    lower: Tensor
    forms: Tensor


@dataclass(frozen=True, eq=False)
class Pulled:
    """k entries of a value as affine functions of the input and of what is not affine before it (ReLUs,
    maxima, barriers): name -> (k, size), constant, radius.

    The radius bounds, on the whole domain, how far the true entry is from what the coefficients say.
    """

    forms: dict[str, Tensor]
    constant: Tensor
    radius: Tensor


@dataclass(eq=False)
class Backward:
    """The backward pass over one network and domain; ``values`` holds what is known of every value before the
    target.
    """

    network: Network
    region: Region
    values: dict[str, Interval]
    memory: MemoryBudget = field(default=AMPLE, kw_only=True)
    _order: dict[str, int] = field(init=False)
    _radii: dict[str, tuple[Tensor, float]] = field(default_factory=dict, init=False)
    _relaxations: dict[tuple[str, Slope], Relaxation] = field(default_factory=dict, init=False)
    _maxima: dict[tuple[str, Slope], Maxima] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._order = {node.name: i for i, node in enumerate(self.network.nodes)}

    @property
    def rows(self) -> int:
        """How many forms to pull back at once, so that those over the widest value stay within memory."""
        widest = max(map(self.network.size, self.network.shapes))
        return max(1, self.memory.share(_FORM_BYTES) // (8 * max(1, widest)))

    def forget(self) -> None:
        """Drop what was derived from ``values``, after those have changed."""
        self._radii.clear()
        self._relaxations.clear()
        self._maxima.clear()

    def neurons(
        self, target: str, index: Tensor, sign: float | Tensor, slopes: Slopes, boxes: Tensor | None = None
    ) -> Bounded:
        """Lower bounds of ``sign * value[index]`` of a node: flat indices, ``sign`` +1 or -1, for all or for
        each.

        Where ``values`` are those of many boxes, ``boxes`` says which one each entry is bounded on.
        """
        return self._finish(self._unit(target, index, sign, boxes), slopes)

    def affine(self, target: str, index: Tensor) -> Pulled:
        """Entries of a value in terms of the input and of what is not affine before it, without any
        relaxation.
        """
        state = self._unit(target, index, 1.0)
        while (name := self._last(state, affine=True)) is not None:
            self._pull(self.network[name], state.waiting.pop(name), state, Slope.ZERO)
        roundings = gamma(len(self.network.nodes) + 4) * state.total
        radius = state.radius * (1 + 2.0**-20) + roundings
        return Pulled({name: flat(forms) for name, forms in state.waiting.items()}, state.constant, radius)

    def _unit(self, target: str, index: Tensor, sign: float | Tensor, boxes: Tensor | None = None) -> _Pass:
        operator = self.network[target].operator if target in self.network else None
        count = int(index.shape[0])
        like = self.values[self.network.input.name].lo
        signs = torch.as_tensor(sign, dtype=like.dtype, device=like.device)
        state = _Pass(count, like, self.values, boxes)
        flat_linear = isinstance(operator, Linear) and len(self.network.shapes[target]) == 1
        if flat_linear or isinstance(operator, Convolution):
            # A unit form times W is a row of W: no product, no rounding.
            assert isinstance(operator, Linear | Convolution)
            (source,) = self.network[target].inputs
            rows, bias = operator.rows(index, like, [self.network.shapes[source]])
            state.add(source, signs.reshape(-1, *[1] * (rows.ndim - 1)) * rows)
            state.constant = signs * bias
            state.total = state.constant.abs()
        else:
            forms = like.new_zeros(count, self.network.size(target))
            forms[torch.arange(count, device=like.device), index] = signs
            state.add(target, forms.reshape(count, *self.network.shapes[target]))
        return state

    def forms(self, coefficients: dict[str, Tensor], slopes: Slopes) -> Bounded:
        """Lower bounds of sums of linear forms over several nodes' values: name -> (k, *shape)."""
        first = next(iter(coefficients.values()))
        state = _Pass(int(first.shape[0]), first, self.values)
        for name, form in coefficients.items():
            state.add(name, form)
        return self._finish(state, slopes)

    def _finish(self, state: _Pass, slopes: Slopes) -> Bounded:
        while (name := self._last(state)) is not None:
            forms = state.waiting.pop(name)
            self._pull(self.network[name], forms, state, slopes)
        source = self.network.input.name
        if source in state.waiting:
            forms = flat(state.waiting.pop(source))
        else:
            forms = state.constant.new_zeros(state.constant.shape[0], self.region.size)
        low = self._lower(forms, state.boxes)
        roundings = gamma(len(self.network.nodes) + 4) * (state.total + low.abs())
        roundings = roundings.where(state.total != 0, 0 * roundings)  # 0 + low is exact
        return Bounded(widen_down(state.constant + low, state.radius * (1 + 2.0**-20) + roundings), forms)

    def _lower(self, forms: Tensor, boxes: Tensor | None) -> Tensor:
        """The smallest value of each form over the region."""
        return self.region.lower(forms)

    def _last(self, state: _Pass, *, affine: bool = False) -> str | None:
        """The waiting node (or affine node) that comes last in the order, so that all its readers are
        done.
        """
        names = [name for name in state.waiting if name in self._order]
        if affine:
            names = [name for name in names if isinstance(self.network[name].operator, Affine)]
        return max(names, key=self._order.__getitem__, default=None)

    def _pull(self, node: Node, forms: Tensor, state: _Pass, slopes: Slopes) -> None:
        operator = node.operator
        if isinstance(operator, Affine):
            radius, underflow = self._affine_radius(node, operator)
            state.charge(forms, radius, underflow)
            shapes = [self.network.shapes[name] for name in node.inputs]
            if operator.terms(shapes):
                state.shift(operator.constant(forms))
            for name, pulled in zip(node.inputs, operator.adjoint(forms, shapes), strict=True):
                state.add(name, pulled)
            return
        if isinstance(operator, MaxPool):
            self._pull_maxima(node, forms, state, slopes if isinstance(slopes, Slope) else Slope.ADAPTIVE)
            return
        if isinstance(operator, Barrier):
            self._stop(node, forms, state)
            return
        assert isinstance(operator, Relu)
        relaxation = self.relaxation(node, slopes if isinstance(slopes, Slope) else Slope.ADAPTIVE)
        below = state.own(relaxation.lower_slope)
        if not isinstance(slopes, Slope):
            below = torch.where(state.own(relaxation.unstable), slopes[node.name].clamp(0, 1), below)
        slope = torch.where(forms > 0, below, state.own(relaxation.upper_slope))
        negative = flat(forms.clamp(max=0))
        terms = negative.shape[1]
        state.shift(state.dot(negative, relaxation.intercept))
        radius = relaxation.radius + gamma(terms) * _finite(relaxation.intercept)
        radius = radius + torch.where(relaxation.unstable, 2 * ETA, torch.zeros_like(radius))
        state.charge(forms, radius, 2 * terms * ETA + ETA * float(relaxation.reach.sum()))
        state.add(node.inputs[0], forms * slope)

    def _pull_maxima(self, node: Node, forms: Tensor, state: _Pass, slope: Slope) -> None:
        maxima = self.maxima(node, slope)
        negative = flat(forms.clamp(max=0))
        terms = negative.shape[1]
        state.shift(state.dot(negative, maxima.intercept))
        rounds = (maxima.reach != 0) | (maxima.intercept != 0)
        radius = maxima.radius + gamma(terms) * _finite(maxima.intercept).abs()
        radius = torch.where(rounds, radius + 2 * ETA, radius)
        underflow = 2 * terms * ETA + ETA * float(_finite(maxima.reach).sum()) if bool(rounds.any()) else 0.0
        state.charge(forms, radius, underflow)
        below, above, upper = state.own(maxima.below), state.own(maxima.above), state.own(maxima.slope)
        shape = self.network.shapes[node.inputs[0]]
        state.add(node.inputs[0], pull(forms, below, above, upper, shape))

    def _stop(self, node: Node, forms: Tensor, state: _Pass) -> None:
        """The smallest value of each form over the box that a barrier's value lies in."""
        box = self.values[node.name]
        up, down = flat(forms.clamp(min=0)), flat(forms.clamp(max=0))
        terms = 2 * up.shape[1]
        state.shift(state.dot(up, box.lo) + state.dot(down, box.hi))
        ends = torch.maximum(_finite(box.lo).abs(), _finite(box.hi).abs())
        state.charge(forms, gamma(terms) * ends, 2 * terms * ETA)

    def _affine_radius(self, node: Node, operator: Affine) -> tuple[Tensor, float]:
        """Per entry of the node's value: what rounding costs for a coefficient of 1; and what underflow costs
        per form.
        """
        if node.name not in self._radii:
            reach = [self.values[name].magnitude for name in node.inputs]
            radius = reach[0].new_zeros(1, *self.network.shapes[node.name])
            terms = operator.terms([self.network.shapes[name] for name in node.inputs])
            if terms:
                # The constant a . b sums over all entries of the value, which may be more than `terms`.
                size = self.network.size(node.name)
                radius = gamma(terms) * magnitude(operator, reach) + terms * ETA
                if size > terms:
                    radius = radius + gamma(size) * operator.magnitude([torch.zeros_like(m) for m in reach])
                    terms = size
            fuzz = operator.fuzz([_finite(m) for m in reach])
            if fuzz is not None:
                radius = radius + fuzz
            # A form that meets what has no end is charged for that already.
            underflow = terms * ETA * (2 + float(sum(_finite(m).sum() for m in reach)))
            self._radii[node.name] = radius, underflow
        return self._radii[node.name]

    def relaxation(self, node: Node, slope: Slope) -> Relaxation:
        """The lines that take the place of a ReLU."""
        key = (node.name, slope)
        if key not in self._relaxations:
            self._relaxations[key] = relax(self.values[node.inputs[0]], slope)
        return self._relaxations[key]

    def maxima(self, node: Node, slope: Slope) -> Maxima:
        """The lines that take the place of a max pooling."""
        key = (node.name, slope)
        if key not in self._maxima:
            assert isinstance(node.operator, MaxPool)
            self._maxima[key] = relax_maxima(node.operator, self.values[node.inputs[0]], slope)
        return self._maxima[key]


class _Pass:
    """The running sums of one backward pass: forms waiting at nodes, constants, rounding radii."""

    def __init__(
        self, count: int, like: Tensor, values: dict[str, Interval], boxes: Tensor | None = None
    ) -> None:
        self.values = values
        self.boxes = boxes
        self.waiting: dict[str, Tensor] = {}
        self.constant = like.new_zeros(count)
        self.total = like.new_zeros(count)
        self.radius = like.new_zeros(count)

    def add(self, name: str, forms: Tensor) -> None:
        """Coefficients that a reader of ``name`` contributes; adding them to another reader's rounds, which
        is charged.
        """
        if name in self.waiting:
            forms = self.waiting[name] + forms
            radius = 2 * UNIT * self.values[name].magnitude + ETA
            self.charge(forms, radius, radius.numel() * ETA)
        self.waiting[name] = forms

    def shift(self, constants: Tensor) -> None:
        """Add to the constant term, remembering the magnitude of what was added."""
        self.constant = self.constant + constants
        self.total = self.total + constants.abs()

    def charge(self, forms: Tensor, radius: Tensor, underflow: float) -> None:
        """Add ``|forms| . radius``, and the underflow where a form is not exactly zero."""
        size = flat(forms.abs())
        cost = self.dot(size, radius)
        if underflow and size.shape[1]:
            # Not `underflow * (some > 0)`: a bool times a Python number is float32, where ETA is 0.
            cost = cost + torch.where(size.amax(1) == 0, torch.zeros_like(cost), underflow)
        self.radius = self.radius + cost

    def own(self, per_box: Tensor) -> Tensor:
        """What holds on each form's own box."""
        return per_box if self.boxes is None or len(per_box) == 1 else per_box[self.boxes]

    def dot(self, forms: Tensor, per_box: Tensor) -> Tensor:
        """Each form (a row) times a vector of its own box; 0 times what is infinite or unknown is 0."""
        known = per_box.isfinite()
        if not bool(known.all()):
            found = self.dot(forms, per_box.where(known, 0.0))
            some = self.dot((forms != 0).to(forms), (~known).to(forms)) > 0
            return torch.where(some, torch.nan, found)
        if self.boxes is None or len(per_box) == 1:
            return forms @ per_box.flatten()
        return (forms * flat(per_box)[self.boxes]).sum(1)


def _finite(ends: Tensor) -> Tensor:
    """Numbers as they are, and 0 for what is infinite or unknown."""
    return ends.where(ends.isfinite(), 0.0)
