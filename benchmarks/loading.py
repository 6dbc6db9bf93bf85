"""How many of the models that the onnx package tests runtimes with can be read, are they read right, and do
they stay what they are?

    python -m benchmarks.loading [FOLDER ...]

Of each model that ``onnx.checker`` accepts and whose inputs are tensors of numbers: whether it loads,
whether values in it come from nowhere ("unknown"), whether outputs that depend on none of these are what
the case expects, and whether every value is what onnxruntime makes of those before it. Then whether it
comes back as the same bytes (as protobuf writes them) where nothing is removed; and, where a channel can
go, whether a model that loses one is valid, has the same nodes, and the same bytes in every tensor that no
layer around the channel reads (:mod:`benchmarks.cutting`). Folders (without one, those with the networks to
measure on) hold models that are compared with nothing. The state dicts of ``networks/lenet`` are read as
their architecture says; what comes back is their module, of the same class, with the same state.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, numpy_helper
from onnx.backend.test import loader
from torch import nn

from benchmarks.cutting import (
    changed_by_nothing,
    free_labels,
    harm,
    module_changed_by_nothing,
    module_harm,
)
from benchmarks.public import lenet
from benchmarks.results import shared, table, write_section
from relutrim.errors import CheckFailed, RelutrimError
from relutrim.graph import Fresh, Network
from relutrim.graph.comparing import check_equal
from relutrim.io.files import read_bytes
from relutrim.io.onnx import network_from_proto
from relutrim.io.onnx.external import with_external
from relutrim.io.onnx.parse import parse
from relutrim.io.state_dict import load_tensors, read_state_dict
from relutrim.io.tails import behind_tail
from relutrim.io.torch.source import TorchSource

_STATE_DICTS = "**/lenet_*.pt"
KINDS = ("simple", "light", "pytorch-converted", "pytorch-operator")
Arrays = Sequence[Any]
Feed = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A model, and per data set its inputs and what it makes of them."""

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Arrays, Arrays]]


def node_cases() -> Iterator[Case]:
    """The cases of single operators."""
    for case in loader.load_model_tests(kind="node"):
        yield Case(case.name, case.model, case.data_sets or [])


def stored_cases() -> Iterator[Case]:
    """The cases that the package ships as files."""
    for kind in KINDS:
        for path in sorted(Path(loader.DATA_DIR, kind).glob("**/*.onnx")):
            sets = [(_stored(one, "input"), _stored(one, "output")) for one in path.parent.glob("test_data*")]
            yield Case(f"{kind}/{path.parent.name}/{path.stem}", onnx.load(path), sets)


def _stored(folder: Path, what: str) -> list[Any]:
    found = []
    for index in range(len(list(folder.glob(f"{what}_*.pb")))):
        tensor = TensorProto()
        tensor.ParseFromString(Path(folder, f"{what}_{index}.pb").read_bytes())
        found.append(numpy_helper.to_array(tensor))
    return found


def counts(case: Case) -> bool:
    """Whether the checker accepts a model, and its inputs are tensors of numbers."""
    types = [entry.type for entry in case.model.graph.input]
    if any(one.WhichOneof("value") != "tensor_type" for one in types):
        return False
    if any(one.tensor_type.elem_type == TensorProto.STRING for one in types):
        return False
    try:
        onnx.checker.check_model(case.model)
    except onnx.checker.ValidationError:
        return False
    return True


def wrong(network: Network, case: Case) -> str | None:
    """How an output that is known differs from what the case expects, or a value from what onnxruntime makes,
    if one does.
    """
    weights = {tensor.name for tensor in case.model.graph.initializer}
    inputs = [entry.name for entry in case.model.graph.input if entry.name not in weights]
    for given, expected in case.data:
        feed = dict(zip(inputs, map(_array, given), strict=False))
        found = _wrong_output(network, case, feed, expected) or _wrong_value(network, case, feed)
        if found:
            return found
    return None


