"""Models in half precision or with complex numbers: nothing is refused, nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import relutrim
from relutrim.errors import UnsupportedError
from relutrim.graph import Fresh

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def network(dtype: torch.dtype) -> nn.Module:
    """A layer with a neuron that is always 0, if it is read."""
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        layers[0].weight[1], layers[0].bias[1] = 0, -1
    return layers.to(dtype)


class Mixed(nn.Module):
    """A first layer in bfloat16, and two behind it in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3).bfloat16()
        self.rest = network(torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.rest(self.first(x.bfloat16()).float())
        return found


def given(model: nn.Module, kind: str, folder: Path, x: Tensor) -> Any:
    """The model as a module, a program, a program in other words, or a file."""
    if kind == "module":
        return model
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    if kind == "program":
        return program
    if kind == "decomposed":
        return program.run_decompositions({})
    torch.export.save(program, folder / "model.pt2")
    return folder / "model.pt2"


def computed(result: relutrim.Compression, folder: Path, x: Tensor) -> Tensor:
    """What the result makes of inputs."""
    found = result.model
    if result.source is not None:
        result.save(folder / "out.pt2")
        found = torch.export.load(folder / "out.pt2")
    module = found if isinstance(found, nn.Module) else found.module()
    with torch.no_grad():
        made: Tensor = module(x)
    return made


KINDS = ["module", "program", "decomposed", "file"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_comes_back_as_it_was(tmp_path, kind, dtype):
    model, x = network(dtype), torch.randn(2, 3).to(dtype)
    result = relutrim.compress(given(model, kind, tmp_path, x))
    assert result.unchanged
    assert result.deviation.proven == 0
    assert all(isinstance(node.operator, Fresh) for node in result.original)
    assert result.report["deviation"]["observed"] is None
    assert torch.equal(computed(result, tmp_path, x), model(x))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_float32_behind_it_gets_smaller(tmp_path, kind):
    model, x = Mixed(), torch.randn(2, 3)
    result = relutrim.compress(given(model, kind, tmp_path, x))
    assert (result.original.neurons, result.stored.neurons) == (4, 3)
    torch.testing.assert_close(computed(result, tmp_path, x), model(x))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_complex_numbers_comes_back_as_it_was(tmp_path, kind):
    model, x = nn.Linear(3, 2, dtype=torch.complex64), torch.randn(2, 3, dtype=torch.complex64)
    result = relutrim.compress(given(model, kind, tmp_path, x))
    assert result.unchanged
    assert torch.equal(computed(result, tmp_path, x), model(x))


def test_a_certificate_says_that_another_format_would_not_help():
    with pytest.raises(UnsupportedError, match=r"could not be as ONNX.*model\.float") as error:
        relutrim.compress(network(torch.bfloat16), certificate=True)
    assert "export" not in str(error.value)
