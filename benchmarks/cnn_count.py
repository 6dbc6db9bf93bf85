"""What plain intervals show of a convolutional ONNX network, counted by a walk that shares nothing with the
package.

Every value has a smallest and a largest number per entry, and every channel a label; sums, batch norm,
activations, pooling and depthwise convolutions pass labels on or tie them. A label goes if every convolution
or Gemm that reads it reads zeros (dead), or one number for each channel and needs no padding (constant; the
next bias takes it over). Parameters are counted as PyTorch counts: weights, biases, batch norm's two vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.cnn_models import stored

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Count(NamedTuple):
    """Channels of activations, and the parameters that are left without them."""

    dead: int
    constant: int
    parameters: int
    without_zeros: int
    """Left without the channels whose filter, or gain, is exactly zero and whose shift is not positive."""
    without_dead: int
    without_both: int


class _Ends(NamedTuple):
    lo: Tensor
    hi: Tensor


@dataclass
class _Walk:
    model: onnx.ModelProto
    arrays: dict[str, Tensor]
    ends: dict[str, _Ends] = field(default_factory=dict)
    labels: dict[str, list[int]] = field(default_factory=dict)
    parent: list[int] = field(default_factory=list)
    dead: int = 0
    constant: int = 0
    nonzero: set[int] = field(default_factory=set)
    """Labels of which some reader reads something other than 0."""
    varying: set[int] = field(default_factory=set)
    """Labels of which some reader reads more than one number, or a number beside padding."""
    inactive: set[int] = field(default_factory=set)
    """Labels that somewhere are no more than what zero filters make."""
    filters: dict[int, bool] = field(default_factory=dict)
    """Whether all that a label's filters make is one number that is not positive."""

    def root(self, label: int) -> int:
        while self.parent[label] != label:
            label = self.parent[label]
        return label

    def fresh(self, count: int) -> list[int]:
        first = len(self.parent)
        self.parent.extend(range(first, first + count))
        return self.parent[first:]

    def tie(self, a: list[int], b: list[int]) -> None:
        for one, other in zip(a, b, strict=True):
            self.parent[self.root(one)] = self.root(other)


def count(model: onnx.ModelProto) -> Count:
    """Count a network whose input is a normalised image with pixels in [0, 1]."""
    arrays = {name: torch.as_tensor(np.array(one)).double() for name, one in stored(model).items()}
    walk = _Walk(model, arrays)
    mean, std = (torch.tensor(one, dtype=torch.float64).reshape(1, 3, 1, 1) for one in (MEAN, STD))
    ones = torch.ones(1, 3, 32, 32, dtype=torch.float64)
    name = model.graph.input[0].name
    walk.ends[name] = _Ends((ones * 0 - mean) / std, (ones - mean) / std)
    walk.labels[name] = walk.fresh(3)
    walk.nonzero.update(walk.labels[name])
    walk.varying.update(walk.labels[name])
    with torch.no_grad():
        for node in model.graph.node:
            if node.output[0] not in arrays:
                _step(walk, node)
    kept = [{walk.root(one) for one in found} for found in (walk.nonzero, walk.varying)]
    written = {walk.root(one) for one in walk.nonzero} | _not_zero(walk)
    return Count(
        walk.dead,
        walk.constant,
        *(_parameters(walk, keep) for keep in (None, written, kept[0], kept[1])),
    )


def _not_zero(walk: _Walk) -> set[int]:
    return {walk.root(label) for label, zero in walk.filters.items() if not zero}


