"""What the commands do when all is well, and when they are stopped."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import relutrim
import relutrim.cli
from command_line import Outcome, call, start
from onnx_models import model, op, run
from relutrim.graph import Linear, Network, Node, Output, Port, Relu, Reshape
from relutrim.io.onnx import write_onnx
from relutrim.io.torch.module import read_module
from relutrim.report.json import schema

GOLDEN = Path(__file__).parent / "golden"
BOX = ("--box", "0", "1")

Cli = Callable[..., Outcome]


def mlp(*widths: int, seed: int = 0) -> nn.Sequential:
    """A network with some inactive and some active neurons on [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layer = nn.Linear(before, after)
        layer.weight.data = torch.randn(after, before, generator=generator)
        layer.bias.data = torch.linspace(-2 * before, 2 * before, after)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a small network in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    write_onnx(read_module(mlp(3, 8, 6, 2)), Path("m.onnx"))
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, which must succeed."""

    def good(*arguments: str | Path) -> Outcome:
        found = call(capsys, *arguments)
        assert found.code == 0, found.err
        assert found.err == ""
        return found

    return good


def report(found: Outcome, kind: str) -> dict[str, Any]:
    """The one JSON object on stdout, which is what its schema says."""
    assert found.out.count("\n") == 1
    made: dict[str, Any] = json.loads(found.out)
    jsonschema.validate(made, schema(kind), cls=jsonschema.Draft202012Validator)
    assert made["schema"] == f"relutrim/{kind}/1"
    return made


def names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def outputs(path: str, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.astype(np.float32)})
    return np.asarray(found)


def inputs(rows: int = 100, size: int = 3) -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 1, (rows, size))


# inspect, analyze, compress, demo


def test_inspect(cli: Cli) -> None:
    found = report(cli("inspect", "m.onnx", "--json"), "inspection")
    assert found["size"] == {
        "widths": [3, 8, 6, 2],
        "neurons": 14,
        "connections": 84,
        "parameters": 100,
        "multiply_adds": 84,
        "zeros": 0,
        "bytes": 400,
    }
    assert len(found["model"]["sha256"]) == 64
    assert "14 neurons, 84 connections, 100 parameters" in cli("inspect", "m.onnx").out


def test_analyze_json_is_the_same_on_stdout_and_in_a_file(cli: Cli) -> None:
    found = report(cli("analyze", "m.onnx", *BOX, "--json", "-o", "v.json"), "analysis")
    assert json.loads(Path("v.json").read_text()) == found
    assert names() == ["m.onnx", "v.json"]
    assert found["complete"]
    assert not found["interrupted"]
    assert found["domain"]["kind"] == "box"
    assert [layer["size"] for layer in found["layers"]] == [8, 6]
    for layer in found["layers"]:
        decided = len(layer["active"]) + len(layer["inactive"]) + layer["unstable_count"]
        assert decided == layer["size"] == sum(layer["evidence"].values())
        assert "neurons" not in layer


def test_analyze_replaces_older_verdicts(cli: Cli) -> None:
    Path("v.json").write_text("old")
    cli("analyze", "m.onnx", *BOX, "-o", "v.json")
    assert json.loads(Path("v.json").read_text())["complete"]


def test_details(cli: Cli) -> None:
    found = report(cli("analyze", "m.onnx", *BOX, "--json", "--details"), "analysis")
    for layer in found["layers"]:
        assert len(layer["neurons"]) == layer["size"]
        for index, neuron in enumerate(layer["neurons"]):
            if neuron["verdict"] == "active":
                assert index in layer["active"]
                assert neuron["margin"] == neuron["lower"] >= 0
            elif neuron["verdict"] == "inactive":
                assert index in layer["inactive"]
                assert neuron["margin"] == -neuron["upper"] >= 0
            else:
                assert (neuron["evidence"], neuron["margin"]) == ("witness", None)


def test_time_limit_leaves_unknown(cli: Cli) -> None:
    found = report(cli("analyze", relutrim.demo_model(), *BOX, "--time-limit", "0", "--json"), "analysis")
    assert not found["complete"]
    assert any(layer["unknown"] for layer in found["layers"])
    report(cli("compress", "m.onnx", "out.onnx", *BOX, "--time-limit", "0", "--json"), "compression")


def test_compress(cli: Cli) -> None:
    found = report(cli("compress", "m.onnx", "out.onnx", *BOX, "--json"), "compression")
    assert names() == ["m.onnx", "out.onnx"]
    assert found["compressed"]["neurons"] < found["original"]["neurons"] == 14
    assert found["deviation"]["proven"] < 1e-4
    x = inputs()
    np.testing.assert_allclose(outputs("out.onnx", x), outputs("m.onnx", x), rtol=1e-4, atol=1e-3)
    again = report(cli("inspect", "out.onnx", "--json"), "inspection")
    assert again["size"] == found["compressed"]
    text = cli("compress", "m.onnx", "out.onnx", *BOX).out
    assert text.endswith("written: out.onnx\n")
    assert "proven deviation" in text


def test_compress_by_data_is_not_called_exact(cli: Cli) -> None:
    np.save("d.npy", inputs())
    options = (*BOX, "--method", "data", "--data", "d.npy", "--evidence", "data")
    found = report(cli("compress", "m.onnx", "out.onnx", *options, "--json"), "compression")
    assert found["deviation"]["proven"] is None
    assert found["deviation"]["proven_float64"] is None
    assert found["evidence_required"] == "data"
    assert sum(layer["evidence"]["data"] for layer in found["layers"])
    assert "NOT EXACT" in cli("compress", "m.onnx", "out.onnx", *options).out


def test_data_outside_the_domain_is_counted(cli: Cli) -> None:
    np.save("d.npy", np.concatenate([inputs(5), inputs(2) + 1, np.full((1, 3), np.nan)]))
    found = report(cli("analyze", "m.onnx", *BOX, "--data", "d.npy", "--json"), "analysis")
    assert found["data"] == {"rows": 8, "outside_domain": 3}
    assert "3 of 8 data rows" in cli("analyze", "m.onnx", *BOX, "--data", "d.npy").out
    found = report(cli("compress", "m.onnx", "o.onnx", *BOX, "--data", "d.npy", "--json"), "compression")
    assert found["deviation"]["observed_float32"] < 1e-3


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "f2", "u1", ">i4", "u8", "?", "g"])
def test_data_of_every_real_type(dtype: str, cli: Cli) -> None:
    np.save("d.npy", np.eye(3).astype(dtype))
    found = report(cli("analyze", "m.onnx", *BOX, "--data", "d.npy", "--json"), "analysis")
    assert found["data"] == {"rows": 3, "outside_domain": 0}


def test_demo(cli: Cli) -> None:
    text = cli("demo", "--output", "here/there").out
    assert text.endswith("written: here/there/mnist_2x100_smaller.onnx, here/there/report.html\n")
    x = inputs(20, 784)
    Path("demo.onnx").write_bytes(gzip.decompress(relutrim.demo_model().read_bytes()))
    before, after = outputs("demo.onnx", x), outputs("here/there/mnist_2x100_smaller.onnx", x)
    np.testing.assert_allclose(after, before, atol=1e-4)


def test_network_without_relus(cli: Cli) -> None:
    write_onnx(read_module(nn.Sequential(nn.Linear(3, 2))), Path("affine.onnx"))
    found = report(cli("analyze", "affine.onnx", *BOX, "--json"), "analysis")
    assert found["complete"]
    assert found["layers"] == []
    assert "0 neurons" in cli("analyze", "affine.onnx", *BOX).out
    report(cli("compress", "affine.onnx", "out.onnx", *BOX, "--json"), "compression")


def test_output_relu(cli: Cli) -> None:
    found = report(cli("compress", "m.onnx", "out.onnx", *BOX, "--output-relu", "--json"), "compression")
    assert [layer["size"] for layer in found["layers"]] == [8, 6, 2]
    x = inputs()
    expected = outputs("m.onnx", x).clip(0)
    np.testing.assert_allclose(outputs("out.onnx", x), expected, rtol=1e-4, atol=1e-3)


# Domains


def domain(cli: Cli, *options: str) -> dict[str, Any]:
    found = report(cli("analyze", "m.onnx", *options, "--json"), "analysis")
    compressed = report(cli("compress", "m.onnx", "out.onnx", *options, "--json"), "compression")
    assert compressed["domain"] == found["domain"]
    assert outputs("out.onnx", inputs()).shape == (100, 2)
    made: dict[str, Any] = found["domain"]
    return made


def test_box_with_negative_and_scientific_numbers(cli: Cli) -> None:
    found = domain(cli, "--box", "-1e-1", "+.5E0")
    assert (found["lower"], found["upper"]) == (-0.1, 0.5)


NORMALISED = {"kind": "normalized-box", "lower": 0, "upper": 1, "constraints": []}


@pytest.mark.parametrize(
    ("arguments", "mean", "std"),
    [
        ("m.onnx --normalized-box 0 1 --mean 0.1 --std 2", 0.1, 2),
        ("m.onnx --normalized-box 0 1 --mean 0.1 0.2 -3e-1 --std 1 2 4.5e-1", [0.1, 0.2, -0.3], [1, 2, 0.45]),
        ("--mean -0.1 -.2 0 --std 1 2 3 --normalized-box 0 1 m.onnx", [-0.1, -0.2, 0], [1, 2, 3]),
        ("--normalized-box 0 1 --std 1 2 3 --mean 0.5 m.onnx", 0.5, [1, 2, 3]),
        ("--mean=0.1 0.2 0.3 m.onnx --std=2 --normalized-box 0 1", [0.1, 0.2, 0.3], 2),
        ("--mean 0.1 --mean 0.2 --mean 0.3 m.onnx --std 2 --normalized-box 0 1", [0.1, 0.2, 0.3], 2),
        ("--normalized-box 0 1 --mean 1 --std 1 2 3 -- m.onnx", 1, [1, 2, 3]),
    ],
)
def test_means_and_deviations(arguments: str, mean: Any, std: Any, cli: Cli) -> None:
    found = report(cli("analyze", "--json", *arguments.split()), "analysis")
    assert found["domain"] == NORMALISED | {"mean": mean, "std": std}


def test_normalised_box_compresses_what_the_network_sees(cli: Cli) -> None:
    options = ["--normalized-box", "0", "2", "--mean", "0.5", "0.25", "0", "--std", "2", "1", "4"]
    found = report(cli("compress", *options, "m.onnx", "out.onnx", "--json"), "compression")
    assert found["compressed"]["neurons"] < 14
    x = (2 * inputs() - [0.5, 0.25, 0]) / [2, 1, 4]
    np.testing.assert_allclose(outputs("out.onnx", x), outputs("m.onnx", x), rtol=1e-4, atol=1e-3)


def test_center_and_radius(cli: Cli) -> None:
    np.save("c.npy", np.array([0.5, 0.25, 1], np.float32))
    found = domain(cli, "--center", "c.npy", "--radius", "0.25")
    assert found == {
        "kind": "ball",
        "lower": [0.25, 0, 0.75],
        "upper": [0.75, 0.5, 1.25],
        "constraints": [],
    }


def test_vnnlib(cli: Cli) -> None:
    lines = [
        f"(declare-const X_{i} Real)\n(assert (>= X_{i} 0))\n(assert (<= X_{i} {i + 1}))" for i in range(3)
    ]
    Path("d.vnnlib").write_text("\n".join([*lines, "(assert (<= (+ X_0 X_1) 2))"]))
    found = domain(cli, "--vnnlib", "d.vnnlib")
    assert (found["kind"], found["lower"], found["upper"]) == ("vnnlib", 0, [1, 2, 3])
    assert found["constraints"] == [{"rows": [[1, 1, 0]], "lower": [None], "upper": [2]}]


def test_sums_and_constraints(cli: Cli) -> None:
    np.savez("c.npz", A=np.array([[1.0, -1, 0], [0, 1, -1]]), lo=np.array([0.0, -np.inf]), hi=[1, 0.5])
    sums = ("--sum-between", "0.5", "2", "--sum-between", "-inf", "1.5")
    found = domain(cli, *BOX, *sums, "--constraint", "c.npz")
    assert found["constraints"] == [
        {"rows": 1, "lower": [0.5], "upper": [2]},
        {"rows": 1, "lower": [None], "upper": [1.5]},
        {"rows": [[1, -1, 0], [0, 1, -1]], "lower": [0, None], "upper": [1, 0.5]},
    ]


# Formats


def test_gzipped_onnx_and_capital_suffixes(cli: Cli) -> None:
    Path("M.ONNX.GZ").write_bytes(gzip.compress(Path("m.onnx").read_bytes()))
    report(cli("compress", "M.ONNX.GZ", "OUT.ONNX", *BOX, "--json"), "compression")
    assert outputs("OUT.ONNX", inputs()).shape == (100, 2)


@pytest.mark.parametrize("arch", ["mlp:3-8-6-2", "my_nets:make"])
def test_state_dict(arch: str, cli: Cli) -> None:
    torch.save(mlp(3, 8, 6, 2).state_dict(), "m.pt")
    Path("my_nets.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), "
        "nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))\n"
    )
    before = list(sys.path)
    found = report(cli("inspect", "m.pt", "--arch", arch, "--json"), "inspection")
    assert found["size"]["widths"] == [3, 8, 6, 2]
    assert sys.path == before
    sys.modules.pop("my_nets", None)
    found = report(cli("compress", "m.pt", "out.pt", "--arch", arch, *BOX, "--json"), "compression")
    widths = "-".join(map(str, found["compressed"]["widths"]))
    cli("inspect", "out.pt", "--arch", f"mlp:{widths}")
    sys.modules.pop("my_nets", None)


def test_exported_program(cli: Cli) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(mlp(3, 8, 6, 2), (torch.zeros(2, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, "m.pt2")
    found = report(cli("compress", "m.pt2", "out.pt2", *BOX, "--json"), "compression")
    assert found["compressed"]["neurons"] < 14
    x = torch.as_tensor(inputs(), dtype=torch.float32)
    after = torch.export.load("out.pt2").module()(x)
    torch.testing.assert_close(after, mlp(3, 8, 6, 2)(x), rtol=1e-4, atol=1e-3)


def test_nnet(cli: Cli) -> None:
    Path("m.nnet").write_text(
        "2,2,1,2,\n2,2,1,\n0,\n0,0,\n1,1,\n0,0,0,\n1,1,1,\n1,1,\n-1,-1,\n0.5,\n-0.5,\n1,1,\n0,\n"
    )
    found = report(cli("compress", "m.nnet", "out.onnx", *BOX, "--json"), "compression")
    assert found["original"]["widths"] == [2, 2, 1]
    assert found["compressed"]["neurons"] == 0


def test_weights_dat(cli: Cli) -> None:
    Path("weights.dat").write_text(
        "levels = 2;\nn = [2, 2, 1];\nW = [1, 1\n,-1, -1\n,1, 1\n];\nB = [0.5, -0.5\n,0\n];\n"
    )
    found = report(cli("compress", "weights.dat", "out.onnx", *BOX, "--json"), "compression")
    assert found["compressed"]["neurons"] == 0
    np.testing.assert_allclose(outputs("out.onnx", np.array([[0.25, 0.5]])), [[1.25]], rtol=1e-6)


@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh", "Softmax", "LogSoftmax"])
def test_tails(kind: str, cli: Cli) -> None:
    proto = onnx.load("m.onnx")
    last = proto.graph.output[0].name
    proto.graph.node.append(op(kind, [last], "squashed"))
    proto.graph.output[0].name = "squashed"
    onnx.save(proto, "tail.onnx")
    assert kind in cli("inspect", "tail.onnx").out
    cli("compress", "tail.onnx", "out.onnx", *BOX)
    x = inputs().astype(np.float32)
    np.testing.assert_allclose(outputs("out.onnx", x), run(proto, x)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_scalar_output(suffix: str, cli: Cli) -> None:
    """A value without any axis but the batch."""
    layers = (
        Linear(np.array([[1.0, -1], [0.5, 0.5]]), np.zeros(2)),
        Relu(),
        Linear(np.ones((1, 2)), np.zeros(1)),
    )
    operators = (*layers, Reshape((1,), ()))
    before = ("x", "a", "b", "c")
    nodes = tuple(
        Node(name, operator, (read,)) for name, operator, read in zip("abcd", operators, before, strict=True)
    )
    write_onnx(Network(Port("x", (2,)), nodes, (Output("d", "d"),)), Path("scalar.onnx"))
    assert "scalar" in cli("inspect", "scalar.onnx").out
    report(cli("compress", "scalar.onnx", f"out.{suffix}", *BOX, "--json"), "compression")


def test_modules_that_read_images() -> None:
    module = nn.Sequential(nn.Flatten(), *mlp(12, 8, 2)).eval()
    domain = relutrim.Box(0, 1, shape=(3, 2, 2))
    assert relutrim.analyze(module, domain).problem.network.input.shape == (3, 2, 2)
    result = relutrim.compress(module, domain)
    x = torch.rand(5, 3, 2, 2)
    torch.testing.assert_close(result.model(x), module(x), rtol=1e-4, atol=1e-3)


# Names, streams, terminals


def test_options_may_stand_before_the_model(cli: Cli) -> None:
    report(cli("analyze", "--json", *BOX, "--time-limit", "9", "m.onnx"), "analysis")


def test_long_names_stay_whole(cli: Cli) -> None:
    name = "layer/" * 40 + "[relu]"
    onnx.save(model([op("Relu", ["x"], name), op("Relu", [name])], ["n", 3]), "long.onnx")
    assert name in cli("inspect", "long.onnx").out
    assert name in cli("analyze", "long.onnx", *BOX).out
    out = "x" * 240 + ".onnx"
    assert f"written: {out}\n" in cli("compress", "m.onnx", out, *BOX).out
    assert Path(out).exists()


def test_names_that_are_no_text(cli: Cli) -> None:
    out = os.fsdecode(b"caf\xe9.onnx")
    assert "written: caf\\udce9.onnx" in cli("compress", "m.onnx", out, *BOX).out
    assert Path(out).exists()
    assert report(cli("inspect", out, "--json"), "inspection")["model"]["path"] == out


def test_version_and_help() -> None:
    found = start("--version")
    assert found == Outcome(0, f"relutrim, version {relutrim.__version__}\n", "")
    for command in ((), *((name,) for name in relutrim.cli.group.NAMES)):
        found = start(*command, "--help")
        assert found.code == 0
        assert found.out.startswith(f"Usage: {' '.join(('relutrim', *command))} ")
        assert found.err == ""


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("Usage: relutrim")
    assert "compress" in found.err


SEEN = "import sys; sys.argv[0] = 'relutrim'\nfrom relutrim.cli import main\ntry:\n    main()\nfinally:\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["analyze", "--help"], ["inspect", "m.onnx"], ["inspect", "m.onnx", "--json"]]
)
def test_torch_is_not_loaded_without_need(arguments: list[str]) -> None:
    script = SEEN + "    print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "False\n")


ANY_NAME = ("--certificate", "--bounds", "--model-card")
ONE_NAME = {"--mask": "m.npz", "--report": "r.html", "OUT": "out.onnx"}


@pytest.mark.parametrize("pair", [*combinations(ANY_NAME, 2), *product(ONE_NAME, ANY_NAME)])
def test_no_output_takes_the_place_of_another(
    capsys: pytest.CaptureFixture[str], pair: tuple[str, str]
) -> None:
    name = ONE_NAME.get(pair[0], "same")
    options = [word for option in pair if option != "OUT" for word in (option, f"./{name}")]
    found = call(capsys, "compress", "m.onnx", "out.onnx", *BOX, *options)
    assert (found.code, found.out) == (2, "")
    assert "two outputs have this name" in found.err
    assert names() == ["m.onnx"]


def test_torch_is_not_loaded_to_say_what_is_missing() -> None:
    script = SEEN + "    print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script, "inspect", "m.pt"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "add --arch" in done.stderr
    assert done.stderr.endswith("False\n")


def test_a_command_loads_no_other() -> None:
    script = SEEN + "    print(*(m for m in sys.modules if m in HERE), file=sys.stderr)"
    here = "HERE = " + repr([f"relutrim.cli.{name}" for name in relutrim.cli.group.NAMES]) + "\n"
    done = subprocess.run(
        [sys.executable, "-c", here + script, "inspect", "m.onnx"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "relutrim.cli.inspect\n")


def test_the_group_knows_every_command() -> None:
    """A module that defines a command is one of the names, and the other way round."""
    folder = Path(relutrim.cli.group.__file__).parent
    found = [
        file.stem for file in folder.glob("*.py") if re.search(r"^@click\.command", file.read_text(), re.M)
    ]
    assert sorted(found) == list(relutrim.cli.group.NAMES)


def test_broken_pipe() -> None:
    command = f"{sys.executable} -m relutrim inspect m.onnx --json"
    script = f"{{ {command}; echo code $? >&2; }} | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert re.fullmatch(r"code [01]\n", done.stderr)
    done = subprocess.run(
        ["bash", "-c", f"{command.removesuffix(' --json')} | head -1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_output_that_cannot_be_written(option: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "relutrim", "inspect", "m.onnx", *option],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (2, "relutrim: error: the output: No space left on device\n")


@pytest.mark.parametrize("closing", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(closing: str) -> None:
    script = f"{sys.executable} -m relutrim inspect m.onnx {closing}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_in_another_encoding() -> None:
    onnx.save(model([op("Relu", ["x"], "größe"), op("Relu", ["größe"])], ["n", 3]), "odd.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "relutrim", "inspect", "odd.onnx"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert b"gr\\xf6\\xdfe" in done.stdout


def on_terminal(*arguments: str, **environment: str) -> str:
    """What the command prints on a terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "relutrim", *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", **environment},
    ) as process:
        os.close(follower)
        text = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # the other side was closed
                break
            if not part:
                break
            text += part
        assert process.wait(60) == 0
    os.close(leader)
    return text.decode()


