"""Data sets are read from their standard files; what is wrong with a file is said, never guessed at."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relutrim.errors import InputError
from relutrim.io.idx import read_idx, write_idx
from relutrim.paper import Dataset, load_dataset, obtain_dataset, synthetic
from relutrim.paper.synthetic_data import FORMS, write_files


def small(like: str) -> Dataset:
    return synthetic(like, train=30, test=10)


def same_rows(a: Dataset, b: Dataset) -> bool:
    return a.sha256 == b.sha256


@pytest.mark.parametrize("like", FORMS)
@pytest.mark.parametrize("below", [".", "first"])
def test_standard_files_give_back_what_was_written(like: str, below: str, tmp_path: Path) -> None:
    from relutrim.paper.sources import SOURCES

    folder = tmp_path / (SOURCES[like].folders[0] if below == "first" else "")
    folder.mkdir(parents=True, exist_ok=True)
    written = small(like)
    write_files(written, folder, like)
    read = load_dataset(like, tmp_path)
    assert read.name == like
    assert read.classes == FORMS[like][1]
    assert same_rows(read, written)


def test_a_folder_named_after_fashion_mnist_is_not_taken_for_mnist(tmp_path: Path) -> None:
    digits, clothes = small("mnist"), synthetic("mnist", train=30, test=10, seed=1)
    (tmp_path / "FashionMNIST" / "raw").mkdir(parents=True)
    write_files(digits, tmp_path, "mnist")
    write_files(clothes, tmp_path / "FashionMNIST" / "raw", "fashion-mnist")
    assert same_rows(load_dataset("mnist", tmp_path), digits)
    assert same_rows(load_dataset("fashion-mnist", tmp_path), clothes)


def test_unpacked_idx_files_and_names_with_a_dot_are_read(tmp_path: Path) -> None:
    written = small("mnist")
    write_files(written, tmp_path, "mnist")
    for packed in list(tmp_path.iterdir()):
        plain = packed.with_suffix("").name.replace("-idx", ".idx")
        (tmp_path / plain).write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    assert same_rows(load_dataset("mnist", tmp_path), written)


class Python2(pickle._Pickler):  # type: ignore[misc,name-defined,unused-ignore]
    """Writes bytes as the strings of Python 2, in which the authors made their files."""

    def save(self, obj: object, save_persistent_id: bool = True) -> None:
        if isinstance(obj, bytes):
            self.write(b"T" + len(obj).to_bytes(4, "little") + obj)
        else:
            super().save(obj, save_persistent_id)


def dump(batch: object, protocol: int) -> bytes:
    content = io.BytesIO()
    (Python2 if protocol == 2 else pickle.Pickler)(content, protocol).dump(batch)
    return content.getvalue()


def pickled(folder: Path, written: Dataset, like: str, protocol: int = 2) -> None:
    """The python version: as the authors made it, or saved again by a later Python."""
    if like == "cifar10":
        parts = np.array_split(np.arange(len(written.x_train)), 5)
        files = {f"data_batch_{i}": (written.x_train[p], written.y_train[p]) for i, p in enumerate(parts, 1)}
        files["test_batch"] = (written.x_test, written.y_test)
        key = b"labels"
    else:
        files = {"train": (written.x_train, written.y_train), "test": (written.x_test, written.y_test)}
        key = b"fine_labels"
    for name, (x, y) in files.items():
        batch = {b"data": x.reshape(len(x), -1), key: y.tolist(), b"filenames": [b"a.png"] * len(y)}
        (folder / name).write_bytes(dump(batch, protocol))


@pytest.mark.parametrize("like", ["cifar10", "cifar100"])
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickled_cifar_is_read(like: str, protocol: int, tmp_path: Path) -> None:
    written = small(like)
    pickled(tmp_path, written, like, protocol)
    assert same_rows(load_dataset(like, tmp_path), written)


class Evil:
    """Unpickles as a call of ``os.mkdir``."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("where", ["label", "batch", "dtype"])
def test_a_pickle_that_asks_for_anything_else_is_refused_and_not_run(where: str, tmp_path: Path) -> None:
    written, target = small("cifar100"), tmp_path / "made"
    pickled(tmp_path, written, "cifar100")
    x = written.x_train.reshape(30, -1)
    batches = {
        "label": {b"data": x, b"fine_labels": [Evil(target)] * 30},
        "batch": Evil(target),
        "dtype": {b"data": np.array([Evil(target)], object), b"fine_labels": [0]},
    }
    (tmp_path / "train").write_bytes(dump(batches[where], 2))
    with pytest.raises(InputError, match=r"train.*cannot be read.*binary version"):
        load_dataset("cifar100", tmp_path)
    assert not target.exists()


