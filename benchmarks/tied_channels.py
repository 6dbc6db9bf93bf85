"""How many channels of a PyTorch module can go, counted by a program of its own.

It shares nothing with the package: it walks the program that ``torch.export`` records, follows channels
(axis 1) through it, and says of every channel of every convolution's and linear layer's output whether it is
0 for all inputs, with what it is tied to, and what keeps it.

1. A convolution or a linear layer makes new channels; a channel is 0 if its bias is 0 and every weight of it
   that meets a channel that is not 0 is. A depthwise convolution passes channels on.
2. Batch norm, activations with f(0) = 0, pooling and the like pass channels on; a sum ties them; a
   concatenation lists them; a flattening repeats them.
3. What any other operation reads or makes stays.

Tied channels go together: only if all of them are 0 and none has to stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

_ZERO_STAYS = (
    "relu relu_ relu6 relu6_ hardtanh hardtanh_ leaky_relu leaky_relu_ prelu silu silu_ hardswish hardswish_ "
    "gelu tanh elu elu_ mish clone contiguous dropout dropout_ alias detach max_pool2d avg_pool2d "
    "adaptive_avg_pool2d adaptive_max_pool2d mean abs neg max_pool2d_with_indices"
)
_PASSING = set(_ZERO_STAYS.split())


@dataclass
class Count:
    """Channels that can go, those that are 0 and stay, and why."""

    removable: int = 0
    staying: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class _Value:
    """A value's channels: an identity each, and whether it is 0 for all inputs."""

    labels: list[int]
    zero: Tensor