def test_escape_codes_are_for_terminals_that_want_them(cli: Cli) -> None:
    assert "\x1b[1m" in on_terminal("inspect", "m.onnx")
    assert "\x1b" not in on_terminal("inspect", "m.onnx", NO_COLOR="1")
    assert "\x1b" not in cli("inspect", "m.onnx").out
    assert "\x1b" not in cli("analyze", "m.onnx", *BOX).out


def test_progress_is_shown_on_a_terminal_only_and_not_with_json() -> None:
    assert "decided" in on_terminal("analyze", "m.onnx", *BOX)
    shown = on_terminal("analyze", "m.onnx", *BOX, "--json")
    assert "decided" not in shown
    json.loads(shown)


def test_unexpected_errors_are_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (ValueError("two\nlines"), EOFError("two\nlines")):
        monkeypatch.setattr("relutrim.io.load", fails(error))
        monkeypatch.delenv("RELUTRIM_DEBUG", raising=False)
        found = call(capsys, "inspect", "m.onnx")
        assert (found.code, found.out) == (1, "")
        assert re.search(
            r"^relutrim: error: internal error \(\w+Error: two lines\).*RELUTRIM_DEBUG.*$", found.err, re.M
        )
        monkeypatch.setenv("RELUTRIM_DEBUG", "1")
        monkeypatch.setattr(sys, "argv", ["relutrim", "inspect", "m.onnx"])
        with pytest.raises(type(error)):
            relutrim.cli.main()


