"""Fold convolutions: one whose units are all active, or that has no ReLU, is linear, so the convolutions and
linear nodes that read it can read its input instead.

``sum_t v_t (W x)(s p + d t) + c`` with ``(W x)(q) = sum_u w_u x(s' q + d' u) + b`` is a convolution of ``x``
with stride ``s s'`` whose kernel holds ``sum v_t w_u`` at ``d' u + s' d t``. Zero padding between the two is
where this can fail: the second reads 0 there, and the product reads what the first would have made of the
places beyond its border. So, along each axis:

1. every pair of taps ``(t, u)`` must lie over the same entry of ``x``, or over padding, in both ways of
   computing every output;
2. what the second makes of the first one's bias must be the same all over (:mod:`relutrim.rewrite.absorb`).

Behind a flattening, a linear node's weights are linear forms over the convolution's value, and its adjoint
makes forms over ``x`` of them: there, padding is no matter.

A product may be larger than its factors: the pipeline decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relutrim.errors import NetworkError
from relutrim.graph.graph import Node
from relutrim.graph.operators import Array, Convolution, Linear, Relu, Reshape, Shape
from relutrim.graph.operators.windows import Places, taps
from relutrim.graph.slicing import Kept
from relutrim.intervals import Interval
from relutrim.rewrite.absorb import as_bias, with_bias
from relutrim.rewrite.draft import Draft, Step, at_most
from relutrim.rewrite.layers import finite
from relutrim.rounding import ETA, gamma

NAME = "fold-convolutions"
_SAFETY = 1 + 2.0**-20


def fold_convolutions(draft: Draft, name: str) -> Draft:
    """The draft without a convolution, if all who read it can do without it."""
    network = draft.network
    node = network[name]
    if not isinstance(node.operator, Convolution) or network.is_output(name):
        return draft
    change: dict[str, Node | None] = {name: None}
    readers = network.readers(name)
    if len(readers) == 1 and isinstance(readers[0].operator, Relu):
        (relu,) = readers
        if not draft.identity[relu.name].all() or network.is_output(relu.name):
            return draft
        change[relu.name], readers = None, network.readers(relu.name)
    if not readers or not network.size(name) or not network.size(node.inputs[0]):
        return draft
    moved: dict[str, Tensor] = {}
    ranges: dict[str, Interval] = {}
    for reader in readers:
        found = _behind(draft, node, reader)
        if found is None:
            return draft
        for new, by in found:
            change[new.name], moved[new.name] = new, by
            if isinstance(new.operator, Reshape):
                known = draft.ranges[node.inputs[0]]
                ranges[new.name] = Interval(known.lo.flatten(1), known.hi.flatten(1))
    smaller = network.edit(change=change)
    others = {name: smaller.size(name) for name in ranges}  # flattenings of another value than before
    kept = {name: Kept(0, np.full(size, -1)) for name, size in others.items()}
    grown = smaller.parameters - network.parameters
    neurons = network.neurons - smaller.neurons
    text = f"folded a linear convolution of {len(node.operator.bias)} channels ({grown:+d} parameters)"
    step = Step(NAME, name, text, neurons)
    return draft.rewritten(smaller, step, moved=moved, ranges=ranges, kept=kept)


def _behind(draft: Draft, first: Node, reader: Node) -> list[tuple[Node, Tensor]] | None:
    """The nodes that take the place of a reader, and how far their values move; None if there are none."""
    network, operator = draft.network, reader.operator
    if isinstance(operator, Convolution):
        found = _composed(draft, first, operator)
        return None if found is None else [(Node(reader.name, found[0], first.inputs), found[1])]
    if not isinstance(operator, Reshape) or len(operator.after) != 1 or network.is_output(reader.name):
        return None
    source = network.shapes[first.inputs[0]]
    flat = Reshape(source, (math.prod(source),))
    nodes = [(Node(reader.name, flat, first.inputs), torch.zeros(1, *flat.after, dtype=torch.float64))]
    for linear in network.readers(reader.name):
        if not isinstance(linear.operator, Linear):
            return None
        pulled = _pulled_back(draft, first, linear.operator)
        if pulled is None:
            return None
        nodes.append((Node(linear.name, pulled[0], linear.inputs), pulled[1]))
    return nodes


def _composed(draft: Draft, first: Node, two: Convolution) -> tuple[Convolution, Tensor] | None:
    """One convolution for two, and how far its value can be off."""
    one, source = first.operator, first.inputs[0]
    assert isinstance(one, Convolution)
    shape, between = draft.network.shapes[source], draft.network.shapes[first.name]
    axes = [_axis(one, two, a, shape, between) for a in range(len(shape) - 1)]
    if one.groups != two.groups or any(axis is None for axis in axes):
        return None
    constant = as_bias(two, np.broadcast_to(one.bias.reshape(-1, *(1,) * (len(shape) - 1)), between))
    if constant is None:
        return None
    bias, local = with_bias(two, *constant)
    found = [axis for axis in axes if axis is not None]
    kernel = _product(one, two, [axis.offsets for axis in found])
    if not finite(kernel, bias):
        return None
    product = Convolution(
        kernel,
        bias,
        tuple(s * t for s, t in zip(one.stride, two.stride, strict=True)),
        tuple(axis.padding for axis in found),
        tuple(axis.dilation for axis in found),
        one.groups,
    )
    terms = one.terms([shape]) * math.prod(two.weight.shape[2:]) + 2
    reach = draft.reach(source)
    inner = one.magnitude([reach]) * _SAFETY + one.terms([shape]) * ETA
    local = local + gamma(terms) * (two.spread([inner]) * _SAFETY + two.terms([between]) * ETA)
    return product, local * _SAFETY + terms * ETA * (2 + float(reach.sum()))


@dataclass(frozen=True, eq=False)
class _Axis:
    """Along one axis: where the product of two taps lies in the kernel, and what is around it."""

    offsets: Places
    padding: tuple[int, int]
    dilation: int


def _axis(one: Convolution, two: Convolution, a: int, shape: Shape, between: Shape) -> _Axis | None:
    """None where some pair of taps does not lie over the same entry in both ways of computing an output."""
    first, second = one.weight.shape[2 + a], two.weight.shape[2 + a]
    inner, outer = one.dilation[a], one.stride[a] * two.dilation[a]
    dilation = math.gcd(inner if first > 1 else 0, outer if second > 1 else 0) or 1
    offsets = (outer * np.arange(second)[:, None] + inner * np.arange(first)[None, :]) // dilation
    padding = (
        one.padding[a][0] + one.stride[a] * two.padding[a][0],
        one.padding[a][1] + one.stride[a] * two.padding[a][1],
    )
    stride = one.stride[a] * two.stride[a]
    size = int(offsets.max()) + 1
    try:
        (both,) = taps(shape[1 + a : 2 + a], (size,), (stride,), (padding,), (dilation,))
    except NetworkError:
        return None
    before, behind = one.taps(shape)[a], two.taps(between)[a]
    apart = np.where(behind[:, :, None] >= 0, before[behind], -1)
    if apart.shape[0] != both.shape[0] or (apart != both[:, offsets]).any():
        return None
    return _Axis(offsets, padding, dilation)


def _product(one: Convolution, two: Convolution, offsets: list[Places]) -> Array:
    """The kernel of two convolutions."""
    groups, (outputs, between), inputs = one.groups, two.weight.shape[:2], one.weight.shape[1]
    inner = one.weight.reshape(groups, between, inputs, -1)
    outer = two.weight.reshape(groups, outputs // groups, between, -1)
    size = tuple(int(places.max()) + 1 for places in offsets)
    kernel = np.zeros((groups, outputs // groups, inputs, math.prod(size)))
    for k, t in enumerate(np.ndindex(*two.weight.shape[2:])):
        for m, u in enumerate(np.ndindex(*one.weight.shape[2:])):
            at = np.ravel_multi_index([int(o[i, j]) for o, i, j in zip(offsets, t, u, strict=True)], size)
            kernel[..., at] += outer[..., k] @ inner[..., m]
    return kernel.reshape(outputs, inputs, *size)


def _pulled_back(draft: Draft, first: Node, linear: Linear) -> tuple[Linear, Tensor] | None:
    """A linear node behind the flattened convolution as one of the convolution's input."""
    one, source = first.operator, first.inputs[0]
    assert isinstance(one, Convolution)
    shape, between = draft.network.shapes[source], draft.network.shapes[first.name]
    outputs, entries = linear.weight.shape
    forms = torch.as_tensor(np.array(linear.weight)).reshape(outputs, *between)
    weight = one.adjoint(forms, [shape])[0].reshape(outputs, math.prod(shape)).numpy()
    held = np.repeat(one.bias, entries // len(one.bias))
    bias = linear.bias + linear.weight @ held
    if not finite(weight, bias):
        return None
    terms = one.terms([shape]) + 2
    reach = draft.reach(source)
    inner = one.magnitude([reach]) * _SAFETY + terms * ETA
    sizes = at_most(linear.weight, np.zeros(outputs), inner.flatten(1))
    constants = at_most(linear.weight, linear.bias, torch.as_tensor(np.abs(held))[None])
    local = gamma(terms) * sizes + gamma(entries + 2) * constants
    return Linear(weight, bias), local * _SAFETY + (terms + entries) * ETA * (2 + float(reach.sum()))
