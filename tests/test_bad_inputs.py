"""Whatever is wrong with an input: the right exit code, one message that helps, and nothing left behind."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shlex
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from command_line import Outcome, call, start
from onnx_models import model, op

Content: TypeAlias = bytes | str | Callable[[], Any]

WEIGHTS = {
    "w1": np.array([[1, -1, 0.5], [2, 0.25, 1], [-1, 1, 1], [0.5, 0.5, -2]], np.float32).T.copy(),
    "w2": np.array([[1, -1], [0.5, 1], [1, 1], [-1, 2]], np.float32),
}
LAYERS = [op("MatMul", ["x", "w1"], "h"), op("Relu", ["h"], "r"), op("MatMul", ["r", "w2"], "y")]


def proto(nodes: Any = None, weights: Any = None, shape: Any = ("n", 3), **options: Any) -> onnx.ModelProto:
    return model(
        LAYERS if nodes is None else nodes, shape, WEIGHTS if weights is None else weights, **options
    )


def around(kind: str, count: int = 1) -> list[onnx.NodeProto]:
    """The layers with another operator instead of the ReLU."""
    return [LAYERS[0], op(kind, ["h"] * count, "r"), LAYERS[2]]


def spoilt(value: float) -> onnx.ModelProto:
    weight = WEIGHTS["w1"].copy()
    weight[1, 2] = value
    return proto(weights=WEIGHTS | {"w1": weight})


def typed(dtype: Any) -> onnx.ModelProto:
    return proto(weights=WEIGHTS | {"w1": WEIGHTS["w1"].astype(dtype)})


def external() -> onnx.ModelProto:
    made = proto()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    return made


def two_inputs() -> onnx.ModelProto:
    made = proto()
    made.graph.input.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, ["n", 3]))
    return made


def no_input() -> onnx.ModelProto:
    made = proto([op("Relu", ["w1"])])
    made.graph.input.pop()
    return made


def loop() -> onnx.ModelProto:
    body = helper.make_graph([], "body", [], [])
    return proto([LAYERS[0], op("Loop", ["", "", "h"], "r", body=body), LAYERS[2]])


class Malicious:
    """Loading it as an ordinary pickle would leave a file behind."""

    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def npy(values: Any, dtype: Any = None) -> Callable[[], bytes]:
    def make() -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(values, dtype), allow_pickle=True)
        return buffer.getvalue()

    return make


def claim(*shape: int) -> bytes:
    """The head of an array of this shape, and no numbers."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def npz(**arrays: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        buffer = io.BytesIO()
        np.savez(buffer, **{name: np.asarray(array) for name, array in arrays.items()})
        return buffer.getvalue()

    return make


