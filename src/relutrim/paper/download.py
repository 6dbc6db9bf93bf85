"""Getting a data set that is not there yet, with torchvision where it is installed.

torchvision knows the addresses and checksums; the files it leaves are then read by this package's own
readers.
"""

from __future__ import annotations

from pathlib import Path

from relutrim.errors import InputError
from relutrim.paper.dataset import Dataset
from relutrim.paper.sources import SOURCES, load_dataset, missing

_CLASSES = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}


def obtain_dataset(name: str, folder: str | Path) -> Dataset:
    """A data set from its files in ``folder``, which are downloaded if they are not there."""
    if name not in SOURCES:
        return load_dataset(name, folder)
    folder = Path(folder)
    try:
        return load_dataset(name, folder)
    except InputError as error:
        if error.message != missing(name):  # files that are there and wrong stay the user's to judge
            raise
    _download(name, folder)
    return load_dataset(name, folder)


def _download(name: str, folder: Path) -> None:
    try:
        from torchvision import datasets
    except ImportError:
        raise InputError(
            "--download needs torchvision, which is not installed (pip install 'relutrim[download]'); or get "
            f"the files yourself: {SOURCES[name].files}, into this folder or into "
            f"{SOURCES[name].folders[0]} below it",
            where=str(folder),
        ) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        getattr(datasets, _CLASSES[name])(str(folder), train=True, download=True)
    except Exception as error:  # a network can fail in any way
        raise InputError(
            f"the download of {name} failed ({type(error).__name__}: {error}); try again, or get the files "
            f"yourself: {SOURCES[name].files}",
            where=str(folder),
        ) from None