# Stopped on the way


def fails(error: BaseException) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as soon as the search begins, when bounds are known."""
    from relutrim.prove.cascade import Cascade

    def begin(self: Cascade, data: Sequence[torch.Tensor] = ()) -> int:
        self.bound(search=False)
        raise KeyboardInterrupt

    monkeypatch.setattr(Cascade, "run", begin)


@pytest.mark.usefixtures("interrupted")
def test_interrupted_analysis_writes_what_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "analyze", "m.onnx", *BOX, "--json", "-o", "v.json")
    assert found.code == 130
    assert found.err == "relutrim: error: interrupted; undecided neurons are unknown\n"
    made = report(found, "analysis")
    assert json.loads(Path("v.json").read_text()) == made
    assert made["interrupted"]
    assert not made["complete"]
    assert sum(layer["evidence"]["proof"] for layer in made["layers"])
    assert all(layer["unstable_count"] == 0 for layer in made["layers"])


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_interrupted_compression_writes_what_is_proved_by_then(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = call(capsys, "compress", "m.onnx", "out.onnx", *BOX, *option)
    assert found.code == 130
    assert found.err.strip() == "relutrim: error: interrupted; what was proved by then is written"
    assert relutrim.load("out.onnx").parameters < relutrim.load("m.onnx").parameters
    if option:
        made = report(found, "compression")
        assert made["interrupted"]
        assert made["deviation"]["proven"] is not None
    assert relutrim.compress("m.onnx", relutrim.Box(0, 1)).interrupted


WAIT = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background processes, and inherited
import {home}
def wait(*_, **__):
    Path("ready").touch()
    time.sleep(60)
{home}.{name} = wait
from relutrim.cli import main
main()
"""