def _step(walk: _Walk, node: onnx.NodeProto) -> None:
    given = [walk.ends[name] for name in node.input if name in walk.ends]
    labels = [walk.labels[name] for name in node.input if name in walk.labels]
    held = [walk.arrays[name] for name in node.input if name in walk.arrays]
    lo, hi = walk.ends[node.output[0]] = _image(node, given, held)
    if node.op_type in ("Conv", "Gemm"):
        own = _made(walk, node, given[0], labels[0], held)
    elif node.op_type == "Add":
        walk.tie(labels[0], labels[1])
        own = labels[0]
    elif node.op_type in ("Flatten", "Reshape"):
        own = [one for one in labels[0] for _ in range(lo.shape[1] // len(labels[0]))]
    else:
        own = labels[0]
    if node.op_type == "BatchNormalization":
        gain, bias, mean = held[0], held[1], held[2]
        still = gain == 0
        value = torch.where(still, bias, bias - mean * gain)  # only its sign where the gain is 0 counts
        for label, zero in zip(own, (still & (value <= 0)).tolist(), strict=True):
            walk.filters[label] = walk.filters.get(label, False) or zero
    walk.labels[node.output[0]] = own
    if node.op_type in ("Relu", "Clip"):
        low, high = lo.amin((0, 2, 3)), hi.amax((0, 2, 3))
        walk.dead += int((high <= 0).sum())
        walk.constant += int(((low == high) & (high > 0)).sum())


def _made(
    walk: _Walk, node: onnx.NodeProto, given: _Ends, labels: list[int], held: list[Tensor]
) -> list[int]:
    said = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    if said.get("group", 1) > 1:
        return labels  # one kernel per channel
    others = tuple(range(2, given.lo.dim()))
    low, high = (given.lo.amin(others), given.hi.amax(others)) if others else given
    padded = any(said.get("pads", []))
    for label, lo, hi in zip(labels, low[0].tolist(), high[0].tolist(), strict=True):
        if lo != 0 or hi != 0:
            walk.nonzero.add(label)
            if padded or lo != hi:
                walk.varying.add(label)
    own = walk.fresh(len(held[0]))
    if node is walk.model.graph.node[-1]:
        walk.nonzero.update(own)
        walk.varying.update(own)
    bias = held[1] if len(held) > 1 else torch.zeros(len(held[0]), dtype=torch.float64)
    empty = (held[0].flatten(1) == 0).all(1) & (bias <= 0)
    for label, zero in zip(own, empty.tolist(), strict=True):
        walk.filters[label] = zero
    return own


def _parameters(walk: _Walk, keep: set[int] | None) -> int:
    """How many are left if only the labels ``keep`` stay (None: all)."""

    def stays(labels: list[int]) -> int:
        return sum(keep is None or walk.root(one) in keep for one in labels)

    total = 0
    for node in walk.model.graph.node:
        held = [walk.arrays[name] for name in node.input if name in walk.arrays]
        if node.op_type in ("Conv", "Gemm"):
            before, after = stays(walk.labels[node.input[0]]), stays(walk.labels[node.output[0]])
            grouped = node.op_type == "Conv" and held[0].shape[1] == 1
            total += after * (1 if grouped else before) * int(np.prod(held[0].shape[2:]))
            total += after * (len(held) > 1)
        elif node.op_type == "BatchNormalization":
            total += 2 * stays(walk.labels[node.output[0]])
    return total


def parameters(model: onnx.ModelProto) -> int:
    """How many numbers an ONNX model stores, batch norm's running means and variances left aside."""
    arrays = stored(model)
    running = {name for node in model.graph.node for name in node.input[3:] if _norm(node)}
    read = {name for node in model.graph.node for name in node.input if _weighs(node) or _norm(node)}
    return sum(int(arrays[name].size) for name in read & arrays.keys() if name not in running)


def _norm(node: onnx.NodeProto) -> bool:
    return bool(node.op_type == "BatchNormalization")


def _weighs(node: onnx.NodeProto) -> bool:
    return node.op_type in ("Conv", "Gemm", "MatMul", "Add")


def _image(node: onnx.NodeProto, given: list[_Ends], held: list[Tensor]) -> _Ends:
    said = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    lo, hi = given[0]

    def both(function: Callable[[Tensor], Tensor]) -> _Ends:
        return _Ends(function(lo), function(hi))

    def linear(function: Any, weight: Tensor, bias: Tensor | float) -> _Ends:
        up, down = weight.clamp(min=0), weight.clamp(max=0)
        low, high = function(lo, up) + function(hi, down), function(hi, up) + function(lo, down)
        return _Ends(low + bias, high + bias)

    match node.op_type:
        case "Conv":
            places = {"stride": said.get("strides", 1), "padding": said.get("pads", [0, 0])[:2]}
            bias = held[1].reshape(1, -1, 1, 1) if len(held) > 1 else 0.0
            return linear(lambda x, w: F.conv2d(x, w, groups=said.get("group", 1), **places), held[0], bias)
        case "Gemm":
            return linear(F.linear, held[0] if said.get("transB") else held[0].T, held[1])
        case "BatchNormalization":
            gain, bias, mean, variance = (one.reshape(1, -1, 1, 1) for one in held)
            factor = gain / (variance + said.get("epsilon", 1e-5)).sqrt()
            return linear(lambda x, w: x * w, factor, bias - mean * factor)
        case "Relu":
            return both(lambda x: x.clamp(min=0))
        case "Clip":
            return both(lambda x: x.clamp(float(held[0]), float(held[1])))
        case "MaxPool":
            return both(lambda x: F.max_pool2d(x, said["kernel_shape"], said["strides"]))
        case "AveragePool" | "GlobalAveragePool" | "ReduceMean":
            return both(lambda x: x.mean((2, 3), keepdim=bool(said.get("keepdims", 1))))
        case "Flatten" | "Reshape":
            return both(lambda x: x.flatten(1))
        case "Add":
            return _Ends(lo + given[1].lo, hi + given[1].hi)
    raise NotImplementedError(node.op_type)
