"""A channel cut out of random ONNX graphs: read again it is the graph that was meant, and what the channel
does not run through is the same to the last byte.
"""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from cutting import declared_model, free_labels, touched, without, without_label
from onnx_models import op
from relutrim.graph import Reshape, Take
from relutrim.graph.comparing import check_equal, same
from relutrim.io.onnx.held import captured
from relutrim.io.onnx.read import network_from_proto

SPACE = 3
"""The height and width of all values."""


class Maker:
    """A graph in the making: tensors with channels by 3 by 3 entries, and initializers that may be shared."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.channels = {"x": 2}

    def pick(self, *choices: object) -> object:
        return self.draw(st.sampled_from(choices))

    def tensor(self, array: np.ndarray, *, share: bool = True) -> str:
        """A new initializer, or one of the same shape that is there already."""
        fits = [
            name
            for name, one in self.weights.items()
            if (one.shape, one.dtype) == (array.shape, array.dtype) and (share or np.array_equal(one, array))
        ]
        if fits and self.draw(st.booleans()):
            return str(self.pick(*fits))
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def floats(self, *shape: int, positive: bool = False) -> str:
        array = self.random.normal(size=shape).astype(np.float32)
        return self.tensor(np.abs(array) + 1 if positive else array, share=not positive)

    def integers(self, *numbers: int) -> str:
        return self.tensor(np.array(numbers, np.int64), share=False)

    def add(self, kind: str, inputs: list[str], *channels: int, **attributes: object) -> None:
        made = [f"t{len(self.nodes)}.{k}" for k in range(len(channels))]
        node = helper.make_node(kind, inputs, made, name=f"node {len(self.nodes)}", **attributes)
        node.doc_string = f"{kind} number {len(self.nodes)}"
        self.nodes.append(node)
        self.channels |= dict(zip(made, channels, strict=True))

    def step(self) -> None:
        """Another node."""
        value = str(self.pick(*self.channels))
        size = self.channels[value]
        alike = [name for name, count in self.channels.items() if count == size]
        kinds = (
            "conv conv conv depthwise norm relu relu product shift sum concat slice gather split sine take"
        )
        match self.pick(*kinds.split()):
            case "conv":
                made = self.draw(st.integers(2, 4))
                bias = [self.floats(made)] if self.draw(st.booleans()) else []
                self.add("Conv", [value, self.floats(made, size, 1, 1), *bias], made)
            case "depthwise":
                self.add("Conv", [value, self.floats(size, 1, 3, 3)], size, group=size, pads=[1] * 4)
            case "norm":
                vectors = [self.floats(size) for _ in range(3)]
                self.add("BatchNormalization", [value, *vectors, self.floats(size, positive=True)], size)
            case "relu":
                self.add("Relu", [value], size)
            case "product":
                self.add("Mul", [value, self.floats(size, 1, 1)], size)
            case "shift":
                self.add("Add", [self.floats(1, size, 1, 1), value], size)
            case "sum":
                self.add("Add", [value, str(self.pick(*alike))], size)
            case "concat":
                other = str(self.pick(*self.channels))
                self.add("Concat", [value, other], size + self.channels[other], axis=1)
            case "slice" if size > 2:
                start = self.draw(st.integers(0, 1))
                end = self.integers(2**63 - 1 if self.draw(st.booleans()) else size)
                self.add("Slice", [value, self.integers(start), end, self.integers(1)], size - start)
            case "gather":
                order = self.draw(st.permutations(range(size)))
                self.add("Gather", [value, self.integers(*order)], size, axis=1)
            case "split" if size > 3:
                parts = (2, size - 2)
                self.add("Split", [value, self.integers(*parts)], *parts, axis=1)
            case "sine":
                self.add("Sin", [value], size)
            case "take":
                places = self.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=4))
                self.add("Gather", [value, self.integers(*places)], len(places), axis=1)

    def end(self) -> list[str]:
        """Layers that read what is there, flattened in one of two ways; their results are the outputs."""
        unread = [name for name in self.channels if not any(name in node.input for node in self.nodes)]
        outputs = []
        for name in unread:
            size, flat = self.channels[name], f"{name} flat"
            if self.draw(st.booleans()):
                shape = self.pick((0, -1), (-1, size * SPACE**2))
                self.nodes.append(op("Reshape", [name, self.integers(*shape)], flat))  # type: ignore[misc]
            else:
                self.nodes.append(op("Flatten", [name], flat))
            weight = self.floats(size * SPACE**2, 2)
            self.nodes.append(op("MatMul", [flat, weight], f"{name} end"))
            outputs.append(f"{name} end")
        return outputs

    def proto(self) -> onnx.ModelProto:
        outputs = self.end()
        proto = declared_model(self.nodes, ["n", 2, SPACE, SPACE], self.weights, outputs=outputs)
        inferred = onnx.shape_inference.infer_shapes(proto)
        listed = [one for one in inferred.graph.value_info if self.draw(st.booleans())]
        proto.graph.value_info.extend(listed)
        return proto


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    make = Maker(draw)
    for _ in range(draw(st.integers(2, 9))):
        make.step()
    return make.proto()


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.integers(0, 2**16))
def test_what_is_read_again_is_what_was_meant_and_the_rest_is_as_it_was(proto, chosen):
    network = network_from_proto(proto)
    free = free_labels(network)
    if not free:
        return
    cut = free[chosen % len(free)]
    made = without_label(proto, network, cut)
    after, kept = without(network, {cut})
    again = network_from_proto(made)
    check_equal(again, after)
    for node in again:
        if node.name in after:
            assert node.inputs == after[node.name].inputs
            meant = after[node.name].operator
            assert isinstance(meant, Take | Reshape) or same(node.operator, meant)

    near = [node for node, one in zip(proto.graph.node, touched(proto, network, kept), strict=True) if one]
    for one, before in zip(made.graph.node, proto.graph.node, strict=True):
        if before not in near:
            assert one.SerializeToString() == before.SerializeToString()
        said = [(n.op_type, n.name, n.output, n.doc_string, len(n.input)) for n in (one, before)]
        assert said[0] == said[1]
    read_near = {name for node in near for name in (*node.input, *captured(node))}
    content = {one.name: one.SerializeToString() for one in made.graph.initializer}
    for one in proto.graph.initializer:
        if one.name not in read_near:
            assert content[one.name] == one.SerializeToString()
    infos = {one.name: one.SerializeToString() for one in made.graph.value_info}
    made_near = {name for node in near for name in node.output}
    for one in proto.graph.value_info:
        if one.name not in made_near:
            assert infos[one.name] == one.SerializeToString()
