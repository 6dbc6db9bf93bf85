"""What is made of a module, a program or a ``.pt2`` file is seen to be wrong where a graph cannot show it: in
opaque nodes, and in what they read.
"""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import relutrim
from relutrim.errors import CheckFailed, UnsupportedError
from relutrim.io import exported_edit
from relutrim.io.exported import opened
from relutrim.io.exported_archive import PROGRAM
from relutrim.io.exported_state import State, check_state
from relutrim.io.torch import apply, graph_module, source
from relutrim.io.torch.edit import Edited
from relutrim.io.torch.module import record
from relutrim.io.torch.verify import Trial, check_computes, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


class Recurrent(nn.Module):
    """An LSTM, which relutrim does not follow, in front of all that it does; a neuron is always 0."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.a, self.b = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.a.weight[2], self.a.bias[2] = 0, -1

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.b(F.relu(self.a(self.l(x)[0])))
        return found


class Power(nn.Module):
    """Something opaque in between, with a number that may be one of a layer's sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 2)
        with torch.no_grad():
            self.a.weight[2], self.a.bias[2] = 0, -1

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.c(torch.sin(self.number() * x)) + self.c(self.b(F.relu(self.a(x))))
        return found

    def number(self) -> float:
        return 3.0


class BySize(Power):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.c(torch.roll(x, self.a.out_features, 1)) + self.c(self.b(F.relu(self.a(x))))
        return found


class Noisy(Power):
    """The second result is another one each time."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), F.dropout(self.b(F.relu(self.a(x))))


def exported(module: nn.Module, *shape: int) -> torch.export.ExportedProgram:
    return torch.export.export(
        module, (torch.randn(2, *shape),), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False
    )


def tripled(monkeypatch: pytest.MonkeyPatch, room: Any, of: str) -> None:
    """Let whoever sets a tensor do the same to one that no edit names."""
    original = room.set_tensor

    def set_tensor(module: nn.Module, name: str, tensor: Tensor) -> None:
        original(module, name, tensor)
        path, _, last = of.rpartition(".")
        setattr(module.get_submodule(path), last, nn.Parameter(3 * module.get_parameter(of).detach()))

    monkeypatch.setattr(room, "set_tensor", set_tensor)


def small(module: nn.Module, *shape: int) -> relutrim.Compression:
    return relutrim.compress(module, input_shape=shape, tolerance=0)


def test_a_module_with_another_weight_in_front_of_an_opaque_node_is_not_handed_out(monkeypatch):
    module, x = Recurrent(), torch.randn(2, 5, 6)
    tripled(monkeypatch, apply, "l.weight_ih_l0")
    result = small(module, 5, 6)
    assert result.remark is not None
    assert "'l.weight_ih_l0'" in result.remark
    torch.testing.assert_close(result.model(x), module(x))


@pytest.mark.parametrize("kind", ["module", "program"])
def test_no_such_program_is_handed_out(monkeypatch, kind):
    tripled(monkeypatch, graph_module, "l.weight_ih_l0")
    monkeypatch.setattr(apply, "_with_layers", lambda *_: pytest.fail("not a module"))
    module = Recurrent()
    model = exported(module, 5, 6) if kind == "program" else module
    if kind == "module":
        original = source.edited
        monkeypatch.setattr(source, "edited", lambda *given: as_a_program(original(*given)))
    left_as_it_is(small(model, 5, 6), r"'l\.weight_ih_l0'.*report")


def left_as_it_is(result: relutrim.Compression, why: str) -> None:
    assert result.unchanged
    assert re.search(why, result.obstacle or "")


def as_a_program(found: Edited) -> Edited:
    object.__setattr__(found, "obstacle", "for this test")
    return found


@pytest.mark.parametrize("kind", [Power, BySize])
def test_an_opaque_node_that_computes_something_else_is_seen_by_running_it(monkeypatch, kind):
    module, x = kind(), torch.randn(3, 4)
    if kind is Power:
        original = apply._with_layers

        def changed(*given: Any) -> Any:
            found = original(*given)
            found.number = lambda: 3.5
            return found

        monkeypatch.setattr(apply, "_with_layers", changed)
    result = small(module, 4)
    assert result.stored.neurons < result.original.neurons
    assert result.remark is not None
    torch.testing.assert_close(result.model(x), module(x))


def test_what_no_run_can_confirm_is_an_obstacle(monkeypatch):
    program = exported(Power(), 4)
    original = source.edited_module

    def changed(*given: Any) -> Any:
        found = original(*given)
        (node,) = (one for one in found.graph.nodes if "sin" in str(one.target))
        node.target = torch.ops.aten.cos.default
        found.recompile()
        return found

    monkeypatch.setattr(source, "edited_module", changed)
    result = small(program, 4)
    assert result.unchanged
    assert "something else" in str(result.obstacle)


def trial_of(module: nn.Module, other: nn.Module, allowed: float = 0.0) -> None:
    check_computes(module, other, record(module, (4,)), Trial(torch.rand(5, 4), allowed))


def test_results_may_be_as_far_apart_as_is_proven():
    module = Power()
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.c.bias += 0.5
    with pytest.raises(UnsupportedError, match="something else"):
        trial_of(module, other, 0.1)
    trial_of(module, other, 1.01)


def test_nan_is_never_near():
    module = Power()
    other = copy.deepcopy(module)
    other.number = lambda: math.nan  # type: ignore[method-assign]
    with pytest.raises(UnsupportedError, match="something else"):
        trial_of(module, other, 1e9)


class Cancelling(Power):
    """Where large numbers cancel, rounding is most of what is left."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * 1e-3 + 1e5).sin()


