"""How networks are trained; the defaults are the paper's."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from relutrim.errors import InputError
from relutrim.paper.architecture import Kind

INITIALISATIONS = ("normal", "uniform")


@dataclass(frozen=True)
class Recipe:
    """SGD with momentum on batches of 128 for 120 epochs, from a learning rate of 0.01 that falls to a tenth
    after every 50 epochs. Classifiers minimise the negative log-likelihood, autoencoders the mean squared
    error; the penalty, ``l1`` times the sum of the absolute weights (biases and batch normalisation apart),
    is given per network.

    ``augment`` (the paper's, :mod:`relutrim.paper.augment`) is for CIFAR, where None means yes and elsewhere
    no. ``normalize`` shows the networks ``(x - mean) / std``.

    ``initialisation`` is how weights begin, by the number of inputs n: ``normal``, Kaiming's with deviation
    sqrt(2 / n), or ``uniform``, between -1 and 1 over sqrt(n), which is what torch gives a linear layer
    (Kaiming's with a = sqrt(5)). None: uniform for autoencoders, normal for others; docs/train.md says why.
    """

    epochs: int = 120
    batch_size: int = 128
    learning_rate: float = 0.01
    decay: float = 0.1
    decay_every: int = 50
    momentum: float = 0.9
    augment: bool | None = None
    normalize: bool = False
    initialisation: str | None = None

    def __post_init__(self) -> None:
        whole = {"epochs": 0, "batch_size": 1, "decay_every": 1}
        for name, least in whole.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value}; it must be a whole number, {least} or more")
        for name in ("learning_rate", "decay", "momentum"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} is {value}; it must be a number, 0 or more")
        if self.initialisation not in (None, *INITIALISATIONS):
            raise InputError(
                f"initialisation is {self.initialisation!r}; it must be one of {', '.join(INITIALISATIONS)}"
            )
        if self.momentum >= 1:
            raise InputError(f"momentum is {self.momentum}; from 1 on the steps only grow")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [Recipe().rate(epoch) for epoch in (0, 49, 50)]
        [0.01, 0.01, 0.001]
        """
        return float(self.learning_rate * self.decay ** (epoch // self.decay_every))

    def augments(self, dataset: str) -> bool:
        """Whether the rows of a data set are augmented."""
        named = dataset.removeprefix("synthetic-") in ("cifar10", "cifar100")
        return named if self.augment is None else self.augment

    def begins(self, kind: Kind) -> str:
        """How the weights of a network begin.

        >>> Recipe().begins(Kind.MLP), Recipe().begins(Kind.AUTOENCODER)
        ('normal', 'uniform')
        """
        return self.initialisation or ("uniform" if kind is Kind.AUTOENCODER else "normal")

    def describe(self) -> dict[str, Any]:
        """What a report says about it; what is left to the kind of network is left out."""
        found = asdict(self)
        if self.initialisation is None:
            del found["initialisation"]
        return found
