"""How each operator of a graph is spelt in ATen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph import (
    Add,
    BatchNorm,
    Elu,
    Gelu,
    Linear,
    Network,
    Node,
    Operator,
    Output,
    Reshape,
    Scale,
    Softmax,
    Softplus,
)
from relutrim.graph.operators import AveragePool, Concat, Convolution, MaxPool, Mean, Take, Transpose
from relutrim.graph.operators.convolution import Padding
from relutrim.io.activations import table
from relutrim.io.picks import moves
from relutrim.io.sizes import stored
from relutrim.io.torch.functions import LINES, THRESHOLD
from relutrim.io.torch.record import Call, Ref, Tensor
from relutrim.io.windows import ceil_padding

Numbers = npt.NDArray[Any]


class Emission:
    """Calls in the making, and the tensors that they read; ``names`` says which tensors values are, ``taken``
    which names are in use, and ``batch`` how many rows tensors have.
    """

    def __init__(self, network: Network, names: Mapping[str, str], taken: set[str], batch: int | str) -> None:
        self.network, self.names, self.taken, self.batch = network, dict(names), taken, batch
        self.calls: list[Call] = []
        self._layer: tuple[str, str] | None = None
        self.tensors: dict[str, Numbers] = {}
        self.paths: dict[str, str] = {}
        """What tensors are called in a state dict, where they are a part of that."""
        self.parameters: set[str] = set()

    def node(self, node: Node) -> None:
        """Write one node; its value is the tensor that ``names`` says, or a new one."""
        spell = SPELLINGS.get(type(node.operator))
        if spell is None:
            raise UnsupportedError(
                f"the operator {node.operator.kind} cannot be written in ATen; write an .onnx file instead",
                where=f"node {node.name!r}",
            )
        self._layer = (node.name, node.name)
        try:
            spell(_Spelling(self, node), node.operator)
        except (UnsupportedError, NetworkError) as error:
            raise error.at(f"node {node.name!r}") from None

    def tails(self, output: Output) -> str:
        """The tensor that an output is, behind its tail."""
        tensor, self._layer = self.names[output.source], None
        for step in output.tail:
            kind = _TAILS.get(step.kind)
            if kind is None:
                raise UnsupportedError(
                    f"{step.kind} cannot be written in ATen; write an .onnx file instead",
                    where=f"tail {step.name!r}",
                )
            axis = int(step.attributes.get("axis", -1))
            # A file without a batch axis counts its axes without it.
            axis += self.network.input.batch is None and axis >= 0
            more = {"dim": axis} if "oftmax" in step.kind else {}
            tensor = self.call(
                self.free(step.name), kind, self.network.shapes[output.source], input=Ref(tensor), **more
            )
        return tensor

    def call(self, name: str, target: str, shape: Sequence[int], /, **arguments: Any) -> str:
        """Add a call that makes a tensor of this name, of ``shape`` without the batch."""
        made = Tensor(name, (self.batch, *shape), self.network.dtype)
        self.calls.append(Call(name, f"aten.{target}", arguments, (made,), self._layer))
        return name

    def free(self, stem: str) -> str:
        """A name that is not in use: letters, digits and underscores."""
        stem = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in stem)
        stem = stem if stem[:1].isalpha() else f"value_{stem}"
        name, count = stem, 0
        while name in self.taken:
            count += 1
            name = f"{stem}_{count}"
        self.taken.add(name)
        return name

    def weight(self, node: str, field: str, numbers: Numbers, *, learnt: bool = True) -> Ref:
        """Store numbers of a node in the network's type, to be learnt or not."""
        name = self.free(f"{node}_{field}")
        self.tensors[name], self.paths[name] = stored(numbers, self.network.dtype), f"{node}.{field}"
        if learnt:
            self.parameters.add(name)
        return Ref(name)

    def integers(self, stem: str, numbers: Numbers) -> Ref:
        """Store whole numbers."""
        name = self.free(stem)
        self.tensors[name] = np.asarray(numbers, np.int64)
        return Ref(name)


class _Spelling:
    """One node as it is written: calls in a row, of which the last one makes its value."""

    def __init__(self, emission: Emission, node: Node) -> None:
        self.emission, self.node, self.network = emission, node, emission.network
        self.read = [Ref(emission.names[name]) for name in node.inputs]
        self.shapes = [emission.network.shapes[name] for name in node.inputs]
        self.shape = emission.network.shapes[node.name]
        self.result = emission.names.get(node.name) or emission.free(node.name)
        emission.names[node.name] = self.result
        emission.taken.add(self.result)

    def made(self, target: str, /, **arguments: Any) -> None:
        """The call that makes the value."""
        self.emission.call(self.result, target, self.shape, **arguments)

    def on(self, target: str, /, **arguments: Any) -> None:
        """The call that makes the value of the first one that is read."""
        self.made(target, input=self.read[0], **arguments)

    def before(self, target: str, shape: Sequence[int] | None = None, /, **arguments: Any) -> Ref:
        """A call on the way."""
        name = self.emission.free(f"{self.result}_{target.partition('.')[0]}")
        return Ref(self.emission.call(name, target, self.shape if shape is None else shape, **arguments))

    def weight(self, field: str, numbers: Numbers, *, learnt: bool = True) -> Ref:
        """Store numbers of the operator."""
        return self.emission.weight(self.node.name, field, numbers, learnt=learnt)


