"""An archive that readers could take for different things is refused, wherever one is read."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from certifying import certified, entries, files, packed, small
from command_line import call
from relutrim.certificate.check.__main__ import main as check_alone
from relutrim.certificate.check.archive import open_archive
from relutrim.errors import InputError
from relutrim.io import load
from relutrim.io.archives import open_zip, parsed
from relutrim.io.arrays import read_arrays
from relutrim.io.rows import read_rows
from relutrim.io.state_dict import load_tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore:Duplicate name"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]


def rewritten(content: bytes, *first: tuple[str, bytes]) -> bytes:
    """The archive with other entries before its own."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, raw in [*first, *entries(content).items()]:
            archive.writestr(name, raw)
    return target.getvalue()


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("program") / "m.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), path)
    return path


def first_weight(path: Path) -> list[float]:
    """What torch takes for the weight."""
    return next(iter(torch.export.load(path).state_dict.values())).flatten().tolist()


@pytest.mark.parametrize("name", ["m/data/weights/weight_0", "m/DATA/weights/Weight_0"])
def test_a_program_with_a_weight_twice(program, tmp_path, name):
    """torch takes the first, and the case of letters for nothing."""
    path, other = tmp_path / "m.pt2", np.full(4, 7, np.float32)
    path.write_bytes(rewritten(program.read_bytes(), (name, other.tobytes())))
    assert first_weight(path) == other.tolist()
    with pytest.raises(InputError, match=r"m\.pt2.*weight_0' twice"):
        load(path)


def test_a_program_whose_json_says_two_things(program, tmp_path):
    parts = entries(program.read_bytes())
    name = "m/data/weights/model_weights_config.json"
    listed = json.loads(parts[name])["config"]
    parts[name] = f'{{"config": {{}}, "config": {json.dumps(listed)}}}'.encode()
    path = tmp_path / "m.pt2"
    path.write_bytes(packed(parts))
    with pytest.raises(InputError, match="JSON has 'config' twice"):
        load(path)


def test_a_state_dict_with_a_tensor_twice(tmp_path):
    path = tmp_path / "m.pt"
    torch.save(torch.nn.Linear(2, 2).state_dict(), path)
    assert load_tensors(path)
    path.write_bytes(rewritten(path.read_bytes(), ("m/data/0", bytes(16))))
    with pytest.raises(InputError, match=r"m\.pt.*'m/data/0' twice"):
        load_tensors(path)


def test_arrays_twice(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.ones((2, 2)), y=np.zeros(2, int))
    assert read_rows(path).stored.sum() == 4
    path.write_bytes(rewritten(path.read_bytes(), ("x.npy", entries(path.read_bytes())["y.npy"])))
    for reads in (lambda: read_arrays(path, ("x",)), lambda: read_rows(path)):
        with pytest.raises(InputError, match=r"d\.npz.*'x\.npy' twice"):
            reads()


def test_domains_of_the_checker_twice(tmp_path, capsys):
    paths = [tmp_path / name for name in ("model.onnx", "out.onnx", "c.zip")]
    for path, content in zip(paths, files(certified(small())), strict=True):
        path.write_bytes(content)
    domain = tmp_path / "d.npz"
    np.savez(domain, lo=np.zeros(2), hi=np.ones(2))
    arguments = [*map(str, paths), "--domain", str(domain)]
    assert check_alone(arguments) == 0
    domain.write_bytes(rewritten(domain.read_bytes(), ("hi.npy", entries(domain.read_bytes())["lo.npy"])))
    assert check_alone(arguments) == 2
    assert "twice" in capsys.readouterr().err


def test_a_certificate_whose_document_says_two_things():
    content = files(certified(small()))[2]
    open_archive(content)
    parts = entries(content)
    parts["certificate.json"] = parts["certificate.json"].replace(b"{", b'{"arrays": {}, ', 1)
    with pytest.raises(InputError, match="member twice"):
        open_archive(packed(parts))


def test_the_command_refuses_a_program_with_a_weight_twice(program, tmp_path, capsys):
    path = tmp_path / "m.pt2"
    path.write_bytes(rewritten(program.read_bytes(), ("m/data/weights/weight_0", bytes(16))))
    done = call(capsys, "inspect", path)
    assert done.code == 2
    assert "twice" in done.err


def _padded(path: Path, before: bytes = b"", behind: bytes = b"") -> None:
    path.write_bytes(before + path.read_bytes() + behind)


def _comment(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"more of it"


def _second_directory(path: Path) -> None:
    """Another directory right before the end, while the end record says where the first one is."""
    content = path.read_bytes()
    at = content.rindex(b"PK\5\6")
    size = int.from_bytes(content[at + 12 : at + 16], "little")
    path.write_bytes(content[:at] + content[at - size : at].replace(b"one", b"two") + content[at:])


def _zero_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"one.npy", b"one\0npy"))


FRAMES = {
    "something before": (lambda path: _padded(path, before=b"\x08\x08 protobuf"), "begin"),
    "something behind": (lambda path: _padded(path, behind=b"\0" * 30), "behind"),
    "a comment": (_comment, "behind"),
    "two directories": (_second_directory, "not where it says"),
    "a zero byte in a name": (_zero_byte, "has an entry"),
}


@pytest.mark.parametrize("case", FRAMES)
def test_archives_that_are_not_as_they_are_usually_written(tmp_path, case):
    path = tmp_path / "a.npz"
    np.savez(path, one=np.ones(3), other=np.zeros(2))
    open_zip(path).close()
    change, why = FRAMES[case]
    change(path)
    assert zipfile.is_zipfile(path)
    with pytest.raises(InputError, match=why):
        open_zip(path)


def test_archives_of_the_usual_writers_are_read(program, tmp_path):
    large, empty = tmp_path / "large.zip", tmp_path / "empty.zip"
    with zipfile.ZipFile(large, "w") as archive:
        for number in range(66_000):  # more than the end record can say
            archive.writestr(str(number), b"")
    zipfile.ZipFile(empty, "w").close()
    for path, count in ((large, 66_000), (empty, 0), (program, len(entries(program.read_bytes())))):
        with open_zip(path) as archive:
            assert len(archive.infolist()) == count


def test_ends_that_disagree(program, tmp_path):
    """torch writes the end twice, with 32 and with 64 bits, and readers go by either."""
    path = tmp_path / "m.pt2"
    shutil.copy(program, path)
    content = bytearray(path.read_bytes())
    content[-6] ^= 1  # where the directory begins
    path.write_bytes(content)
    with pytest.raises((InputError, zipfile.BadZipFile)):
        open_zip(path)


def test_json_says_one_thing():
    assert parsed('{"a": {"b": 1}, "c": [{"b": 2}]}') == {"a": {"b": 1}, "c": [{"b": 2}]}
    with pytest.raises(InputError, match="'b' twice"):
        parsed('[{"a": {"b": 1, "b": 1}}]')