@given(st.data())
def test_no_damage_to_a_pickle_does_more_than_be_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("pickle")
    rows = synthetic("cifar100", train=2, test=1)
    pickled(folder, rows, "cifar100")
    content = bytearray((folder / "train").read_bytes())
    skeleton = [at for at in range(len(content)) if at < 200 or at > len(content) - 200]
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.sampled_from(skeleton))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    (folder / "train").write_bytes(bytes(content[: len(content) - cut]))
    with suppress(InputError):
        read = load_dataset("cifar100", folder)
        assert read.x_train.shape[1:] == (3, 32, 32)


def damage(path: Path, how: str) -> None:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    match how:
        case "cut":
            path.write_bytes(path.read_bytes()[:-20])
            return
        case "short":
            content = content[:-1]
        case "long":
            content += b"\0"
        case "empty":
            content = b""
        case "other":
            content = b"<html>no such file</html>" * 10
        case "type":
            content = content[:2] + b"\x0d" + content[3:]
        case "huge":
            content = content[:4] + b"\xff" * 12 + content[16:]
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("how", ["cut", "short", "long", "empty", "other", "type", "huge"])
@pytest.mark.parametrize("file", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
def test_damaged_idx_files_are_named(file: str, how: str, tmp_path: Path) -> None:
    write_files(small("mnist"), tmp_path, "mnist")
    damage(tmp_path / file, how)
    with pytest.raises(InputError, match=file):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize("how", ["cut", "long", "empty", "other"])
def test_damaged_cifar_files_are_named(how: str, tmp_path: Path) -> None:
    write_files(small("cifar10"), tmp_path, "cifar10")
    damage(tmp_path / "data_batch_3.bin", how)
    with pytest.raises(InputError, match=r"data_batch_3\.bin"):
        load_dataset("cifar10", tmp_path)


def test_swapped_images_and_labels_are_noticed(tmp_path: Path) -> None:
    write_files(small("mnist"), tmp_path, "mnist")
    images, labels = (tmp_path / f"train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    content = images.read_bytes()
    images.write_bytes(labels.read_bytes())
    labels.write_bytes(content)
    with pytest.raises(InputError, match="swapped"):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize(
    ("file", "array", "reason"),
    [
        ("train-labels-idx1-ubyte.gz", np.zeros(29, np.uint8), "one whole number a row"),
        ("train-labels-idx1-ubyte.gz", np.full(30, 10, np.uint8), "between 0 and 9"),
        ("t10k-images-idx3-ubyte.gz", np.zeros((10, 28, 27), np.uint8), "not those of mnist"),
        ("t10k-images-idx3-ubyte.gz", np.zeros((0, 28, 28), np.uint8), "no test rows"),
    ],
)
def test_files_that_do_not_belong_together(file: str, array: np.ndarray, reason: str, tmp_path: Path) -> None:
    write_files(small("mnist"), tmp_path, "mnist")
    write_idx(tmp_path / file, array)
    with pytest.raises(InputError, match=reason) as raised:
        load_dataset("mnist", tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_what_is_missing_is_said_with_the_place_it_belongs_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data_batch_1.bin.*cifar10 below it.*--download"):
        load_dataset("cifar10", tmp_path)
    with pytest.raises(InputError, match="--data-dir"):
        load_dataset("mnist")
    with pytest.raises(InputError, match=r"no data set 'mnits'.*fashion-mnist"):
        load_dataset("mnits", tmp_path)


def test_idx_with_two_axes_only_is_no_image_file(tmp_path: Path) -> None:
    write_idx(tmp_path / "a", np.zeros((3, 4), np.uint8))
    assert read_idx(tmp_path / "a", 2).shape == (3, 4)
    with pytest.raises(InputError, match="along 2 axes"):
        read_idx(tmp_path / "a", 3)


def save(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def user_data(**changes: np.ndarray) -> dict[str, np.ndarray]:
    rows = np.random.default_rng(0)
    made = {
        "x_train": rows.normal(size=(20, 6)),
        "y_train": np.arange(20) % 3,
        "x_test": rows.normal(size=(9, 6)),
        "y_test": np.arange(9) % 3,
    }
    return {**made, **changes}


def test_the_users_own_archive(tmp_path: Path) -> None:
    arrays = user_data()
    read = load_dataset(save(tmp_path / "my data.npz", **arrays))
    assert (read.name, read.classes, read.shape, read.pixels) == ("my-data", 3, (6,), False)
    np.testing.assert_array_equal(read.x_train, arrays["x_train"].astype(np.float32))
    assert read.range[0] == min(read.x_train.min(), read.x_test.min())


def test_images_of_the_user_get_a_channel_axis_and_bytes_are_pixels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 16, 17), np.uint8)
    read = load_dataset(save(tmp_path / "a.npz", **user_data(x_train=x, x_test=x[:9])))
    assert (read.shape, read.pixels, read.range) == ((1, 16, 17), True, (0.0, 1.0))


def test_an_archive_without_labels_is_for_autoencoders(tmp_path: Path) -> None:
    arrays = {key: value for key, value in user_data().items() if key.startswith("x")}
    assert load_dataset(save(tmp_path / "a.npz", **arrays)).classes == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x_train": np.full((20, 6), np.nan)}, "NaN"),
        ({"x_train": np.full((20, 6), 1e300)}, "infinity"),
        ({"x_test": np.zeros((9, 7))}, "do not belong together"),
        ({"y_train": np.zeros(19, int)}, "one whole number a row"),
        ({"y_train": np.full(20, -1)}, "from 0 on"),
        ({"y_train": np.full(20, 0.5)}, "whole numbers"),
        ({"x_train": np.zeros((20, 8, 8, 3)), "x_test": np.zeros((9, 8, 8, 3))}, "channels last"),
        ({"x_train": np.zeros(20), "x_test": np.zeros(9)}, "it must be"),
        ({"x_train": np.zeros((0, 6)), "y_train": np.zeros(0, int)}, "no training rows"),
        ({"x_train": np.array([["a"] * 6] * 20)}, "real numbers"),
    ],
)
def test_archives_that_cannot_be_used(changes: dict[str, np.ndarray], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason) as raised:
        load_dataset(save(tmp_path / "a.npz", **user_data(**changes)))
    assert "a.npz" in str(raised.value)