def _wrong_output(network: Network, case: Case, feed: Feed, expected: Arrays) -> str | None:
    names = [entry.name for entry in case.model.graph.output]
    if network.input.name not in feed or not expected:
        return None
    batched, values = (
        network.input.batch is not None,
        network.run(_batched(network, feed[network.input.name])),
    )
    for output in network.outputs:
        array = behind_tail(output, values[output.source], batched=batched).numpy()
        array = array if batched else array[0]
        known = ~np.isnan(array)
        if known.any():
            problem = _apart(output.name, array, _array(expected[names.index(output.name)]), known)
            if problem:
                return problem
    return None


def _wrong_value(network: Network, case: Case, feed: Feed) -> str | None:
    """Each node is given the true values of what it reads."""
    known = [node for node in network if not isinstance(node.operator, Fresh)]
    truth = _all_tensors(case.model, feed) if len(known) < len(network.nodes) and known else None
    if truth is None:
        return None
    values: dict[str, Any] = {}
    for node in network:
        if not isinstance(node.operator, Fresh):
            given = [values[n] if n in values else _batched(network, truth[n]) for n in node.inputs]
            values[node.name] = node.operator.forward(given)
        if node.name in truth:
            if node.name in values:
                array = values[node.name].numpy()[0 if network.input.batch is None else slice(None)]
                problem = _apart(node.name, array, truth[node.name], np.isfinite(truth[node.name]))
                if problem:
                    return problem
            values[node.name] = _batched(network, truth[node.name])
    return None


