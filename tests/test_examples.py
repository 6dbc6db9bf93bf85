"""The examples for neighbours run, and what they are told is true there too."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import relutrim
from relutrim.io.onnx import write_onnx
from relutrim.io.torch.module import read_module
from relutrim.report.bounds import of_compressed, write_bounds
from relutrim.report.json import model_json
from test_cli import mlp

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = {"method": "auto", "time_limit": 20.0, "device": "cpu", "seed": 0, "progress": None}


def example(name: str) -> Any:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> relutrim.Network:
    """A network with ten outputs, the same smaller, and the bounds of both, on [0, 1]."""
    monkeypatch.chdir(tmp_path)
    module = mlp(4, 12, 10, 10, seed=3)
    for layer in module[:3:2]:
        layer.bias.data /= 4  # more of both states
    network = read_module(module)
    domain = relutrim.Box(0, 1)
    write_onnx(network, Path("model.onnx"))
    stability = relutrim.analyze(network, domain)
    write_bounds(Path("model.json"), stability, model_json(network, Path("model.onnx")))
    result = relutrim.compress(network, domain)
    result.save("smaller.onnx")
    again = of_compressed(result, domain=domain, data=None, **QUICK)
    write_bounds(Path("smaller.json"), again, model_json(result.stored, Path("smaller.onnx")))
    assert result.stored.neurons < network.neurons
    return network


def test_the_three_programs_agree_and_shrink(files: relutrim.Network) -> None:
    milp = example("milp")
    lo, hi = np.zeros(4), np.ones(4)
    answers, binaries, rows = [], [], []
    for model, bounds in (("model", None), ("model", "model.json"), ("smaller", "smaller.json")):
        ranges = None if bounds is None else milp.read_ranges(Path(bounds))
        program = milp.build(milp.read_layers(Path(f"{model}.onnx")), lo, hi, ranges)
        answers.append(milp.maximise(program, 3, 7, 60.0))
        binaries.append(program.binaries)
        rows.append(program.rows)
    assert binaries[2] <= binaries[1] <= binaries[0]
    assert rows[2] < rows[1] <= rows[0]
    x = torch.rand(20_000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    seen = files(torch.cat([x, x.round()]))
    largest = float((seen[:, 3] - seen[:, 7]).max())
    for answer in answers:
        assert answer.status == "Optimal"
        assert answer.bound >= largest - 1e-3 * abs(largest)
        assert answer.value == pytest.approx(answers[0].value, rel=3e-3, abs=1e-3)


def test_the_script_runs_on_the_picture_that_comes_with_it(tmp_path: Path) -> None:
    picture = EXAMPLES / "seven.npy"
    assert np.load(picture).shape == (784,)
    with torch.no_grad():
        logits = relutrim.load(relutrim.demo_model())(torch.as_tensor(np.load(picture))[None].double())
    assert int(logits.argmax()) == 7
    script = [sys.executable, EXAMPLES / "milp.py", relutrim.demo_model(), "--center", picture]
    done = subprocess.run([*script, "--radius", "0.001"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Optimal" in done.stdout
    assert "binaries" in done.stdout


def test_other_bounds_are_refused(files: relutrim.Network) -> None:
    Path("other.json").write_text('{"schema": "relutrim/bounds/9"}')
    with pytest.raises(SystemExit, match="relutrim/bounds/9"):
        example("milp").read_ranges(Path("other.json"))


def test_omlt_takes_the_bounds(files: relutrim.Network) -> None:
    pytest.importorskip("omlt", reason="OMLT is not installed")
    module = example("omlt_bounds")
    import json

    import pyomo.environ as pyo

    for name in ("model", "smaller"):
        bounds = json.loads(Path(f"{name}.json").read_text())
        values = []
        for use in (False, True):
            made = module.build(onnx.load(f"{name}.onnx"), bounds, use=use)
            made.aim = pyo.Objective(expr=made.nn.outputs[3] - made.nn.outputs[7], sense=pyo.maximize)
            pyo.SolverFactory("appsi_highs").solve(made)
            values.append(pyo.value(made.aim))
        assert values[0] == pytest.approx(values[1], rel=1e-3, abs=1e-3)


def test_gurobi_machinelearning_takes_the_bounds(files: relutrim.Network) -> None:
    pytest.importorskip("gurobi_ml", reason="gurobi-machinelearning is not installed")
    module = example("gurobi_bounds")
    import json

    import gurobipy as gp

    bounds = json.loads(Path("smaller.json").read_text())
    values = []
    with gp.Env(params={"OutputFlag": 0}) as env:
        for use in (False, True):
            made, y = module.build(onnx.load("smaller.onnx"), bounds, env, use=use)
            made.setObjective(y[0, 3] - y[0, 7], gp.GRB.MAXIMIZE)
            made.optimize()
            values.append(made.ObjVal)
    assert values[0] == pytest.approx(values[1], rel=1e-3, abs=1e-3)
