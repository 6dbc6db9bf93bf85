"""Models whose tensors lie in files of data beside them: what is written, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import relutrim
from command_line import call
from onnx_models import model, numbers, op
from relutrim import Box
from relutrim.certificate.check.read import read
from relutrim.errors import CheckFailed, InputError, UnsupportedError
from relutrim.io.onnx.beside import Data, Files, Piece, files_of, packed
from relutrim.io.onnx.external import range_of, with_external
from relutrim.io.onnx.verify import verify_edited

DEAD = 40


def network(*, dead: int = DEAD) -> onnx.ModelProto:
    """A network with so many inactive neurons of 96, whose last layers nothing is cut from."""
    bias = np.full(96, 0.1, np.float32)
    bias[:dead] = -100
    nodes = [
        op("Gemm", ["x", "a", "b"], "h"), op("Relu", ["h"], "r"), op("MatMul", ["r", "c"], "l"),
        op("Sin", ["l"], "s"), op("MatMul", ["s", "d"]),
    ]  # fmt: skip
    arrays = {"a": numbers(4, 96), "b": bias, "c": numbers(96, 48), "d": numbers(48, 3)}
    return model(nodes, ["n", 4], {name: array.astype(np.float32) for name, array in arrays.items()})


def saved(proto: onnx.ModelProto, folder: Path, places: dict[str, str] | None = None, step: int = 1) -> Path:
    """The model with all initializers in files of data, at multiples of ``step``."""
    folder.mkdir(exist_ok=True)
    made, contents = onnx.ModelProto(), dict[str, bytearray]()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        name = (places or {}).get(tensor.name, "m.data")
        content = contents.setdefault(name, bytearray())
        content += bytes(-len(content) % step)
        raw = numpy_helper.to_array(tensor).tobytes()
        refer(tensor, location=name, offset=len(content), length=len(raw))
        content += raw
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    return folder / "m.onnx"


def refer(tensor: TensorProto, **said: object) -> None:
    """Let a tensor lie in a file."""
    for one in ("raw_data", "float_data"):
        tensor.ClearField(one)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in said.items():
        tensor.external_data.add(key=key, value=str(value))


def compressed(path: Path, out: Path, box: Box | None = None) -> relutrim.Compression:
    out.parent.mkdir(exist_ok=True)
    result = relutrim.compress(path, box or Box(-1, 1), tolerance=0)
    result.save(out)
    return result


def raw(path: Path) -> dict[str, bytes]:
    """What the tensors of a file hold, read by onnx."""
    return {tensor.name: tensor.raw_data for tensor in onnx.load(path).graph.initializer}


def outputs(path: Path) -> np.ndarray:
    x = np.random.default_rng(1).uniform(-1, 1, (5, 4)).astype(np.float32)
    return onnxruntime.InferenceSession(str(path)).run(None, {"x": x})[0]


def bare(path: Path) -> onnx.GraphProto:
    return onnx.load(path, load_external_data=False).graph


def test_what_was_cut_goes_to_the_data_and_what_is_kept_stays_bit_for_bit(tmp_path):
    path, out = saved(network(), tmp_path / "in"), tmp_path / "there" / "o.onnx"
    compressed(path, out)
    before, after = raw(path), raw(out)
    assert after["d"] == before["d"]
    left = {"a": 4 * 56, "b": 56, "c": 56 * 48, "d": 48 * 3}
    assert {name: len(held) // 4 for name, held in after.items()} == left
    assert all(tensor.data_location == TensorProto.EXTERNAL for tensor in bare(out).initializer)
    assert sorted(one.name for one in out.parent.iterdir()) == ["m.data", "o.onnx"]
    assert 0 <= (out.parent / "m.data").stat().st_size - 4 * sum(left.values()) < 4 * 64  # aligned as it was
    np.testing.assert_allclose(outputs(out), outputs(path), 1e-5, 1e-5)


@pytest.mark.parametrize("step", [16, 4096])
def test_offsets_keep_their_alignment_and_none_moves_backward(tmp_path, step):
    path, out = saved(network(), tmp_path / "in", step=step), tmp_path / "there" / "o.onnx"
    compressed(path, out)
    old = {one.name: range_of(one, path.parent) for one in bare(path).initializer}
    for tensor in bare(out).initializer:
        found = range_of(tensor, out.parent)
        assert found.offset % step == 0
        assert found.offset <= old[tensor.name].offset
    assert (out.parent / "m.data").stat().st_size <= (path.parent / "m.data").stat().st_size


def test_a_file_of_which_nothing_changes_is_copied_and_one_that_nobody_reads_is_not(tmp_path):
    path = saved(network(), tmp_path, {"a": "gone.data", "d": "kept.data"})
    with (tmp_path / "kept.data").open("ab") as file:
        file.write(b"whatever lies behind")
    source, made = (onnx.load(path, load_external_data=False) for _ in range(2))
    del made.graph.initializer[0]
    assert packed(made, source, tmp_path).data == {
        name: Data.of(tmp_path / name) for name in ("kept.data", "m.data")
    }


def test_large_new_tensors_go_to_the_end_of_the_data(tmp_path):
    path, there = saved(network(), tmp_path), tmp_path / "there"
    source, made = (onnx.load(path, load_external_data=False) for _ in range(2))
    for size in (2, 2000):
        made.graph.initializer.append(numpy_helper.from_array(numbers(size), f"new{size}"))
    there.mkdir()
    out = packed(made, source, tmp_path).write(there)
    small, large = bare(out).initializer[-2:]
    assert small.data_location == TensorProto.DEFAULT
    assert range_of(large, there).end == (there / "m.data").stat().st_size
    before, after = raw(path), raw(out)
    assert {name: after[name] for name in before} == before
    assert after["new2000"] == numpy_helper.to_array(onnx.load(out).graph.initializer[-1]).tobytes()


def test_where_nothing_is_cut_model_and_data_are_copied(tmp_path):
    path, out = saved(network(dead=0), tmp_path / "in", step=64), tmp_path / "there" / "o.onnx"
    assert compressed(path, out, Box(-100, 100)).unchanged
    assert out.read_bytes() == path.read_bytes()
    assert (out.parent / "m.data").read_bytes() == (path.parent / "m.data").read_bytes()


def test_beside_the_model_itself_the_data_gets_a_name_of_its_own(tmp_path):
    path = saved(network(), tmp_path / "in")
    data = (path.parent / "m.data").read_bytes()
    for _ in range(2):  # the same files again
        compressed(path, path.parent / "o.onnx")
    assert (path.parent / "m.data").read_bytes() == data
    assert sorted(one.name for one in path.parent.iterdir()) == ["m.data", "m.onnx", "o.onnx", "o.onnx.data"]
    np.testing.assert_allclose(outputs(path.parent / "o.onnx"), outputs(path), 1e-5, 1e-5)


def test_data_that_is_called_like_the_output_does_not_end_in_it(tmp_path):
    path, out = saved(network(), tmp_path / "in", dict.fromkeys("abcd", "o.onnx")), tmp_path / "there/o.onnx"
    result = relutrim.compress(path, Box(-1, 1), tolerance=0)
    out.parent.mkdir()
    result.save(out)
    np.testing.assert_allclose(outputs(out), outputs(path), 1e-5, 1e-5)


@pytest.mark.parametrize("through", ["", "sub/.."])
def test_the_data_of_the_model_is_not_replaced(tmp_path, capsys, through):
    """Under whatever name it is reached."""
    path, out = saved(network(), tmp_path, dict.fromkeys("abcd", "o.onnx")), tmp_path / through / "o.onnx"
    (tmp_path / "sub").mkdir()
    held = out.read_bytes()
    result = relutrim.compress(path, Box(-1, 1), tolerance=0)
    with pytest.raises(InputError, match="refers to"):
        result.save(out)
    other = tmp_path / "other.onnx"
    for given in [out], [other, "--bounds", out], [other, "--certificate", out]:
        assert call(capsys, "compress", path, *given, "--box", "-1", "1").code == 2
    assert out.read_bytes() == held


def test_tensors_that_share_bytes_share_them_afterwards(tmp_path):
    """Overlapping ranges move together, so that they take no more room than before."""
    proto = network()
    path, out = saved(proto, tmp_path / "in"), tmp_path / "there" / "o.onnx"
    wanted = bare(path)
    made = onnx.load(path, load_external_data=False)
    place = range_of(wanted.initializer[3], path.parent)
    for at in range(20):  # each in the middle of another one
        tensor = made.graph.initializer.add(name=f"t{at}", data_type=TensorProto.FLOAT, dims=[100])
        refer(tensor, location="m.data", offset=place.offset + 4 * at, length=400)
    path.write_bytes(made.SerializeToString())
    compressed(path, out)
    assert (out.parent / "m.data").stat().st_size < (path.parent / "m.data").stat().st_size
    before, after = raw(path), raw(out)
    assert all(after[f"t{at}"] == before[f"t{at}"] for at in range(20))


def test_bytes_count_the_data_and_both_are_timed(tmp_path):
    path, out = saved(network(), tmp_path / "in"), tmp_path / "there" / "o.onnx"
    found = compressed(path, out).latency()
    assert found.remark is None
    assert found.timings
    assert found.bytes_before == sum(one.stat().st_size for one in path.parent.iterdir())
    assert found.bytes_after == sum(one.stat().st_size for one in out.parent.iterdir())


def test_models_with_data_beside_them_are_run_side_by_side(tmp_path):
    path = saved(network(), tmp_path / "in")
    x = np.ones((3, 4))
    shown = onnx.load(path)  # (behind a node that is known: what comes from others may be anything)
    del shown.graph.node[3:], shown.graph.output[:]
    shown.graph.output.append(helper.make_tensor_value_info("l", TensorProto.FLOAT, ["n", 48]))
    path = saved(shown, tmp_path / "shown")
    right, cut = files_of(path.read_bytes(), path.parent), relutrim.load(path)
    size = right.data["m.data"].size
    other = Data((Piece(0, size, content=bytes(size)),))
    verify_edited(right, right, cut, x, 0.0)
    with pytest.raises(CheckFailed, match="off the model's"):
        verify_edited(right, Files(right.content, {"m.data": other}), cut, x, 0.0)


def test_saving_runs_both(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("relutrim.io.onnx.verify.verify_edited", lambda *given: seen.append(given[:2]))
    compressed(saved(network(), tmp_path / "in"), tmp_path / "there" / "o.onnx")
    assert [sorted(files.data) for files in seen[0]] == [["m.data"], ["m.data"]]


def test_data_that_changes_meanwhile_is_not_copied(tmp_path):
    path, out = saved(network(), tmp_path / "in"), tmp_path / "there" / "o.onnx"
    out.parent.mkdir()
    result = relutrim.compress(path, Box(-1, 1), tolerance=0)
    data = bytearray((path.parent / "m.data").read_bytes())
    data[-1] ^= 1
    (path.parent / "m.data").write_bytes(data)
    with pytest.raises(InputError, match="changed since it was read"):
        result.save(out)
    assert list(out.parent.iterdir()) == []


def test_all_files_appear_or_none(tmp_path, monkeypatch):
    path, out = saved(network(), tmp_path / "in"), tmp_path / "there" / "o.onnx"
    out.parent.mkdir()
    result, replaced = relutrim.compress(path, Box(-1, 1), tolerance=0), Path.replace

    def failing(self, target):
        if Path(target) == out:
            raise OSError(28, "No space left on device")
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(InputError, match="cannot be written"):
        result.save(out)
    assert list(out.parent.iterdir()) == []


def test_the_model_in_memory_has_all_its_data(tmp_path):
    path, out = saved(network(), tmp_path / "in"), tmp_path / "there" / "o.onnx"
    made = onnx.ModelProto.FromString(compressed(path, out).onnx)
    assert {one.name: one.raw_data for one in made.graph.initializer} == raw(out)


HOSTILE = {
    "outside": ({"location": "../m.data"}, "not in the model's folder"),
    "absolute": ({"location": "/etc/passwd"}, "not in the model's folder"),
    "drive": ({"location": "C:m.data"}, "not in the model's folder"),
    "nothing": ({"location": "."}, "not in the model's folder"),
    "device": ({"location": "pipe"}, "not an ordinary file"),
    "link": ({"location": "link"}, "is a link"),
    "linked folder": ({"location": "folder/m.data"}, "is a link"),
    "huge offset": ({"location": "m.data", "offset": 2**62, "length": 8}, "bytes"),
    "too long": ({"location": "m.data", "length": 2**62}, "bytes"),
    "negative": ({"location": "m.data", "offset": -8, "length": 8}, "no offset or length"),
    "endless": ({"location": "m.data", "offset": "9" * 5000}, "no offset or length"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_data_is_read_from_ordinary_files_of_the_folder_only(tmp_path, case):
    said, why = HOSTILE[case]
    path = saved(network(), tmp_path / "in")
    (tmp_path / "m.data").write_bytes(bytes(2000))
    (path.parent / "link").symlink_to(path.parent / "m.data")
    (path.parent / "folder").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(path.parent / "pipe")
    made = onnx.load(path, load_external_data=False)
    refer(made.graph.initializer.add(name="t", data_type=TensorProto.FLOAT, dims=[2]), **said)
    with pytest.raises(InputError, match=why):
        with_external(made, path.parent)


def test_a_tensor_that_says_no_length_is_as_long_as_its_numbers(tmp_path):
    path = saved(network(), tmp_path / "in")
    made = onnx.load(path, load_external_data=False)
    place = range_of(made.graph.initializer[0], path.parent)
    refer(made.graph.initializer[0], location="m.data")
    assert range_of(made.graph.initializer[0], path.parent) == place


def test_certificates_refuse_data_in_other_files_before_the_analysis(tmp_path, capsys, monkeypatch):
    path = saved(network(), tmp_path / "in")
    monkeypatch.setattr("relutrim.compression.analyze_network", lambda *_, **__: pytest.fail("too late"))
    given = ["--box", "-1", "1", "--certificate", tmp_path / "proof"]
    done = call(capsys, "compress", path, tmp_path / "o.onnx", *given)
    assert done.code == 3
    assert "another file" in done.err


def test_the_checker_compares_no_node_whose_data_lies_in_another_file():
    """Two nodes that say the same of where their data lies may have other data."""
    node = helper.make_node("Held", ["x"], ["h"], domain="of.mine", value=TensorProto(name="t", data_type=1))
    refer(node.attribute[0].t, location="m.data")
    proto = model([node, op("Relu", ["h"])], ["n", 3])
    with pytest.raises(UnsupportedError, match="lies in another file"):
        read(proto.SerializeToString(), opaque=True)