def _all_tensors(model: onnx.ModelProto, feed: Feed) -> Feed | None:
    """Every tensor of the graph, None if onnxruntime cannot run it."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = {name: None for node in model.graph.node for name in node.output if name}
    own = {entry.name for entry in model.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in own)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            shown.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        made = session.run(None, dict(feed))
    except Exception:  # types and operators that it lacks
        return None
    return {**dict(zip((one.name for one in session.get_outputs()), made, strict=True)), **feed}


def _batched(network: Network, array: Any) -> torch.Tensor:
    x = torch.as_tensor(array, dtype=torch.float64)
    return x[None] if network.input.batch is None else x


def _apart(name: str, array: Any, truth: Any, known: Any) -> str | None:
    if array.shape != truth.shape:
        return f"{name!r} has the shape {array.shape} instead of {truth.shape}"
    if not np.allclose(array[known], truth[known], 1e-3, 1e-5):
        return f"{name!r} is {np.abs(array - truth)[known].max():g} off"
    return None


def _array(given: Any) -> Any:
    return numpy_helper.to_array(given) if isinstance(given, TensorProto) else np.asarray(given)


@dataclass(frozen=True)
class Model:
    """How a model is read (as what, and what is wrong about that), whether it comes back as another one where
    nothing is removed, and what else changes in it where a label is.
    """

    name: str
    read: Callable[[], tuple[Network, str | None]]
    changed: Callable[[Network], bool]
    harm: Callable[[Network, int], str | None]

    @classmethod
    def of(
        cls, name: str, model: onnx.ModelProto, read: Callable[[], tuple[Network, str | None]] | None = None
    ) -> Model:
        """An ONNX model, which is compared with nothing unless ``read`` does that."""
        plain = read or (lambda: (network_from_proto(model), None))
        return cls(name, plain, partial(changed_by_nothing, model), partial(harm, model))

    @classmethod
    def of_module(cls, name: str, source: TorchSource, same: Callable[[], Network]) -> Model:
        """A module, which another way has to read as the same network."""

        def read() -> tuple[Network, str | None]:
            try:
                check_equal(same(), source.network)
            except CheckFailed as error:
                return source.network, str(error)
            return source.network, None

        return cls(
            name, read, lambda _: module_changed_by_nothing(source), lambda _, gone: module_harm(source, gone)
        )


@dataclass
class Row:
    """What came of the models of one source."""

    title: str
    found: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def cells(self) -> list[object]:
        """As the table has it."""
        counts = [self.found[name] for name in COUNTS]
        return [self.title, sum(counts[:3]), *counts, f"{self.seconds:.1f}"]

    def take(self, model: Model) -> None:
        """Read a model, write it, and cut it."""
        name = model.name
        try:
            network, difference = model.read()
        except RelutrimError as error:
            self._count("refused", f"{name}: {error}")
            return
        self._count("unknown" if has_unknown(network) else "known")
        if difference:
            self._count("read wrongly", f"{name}: {difference}")
        try:
            same = not model.changed(network)
            self._count("same bytes", "" if same else f"{name}: comes back as other bytes")
            labels = free_labels(network)
            if labels:
                problem = model.harm(network, labels[len(labels) // 2])
                self._count("changed" if problem else "cut", problem and f"{name}: cut, {problem}")
        except RelutrimError as error:
            self._count("failed", f"{name}: {error}")

    def _count(self, what: str, problem: str | None = None) -> None:
        self.found[what] += 1
        if problem:
            self.problems.append(problem)


COUNTS = ("known", "unknown", "refused", "read wrongly", "same bytes", "cut", "changed", "failed")
HEADER = ("models", "in all", *COUNTS, "seconds")


def report(title: str, models: Iterator[Model]) -> Row:
    """Read, write and cut models, and print what is wrong."""
    row, start = Row(title), time.perf_counter()
    for model in models:
        row.take(model)
    row.seconds = time.perf_counter() - start
    print(*row.cells(), flush=True)
    print(*row.problems, sep="\n", flush=True)
    return row


def has_unknown(network: Network) -> bool:
    """Whether something in the network is not known."""
    return bool(network.pinned) or any(isinstance(node.operator, Fresh) for node in network)


def _cases() -> Iterator[tuple[str, Iterator[Case]]]:
    yield "onnx.backend.test, single operators", node_cases()
    yield "onnx.backend.test, stored models", stored_cases()


def _read_case(case: Case) -> tuple[Network, str | None]:
    network = network_from_proto(case.model)
    return network, wrong(network, case)


def files(folder: Path) -> Iterator[Model]:
    """The models in a folder."""
    for path in sorted([*folder.glob("**/*.onnx"), *folder.glob("**/*.onnx.gz")]):
        yield Model.of(str(path), with_external(parse(read_bytes(path)), path.parent))
    for path in sorted(folder.glob(_STATE_DICTS)):
        factory = lenet_with_batch_norm if "_bn_" in path.stem else lenet_without
        module, shape = factory()
        module.load_state_dict(load_tensors(path))
        same = partial(read_state_dict, path, f"{__spec__.name}:{factory.__name__}")
        yield Model.of_module(str(path), TorchSource.of(module.eval(), shape), same)


def lenet_without() -> tuple[nn.Module, tuple[int, ...]]:
    """What ``--arch`` names for a state dict of ``networks/lenet``."""
    return lenet(batch_norm=False), (3, 32, 32)


def lenet_with_batch_norm() -> tuple[nn.Module, tuple[int, ...]]:
    """The same for one with batch norm."""
    return lenet(batch_norm=True), (3, 32, 32)


def _inside(folder: Path) -> list[Path]:
    paths = [*folder.glob("**/*.onnx"), *folder.glob(_STATE_DICTS)]
    return [path.relative_to(folder) for path in paths]


def main(arguments: Sequence[str]) -> None:
    """Everything, one row for each source, one line for each problem."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="with other models")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    options = parser.parse_args(arguments)
    networks = shared() / "networks"
    folders = options.folders or sorted({networks / path.parts[0] for path in _inside(networks)})
    rows = []
    for title, cases in _cases():
        counted = (
            Model.of(case.name, case.model, partial(_read_case, case)) for case in cases if counts(case)
        )
        rows.append(report(title, counted))
    rows += [report(folder.name, files(folder)) for folder in folders]
    text = table(HEADER, (row.cells() for row in rows))
    problems = [f"- {problem}" for row in rows for problem in row.problems]
    if options.section:
        command = shlex.join(["python", "-m", "benchmarks.loading", *arguments])
        write_section(options.section, "\n".join([text, "", *problems]).rstrip(), command)
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
