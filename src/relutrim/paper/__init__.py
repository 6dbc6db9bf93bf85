"""The paper's experiments: its data sets, architectures and training recipe.

>>> from relutrim.paper import Recipe, synthetic, train
>>> made = train(synthetic("mnist", train=500), "1x8", l1=1e-4, recipe=Recipe(epochs=3))
>>> made.name, made.network().widths
('synthetic-mnist_1x8_l1_0.0001_s0', [784, 8, 10])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relutrim.paper.architecture import Architecture, parse_architecture
    from relutrim.paper.dataset import Dataset
    from relutrim.paper.download import obtain_dataset
    from relutrim.paper.recipe import Recipe
    from relutrim.paper.scores import Scores
    from relutrim.paper.sources import load_dataset
    from relutrim.paper.synthetic_data import synthetic
    from relutrim.paper.trained import Trained
    from relutrim.paper.training import Epoch, train, train_many

__all__ = [
    "Architecture",
    "Dataset",
    "Epoch",
    "Recipe",
    "Scores",
    "Trained",
    "load_dataset",
    "obtain_dataset",
    "parse_architecture",
    "synthetic",
    "train",
    "train_many",
]

_HOME = {
    "Architecture": "architecture",
    "Dataset": "dataset",
    "Epoch": "training",
    "Recipe": "recipe",
    "Scores": "scores",
    "Trained": "trained",
    "load_dataset": "sources",
    "obtain_dataset": "download",
    "parse_architecture": "architecture",
    "synthetic": "synthetic_data",
    "train": "training",
    "train_many": "training",
}


def __getattr__(name: str) -> Any:
    """Imported when first used: the command line asks for names here long before it needs torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'relutrim.paper' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"relutrim.paper.{_HOME[name]}"), name)
