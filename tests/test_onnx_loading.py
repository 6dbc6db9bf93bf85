"""Every model of the onnx package's own tests loads, and what is known of it is right. They, and the networks
to measure on, stay what they are: byte for byte where nothing is removed, and around a channel that is cut.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from benchmarks import cutting
from benchmarks.cutting import changed_by_nothing, free_labels, harm, module_changed_by_nothing, module_harm
from benchmarks.loading import Case, Model, counts, files, node_cases, stored_cases, wrong
from onnx import numpy_helper
from torch import nn

import relutrim
from command_line import call
from onnx_models import model, op
from relutrim.io.files import read_bytes
from relutrim.io.onnx import network_from_proto
from relutrim.io.onnx.edit import edited
from relutrim.io.onnx.parse import parse
from relutrim.io.torch.source import Remade, TorchSource
from relutrim.report.json import schema

_EVERY = 4
"""The others are alike, and ``benchmarks.loading`` has them all."""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they overflow on purpose
        return [case for case in (*node_cases(), *stored_cases()) if counts(case)]


def test_every_model_that_the_checker_accepts_loads_and_is_read_right(cases):
    assert len(cases) > 1900
    for case in cases:
        assert wrong(network_from_proto(case.model), case) is None, case.name


def test_models_from_which_nothing_is_removed_come_back_as_the_same_bytes(cases):
    for case in cases[::_EVERY]:
        assert_stays_what_it_is(Model.of(case.name, case.model))


@pytest.mark.parametrize("folder", ["cnn", "lenet", "paper", "public"])
def test_networks_stay_what_they_are_but_around_a_channel_that_is_cut_out(shared, folder):
    models = [*files(shared / "networks" / folder)]
    assert models
    for one in models:
        assert assert_stays_what_it_is(one) > 0


def test_so_does_the_network_that_is_in_the_package():
    assert assert_stays_what_it_is(Model.of("demo", demo())) == 3


def assert_stays_what_it_is(one: Model) -> int:
    """How many channels were cut out of it, one at a time: the first, the last and one between them."""
    network, difference = one.read()
    assert difference is None, one.name
    assert not one.changed(network), one.name
    labels = free_labels(network)
    chosen = sorted({labels[0], labels[len(labels) // 2], labels[-1]}) if labels else []
    for gone in chosen:
        assert one.harm(network, gone) is None, one.name
    return len(chosen)


def demo() -> onnx.ModelProto:
    return parse(read_bytes(relutrim.demo_model()))


# inputs that have stored values


WEIGHTS = {f"w{index}": np.eye(2, dtype=np.float32) for index in range(7)}
CHAIN = [op("MatMul", [f"h{index}" if index else "x", f"w{index}"], f"h{index + 1}") for index in range(7)]


@pytest.mark.parametrize("ir", [3, 8])
def test_inspect_says_which_inputs_count_as_constants(tmp_path, capsys, ir):
    path = tmp_path / "listed.onnx"
    onnx.save(model(CHAIN, ("batch", 2), WEIGHTS, outputs=["h7"], ir=ir, listed=True), path)
    words = "inputs that count as constants, since the file stores values for them: 7 (w0, w1, w2, w3, w4"
    assert f"\n{words} and 2 more)\n" in call(capsys, "inspect", path).out
    assert f"\n{words}, w5, w6)\n" in call(capsys, "inspect", path, "-v").out
    assert inspected(capsys, path)["constant_inputs"] == [*WEIGHTS]
    done = call(capsys, "compress", path, tmp_path / "out.onnx", "--box", -1, 1)
    assert "inputs with stored values count as constants: w0, w1, w2, w3, w4 and 2 more" in done.out


def test_inspect_does_not_speak_of_constants_where_there_are_none(tmp_path, capsys):
    path = tmp_path / "plain.onnx"
    onnx.save(model(CHAIN, ("batch", 2), WEIGHTS, outputs=["h7"]), path)
    assert "constants" not in call(capsys, "inspect", path).out
    assert inspected(capsys, path)["constant_inputs"] == []
    assert inspected(capsys, relutrim.demo_model())["constant_inputs"] == []


def inspected(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    found = json.loads(call(capsys, "inspect", path, "--json").out)
    jsonschema.validate(found, schema("inspection"))
    return found


# what is noticed where models do not stay what they are


def another_name(made: onnx.ModelProto) -> None:
    made.graph.node[0].name = "other"


def a_node_more(made: onnx.ModelProto) -> None:
    made.graph.node.append(op("Identity", ["output"], "more"))


def another_number(name: str) -> Callable[[onnx.ModelProto], None]:
    def change(made: onnx.ModelProto) -> None:
        (tensor,) = (one for one in made.graph.initializer if one.name == name)
        array = numpy_helper.to_array(tensor).copy()
        array.flat[0] = np.nextafter(array.flat[0], np.float32(1))
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    return change


def no_weights(made: onnx.ModelProto) -> None:
    del made.graph.initializer[:]


def another_text(made: onnx.ModelProto) -> None:
    made.metadata_props.add(key="more", value="")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (another_name, "node 'fc1.out' is another one"),
        (another_text, "something beside nodes and tensors is another one"),
        (a_node_more, "5 nodes have become 6"),
        (another_number("fc3.weight"), "tensor 'fc3.weight' is another one"),
        (another_number("fc1.weight"), "tensor 'fc1.weight' is another one"),
    ],
)
def test_what_changes_beside_a_channel_is_noticed(monkeypatch, damage, words):
    proto, network = demo(), network_from_proto(demo())
    first = free_labels(network)[0]
    assert harm(proto, network, first) is None
    monkeypatch.setattr(cutting, "edited", spoiled(damage))
    assert harm(proto, network, first) == words


def test_a_model_that_is_no_longer_valid_is_noticed(monkeypatch):
    proto, network = demo(), network_from_proto(demo())
    monkeypatch.setattr(cutting, "edited", spoiled(no_weights))
    with pytest.raises(onnx.checker.ValidationError):
        harm(proto, network, free_labels(network)[0])


def test_a_byte_that_changes_for_nothing_is_noticed(monkeypatch):
    proto, network = demo(), network_from_proto(demo())
    assert not changed_by_nothing(proto, network)
    monkeypatch.setattr(cutting, "edited", spoiled(another_text))
    assert changed_by_nothing(proto, network)


def spoiled(damage: Callable[[onnx.ModelProto], None]) -> Callable[..., onnx.ModelProto]:
    """The edits of a model, and then something else."""

    def edit(*arguments: Any, **options: Any) -> onnx.ModelProto:
        made = edited(*arguments, **options)
        damage(made)
        return made

    return edit


@pytest.mark.parametrize("key", ["0.weight", "2.weight", "4.bias"])
def test_what_changes_in_a_module_is_noticed(monkeypatch, key):
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    source = TorchSource.of(module, (3,))
    first = free_labels(source.network)[0]
    assert not module_changed_by_nothing(source)
    assert module_harm(source, first) is None

    def edit(self: TorchSource, *arguments: Any) -> Remade:
        made = original(self, *arguments)
        made.model.state_dict()[key].view(-1)[0] += 1
        return made

    original = TorchSource.edited
    monkeypatch.setattr(TorchSource, "edited", edit)
    assert module_changed_by_nothing(source)
    assert module_harm(source, first) == f"tensor {key!r} is another one"
