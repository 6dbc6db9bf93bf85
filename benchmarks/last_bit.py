"""Why the outputs of two files differ in float32 where over the real numbers they are the same.

A sum in float32 depends on the order of its terms, and a runtime may choose another one where a layer is
narrower. Zeros are no part of that: they change no sum, in whatever place they stand. So both files are
evaluated with every sum in one order, that of the entries, one product after the other. If nothing but zeros
was removed, the outputs are then equal to the last bit, and the order of summation is all that differs.

Zeros over the real numbers need not be zeros in float32: a neuron that is always off by a margin less than
the radius of a float32 evaluation may come out positive, one that is always on negative. The radius is that
of :mod:`relutrim.float32`: for any order of summation and any input of the domain.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import torch

from relutrim.float32.evaluation import Forward
from relutrim.float32.operations import chains, covered
from relutrim.graph import Convolution, Linear, Network
from relutrim.origins import KEY
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Verdict

Masks = dict[str, npt.NDArray[np.bool_]]
Values = npt.NDArray[np.float32]


def reason(network: Network, small: Network, stability: Stability, x: Values) -> str:
    """``margin (n)``: the signs of n removed neurons are not certain in float32. ``order``: all are, and in
    one order of summation both have the same outputs for the inputs ``x``. ``other``: neither, such as two
    equal neurons made one with the sum of both weights.
    """
    near = near_zero(network, small, stability)
    if near:
        return f"margin ({near})"
    same = np.array_equal(in_order(network, x), in_order(small, x))
    return "order" if same and near is not None else "other"


def near_zero(network: Network, small: Network, stability: Stability) -> int | None:
    """How many neurons ``small`` is without, or reads no more, whose margin is within the radius of float32,
    or not known since they were decided in a smaller network; None where nothing is known of the radius. A
    neuron that is unstable was not removed for its sign.
    """
    given = network.input.name
    assert stability.problem.network.input.name == given, "the radius behind a normalisation is another one"
    if network.dtype != "float32" or not covered(network):
        return None
    forward = Forward.over(network, stability.ranges, given, chains(network, given))
    if not forward.finite:
        return None
    before, after = _read(network), _left(network, small)
    count = 0
    for layer in stability.layers:
        certain = (forward.one[layer.name] | forward.zero[layer.name]).numpy().reshape(layer.shape)
        unstable = (layer.verdict == Verdict.UNSTABLE).reshape(layer.shape)
        count += int((before[layer.name] & ~after[layer.name] & ~unstable & ~certain).sum())
    return count


def _read(network: Network) -> Masks:
    """Per value, the entries that an output depends on."""
    wanted = {name: np.full(shape, network.is_output(name)) for name, shape in network.shapes.items()}
    for node in reversed(network.nodes):
        shapes = [network.shapes[name] for name in node.inputs]
        for name, entries in zip(node.inputs, node.operator.reads(wanted[node.name], shapes), strict=True):
            wanted[name] = wanted[name] | entries
    return wanted


def _left(network: Network, small: Network) -> Masks:
    """Per ReLU of the original, the neurons that a smaller network still reads, by what its file says of
    their origin.
    """
    left = {relu.name: np.zeros(network.shapes[relu.name], dtype=np.bool_) for relu in network.relus}
    read = _read(small)
    for name, one in json.loads(small.metadata[KEY]).items():
        for place, unit in enumerate(one["units"]):
            if unit is not None:
                left[one["layer"]][unit] |= read[name][place]
    return left


def in_order(network: Network, x: Values) -> Values:
    """All outputs before their tails, flat, one row per input, every sum of a linear node or a convolution in
    the order of its inputs. (Pools and scales take one channel at a time.)
    """
    values: dict[str, Values] = {network.input.name: x.reshape(len(x), *network.input.shape)}
    for node in network.nodes:
        inputs = [values[name] for name in node.inputs]
        match node.operator:
            case Linear():
                values[node.name] = _linear(node.operator, inputs[0])
            case Convolution():
                values[node.name] = _convolution(node.operator, inputs[0])
            case other:
                values[node.name] = other.forward([torch.from_numpy(value) for value in inputs]).numpy()
    return np.concatenate([values[name].reshape(len(x), -1) for name in network.sources], axis=1)


def _linear(operator: Linear, x: Values) -> Values:
    weight = operator.weight.astype(np.float32)
    total = np.zeros((*x.shape[:-1], len(weight)), dtype=np.float32)
    for k in range(weight.shape[1]):
        total += x[..., k, None] * weight[:, k]
    return total + operator.bias.astype(np.float32)


def _convolution(operator: Convolution, x: Values) -> Values:
    _, *space = operator.output_shape([x.shape[1:]])
    ones = [1] * len(space)
    padded = np.pad(x, [(0, 0), (0, 0), *operator.padding])
    kernels = np.split(operator.weight.astype(np.float32), operator.groups)
    parts = []
    for kernel, channels in zip(kernels, np.split(padded, operator.groups, axis=1), strict=True):
        total = np.zeros((len(x), len(kernel), *space), dtype=np.float32)
        for channel, *tap in np.ndindex(kernel.shape[1:]):
            starts = [at * apart for at, apart in zip(tap, operator.dilation, strict=True)]
            window = tuple(
                slice(start, start + (count - 1) * step + 1, step)
                for start, count, step in zip(starts, space, operator.stride, strict=True)
            )
            weight = kernel[(slice(None), channel, *tap)].reshape(-1, *ones)
            total += channels[(slice(None), channel, *window)][:, None] * weight
        parts.append(total)
    return np.concatenate(parts, axis=1) + operator.bias.astype(np.float32).reshape(-1, *ones)