Spell = Callable[[_Spelling, Any], None]


def _linear(s: _Spelling, operator: Linear) -> None:
    weight, bias = s.weight("weight", operator.weight), s.weight("bias", operator.bias)
    s.on("linear.default", weight=weight, bias=bias)


def _convolution(s: _Spelling, operator: Convolution) -> None:
    axes = operator.weight.ndim - 2
    x, before = s.read[0], tuple(front for front, _ in operator.padding)
    if any(front != behind for front, behind in operator.padding):
        x, before = _padded(s, operator.padding), (0,) * axes
    s.made(
        f"conv{axes}d.default",
        input=x,
        weight=s.weight("weight", operator.weight),
        bias=s.weight("bias", operator.bias) if operator.bias.any() else None,
        stride=list(operator.stride),
        padding=list(before),
        dilation=list(operator.dilation),
        groups=operator.groups,
    )


def _padded(s: _Spelling, padding: Padding) -> Ref:
    channels, *space = s.shapes[0]
    wide = [size + front + behind for size, (front, behind) in zip(space, padding, strict=True)]
    pads = [number for pair in reversed(padding) for number in pair]
    return s.before("constant_pad_nd.default", (channels, *wide), input=s.read[0], pad=pads, value=0.0)


def _batch_norm(s: _Spelling, operator: BatchNorm) -> None:
    fields = {
        "weight": operator.gain,
        "bias": operator.bias,
        "running_mean": operator.mean,
        "running_var": operator.variance,
    }
    numbers = {
        name: s.weight(name, np.broadcast_to(array.reshape(-1), s.shape[:1]), learnt="run" not in name)
        for name, array in fields.items()
    }
    s.made(
        "batch_norm.default",
        input=s.read[0],
        **numbers,
        training=False,
        momentum=0.1,
        eps=operator.epsilon,
        cudnn_enabled=False,
    )


def _scale(s: _Spelling, operator: Scale) -> None:
    """Data normalisation, frozen batch normalisation and numbers of Python: none of it is to be learnt."""
    scale, shift = (operator.scale != 1).any(), operator.shift.any()
    x, divisor = s.read[0], operator.divisor(s.network.dtype)
    if divisor is not None:
        return s.made("div.Tensor", input=x, other=s.weight("divisor", divisor, learnt=False))
    if scale:
        factor = s.weight("scale", operator.scale, learnt=False)
        if not shift:
            return s.made("mul.Tensor", input=x, other=factor)
        x = s.before("mul.Tensor", input=x, other=factor)
    if shift:
        return s.made("add.Tensor", input=x, other=s.weight("shift", operator.shift, learnt=False))
    return s.made("alias.default", input=x)


def _add(s: _Spelling, operator: Add) -> None:
    x, *others = s.read
    if not others:
        return s.made("alias.default", input=x)
    for other in others[:-1]:
        x = s.before("add.Tensor", input=x, other=other)
    return s.made("add.Tensor", input=x, other=others[-1])


def _reshape(s: _Spelling, operator: Reshape) -> None:
    if operator.before == operator.after:
        s.on("alias.default")
    elif len(operator.after) == 1:
        s.on("flatten.using_ints", start_dim=1)
    elif 0 not in operator.after:
        s.on("reshape.default", shape=[-1, *operator.after])
    elif isinstance(s.emission.batch, int):
        s.on("reshape.default", shape=[s.emission.batch, *operator.after])
    else:
        raise UnsupportedError(
            f"an empty value cannot be given the shape {operator.after} with an open batch axis; remove it "
            "from the network"
        )


