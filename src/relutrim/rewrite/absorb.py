"""Absorb: nodes that weigh slices of a value take the weights of slices that others stand for.

If slices ``p`` of a value are ``v_p = sum_q a_pq v_q + t_p`` up to a gap, a convolution or a linear node that
reads the value may weigh ``q`` by as much more as it weighed ``p``, and add what it makes of ``t`` to its
bias; then nobody reads ``p``, and :mod:`relutrim.rewrite.drop_channels` cuts it wherever it runs through the
graph. A constant is not the same at every position behind a convolution whose padding is 0: there it becomes
part of the bias only if the kernel makes nothing of the difference, or else a map, a number for each entry.
If a convolution has no bias, the mean of the batch norm behind it takes the constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relutrim.bounds.interval import magnitude, node_interval
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Array, BatchNorm, Convolution, Linear, Scale
from relutrim.intervals import Interval
from relutrim.rewrite.channels import Index, Labels
from relutrim.rewrite.draft import Draft, Mask, Step
from relutrim.rewrite.exactness import equal_times, exact_sum, power_of_two
from relutrim.rewrite.layers import finite
from relutrim.rewrite.storage import held
from relutrim.rounding import ETA, UNIT, gamma

_SAFETY = 1 + 2.0**-20


@dataclass(frozen=True, eq=False)
class Substitute:
    """What slices ``gone`` of a value are: the sum of ``factor`` times slices ``by``, one term for each entry
    of ``of``, plus a constant. ``constant`` and ``gap``, how far off that is, have the value's shape.
    """

    gone: Mask
    of: Index
    by: Index
    factor: Array
    constant: Array
    gap: Array


def weighers(network: Network, labels: Labels) -> dict[str, list[Node]]:
    """Per value, the nodes that weigh its slices one by one. All others pass slices on or pin them."""
    found: dict[str, list[Node]] = {}
    for node in network.nodes:
        if not isinstance(node.operator, Linear | Convolution):
            continue
        source = node.inputs[0]
        axis, last = labels.slices[source].axis, len(network.shapes[source]) - 1
        along = last if isinstance(node.operator, Linear) else 0
        if axis == along and (isinstance(node.operator, Linear) or node.operator.groups == 1):
            found.setdefault(source, []).append(node)
    return found


def absorb(
    draft: Draft, labels: Labels, instead: Mapping[str, Substitute], step: Step, *, maps: bool = False
) -> Draft:
    """The draft in which nobody weighs what is ``gone``; itself if that cannot be written. A constant that
    is not the same all over a reader's value needs ``maps``.
    """
    network = draft.network
    change: dict[str, list[Node]] = {}
    moved: dict[str, Tensor] = {}
    ranges: dict[str, Interval] = {}
    for name, readers in weighers(network, labels).items():
        for reader in readers if name in instead else ():
            found = _reader(draft, reader, instead[name])
            if found is None or (found.map is not None and not maps):
                return draft
            nodes = [Node(reader.name, found.operator, reader.inputs)]
            if found.map is not None:
                plain = Node(network.free_name(f"{reader.name}.plain"), found.operator, reader.inputs)
                ranges[plain.name] = node_interval(plain, dict(draft.ranges))
                nodes = [plain, Node(reader.name, Scale.exactly(1.0, found.map), (plain.name,))]
            change[reader.name], moved[reader.name] = nodes, found.moved
            norm = None if found.map is not None else _norm_behind(network, reader)
            if norm is not None and found.operator.bias.any():
                added = found.operator.bias.reshape(-1, *(1,) * (len(network.shapes[norm.name]) - 1))
                bare = replace(found.operator, bias=np.zeros_like(found.operator.bias))
                change[reader.name] = [Node(reader.name, bare, reader.inputs)]
                ranges[reader.name] = _lowered(draft.ranges[reader.name], added)
                lowered = _with_mean(norm, added, network.dtype)
                if lowered is None:
                    return draft
                change[norm.name] = [lowered[0]]
                moved[norm.name] = lowered[1].expand_as(draft.ranges[norm.name].lo)
    nodes = [new for node in network.nodes for new in change.get(node.name, [node])]
    return draft.rewritten(replace(network, nodes=tuple(nodes)), step, moved=moved, ranges=ranges)


def _norm_behind(network: Network, reader: Node) -> Node | None:
    """The batch norm that alone reads what a convolution without a bias makes."""
    readers, operator = network.readers(reader.name), reader.operator
    if len(readers) != 1 or network.is_output(reader.name) or not isinstance(operator, Convolution):
        return None
    norm = readers[0]
    wide = (len(operator.bias), *(1,) * (operator.weight.ndim - 2))
    if not isinstance(norm.operator, BatchNorm) or norm.operator.mean.shape != wide or operator.bias.any():
        return None
    return None if reader.origin is not None and "bias" in reader.origin.fields else norm


def _lowered(known: Interval, by: Array) -> Interval:
    """A range of a value from which numbers are taken away."""
    lo, hi, number = known.lo, known.hi, torch.as_tensor(np.array(by))
    slack = 4 * UNIT * (known.magnitude + number.abs()) + ETA
    return Interval(lo - number - slack, hi - number + slack)


def _with_mean(norm: Node, added: Array, dtype: str) -> tuple[Node, Tensor] | None:
    """A batch norm that reads a value from which numbers were taken away, and how far what it makes of it is
    from what it was: its mean is one that the file holds. None if there is none.
    """
    operator = norm.operator
    assert isinstance(operator, BatchNorm)
    mean = held(operator.mean - added, dtype)
    if not finite(mean):
        return None
    off = np.abs(mean - (operator.mean - added)) + 2 * UNIT * (np.abs(operator.mean) + np.abs(added))
    off = (np.abs(operator.scale) + operator.scale_radius) * off * _SAFETY + 4 * ETA
    other = BatchNorm.of(operator.gain, operator.bias, mean, operator.variance, operator.epsilon)
    return replace(norm, operator=other), torch.as_tensor(np.where(operator.gain == 0, 0.0, off))[None]


def as_bias(operator: Linear | Convolution, constant: Array) -> tuple[Array, Tensor] | None:
    """What an operator makes of a constant value, without its own bias, as a number for each of its channels,
    and how far any entry is from that; None where entries of a channel differ by more than rounding.
    """
    made, radius = _made(operator, constant)
    along = tuple(a for a in range(1, made.ndim) if a != _channels(operator, made))
    middle, largest = made, radius
    if along:
        middle = made.amin(along, keepdim=True) / 2 + made.amax(along, keepdim=True) / 2
        largest = radius.amax(along, keepdim=True)
    spread = (made - middle).abs()
    if not bool((spread <= 8 * largest).all()):
        return None
    return middle.flatten().numpy(), (spread + radius) * _SAFETY + ETA


def _made(operator: Linear | Convolution, constant: Array) -> tuple[Tensor, Tensor]:
    """What an operator makes of a constant value, without its bias, and how far that is from the real
    numbers.
    """
    bare = replace(operator, bias=np.zeros_like(operator.bias))
    value, terms = torch.as_tensor(np.array(constant))[None], operator.terms([constant.shape])
    return bare.forward([value]), gamma(terms) * bare.magnitude([value.abs()]) * _SAFETY + terms * ETA


def _channels(operator: Linear | Convolution, made: Tensor) -> int:
    """The axis of an operator's channels in what it makes."""
    return made.ndim - 1 if isinstance(operator, Linear) else 1