class _Walk:
    def __init__(self, module: nn.Module, example: Tensor) -> None:
        with torch.no_grad():
            self.program = torch.export.export(module, (example,), strict=False)
        self.state = {**self.program.state_dict, **self.program.constants}
        signature = self.program.graph_signature
        self.names = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self.parent: list[int] = []
        self.kept: dict[int, str] = {}
        self.made: list[tuple[int, bool]] = []
        self.zeros: list[bool] = []
        self.values: dict[object, _Value] = {}

    @torch.no_grad()
    def zero_some(self, generator: torch.Generator) -> None:
        """Zero the channels of some layers, and of the batch norms that read them."""
        done = set()
        for node in self.program.graph.nodes:
            if str(node.target) not in ("aten.conv2d.default", "aten.linear.default"):
                continue
            weight = self.tensor(node.args[1])
            if weight is None or id(weight) in done or torch.rand((), generator=generator) > 1 / 3:
                continue
            done.add(id(weight))
            gone = torch.rand(len(weight), generator=generator) < 1 / 4
            norms = [user for user in node.users if str(user.target).startswith("aten.batch_norm")]
            for user, places in [(node, (1, 2)), *((norm, (1, 2)) for norm in norms)]:
                for place in places:
                    tensor = self.tensor(user.args[place]) if place < len(user.args) else None
                    if tensor is not None:
                        tensor[gone] = 0

    def root(self, label: int) -> int:
        while self.parent[label] != label:
            label = self.parent[label]
        return label

    def fresh(self, zero: Tensor) -> _Value:
        labels = list(range(len(self.parent), len(self.parent) + len(zero)))
        self.parent += labels
        self.zeros += [bool(z) for z in zero]
        return _Value(labels, zero)

    def keep(self, value: _Value, why: str) -> None:
        for label in value.labels:
            self.kept.setdefault(label, why)

    def tensor(self, argument: object) -> Tensor | None:
        name = getattr(argument, "name", None)
        return self.state.get(self.names.get(name, "")) if name is not None else None  # type: ignore[arg-type]

    def count(self) -> Count:
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self.step(node)
            elif node.op == "output":
                for read in node.all_input_nodes:
                    if read in self.values:
                        self.keep(self.values[read], "an output")
        reasons: dict[int, str] = {}
        zero: dict[int, bool] = {}
        for label, own in enumerate(self.zeros):
            at = self.root(label)
            zero[at] = zero.get(at, True) and own
        for label, why in self.kept.items():
            reasons.setdefault(self.root(label), why)
        found = Count()
        for label, own in self.made:
            at = self.root(label)
            if own and at in reasons:
                found.staying[reasons[at]] += 1
            elif own and not zero[at]:
                found.staying["tied to one that is not 0"] += 1
            elif own:
                found.removable += 1
        return found

    def step(self, node: torch.fx.Node) -> None:
        kind = str(node.target).removeprefix("aten.").split(".")[0]
        reads = [self.values[read] for read in node.all_input_nodes if read in self.values]
        handler = getattr(self, f"on_{kind}", None)
        found = None
        if handler is not None:
            found = handler(node)
        elif kind in _PASSING and len(reads) == 1:
            same = self.channels(node) == len(reads[0].labels)
            found = reads[0] if same else None
        if found is None:
            for value in reads:
                self.keep(value, kind)
            size = self.channels(node)
            if size is not None:
                found = self.fresh(torch.zeros(size, dtype=torch.bool))
                self.keep(found, kind)
        if found is not None:
            self.values[node] = found

    @staticmethod
    def channels(node: torch.fx.Node) -> int | None:
        value = node.meta.get("val")
        return int(value.shape[1]) if isinstance(value, Tensor) and value.ndim > 1 else None

    def new(self, zero: Tensor) -> _Value:
        found = self.fresh(zero)
        self.made += [(label, bool(z)) for label, z in zip(found.labels, zero, strict=True)]
        return found

    def weighed(self, node: torch.fx.Node, groups: int) -> _Value | None:
        weight, bias = self.tensor(node.args[1]), self.tensor(node.args[2]) if len(node.args) > 2 else None
        if weight is None:
            return None
        before = self.values.get(node.args[0])
        free = torch.zeros(len(weight), dtype=torch.bool) if bias is None else bias != 0
        deep = weight.shape[1]
        used = weight.reshape(len(weight), deep, -1).ne(0).any(-1)
        if before is not None and len(before.labels) == deep * groups:
            alive = (~before.zero).reshape(groups, deep).repeat_interleave(len(weight) // groups, 0)
            used = used & alive
        zero = ~(used.any(1) | free)
        if groups == 1:
            return self.new(zero)
        if before is not None and deep == 1 and groups == len(weight):
            found = _Value(before.labels, zero)
            self.now(node, before, zero)
            self.made += [(label, bool(own)) for label, own in zip(before.labels, zero, strict=True)]
            return found
        made = self.new(zero)
        self.keep(made, "a grouped convolution")
        if before is not None:
            self.keep(before, "a grouped convolution")
        return made

    def now(self, node: torch.fx.Node, before: _Value, zero: Tensor) -> None:
        """What is in front may be anything where it is multiplied by 0, if nothing else reads it."""
        alone = len(node.args[0].users) == 1  # type: ignore[union-attr]
        for label, own in zip(before.labels, zero, strict=True):
            self.zeros[label] = bool(own) and (alone or self.zeros[label])

    def on_conv2d(self, node: torch.fx.Node) -> _Value | None:
        groups = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)
        return self.weighed(node, int(groups))  # type: ignore[call-overload]

    def on_linear(self, node: torch.fx.Node) -> _Value | None:
        value = node.meta["val"]
        return self.weighed(node, 1) if value.ndim == 2 else None

    def on_batch_norm(self, node: torch.fx.Node) -> _Value | None:
        before = self.values.get(node.args[0])
        gain, bias, mean = (self.tensor(node.args[k]) for k in (1, 2, 3))
        if before is None or gain is None or bias is None or mean is None:
            return None
        zero = (bias == 0) & ((gain == 0) | (before.zero & (mean == 0)))
        self.now(node, before, zero)
        return _Value(before.labels, zero)

    def on_add(self, node: torch.fx.Node) -> _Value | None:
        both = [self.values.get(argument) for argument in node.args[:2]]
        one, other = both
        if one is None or other is None or len(one.labels) != len(other.labels):
            return None
        for a, b in zip(one.labels, other.labels, strict=True):
            self.parent[self.root(a)] = self.root(b)
        return _Value(one.labels, one.zero & other.zero)

    on_add_ = on_add

    def on_cat(self, node: torch.fx.Node) -> _Value | None:
        parts = [self.values.get(argument) for argument in node.args[0]]  # type: ignore[union-attr]
        axis = node.args[1] if len(node.args) > 1 else 0
        if axis != 1 or any(part is None for part in parts):
            return None
        known = [part for part in parts if part is not None]
        return _Value([label for p in known for label in p.labels], torch.cat([p.zero for p in known]))

    def on_flatten(self, node: torch.fx.Node) -> _Value | None:
        before, size = self.values.get(node.args[0]), self.channels(node)
        if before is None or size is None or node.meta["val"].ndim != 2 or size % max(1, len(before.labels)):
            return None
        times = size // len(before.labels)
        labels = [label for label in before.labels for _ in range(times)]
        return _Value(labels, before.zero.repeat_interleave(times))

    on_view = on_reshape = on_flatten


def planted(module: nn.Module, example: Tensor, generator: torch.Generator) -> Count:
    """How many channels of the module's layers can go, whatever the inputs are, after some have been zeroed
    in place: in a third of all layers a quarter of the channels, filter, batch norm's scale and shift.
    """
    walk = _Walk(module.eval(), example)
    walk.zero_some(generator)
    return walk.count()