def _take(s: _Spelling, operator: Take) -> None:
    """Slices, then one padding with zeros, then lists of indices."""
    steps: list[tuple[str, dict[str, Any], list[int]]] = []
    said: dict[str, Any]
    shape, found = list(s.shapes[0]), moves(s.shapes[0], operator.picks, steps=False)
    for axis, (start, end, _) in found.slices.items():
        shape[axis] = end - start
        steps.append(("slice.Tensor", {"dim": axis + 1, "start": start, "end": end}, list(shape)))
    if any(map(any, found.pads)):
        shape = [size + front + behind for size, (front, behind) in zip(shape, found.pads, strict=True)]
        said = {"pad": [number for pair in reversed(found.pads) for number in pair], "value": 0.0}
        steps.append(("constant_pad_nd.default", said, list(shape)))
    for axis, indices in found.lists.items():
        shape[axis] = len(indices)
        index = s.emission.integers(f"{s.result}_index_{axis}", indices)
        steps.append(("index_select.default", {"dim": axis + 1, "index": index}, list(shape)))
    x = s.read[0]
    for target, said, made in steps[:-1]:
        x = s.before(target, made, input=x, **said)
    target, said, _ = steps[-1] if steps else ("alias.default", {}, shape)
    s.made(target, input=x, **said)


def _pool(s: _Spelling, operator: AveragePool | MaxPool, counts: bool | None) -> None:
    """Torch's windows have the same padding on both sides, at most half a window, and behind it as much more
    as ceil_mode adds.
    """
    axes, x = len(operator.kernel), s.read[0]
    dilation = operator.dilation if isinstance(operator, MaxPool) else (1,) * axes
    front = tuple(before for before, _ in operator.padding)
    even: Padding = tuple((before, before) for before in front)
    ceil = operator.padding != even
    added = ceil_padding(s.shapes[0][1:], operator.kernel, operator.stride, even, dilation)
    fits = all(2 * before <= size for before, size in zip(front, operator.kernel, strict=True))
    if not fits or (ceil and (counts or added != operator.padding)):
        if not counts:
            raise UnsupportedError(
                f"ATen has no pooling with padding {operator.padding}; write an .onnx file instead"
            )
        x = _padded(s, operator.padding)
        front, ceil = (0,) * axes, False
    windows = {
        "kernel_size": list(operator.kernel),
        "stride": list(operator.stride),
        "padding": list(front),
    }
    if counts is None:
        more = {"dilation": list(dilation), "ceil_mode": ceil}
        s.made(f"max_pool{axes}d.default", input=x, **windows, **more)
    else:
        more = {"ceil_mode": ceil, "count_include_pad": counts}
        s.made(f"avg_pool{axes}d.default", input=x, **windows, **more)


def _function(name: str) -> Spell:
    """What a line of the table says."""
    return lambda s, operator: s.on(f"{name}.default", **LINES[name].written(operator))


def _gelu(s: _Spelling, operator: Gelu) -> None:
    """The operator, or ``x (1 + erf(x / root)) / 2`` with the number that it was read with."""
    x = s.read[0]
    if operator.spelt is None:
        return s.on("gelu.default", approximate=operator.approximate)
    kind, number = operator.spelt
    root, one, half = (
        s.weight(name, np.array(n), learnt=False)
        for name, n in (("root", number), ("one", 1.0), ("half", 0.5))
    )
    scaled = s.before(f"{kind.lower()}.Tensor", input=x, other=root)
    grown = s.before("add.Tensor", input=s.before("erf.default", input=scaled), other=one)
    return s.made("mul.Tensor", input=s.before("mul.Tensor", input=grown, other=x), other=half)


def _softplus(s: _Spelling, operator: Softplus) -> None:
    latest = THRESHOLD[s.network.dtype]
    s.on("softplus.default", beta=1.0, threshold=min(operator.threshold, latest))


SPELLINGS: dict[type[Operator], Spell] = {
    Linear: _linear,
    Convolution: _convolution,
    BatchNorm: _batch_norm,
    Scale: _scale,
    Add: _add,
    Reshape: _reshape,
    Concat: lambda s, operator: s.made("cat.default", tensors=list(s.read), dim=operator.axis + 1),
    Transpose: lambda s, operator: s.on("permute.default", dims=[0, *(axis + 1 for axis in operator.order)]),
    Take: _take,
    Mean: lambda s, operator: s.on(
        "mean.dim", dim=[axis + 1 for axis in operator.axes], keepdim=operator.keep
    ),
    AveragePool: lambda s, operator: _pool(s, operator, operator.count_padding),
    MaxPool: lambda s, operator: _pool(s, operator, None),
    **{kind: _function(name) for kind, name in table(LINES).items()},
    Gelu: _gelu,
    Elu: lambda s, operator: s.on("elu.default", alpha=operator.alpha),
    Softplus: lambda s, operator: s.on(
        "softplus.default", beta=1.0, threshold=min(operator.threshold, THRESHOLD[s.network.dtype])
    ),
    Softmax: lambda s, operator: s.on("softmax.int", dim=operator.axis + 1),
}
"""How each operator is written."""

_TAILS = {
    "Identity": "alias.default",
    "Softmax": "softmax.int",
    "LogSoftmax": "log_softmax.int",
    "Sigmoid": "sigmoid.default",
    "Tanh": "tanh.default",
}