def test_what_the_last_bits_explain_is_no_mistake():
    module = Cancelling()
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.a.weight *= 1 + 2.0**-22
        other.c.bias *= 1 + 2.0**-22
    trial_of(module, other)


def test_a_result_that_is_random_is_not_compared_and_the_others_are():
    module = Noisy()
    result = small(module, 4)
    assert type(result.model) is Noisy
    other = copy.deepcopy(module)
    other.number = lambda: 3.5  # type: ignore[method-assign]
    with pytest.raises(UnsupportedError, match="something else"):
        trial_of(module, other)


class Counting(nn.Module):
    """It changes a buffer when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Power()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.inner(x)
        return found


@pytest.mark.parametrize("kind", ["module", "program"])
def test_running_changes_neither_the_model_nor_the_result(kind):
    module = Counting()
    model = exported(module, 4) if kind == "program" else module
    state = {name: one.clone() for name, one in model.state_dict.items()} if kind == "program" else None
    result = small(model, 4)
    assert not result.unchanged
    after = result.model.state_dict if kind == "program" else result.model.state_dict()
    assert not after[next(name for name in after if "calls" in name)].any()
    assert not module.calls.any()
    if state is not None:
        assert all(torch.equal(one, state[name]) for name, one in model.state_dict.items())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor(math.nan), torch.tensor(math.nan), True),
        (torch.tensor(1.0), torch.tensor(1), False),
        (torch.zeros(0, 3), torch.zeros(3, 0), False),
        (torch.ones(2, 3).T, torch.ones(3, 2), True),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), True),
        (torch.eye(2).to_sparse(), torch.eye(2), False),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), True),
    ],
)
def test_bits_are_compared(one, other, same):
    assert same_bits(one, other) == same


# Files


def saved(tmp_path: Path, module: nn.Module, *shape: int) -> Path:
    path = tmp_path / "m.pt2"
    torch.export.save(exported(module, *shape), path)
    return path


def test_a_file_with_another_weight_in_front_of_an_opaque_node_is_not_written(tmp_path, monkeypatch):
    path = saved(tmp_path, Recurrent(), 5, 6)
    original = State.apply

    def changed(self: State, found: Edited) -> Any:
        made = original(self, found)
        file = self.files["l.weight_ih_l0"]
        self.parts[file] = bytes(len(self.archive.content(file)))
        return made

    monkeypatch.setattr(State, "apply", changed)
    left_as_it_is(relutrim.compress(path, tolerance=0), r"'l\.weight_ih_l0'.*report")


def test_a_file_with_another_opaque_node_is_not_written(tmp_path, monkeypatch):
    path = saved(tmp_path, Power(), 4)
    original = exported_edit._Editor.apply

    def changed(self: Any) -> Any:
        made = original(self)
        text = made[PROGRAM].decode()
        assert "aten.sin.default" in text
        return {**made, PROGRAM: re.sub("aten.sin.default", "aten.cos.default", text).encode()}

    monkeypatch.setattr(exported_edit._Editor, "apply", changed)
    left_as_it_is(relutrim.compress(path, tolerance=0), r"'sin'.*report")


def test_an_edited_tensor_that_holds_something_else_is_seen(tmp_path):
    path = saved(tmp_path, Power(), 4)
    result = relutrim.compress(path, tolerance=0)
    result.save(tmp_path / "out.pt2")
    with opened(path) as before, opened(tmp_path / "out.pt2") as after:
        nothing = as_edited(tensors={}, added={})
        check_state(before, before, nothing)
        with pytest.raises(CheckFailed, match="tensor 'a"):
            check_state(before, after, nothing)


def as_edited(**fields: Any) -> Edited:
    found = object.__new__(Edited)
    for name, value in fields.items():
        object.__setattr__(found, name, value)
    return found
