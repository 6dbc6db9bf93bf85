"""From the name of a data set to its rows: the standard files in a folder that the user names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relutrim.errors import InputError
from relutrim.io.idx import read_idx
from relutrim.paper.cifar import Part, read_records
from relutrim.paper.cifar_pickle import read_pickled
from relutrim.paper.dataset import Dataset
from relutrim.paper.synthetic_data import FORMS, synthetic

SYNTHETIC = "synthetic-"


@dataclass(frozen=True)
class Source:
    """Where a data set's files may lie below the user's folder, and what they are."""

    folders: tuple[str, ...]
    files: str
    read: Callable[[Path], tuple[Part, Part] | None]
    """Training and test part, or None where the folder does not hold the files."""


def load_dataset(name: str, folder: str | Path | None = None) -> Dataset:
    """A data set by name: ``mnist``, ``fashion-mnist``, ``cifar10``, ``cifar100`` from their standard files
    in ``folder``, ``synthetic-mnist`` and so on without any, or the path of a ``.npz`` archive.
    """
    if name.startswith(SYNTHETIC):
        return synthetic(name.removeprefix(SYNTHETIC))
    if name.lower().endswith(".npz"):
        from relutrim.paper.npz import read_npz

        return read_npz(Path(name))
    if name not in SOURCES:
        raise InputError(
            f"there is no data set {name!r}; there are {', '.join(SOURCES)}, these with {SYNTHETIC} before "
            "them, and .npz archives"
        )
    if folder is None:
        raise InputError(
            f"{name} is read from files: name their folder with --data-dir ({SOURCES[name].files})"
        )
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(missing(name), where=str(folder))
    for place in _places(name, folder):
        parts = SOURCES[name].read(place)
        if parts is not None:
            return _checked(name, place, parts)
    raise InputError(missing(name), where=str(folder))


def missing(name: str) -> str:
    """What to do where the files of a data set are not there."""
    source = SOURCES[name]
    return (
        f"the files of {name} are not there: {source.files}; put them into this folder or into "
        f"{source.folders[0]} below it, or add --download, which needs torchvision"
    )


def _places(name: str, folder: Path) -> Iterator[Path]:
    """A folder that is called after the data set comes first: MNIST's files have no other names than
    Fashion-MNIST's.
    """
    yield from (folder / below for below in SOURCES[name].folders if (folder / below).is_dir())
    yield folder


def _checked(name: str, place: Path, parts: tuple[Part, Part]) -> Dataset:
    (x_train, y_train), (x_test, y_test) = parts
    shape, classes = FORMS[name]
    for x in (x_train, x_test):
        if x.shape[1:] != shape:
            raise InputError(
                f"images of shape {x.shape[1:]} are not those of {name}, {shape}", where=str(place)
            )
    try:
        return Dataset(name, x_train, y_train, x_test, y_test, classes)
    except InputError as error:
        raise error.at(str(place)) from None


def _idx(folder: Path) -> tuple[Part, Part] | None:
    found = {}
    for part in ("train", "t10k"):
        for kind, axes in (("images", 3), ("labels", 1)):
            names = [f"{part}-{kind}{dot}idx{axes}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
            path = next((folder / name for name in names if (folder / name).is_file()), None)
            if path is None:
                return None
            found[part, kind] = read_idx(path, axes)
    train, test = (
        (found[part, "images"][:, None], found[part, "labels"].astype(np.int64)) for part in ("train", "t10k")
    )
    return train, test


def _cifar10(folder: Path) -> tuple[Part, Part] | None:
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return _cifar(folder, batches, "test_batch", 1, "labels")


def _cifar100(folder: Path) -> tuple[Part, Part] | None:
    return _cifar(folder, ["train"], "test", 2, "fine_labels")


def _cifar(folder: Path, train: list[str], test: str, labels: int, key: str) -> tuple[Part, Part] | None:
    if all((folder / f"{batch}.bin").is_file() for batch in [*train, test]):
        parts = [read_records(folder / f"{batch}.bin", labels) for batch in [*train, test]]
    elif all((folder / batch).is_file() for batch in [*train, test]):
        parts = [read_pickled(folder / batch, key) for batch in [*train, test]]
    else:
        return None
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return (x, y), parts[-1]


_MNIST_FILES = (
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, or "
    "these with .gz"
)

SOURCES = {
    "mnist": Source(("mnist", "MNIST/raw"), _MNIST_FILES, _idx),
    "fashion-mnist": Source(("fashion-mnist", "FashionMNIST/raw"), _MNIST_FILES, _idx),
    "cifar10": Source(
        ("cifar10", "cifar-10-batches-bin", "cifar-10-batches-py"),
        "data_batch_1.bin to data_batch_5.bin and test_batch.bin, or the python version without .bin",
        _cifar10,
    ),
    "cifar100": Source(
        ("cifar100", "cifar-100-binary", "cifar-100-python"),
        "train.bin and test.bin, or the python version without .bin",
        _cifar100,
    ),
}
