"""What comes out of training: a network, how good it is, and where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from relutrim.errors import InputError
from relutrim.graph import Network
from relutrim.io import as_network, load
from relutrim.paper.scores import Scores


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network.

    ``module`` is there when the network was trained just now, ``path`` when it was written to a folder (None
    for one that ``diverged``: weights that are no numbers any more are not written).
    """

    name: str
    dataset: str
    architecture: str
    l1: float
    seed: int
    scores: Scores
    input_shape: tuple[int, ...]
    domain: str
    diverged: bool = False
    module: nn.Module | None = field(default=None, repr=False)
    path: Path | None = None
    sha256: str | None = None

    def network(self) -> Network:
        """The network as relutrim's other functions take it."""
        if self.diverged:
            raise InputError(f"{self.name} diverged: its weights are no numbers; try a lower learning rate")
        if self.module is None:
            assert self.path is not None
            return load(self.path)
        network = as_network(self.module, input_shape=self.input_shape)
        return replace(network, metadata=self.metadata())

    def metadata(self) -> Mapping[str, str]:
        """What the ONNX file says about itself; the same for the same training, so that files are too."""
        numbers = {key: repr(value) for key, value in asdict(self.scores).items() if value is not None}
        return {
            "dataset": self.dataset,
            "architecture": self.architecture,
            "l1": repr(self.l1),
            "seed": str(self.seed),
            "domain": self.domain,
            **numbers,
        }

    def describe(self) -> dict[str, Any]:
        """One entry of a run's report."""
        return {
            "name": self.name,
            "file": None if self.path is None else self.path.name,
            "sha256": self.sha256,
            "architecture": self.architecture,
            "l1": self.l1,
            "seed": self.seed,
            "diverged": self.diverged,
            "input_shape": list(self.input_shape),
            "domain": self.domain,
            **asdict(self.scores),
        }


def from_description(entry: Mapping[str, Any], dataset: str, folder: Path) -> Trained:
    """The network that :meth:`Trained.describe` described."""
    return Trained(
        entry["name"],
        dataset,
        entry["architecture"],
        float(entry["l1"]),
        int(entry["seed"]),
        Scores(**{f.name: entry[f.name] for f in fields(Scores)}),
        tuple(entry["input_shape"]),
        entry["domain"],
        bool(entry["diverged"]),
        path=None if entry["file"] is None else folder / str(entry["file"]),
        sha256=entry["sha256"],
    )


def file_name(dataset: str, architecture: str, l1: float, seed: int) -> str:
    """What a network is called.

    >>> file_name("mnist", "2x100", 2e-4, 0)
    'mnist_2x100_l1_0.0002_s0'
    """
    return f"{dataset}_{architecture}_l1_{l1:g}_s{seed}"