def saved(value: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        buffer = io.BytesIO()
        torch.save(value() if callable(value) else value, buffer)
        return buffer.getvalue()

    return make


def archive(**entries: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, content in entries.items():
            made.writestr(name, content)
    return buffer.getvalue()


def state() -> dict[str, torch.Tensor]:
    shapes = {"0.weight": (4, 3), "0.bias": (4,), "2.weight": (2, 4), "2.bias": (2,)}
    return {name: torch.ones(shape) for name, shape in shapes.items()}


def vnnlib(*assertions: str, inputs: int = 3) -> str:
    declared = [f"(declare-const X_{i} Real)" for i in range(inputs)] + ["(declare-const Y_0 Real)"]
    bounds = [f"(assert (>= X_{i} 0)) (assert (<= X_{i} 1))" for i in range(inputs)]
    return "\n".join([*declared, *bounds, *assertions])


NNET = "// a comment\n1,2,1,2,\n2,1,\n0,\n0,0,\n1,1,\n0,0,0,\n1,1,1,\n0.5,0.5,\n0.25,\n"
DAT = "levels = 1;\nn = [2, 1];\nW = [0.5, 0.5];\nB = [0.25];\n"


@dataclass(frozen=True)
class Case:
    command: str
    code: int
    words: tuple[str, ...]
    files: dict[str, Content]
    usage: bool = False


def bad(command: str, *words: str, code: int = 2, **files: Content) -> Case:
    """``files``: content by name, with ``__`` for the dot."""
    return Case(command, code, words, {name.replace("__", "."): made for name, made in files.items()})


def misused(command: str, *words: str) -> Case:
    """A usage error, which click explains with the command's usage."""
    return Case(command, 2, words, {}, usage=True)


def refused(made: Content, *words: str) -> Case:
    return bad("inspect bad.onnx", "bad.onnx", *words, bad__onnx=made)


BOX = "--box 0 1"
MODELS = {
    "missing": bad("inspect nothing.onnx", "nothing.onnx", "no such file"),
    "missing for analyze": bad(f"analyze nothing.onnx {BOX}", "nothing.onnx", "no such file"),
    "missing for compress": bad(f"compress nothing.onnx out.onnx {BOX}", "nothing.onnx", "no such file"),
    "directory": bad("inspect folder.onnx", "folder.onnx", "directory"),
    "directory .pt": bad("inspect folder.pt --arch mlp:3-4-2", "folder.pt", "directory"),
    "directory .pt2": bad("inspect folder.pt2", "folder.pt2"),
    "name too long": bad(f"inspect {'x' * 300}.onnx", "xxx.onnx", "too long"),
    "empty": refused(b"", "empty"),
    "text": refused("this is no model\n" * 5, "text file"),
    "cut short": refused(lambda: proto().SerializeToString()[:-30], "cut short"),
    "cut to 10 bytes": refused(lambda: proto().SerializeToString()[:10], "onnx"),
    "random bytes": refused(np.random.default_rng(0).bytes(2000), "not an ONNX model"),
    "pickle": refused(pickle.dumps({"weights": [1.0]}), "pickle"),
    "malicious pickle": refused(lambda: pickle.dumps(Malicious()), "pickle"),
    "zip": refused(archive(a="b"), "zip", ".pt"),
    "gzip": refused(lambda: gzip.compress(b"x"), "gzip", ".onnx.gz"),
    "Git LFS": refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "broken gz": bad("inspect bad.onnx.gz", "bad.onnx.gz", "gzip", bad__onnx__gz=b"no gzip"),
    "cut gz": bad(
        "inspect bad.onnx.gz",
        "bad.onnx.gz",
        "gzip",
        bad__onnx__gz=lambda: gzip.compress(proto().SerializeToString())[:-20],
    ),
    "gz bomb": bad(
        "inspect bomb.onnx.gz", "bomb.onnx.gz", "unpacks", bomb__onnx__gz=gzip.compress(bytes(10**6))
    ),
    "external data": refused(external, "w1", "weights.bin", "beside the model"),
    "cycle": refused(
        lambda: proto([op("Add", ["x", "b"], "a"), op("Relu", ["a"], "b"), op("Relu", ["b"])]), "cycle"
    ),
    "shapes": refused(lambda: proto(weights=WEIGHTS | {"w2": np.ones((5, 2), np.float32)}), "matmul_y", "5"),
    "dangling input": refused(lambda: proto([LAYERS[0], LAYERS[2]]), "matmul_y", "'r'", "nothing makes"),
    "no outputs": refused(lambda: proto(outputs=()), "no output"),
    "unknown suffix": bad("inspect net.h5", "net.h5", ".h5", ".onnx", net__h5=b"x"),
    "no suffix": bad("inspect net", "net", "without suffix", net=b"x"),
    ".pt without --arch": bad("inspect net.pt", "net.pt", "--arch mlp", net__pt=saved(state)),
    ".pt of other shapes": bad(
        "inspect net.pt --arch mlp:3-5-2", "net.pt", "(5, 3)", "(4, 3)", net__pt=saved(state)
    ),
    ".pt malicious": bad(
        "inspect net.pt --arch mlp:3-4-2", "net.pt", "could run code", "state_dict", net__pt=saved(Malicious)
    ),
    ".pt with a whole module": bad(
        "inspect net.pt --arch mlp:3-2", "net.pt", "state_dict", net__pt=saved(lambda: torch.nn.Linear(3, 2))
    ),
    ".pt is text": bad("inspect net.pt --arch mlp:3-2", "net.pt", "state dict", net__pt="text"),
    ".pt holds a list": bad("inspect net.pt --arch mlp:3-2", "net.pt", "list", net__pt=saved([1.0])),
    "--arch misspelt": bad("inspect net.pt --arch mlp:3x2", "net.pt", "mlp:784-100-10", net__pt=saved(state)),
    "--arch without a factory": bad(
        "inspect net.pt --arch nothing", "net.pt", "package.module:factory", net__pt=saved(state)
    ),
    "--arch of no module": bad(
        "inspect net.pt --arch no_such_module:make", "net.pt", "no_such_module", net__pt=saved(state)
    ),
    "--arch that fails": bad(
        "inspect net.pt --arch failing:make",
        "net.pt",
        "failing:make",
        "ZeroDivisionError",
        net__pt=saved(state),
        failing__py="1 / 0",
    ),
    "--arch that does not fit": bad(
        "inspect net.pt --arch other:make",
        "net.pt",
        "other:make",
        "missing key",
        net__pt=saved(state),
        other__py="import torch\n\ndef make():\n    return torch.nn.Linear(3, 2)\n",
    ),
    "--arch with .onnx": bad("inspect m.onnx --arch mlp:3-4-2", "m.onnx", "brings its own"),
    ".pt2 is text": bad("inspect net.pt2", "net.pt2", "archive", net__pt2="text"),
    ".pt2 without program": bad("inspect net.pt2", "net.pt2", "program", code=3, net__pt2=archive(a="b")),
    ".nnet cut short": bad("inspect net.nnet", "net.nnet", "ends before", net__nnet=NNET[:-6]),
    ".nnet with a word": bad(
        "inspect net.nnet", "net.nnet", "line 10", "'word'", net__nnet=NNET.replace("0.25", "word")
    ),
    ".nnet with NaN": bad("inspect net.nnet", "net.nnet", "NaN", net__nnet=NNET.replace("0.25", "nan")),
    ".nnet binary": bad("inspect net.nnet", "net.nnet", "text", net__nnet=b"\xff\xfe\x00"),
    "weights.dat cut short": bad(
        "inspect weights.dat", "weights.dat", "ends within", weights__dat=DAT[: DAT.index("0.25")]
    ),
    "weights.dat without B": bad("inspect weights.dat", "'B = ...'", weights__dat=DAT[: DAT.index("B")]),
    "weights.dat of other shapes": bad(
        "inspect weights.dat", "weights.dat", "line 3", weights__dat=DAT.replace("0.5, 0.5", "0.5")
    ),
}

BOXES = {
    "no domain": bad("analyze m.onnx", "--box", "--vnnlib", "none"),
    "two domains": bad("analyze m.onnx --box 0 1 --vnnlib d.vnnlib", "exactly one", "--box and --vnnlib"),
    "lower above upper": bad("analyze m.onnx --box 1 0", "empty", "between 1 and 0"),
    "NaN": bad("analyze m.onnx --box nan 1", "NaN", "-inf to inf"),
    "from infinity": bad("compress m.onnx out.onnx --box inf inf", "inf", "no input"),
    "text": misused("analyze m.onnx --box a b", "--box", "'a'"),
    "one end": bad("analyze m.onnx --box 0", "--box", "2 arguments"),
    "--normalized-box alone": bad("analyze m.onnx --normalized-box 0 1", "--mean", "--std"),
    "--normalized-box without --std": bad("analyze m.onnx --normalized-box 0 1 --mean 0", "--std"),
    "--mean with --box": bad("analyze m.onnx --box 0 1 --mean 0", "--mean", "--normalized-box"),
    "std 0": bad("analyze m.onnx --normalized-box 0 1 --mean 0 --std 0", "positive", "deviation"),
    "negative std": bad("analyze m.onnx --normalized-box 0 1 --mean 0 --std -1", "positive", "deviation"),
    "NaN mean": bad("analyze m.onnx --normalized-box 0 1 --mean nan --std 1", "finite mean"),
    "two means": bad("analyze m.onnx --normalized-box 0 1 --mean 0 1 --std 1", "2 numbers", "mean", "(3,)"),
    "four stds": bad("analyze m.onnx --normalized-box 0 1 --mean 0 --std 1 2 3 4", "4 numbers", "std"),
    "--mean with text": misused("analyze m.onnx --normalized-box 0 1 --mean a --std 1", "--mean", "'a'"),
    "--center missing": bad("analyze m.onnx --center c.npy --radius 1", "c.npy", "no such file"),
    "--center of other size": bad(
        "analyze m.onnx --center c.npy --radius 1", "c.npy", "4 numbers", "(3,)", c__npy=npy([1.0] * 4)
    ),
    "--center is text": bad("analyze m.onnx --center c.npy --radius 1", "c.npy", ".npy", c__npy="0 0 0"),
    "--center is a folder": bad("analyze m.onnx --center folder.onnx --radius 1", "folder.onnx", ".npy"),
    "--center is empty": bad("analyze m.onnx --center c.npy --radius 1", "c.npy", ".npy", c__npy=b""),
    "--center is a pickle": bad(
        "analyze m.onnx --center c.npy --radius 1", "c.npy", ".npy", c__npy=lambda: pickle.dumps(Malicious())
    ),
    "--center holds objects": bad(
        "analyze m.onnx --center c.npy --radius 1", "c.npy", ".npy", c__npy=npy([Malicious()] * 3, object)
    ),
    "--center holds words": bad(
        "analyze m.onnx --center c.npy --radius 1", "c.npy", "real numbers", c__npy=npy(["a", "b", "c"])
    ),
    "--center is several": bad(
        "analyze m.onnx --center c.npy --radius 1", "c.npy", "several arrays", c__npy=npz(a=[1.0], b=[2.0])
    ),
    "--center holds NaN": bad(
        "analyze m.onnx --center c.npy --radius 1", "c.npy", "finite", c__npy=npy([0, 1, np.nan])
    ),
    "--center claims to be huge": bad(
        "analyze m.onnx --center c.npy --radius 1", "c.npy", ".npy", c__npy=claim(10**15)
    ),
    "--center beyond float64": bad(
        "analyze m.onnx --center c.npy --radius 1", "c.npy", "int64", "exactly", c__npy=npy([2**53 + 1, 0, 0])
    ),
    "--center without --radius": bad("analyze m.onnx --center c.npy", "--radius", c__npy=npy([0.0] * 3)),
    "--radius without --center": bad("analyze m.onnx --box 0 1 --radius 1", "--radius", "--center"),
    "negative radius": bad(
        "analyze m.onnx --center c.npy --radius -1", "radius", "negative", c__npy=npy([0.0] * 3)
    ),
    "infinite radius": bad(
        "analyze m.onnx --center c.npy --radius inf", "radius", "finite", c__npy=npy([0.0] * 3)
    ),
    "--sum-between reversed": bad("analyze m.onnx --box 0 1 --sum-between 2 1", "empty", "between 2 and 1"),
    "--sum-between out of reach": bad("analyze m.onnx --box 0 1 --sum-between 4 5", "empty", "4 to 5"),
    "--sum-between NaN": bad("analyze m.onnx --box 0 1 --sum-between nan 5", "NaN"),
    "constraints against each other": bad(
        "analyze m.onnx --box 0 1 --sum-between 0 1 --constraint c.npz",
        "empty",
        c__npz=npz(A=np.ones((1, 3)), lo=[2.0], hi=[3.0]),
    ),
    "--constraint missing": bad("analyze m.onnx --box 0 1 --constraint c.npz", "c.npz", "no such file"),
    "--constraint is text": bad("analyze m.onnx --box 0 1 --constraint c.npz", "c.npz", ".npz", c__npz="x"),
    "--constraint without hi": bad(
        "analyze m.onnx --box 0 1 --constraint c.npz", "c.npz", "hi is missing", c__npz=npz(A=[1.0], lo=[0.0])
    ),
    "--constraint of other size": bad(
        "analyze m.onnx --box 0 1 --constraint c.npz",
        "c.npz",
        "4 columns",
        c__npz=npz(A=np.ones((1, 4)), lo=[0.0], hi=[1.0]),
    ),
    "--constraint with too few ends": bad(
        "analyze m.onnx --box 0 1 --constraint c.npz",
        "c.npz",
        "one lower and upper end",
        c__npz=npz(A=np.ones((2, 3)), lo=[0.0], hi=[1.0]),
    ),
    "--constraint with NaN": bad(
        "analyze m.onnx --box 0 1 --constraint c.npz",
        "c.npz",
        "NaN",
        c__npz=npz(A=[np.nan] * 3, lo=[0.0], hi=[1.0]),
    ),
    "--constraint with objects": bad(
        "analyze m.onnx --box 0 1 --constraint c.npz",
        "c.npz",
        ".npz",
        c__npz=npz(A=np.array([Malicious()] * 3, object), lo=[0.0], hi=[1.0]),
    ),
    "--vnnlib missing": bad("analyze m.onnx --vnnlib d.vnnlib", "d.vnnlib", "no such file"),
    "--vnnlib malformed": bad(
        "analyze m.onnx --vnnlib d.vnnlib", "d.vnnlib", "line", d__vnnlib=vnnlib("(assert (>= X_0")
    ),
    "--vnnlib of other size": bad(
        "analyze m.onnx --vnnlib d.vnnlib", "d.vnnlib", "2 inputs", "has 3", d__vnnlib=vnnlib(inputs=2)
    ),
    "--vnnlib disjunction": bad(
        "analyze m.onnx --vnnlib d.vnnlib",
        "d.vnnlib",
        "line",
        "one file per box",
        d__vnnlib=vnnlib("(assert (or (<= X_0 0.2) (>= X_0 0.8)))"),
    ),
    "--vnnlib unbounded": bad(
        "analyze m.onnx --vnnlib d.vnnlib",
        "X_2",
        "no upper bound",
        "<= X_2",
        d__vnnlib=vnnlib().replace("(assert (<= X_2 1))", ""),
    ),
    "--vnnlib empty domain": bad(
        "analyze m.onnx --vnnlib d.vnnlib", "X_0", "empty", d__vnnlib=vnnlib("(assert (>= X_0 2))")
    ),
}

OPTIONS = {
    "--data missing": bad(f"analyze m.onnx {BOX} --data d.npy", "d.npy", "no such file"),
    "--data of other shape": bad(
        f"analyze m.onnx {BOX} --data d.npy", "(5, 4)", "(3,)", d__npy=npy(np.zeros((5, 4)))
    ),
    "--data without rows": bad(f"analyze m.onnx {BOX} --data d.npy", "()", "(3,)", d__npy=npy(1.0)),
    "--data pickled": bad(
        f"analyze m.onnx {BOX} --data d.npy", "d.npy", ".npy", d__npy=npy([[Malicious()] * 3], object)
    ),
    "--data complex": bad(
        f"analyze m.onnx {BOX} --data d.npy",
        "d.npy",
        "complex",
        "real",
        d__npy=npy(np.zeros((5, 3), complex)),
    ),
    "--method data without --data": bad(f"analyze m.onnx {BOX} --method data", "needs data", "auto"),
    "--method unknown": misused(f"analyze m.onnx {BOX} --method magic", "--method", "'magic'", "auto"),
    "--time-limit negative": bad(f"analyze m.onnx {BOX} --time-limit -1", "time limit", "negative"),
    "--time-limit NaN": bad(f"analyze m.onnx {BOX} --time-limit nan", "time limit", "nan"),
    "--time-limit text": misused(f"analyze m.onnx {BOX} --time-limit soon", "--time-limit", "'soon'"),
    "--device unknown": bad(f"analyze m.onnx {BOX} --device abacus", "abacus", "cpu or cuda"),
    "--device misspelt": bad(f"analyze m.onnx {BOX} --device cuda:x", "cuda:x", "cpu or cuda"),
    "--device beyond": bad(f"analyze m.onnx {BOX} --device cuda:999", "cuda:999", "--device cpu"),
    "--seed negative": misused(f"analyze m.onnx {BOX} --seed -1", "--seed"),
    "--seed beyond": misused(f"analyze m.onnx {BOX} --seed {2**70}", "--seed"),
    "--tolerance unknown": bad(f"compress m.onnx out.onnx {BOX} --tolerance vague", "vague", "exact"),
    "--rewrites unknown": misused(f"compress m.onnx out.onnx {BOX} --rewrites some", "'some'", "leo++"),
    "--evidence unknown": misused(f"compress m.onnx out.onnx {BOX} --evidence rumour", "'rumour'", "proof"),
    "--output-relu behind Softmax": bad(
        f"analyze soft.onnx {BOX} --output-relu",
        "Softmax",
        "--output-relu",
        soft__onnx=lambda: proto([*LAYERS[:2], op("MatMul", ["r", "w2"], "l"), op("Softmax", ["l"])]),
    ),
    "option unknown": misused(f"analyze m.onnx {BOX} --frobnicate", "--frobnicate"),
    "command unknown": misused("frobnicate m.onnx", "'frobnicate'"),
    "no model": misused("analyze", "MODEL"),
    "no output": misused(f"compress m.onnx {BOX}", "OUT"),
    "too many arguments": misused("inspect m.onnx m.onnx", "m.onnx"),
}

OUTPUTS = {
    "folder missing": bad(f"compress m.onnx no/out.onnx {BOX}", "no/out.onnx", "does not exist", "create"),
    "verdicts folder missing": bad(f"analyze m.onnx {BOX} -o no/v.json", "no/v.json", "does not exist"),
    "directory": bad(f"compress m.onnx folder.onnx {BOX}", "folder.onnx", "directory"),
    "verdicts directory": bad(f"analyze m.onnx {BOX} -o folder.onnx", "folder.onnx", "directory"),
    "verdicts into a device": bad(f"analyze m.onnx {BOX} -o {os.devnull}", os.devnull, "ordinary file"),
    "the model": bad(f"compress m.onnx m.onnx {BOX}", "m.onnx", "replace the input", "another name"),
    "the model by another way": bad(f"compress m.onnx folder.onnx/../m.onnx {BOX}", "replace the input"),
    "a symlink to the model": bad(f"compress m.onnx soft.onnx {BOX}", "soft.onnx", "replace the input"),
    "a hard link to the model": bad(f"compress m.onnx hard.onnx {BOX}", "hard.onnx", "replace the input"),
    "the model is the link": bad(f"compress soft.onnx m.onnx {BOX}", "m.onnx", "replace the input"),
    "verdicts over the model": bad(f"analyze m.onnx {BOX} -o m.onnx", "m.onnx", "replace the input"),
    "verdicts over the data": bad(
        f"analyze m.onnx {BOX} --data d.npy -o d.npy",
        "d.npy",
        "replace the input",
        d__npy=npy(np.zeros((2, 3))),
    ),
    ".nnet": bad(f"compress m.onnx out.nnet {BOX}", "out.nnet", ".onnx, .pt, .pt2"),
    ".txt": bad(f"compress m.onnx out.txt {BOX}", "out.txt", ".onnx, .pt, .pt2"),
    ".onnx.gz": bad(f"compress m.onnx out.onnx.gz {BOX}", "out.onnx.gz", ".onnx, .pt, .pt2"),
    "no suffix": bad(f"compress m.onnx out {BOX}", "out", "without suffix", ".onnx"),
    "name too long": bad(f"compress m.onnx {'x' * 300}.onnx {BOX}", "xxx.onnx", "too long"),
}

CASES = {
    f"{group}: {name}": case
    for group, cases in (("model", MODELS), ("domain", BOXES), ("option", OPTIONS), ("output", OUTPUTS))
    for name, case in cases.items()
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a good model under three names and two folders that look like models."""
    monkeypatch.chdir(tmp_path)
    onnx.save(proto(), "m.onnx")
    Path("soft.onnx").symlink_to("m.onnx")
    Path("hard.onnx").hardlink_to("m.onnx")
    for name in ("folder.onnx", "folder.pt", "folder.pt2"):
        Path(name).mkdir()
    return tmp_path


def fill(folder: Path, files: dict[str, Content]) -> None:
    for name, content in files.items():
        made = content() if callable(content) else content
        if isinstance(made, onnx.ModelProto):
            made = made.SerializeToString()
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_bytes(made.encode() if isinstance(made, str) else made)


def inventory(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder; what Python caches of a factory does not count."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def check(found: Outcome, case: Case) -> None:
    assert "Traceback" not in found.out + found.err
    assert found.code == case.code, found.err
    assert found.out == ""
    *before, message = found.err.splitlines()
    assert message.startswith("relutrim: error: ")
    assert "internal error" not in message
    if case.usage:
        assert before[0].startswith("Usage: relutrim")
        assert "--help" in before[-1]
    else:
        assert not before
    for word in case.words:
        assert word.lower() in message.lower()


@pytest.mark.parametrize("name", CASES)
def test_bad_input(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    if "bomb" in name:
        monkeypatch.setattr("relutrim.io.files.LARGEST_FILE", 10**5)
    fill(folder, case.files)
    before = inventory(folder)
    check(call(capsys, *shlex.split(case.command)), case)
    assert inventory(folder) == before


@pytest.mark.parametrize(
    "name",
    [
        "model: missing",
        "model: text",
        "model: cycle",
        "model: .pt malicious",
        "output: the model",
        "option: option unknown",
    ],
)
def test_bad_input_of_a_real_process(name: str, folder: Path) -> None:
    case = CASES[name]
    fill(folder, case.files)
    before = inventory(folder)
    check(start(*shlex.split(case.command)), case)
    assert inventory(folder) == before


@pytest.mark.parametrize("as_json", [False, True])
def test_json_changes_nothing_about_errors(
    as_json: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = call(capsys, "analyze", "m.onnx", "--box", "1", "0", *(["--json"] if as_json else []))
    check(found, BOXES["lower above upper"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "analyze", "m.onnx", *BOX.split(), "--device", "cuda")
    check(found, bad("", "cuda", "no CUDA device", "--device cpu"))


@pytest.mark.parametrize("command", ["compress m.onnx {}/out.onnx", "analyze m.onnx -o {}/v.json"])
def test_folder_that_cannot_be_written_to(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = Path("/proc" if os.geteuid() == 0 else "locked")  # root may write nearly everywhere
    locked.mkdir(mode=0o500, exist_ok=True)
    before = {path.name for path in locked.iterdir() if not path.name.isdigit()}
    check(
        call(capsys, *command.format(locked).split(), *BOX.split()), bad("", str(locked), "cannot be written")
    )
    assert {path.name for path in locked.iterdir() if not path.name.isdigit()} == before


def test_escape_codes_of_a_file_do_not_reach_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [LAYERS[0], op("Relu", ["h"], "\x1b[31mred[/bold]\r\n:smile:"), op("MatMul", ["h", "w2"])]
    nodes[2].input[0] = nodes[1].output[0]
    onnx.save(proto(nodes), "odd.onnx")
    found = call(capsys, "inspect", "odd.onnx")
    assert found.code == 0
    assert "\x1b" not in found.out
    assert "red[/bold]" in found.out
    assert ":smile:" in found.out
    nodes[1].op_type = "Exp"
    onnx.save(proto(nodes), "odd.onnx")
    found = call(capsys, "inspect", "odd.onnx", "--verbose")
    assert found.code == 0
    assert "does not know the operator Exp" in found.out
    assert "\x1b" not in found.out
    nodes[1].op_type = "Relu"
    nodes[1].input[0] = "nowhere"
    onnx.save(proto(nodes), "odd.onnx")
    found = call(capsys, "inspect", "odd.onnx")
    check(found, bad("", "odd.onnx", "nowhere", code=2))
    assert "\x1b" not in found.err


UNKNOWN = {
    "NaN weights": (lambda: spoilt(np.nan), "matmul_h"),
    "infinite weights": (lambda: spoilt(np.inf), "matmul_h"),
    "LogSoftmax within": (lambda: proto(around("LogSoftmax")), "logsoftmax_r"),
    "Exp": (lambda: proto(around("Exp")), "exp_r"),
    "LSTM": (lambda: proto(around("LSTM", 3)), "lstm_r"),
    "Loop": (loop, "loop_r"),
    "product of values": (lambda: proto(around("Mul", 2)), "mul_r"),
    "unknown operator": (lambda: proto(around("NoSuchThing")), "NoSuchThing"),
    "old opset": (lambda: proto([*LAYERS, op("Add", ["x", "x"], "z")], opset=6, outputs=["y", "z"]), "add_z"),
    "two inputs": (two_inputs, ""),
    "no input": (no_input, "relu_y"),
    "constants alone": (lambda: proto([op("Relu", ["w1"])]), "relu_y"),
    "open shape": (lambda: proto(shape=("n", "m")), "matmul_h"),
    "float16 weights": (lambda: typed(np.float16), "matmul_h"),
    "int8 weights": (lambda: typed(np.int8), "matmul_h"),
    "double weights": (lambda: typed(np.float64), "matmul_h"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_known_is_no_error(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = UNKNOWN[case]
    onnx.save(make(), tmp_path / "odd.onnx")
    found = call(capsys, "inspect", tmp_path / "odd.onnx", "--verbose")
    assert found.code == 0
    assert words in found.out


def test_the_models_are_good_apart_from_what_spoils_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("m.onnx", "soft.onnx", "hard.onnx"):
        assert call(capsys, "inspect", name).code == 0
    fill(folder, {"net.nnet": NNET, "weights.dat": DAT, "net.pt": saved(state), "d.vnnlib": vnnlib()})
    assert call(capsys, "inspect", "net.nnet").code == 0
    assert call(capsys, "inspect", "weights.dat").code == 0
    assert call(capsys, "inspect", "net.pt", "--arch", "mlp:3-4-2").code == 0
    assert call(capsys, "analyze", "m.onnx", "--vnnlib", "d.vnnlib").code == 0
