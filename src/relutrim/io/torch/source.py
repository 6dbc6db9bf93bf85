"""A model of PyTorch in memory, and what edits make of it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from relutrim.errors import CheckFailed, UnsupportedError
from relutrim.graph import Add, Convolution, Linear, Network, Relu
from relutrim.graph.origin import Frame, parts
from relutrim.graph.slicing import Kept
from relutrim.io.torch.apply import applied, check_program
from relutrim.io.torch.compare import compare
from relutrim.io.torch.edit import edited
from relutrim.io.torch.evaluate import examples_of
from relutrim.io.torch.graph_module import edited_module, module_of
from relutrim.io.torch.module import Examples, Recording, copied, record, recorded
from relutrim.io.torch.program import functional, program_of, quiet
from relutrim.io.torch.record import ROWS
from relutrim.io.torch.verify import Trial, check_computes, check_state, runnable

_WORTH = 0.1
"""A module becomes its recorded program, which is another class, where that has so much fewer parameters."""


@dataclass(frozen=True, eq=False)
class Remade:
    """A model with edits, and why it is no longer of its class, where that is so."""

    model: Any
    remark: str | None = None


@dataclass(frozen=True, eq=False)
class TorchSource:
    """A module or an exported program, and how it is read."""

    model: Any
    recording: Recording

    @classmethod
    def of(
        cls, model: Any, input_shape: tuple[int, ...] | None = None, *, example_input: Examples | None = None
    ) -> TorchSource:
        """How a model is read; the model itself is left alone."""
        if isinstance(model, ExportedProgram):
            return cls(model, recorded(model, examples_of(program_of(model))))
        return cls(model, record(model, input_shape, example_input=example_input))

    @property
    def network(self) -> Network:
        """The network that it computes."""
        return self.recording.reading.network

    def frame(self, network: Network) -> Frame:
        """What the model can say of the network without another step in place of one that it has: ReLUs that
        are a part of one (a clip is two) do not go by themselves. The code of a module stays as it is, too:
        without new steps, with the sums and ReLUs that its forward() computes by a call of its own, or in a
        layer that it uses more than once, and with one tensor wherever it reads one; and layers that have no
        bias do not get one.
        """
        found = parts(network.nodes) & {relu.name for relu in network.relus}
        if not isinstance(self.model, nn.Module):
            return Frame(found)
        layers = {call.name: call.layer for call in self.recording.program.calls}
        uses = Counter(layer[1] for layer in layers.values() if layer is not None)
        for node in (node for node in network.nodes if isinstance(node.operator, Add | Relu)):
            own = [layers.get(key) for key in node.origin.nodes] if node.origin is not None else []
            if any(layer is None or uses[layer[1]] > 1 for layer in own):
                found |= {node.name}
        unbiased = frozenset(
            node.name
            for node in network.nodes
            if isinstance(node.operator, Convolution | Linear)
            and node.origin is not None
            and "bias" not in node.origin.fields
        )
        return Frame(found, frozenset(node.name for node in network.nodes), _WORTH, unbiased, tied=True)

    def edited(
        self, before: Network, after: Network, kept: Mapping[str, Kept], trial: Trial | None = None
    ) -> Remade:
        """The model, read as ``before``, such that it computes ``after``; both are run as ``trial`` says."""
        recording = self.recording
        assert before is recording.reading.network
        found = edited(recording.program, recording.reading, after, kept)
        if isinstance(self.model, nn.Module):
            return Remade(*applied(self.model, recording, found, trial))
        module = edited_module(recording.exported, recording.program, found)
        compare(copy.deepcopy(module), found.network, recording.reading.places, recording.examples)
        made = exported(module, recording.examples, recording.program.batch)
        check_state(recording.exported, made, found)
        check_program(functional(made)[1], found)
        check_computes(self.model, module, recording, trial)
        return Remade(made)

    def confirm(self, onnx: bytes, model: Any) -> None:
        """Raise an error unless an ONNX file computes what a model, or what became of it, does: at random
        inputs, within what rounding can make of both.
        """
        from relutrim.io.onnx.parse import parse
        from relutrim.io.onnx.read import network_from_proto

        found = runnable(model)
        network = replace(network_from_proto(parse(onnx)), dtype=self.network.dtype)
        try:
            with torch.no_grad():
                compare(found, network, self.recording.reading.places, self.recording.examples)
        except UnsupportedError:
            raise CheckFailed(
                "the ONNX that the certificate is about computes something else than the module; this is a "
                "bug in relutrim"
            ) from None


def remade(model: Any, made: Remade | None, stored: Network | None) -> Any:
    """What a model has become: itself with edits, a copy where nothing has changed (``stored`` is None), or a
    new one where it could not be edited.
    """
    if made is not None:
        return made.model
    if isinstance(model, ExportedProgram):
        return copy.deepcopy(model) if stored is None else exported_program(stored)
    return copied(model) if stored is None else module_of(stored).train(model.training)


def exported_program(network: Network) -> ExportedProgram:
    """A network as a program."""
    batch = network.input.batch if isinstance(network.input.batch, int) else "batch"
    rows = batch if isinstance(batch, int) else ROWS
    example = torch.zeros(rows, *network.input.shape, dtype=getattr(torch, network.dtype))
    return exported(module_of(network), (example,), batch)


def exported(module: nn.Module, examples: tuple[Tensor, ...], batch: int | str) -> ExportedProgram:
    """A module recorded again; a fixed batch size stays fixed."""
    free: tuple[dict[int, Any] | None, ...] | None = None
    if not isinstance(batch, int):
        size = Dim("batch") if len(examples) == 1 else Dim.AUTO
        free = tuple({0: size} if one.ndim else None for one in examples)
    with quiet():
        given = tuple(one.clone() for one in examples)
        found = torch.export.export(module, given, dynamic_shapes=free, strict=False)
    for node in found.graph.nodes:
        # They name folders of this machine, and are of no use to anyone else.
        node.meta.pop("stack_trace", None)
    return found