@dataclass(frozen=True, eq=False)
class _Reader:
    operator: Linear | Convolution
    moved: Tensor
    map: Array | None = None


def _reader(draft: Draft, reader: Node, instead: Substitute) -> _Reader | None:
    operator = reader.operator
    assert isinstance(operator, Linear | Convolution)
    if not operator.weight[:, instead.gone].any():
        return _Reader(operator, torch.zeros_like(draft.ranges[reader.name].lo))
    wide = (1, -1, *(1,) * (operator.weight.ndim - 2))
    weight, sizes = operator.weight.copy(), np.abs(operator.weight)
    taken = operator.weight[:, instead.of] * instead.factor.reshape(wide)
    exactly = _exactly(operator.weight, instead, taken, draft.network.dtype)
    np.add.at(weight.swapaxes(0, 1), instead.by, taken.swapaxes(0, 1))
    np.add.at(sizes.swapaxes(0, 1), instead.by, np.abs(taken).swapaxes(0, 1))
    weight[:, instead.gone] = 0
    # On the same value: kept slices meet rounded weights, and the others are off by their gaps.
    rounding = np.zeros_like(weight)
    by, times = np.unique(instead.by, return_counts=True)
    rounding[:, by] = 0.0 if exactly else gamma(int(times.max(initial=0)) + 4) * sizes[:, by]
    rounding[:, instead.gone] = np.abs(operator.weight[:, instead.gone])
    if not finite(weight, rounding):
        return None
    axis = len(instead.gap.shape) - 1 if isinstance(operator, Linear) else 0
    gone = instead.gone.reshape(tuple(-1 if a == axis else 1 for a in range(instead.gap.ndim)))
    reach = draft.reach(reader.inputs[0])
    size = torch.where(torch.as_tensor(gone), torch.as_tensor(instead.gap), reach)
    bias, shift, local = operator.bias, None, torch.zeros_like(draft.ranges[reader.name].lo)
    if instead.constant.any():
        constant = as_bias(operator, instead.constant)
        if constant is None:
            made, local = _made(operator, instead.constant)
            shift = made[0].numpy()
        else:
            bias, local = with_bias(operator, *constant)
        if not finite(bias, *(() if shift is None else (shift,))):
            return None
    gap = replace(operator, weight=rounding, bias=np.zeros_like(bias))
    terms = gap.terms([tuple(reach.shape[1:])]) + len(instead.of)
    local = local + magnitude(gap, [size])
    local = local * _SAFETY
    if not exactly or instead.gap.any() or instead.constant.any():
        local = local + terms * ETA * (2 + float(size.sum()))
    return _Reader(replace(operator, weight=weight, bias=bias), local, shift)


def _exactly(weight: Array, instead: Substitute, taken: Array, dtype: str) -> bool:
    """Whether the weights that are taken over add up to numbers that the file holds, with nothing rounded."""
    found = weight.copy()
    for k, by in enumerate(instead.by.tolist()):
        factor = float(instead.factor[k])
        if not power_of_two(factor) or not equal_times(taken[:, k], factor, weight[:, instead.of[k]]):
            return False
        total = exact_sum(found[:, by], factor, weight[:, instead.of[k]], dtype)
        if total is None:
            return False
        found[:, by] = total
    return True


def with_bias(operator: Linear | Convolution, added: Array, off: Tensor) -> tuple[Array, Tensor]:
    """An operator's bias with numbers added, and how far its value is off then, if those are."""
    sizes = torch.as_tensor(np.abs(operator.bias) + np.abs(added))
    if isinstance(operator, Convolution):
        sizes = sizes.reshape(1, -1, *(1,) * (off.ndim - 2))
    return operator.bias + added, off + 4 * UNIT * sizes
