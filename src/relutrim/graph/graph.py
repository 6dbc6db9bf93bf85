"""A network: a directed acyclic graph of operators, immutable, with what its file needs to be written
back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from relutrim.errors import NetworkError
from relutrim.graph.operators import Convolution, Fresh, Linear, Operator, Relu, Shape
from relutrim.graph.origin import Origin
from relutrim.graph.sharing import Shared

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Port:
    """The input: its name, its shape without the batch axis, and the batch axis as the file declares it.

    ``batch`` is a number, a symbolic name, or None where the file has no batch axis at all.
    """

    name: str
    shape: Shape
    batch: int | str | None = "batch"

    @property
    def size(self) -> int:
        """How many numbers one input holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Node:
    """An operator applied to named values. Its name is also the name of the value it makes; ``origin`` is
    where it comes from, None for one that was made here.
    """

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    origin: Origin | None = None


@dataclass(frozen=True)
class TailStep:
    """Something behind the last affine layer that is carried over untouched, such as a softmax."""

    kind: str
    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """An output of the file: the node that it is computed from and the tail between the two."""

    name: str
    source: str
    tail: tuple[TailStep, ...] = ()


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes in topological order. Deviations and bounds are measured at the outputs' sources, before the
    tails.

    ``dtype`` is how the file stores weights (``float32`` or ``float64``); in memory they are float64.
    ``pinned`` are values that something reads which the network does not hold (an opaque node of the model):
    they must stay what they are, to the last bit. ``shared`` are tensors of the source that are read in
    several places; a network that was made of another one keeps the other's.

    >>> import relutrim
    >>> network = relutrim.load(relutrim.demo_model())
    >>> network.widths, network.neurons, network.connections, network.parameters
    ([784, 100, 100, 10], 200, 89400, 89610)
    """

    input: Port
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    dtype: str = "float32"
    metadata: Mapping[str, str] = field(default_factory=dict)
    pinned: tuple[str, ...] = ()
    shared: tuple[Shared, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(_sorted(self.input.name, self.nodes)))
        _ = self.shapes
        if not self.outputs:
            raise NetworkError("the network has no output")
        for output in self.outputs:
            if output.source not in self.shapes:
                raise NetworkError(
                    f"output {output.name!r} is computed from {output.source!r}, which no node makes"
                )
        for name in self.pinned:
            if name not in self.shapes:
                raise NetworkError(f"the value {name!r} must stay as it is, and no node makes it")

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every value, without the batch axis."""
        shapes: dict[str, Shape] = {self.input.name: self.input.shape}
        for node in self.nodes:
            try:
                shapes[node.name] = node.operator.output_shape([shapes[name] for name in node.inputs])
            except NetworkError as error:
                raise error.at(f"node {node.name!r}") from None
        return shapes

    @cached_property
    def _by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _readers(self) -> Mapping[str, tuple[Node, ...]]:
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(node)
        return {name: tuple(found) for name, found in readers.items()}

    def __getitem__(self, name: str) -> Node:
        return self._by_name[name]

    def get(self, name: str) -> Node | None:
        """The node that makes a value; None where none does."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def readers(self, name: str) -> tuple[Node, ...]:
        """The nodes that read a value; outputs of the network are not among them."""
        return self._readers.get(name, ())

    def is_output(self, name: str) -> bool:
        """Whether an output is computed from this value, or it is pinned."""
        return name in self.pinned or any(output.source == name for output in self.outputs)

    def behind(self, names: Set[str]) -> set[str]:
        """The values that depend on these, themselves included."""
        found = {*names}
        for node in self.nodes:
            if not found.isdisjoint(node.inputs):
                found.add(node.name)
        return found

    @cached_property
    def relus(self) -> tuple[Node, ...]:
        """The ReLU nodes in topological order; a ReLU's neurons are the entries of its tensor, flat in C
        order.
        """
        return tuple(node for node in self.nodes if isinstance(node.operator, Relu))

    def free_name(self, name: str) -> str:
        """A name like ``name`` that no value has."""
        while name in self.shapes:
            name += "_"
        return name

    def size(self, name: str) -> int:
        """How many numbers a value holds."""
        return math.prod(self.shapes[name])

    @property
    def widths(self) -> list[int]:
        """Sizes of the input, of each ReLU layer, and of the outputs together."""
        return [
            self.input.size,
            *(self.size(node.name) for node in self.relus),
            sum(self.size(source) for source in dict.fromkeys(o.source for o in self.outputs)),
        ]

    @property
    def sources(self) -> tuple[str, ...]:
        """The distinct values that outputs are computed from, in the order of the outputs; then what is
        pinned.
        """
        return tuple(dict.fromkeys([*(output.source for output in self.outputs), *self.pinned]))

    @property
    def neurons(self) -> int:
        """How many ReLUs there are."""
        return sum(self.size(node.name) for node in self.relus)

    @property
    def connections(self) -> int:
        """Multiplications by a weight: the sum of n_{l-1} n_l over the linear layers, as the paper counts;
        a convolution's kernel counts at every position, its padding included.
        """
        total = 0
        for node in self.nodes:
            shape = self.shapes[node.name]
            if isinstance(node.operator, Linear):
                total += node.operator.weight.size * math.prod(shape[:-1])
            elif isinstance(node.operator, Convolution):
                total += node.operator.weight.size * math.prod(shape[1:])
        return total

    @property
    def zeros(self) -> int:
        """How many stored weights of linear layers and convolutions are 0."""
        operators = [node.operator for node in self.nodes]
        weights = [o.weight for o in operators if isinstance(o, Linear | Convolution)]
        return sum(weight.size - int((weight != 0).sum()) for weight in weights)

    @cached_property
    def parameters(self) -> int:
        """How many numbers a file stores: those of a tensor that several nodes read count once."""
        every = sum(node.operator.parameters for node in self.nodes)
        return every - sum(one.repeated(self.get) for one in self.shared)

    @cached_property
    def parted(self) -> str | None:
        """A shared tensor whose readers do not read the same numbers any more; None if there is none."""
        return next((one.tensor for one in self.shared if not one.whole(self.get)), None)

    @cached_property
    def unread_inputs(self) -> list[int]:
        """Flat indices of the inputs that no output depends on, since every way from there meets a weight
        of 0.
        """
        import numpy as np

        wanted = {name: np.full(shape, self.is_output(name)) for name, shape in self.shapes.items()}
        for node in reversed(self.nodes):
            shapes = [self.shapes[name] for name in node.inputs]
            read = node.operator.reads(wanted[node.name], shapes)
            for name, entries in zip(node.inputs, read, strict=True):
                wanted[name] = wanted[name] | entries
        return [int(i) for i in np.flatnonzero(~wanted[self.input.name])]

    @property
    def multiply_adds(self) -> int:
        """How many multiplications by a weight one evaluation takes: of a linear node one for each weight at
        each leading position of its value, zeros included, of a convolution one for each weight at each
        position, of a scale one for each entry that it multiplies. Biases, sums, ReLUs and reshapes multiply
        nothing.
        """
        return sum(node.operator.multiply_adds(self.size(node.name)) for node in self.nodes)

    def run(self, x: Tensor, *, until: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Every value on a batch of inputs, in the dtype and on the device of ``x``; with ``until`` these
        alone, and no other is held for longer than somebody reads it.
        """
        if until is None:
            return dict(self.steps(x))
        wanted = set(until)
        return {name: value for name, value in self.steps(x, wanted) if name in wanted}

    def steps(
        self, x: Tensor, until: Set[str] | None = None, fresh: Mapping[str, Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """The values in order, as they are made; with ``until`` up to the last one of these. ``fresh`` are
        fresh values that are known.
        """
        values = {self.input.name: x.reshape(x.shape[0], *self.input.shape)}
        yield from values.items()
        missing = set(self.shapes) if until is None else set(until) - {self.input.name}
        for node in self.nodes:
            if not missing:
                return
            operator = node.operator
            if isinstance(operator, Fresh):
                made = (fresh or {}).get(node.name, operator.unknown(x))
            else:
                made = operator.forward([values[name] for name in node.inputs])
            missing.discard(node.name)
            values[node.name] = made
            yield node.name, made
            for name in self.read_last[node.name]:
                del values[name]

    @cached_property
    def read_last(self) -> dict[str, list[str]]:
        """Per node, by name, the values that no node behind it reads."""
        last: dict[str, str] = {}
        for node in self.nodes:
            last.update(dict.fromkeys((*node.inputs, node.name), node.name))
        found: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for name, reader in last.items():
            found[reader].append(name)
        return found

    def __call__(self, x: Tensor) -> Tensor:
        """All outputs before their tails, flat, one behind the other: (batch, sum of output sizes)."""
        import torch

        values = self.run(x, until=self.sources)
        return torch.cat([values[name].reshape(len(x), self.size(name)) for name in self.sources], dim=1)

    def without_origins(self) -> Network:
        """The same nodes as if they were made here: none of their numbers is stored anywhere yet."""
        if not self.shared and all(node.origin is None for node in self.nodes):
            return self
        return replace(self, nodes=tuple(replace(node, origin=None) for node in self.nodes), shared=())

    def edit(self, *, change: Mapping[str, Node | None] | None = None, **fields: Any) -> Network:
        """A copy in which nodes are replaced (or, with None, removed) and fields changed."""
        change = change or {}
        nodes = [change.get(node.name, node) for node in self.nodes]
        return replace(self, nodes=tuple(node for node in nodes if node is not None), **fields)


def live(nodes: Iterable[Node], names: Iterable[str]) -> tuple[Node, ...]:
    """Those of the nodes, in topological order, that the values of these names depend on."""
    kept, wanted = list[Node](), {*names}
    for node in reversed([*nodes]):
        if node.name in wanted:
            kept.append(node)
            wanted.update(node.inputs)
    return tuple(reversed(kept))


def _sorted(input_name: str, nodes: Sequence[Node]) -> list[Node]:
    """The nodes in topological order, stable where the given order already is one."""
    names = [node.name for node in nodes]
    if len({input_name, *names}) != len(names) + 1:
        twice = next(name for name in [input_name, *names] if ([input_name, *names]).count(name) > 1)
        raise NetworkError(f"two nodes make the value {twice!r}")
    known, waiting, ordered = {input_name}, list(nodes), []
    made = {input_name, *names}
    for node in nodes:
        for name in node.inputs:
            if name not in made:
                raise NetworkError(f"it reads {name!r}, which nothing makes", where=f"node {node.name!r}")
    while waiting:
        ready = []
        for node in waiting:
            if all(name in known for name in node.inputs):
                ready.append(node)
                known.add(node.name)
        if not ready:
            raise NetworkError(
                "the graph has a cycle; recurrent networks must be unrolled first",
                where=f"node {waiting[0].name!r}",
            )
        ordered += ready
        waiting = [node for node in waiting if node.name not in known]
    return ordered
