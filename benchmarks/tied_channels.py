"""How many channels of a PyTorch module can go, counted by a program of its own.

It shares nothing with the package: it walks the program that ``torch.export`` records, follows channels
(axis 1) through it, and says of every channel of every convolution's and linear layer's output whether it can
go, and if it is 0 for all inputs and stays, what keeps it.

1. A convolution or a linear layer makes new channels; a channel is 0 if its bias is 0 and every weight of it
   that meets a channel that is not 0 is. A depthwise convolution passes channels on.
2. Batch norm, activations with f(0) = 0, pooling and the like pass channels on; a sum ties them; a
   concatenation lists them; a flattening repeats them.
3. What any other operation reads or makes stays, and so do outputs.
4. A channel stays if something that stays reads it where it is not 0, and tied channels stay together.
5. A value keeps at least one channel. Of the groups of a convolution those that keep nothing go, and all
   others keep as many channels as the one that keeps most.
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


@dataclass(eq=False)
class _Layer:
    """Which channels a layer makes and reads, in how many groups, and which of them reads which."""

    made: list[int]
    read: list[int]
    groups: int
    weighs: Tensor


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
        self.layers: list[_Layer] = []
        self.values: dict[object, _Value] = {}
        self.computed: dict[object, Tensor] = {}

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
        return _Value(labels, zero)

    def keep(self, value: _Value, why: str) -> None:
        for label in value.labels:
            self.kept.setdefault(label, why)

    def tensor(self, argument: object) -> Tensor | None:
        """A tensor that the module holds, or that follows from those."""
        name = getattr(argument, "name", None)
        return self.computed.get(name, self.state.get(self.names.get(name, "")))  # type: ignore[arg-type]

    def evaluated(self, node: torch.fx.Node) -> Tensor:
        """What a node makes of such tensors."""
        assert callable(node.target)
        args, kwargs = (torch.fx.node.map_arg(given, self.tensor) for given in (node.args, node.kwargs))
        with torch.no_grad():
            made: Tensor = node.target(*args, **kwargs)  # type: ignore[arg-type]
        return made

    def count(self) -> Count:
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self.step(node)
            elif node.op == "output":
                for read in node.all_input_nodes:
                    if read in self.values:
                        self.keep(self.values[read], "an output")
        staying = self.staying()
        found = Count()
        for label, zero in self.made:
            why = staying.get(self.root(label))
            if why is None:
                found.removable += 1
            elif zero:
                found.staying[why] += 1
        return found

    def staying(self) -> dict[int, str]:
        """The channels that stay, by what keeps them."""
        found: dict[int, str] = {}
        for label, why in self.kept.items():
            found.setdefault(self.root(label), why)
        before = -1
        while before < len(found):
            before = len(found)
            for layer in reversed(self.layers):
                rows = [self.root(label) in found for label in layer.made]
                for column in layer.weighs[rows].any(0).nonzero().flatten().tolist():
                    found.setdefault(self.root(layer.read[column]), "tied to one that is not 0")
            if before == len(found):
                for layer in self.layers:
                    if layer.groups > 1:
                        self.even(layer, found)
            if before == len(found):
                for value in reversed(self.values.values()):
                    if before == len(found) and not any(self.root(label) in found for label in value.labels):
                        found[self.root(value.labels[0])] = "the last one"
        return found

    def even(self, layer: _Layer, found: dict[int, str]) -> None:
        """Let each group that keeps anything keep as many channels as any other."""
        sides = [
            torch.tensor([self.root(label) for label in labels]).reshape(layer.groups, -1).tolist()
            for labels in (layer.made, layer.read)
        ]
        used = [any(root in found for side in sides for root in side[k]) for k in range(layer.groups)]
        for side in sides:
            most = max(1, *(sum(root in found for root in group) for group in side))
            for group in (group for group, some in zip(side, used, strict=True) if some):
                for root in group:
                    if sum(one in found for one in group) < most:
                        found.setdefault(root, "a group of a convolution")

    def step(self, node: torch.fx.Node) -> None:
        kind = str(node.target).removeprefix("aten.").split(".")[0]
        if node.all_input_nodes and all(self.tensor(read) is not None for read in node.all_input_nodes):
            self.computed[node.name] = self.evaluated(node)
            return
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
        if before is not None and deep == 1 and groups == len(weight):
            self.made += [(label, bool(own)) for label, own in zip(before.labels, zero, strict=True)]
            return _Value(before.labels, zero)
        made = self.new(zero)
        if before is None:
            return made
        if len(before.labels) != deep * groups:
            self.keep(before, "another axis")
            return made
        own = torch.arange(groups).repeat_interleave(len(weight) // groups)
        weighs = torch.zeros(len(weight), groups, deep, dtype=torch.bool)
        weighs[torch.arange(len(weight)), own] = used
        self.layers.append(_Layer(made.labels, before.labels, groups, weighs.reshape(len(weight), -1)))
        return made

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
        return _Value(before.labels, (bias == 0) & ((gain == 0) | (before.zero & (mean == 0))))

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


def counted(module: nn.Module, example: Tensor) -> Count:
    """How many channels of the module's layers can go, whatever the inputs are."""
    return _Walk(module.eval(), example).count()


def planted(module: nn.Module, example: Tensor, generator: torch.Generator) -> Count:
    """How many channels of the module's layers can go, whatever the inputs are, after some have been zeroed
    in place: in a third of all layers a quarter of the channels, filter, batch norm's scale and shift.
    """
    walk = _Walk(module.eval(), example)
    walk.zero_some(generator)
    return walk.count()