def test_archives_with_objects_missing_arrays_or_no_archive_at_all(tmp_path: Path) -> None:
    target = tmp_path / "made"
    evil = user_data(x_train=np.array([Evil(target)], object))
    with pytest.raises(InputError, match=r"no plain \.npz"):
        load_dataset(save(tmp_path / "a.npz", **evil))
    assert not target.exists()
    with pytest.raises(InputError, match="y_test is missing"):
        load_dataset(save(tmp_path / "b.npz", **{k: v for k, v in user_data().items() if k != "y_test"}))
    (tmp_path / "c.npz").write_bytes(b"PK no")
    with pytest.raises(InputError, match=r"c\.npz"):
        load_dataset(str(tmp_path / "c.npz"))
    with pytest.raises(InputError, match="no such file"):
        load_dataset(str(tmp_path / "d.npz"))


def test_the_same_seed_makes_the_same_rows_up() -> None:
    assert same_rows(small("cifar10"), small("cifar10"))
    assert not same_rows(small("mnist"), synthetic("mnist", train=30, test=10, seed=1))


def test_mean_and_deviation_are_per_channel_and_short() -> None:
    rows = small("cifar10")
    mean, std = rows.statistics
    exact = (rows.x_train / 255).mean((0, 2, 3))
    assert len(mean) == len(std) == 3
    np.testing.assert_allclose(mean, exact, atol=5e-5)
    assert all(value == round(value, 4) for value in (*mean, *std))


def test_the_real_mnist_has_the_numbers_that_everybody_knows(shared: Path) -> None:
    digits = load_dataset("mnist", shared / "data")
    assert digits.x_train.shape == (60000, 1, 28, 28)
    assert digits.x_test.shape == (10000, 1, 28, 28)
    assert digits.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert digits.statistics == ((0.1307,), (0.3081,))


def test_downloading_without_torchvision_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(InputError, match=r"needs torchvision.*train\.bin.*cifar100 below it"):
        obtain_dataset("cifar100", tmp_path)
    write_files(small("cifar100"), tmp_path, "cifar100")
    assert len(obtain_dataset("cifar100", tmp_path).x_train) == 30  # nothing to download


def test_downloading_uses_torchvision_and_reads_with_our_own_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = small("mnist")

    def fake(root: str, *, train: bool, download: bool) -> None:
        assert train
        assert download
        folder = Path(root) / "MNIST" / "raw"
        folder.mkdir(parents=True)
        write_files(written, folder, "mnist")

    def broken(root: str, **_: bool) -> None:
        raise OSError("no route to host")

    module = types.ModuleType("torchvision")
    module.datasets = types.SimpleNamespace(MNIST=fake, CIFAR10=broken)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", module)
    assert same_rows(obtain_dataset("mnist", tmp_path / "new"), written)
    with pytest.raises(InputError, match="no route to host"):
        obtain_dataset("cifar10", tmp_path)


def test_damaged_files_are_never_replaced_by_a_download(tmp_path: Path) -> None:
    write_files(small("mnist"), tmp_path, "mnist")
    damage(tmp_path / "train-images-idx3-ubyte.gz", "short")
    with pytest.raises(InputError, match="damaged"):
        obtain_dataset("mnist", tmp_path)