def stopped(home: str, name: str, stop: signal.Signals, *arguments: str) -> tuple[int, str]:
    """A real process that is sent a signal once it has come to the function ``name``."""
    script = WAIT.format(home=home, name=name)
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        give_up = time.monotonic() + 60
        while not Path("ready").exists() and process.poll() is None and time.monotonic() < give_up:
            time.sleep(0.02)
        process.send_signal(stop)
        _, err = process.communicate(timeout=60)
    Path("ready").unlink()
    return process.returncode, err


def test_sigint() -> None:
    arguments = ("analyze", "m.onnx", *BOX, "-o", "v.json")
    code, err = stopped("relutrim.prove.cascade", "Cascade.run", signal.SIGINT, *arguments)
    assert (code, err) == (130, "relutrim: error: interrupted; undecided neurons are unknown\n")
    found = json.loads(Path("v.json").read_text())
    jsonschema.validate(found, schema("analysis"))
    assert found["interrupted"]
    code, err = stopped("relutrim.io", "load", signal.SIGINT, "inspect", "m.onnx")
    assert (code, err.strip()) == (130, "relutrim: error: interrupted")


@pytest.mark.parametrize("before", [None, b"what was there before"])
def test_killed_compression_never_leaves_half_a_file(before: bytes | None) -> None:
    out = Path("out.onnx")
    if before is not None:
        out.write_bytes(before)
    arguments = ("compress", "m.onnx", "out.onnx", *BOX)
    code, _ = stopped("os", "fsync", signal.SIGKILL, *arguments)
    assert code == -signal.SIGKILL
    assert (out.read_bytes() if out.exists() else None) == before


def test_failing_to_write_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "replace", fails(OSError(28, "No space left on device")))
    found = call(capsys, "compress", "m.onnx", "out.onnx", *BOX)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("relutrim: error: out.onnx: the file cannot be written (No space left")
    assert names() == ["m.onnx"]


# The tables, word for word


@pytest.mark.parametrize(
    ("name", "arguments"), [("inspect", ()), ("analyze", BOX)], ids=["inspect", "analyze"]
)
def test_tables(name: str, arguments: tuple[str, ...], cli: Cli) -> None:
    """To renew a file in ``golden``: delete it, run this test once, and look at the difference."""
    text = cli(name, relutrim.demo_model(), *arguments).out
    text = re.sub(r"\([0-9.]+ s\)", "(SECONDS s)", text)
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    golden = GOLDEN / f"{name}.txt"
    if not golden.exists():
        golden.write_text(text, encoding="utf-8")
        pytest.fail(f"{golden.name} was missing and has been written; look at it and run again")
    assert text == golden.read_text(encoding="utf-8")
