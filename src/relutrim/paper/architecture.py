"""The paper's architectures by name, and the layers each consists of."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from relutrim.errors import InputError

_WIDEST = 100_000
_DEEPEST = 100
_FORMS = (
    "2x100 (two hidden layers of 100), 100|10|100 or ae100-10-100 (an autoencoder), lenet; with -bn behind "
    "it for batch normalisation"
)


class Kind(StrEnum):
    """What a network is for."""

    MLP = "mlp"
    AUTOENCODER = "autoencoder"
    LENET = "lenet"


class Op(StrEnum):
    """What a layer does; only the first three have weights."""

    LINEAR = "linear"
    CONV = "conv"
    NORM = "norm"
    RELU = "relu"
    MAX_POOL = "maxpool"
    AVG_POOL = "avgpool"
    FLATTEN = "flatten"


@dataclass(frozen=True)
class Layer:
    """One layer. A convolution has windows of 5 x 5, a pooling of 2 x 2; ``inputs`` and ``outputs`` are
    features or channels.
    """

    op: Op
    name: str
    inputs: int = 0
    outputs: int = 0


WINDOW = 5


@dataclass(frozen=True)
class Architecture:
    """What the networks of one batch have in common; ``hidden`` are the widths of fully connected ones."""

    kind: Kind
    hidden: tuple[int, ...] = ()
    batch_norm: bool = False

    @property
    def name(self) -> str:
        """The name that files carry.

        >>> parse_architecture("100|10|100").name
        'ae100-10-100'
        """
        if self.kind is Kind.MLP:
            base = f"{len(self.hidden)}x{self.hidden[0]}"
        else:
            base = "lenet" if self.kind is Kind.LENET else f"ae{'-'.join(map(str, self.hidden))}"
        return base + ("-bn" if self.batch_norm else "")

    def input_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one input, for rows of shape ``shape``: LeNet sees images, the others flat rows."""
        if self.kind is not Kind.LENET:
            return (math.prod(shape),)
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise InputError(f"lenet reads images of at least 16 x 16, and a row has shape {shape}")
        return shape

    def layers(self, shape: tuple[int, ...], classes: int) -> tuple[Layer, ...]:
        """From rows of shape ``shape`` to ``classes`` outputs, or for an autoencoder back to the row."""
        if self.kind is Kind.AUTOENCODER:
            classes = math.prod(shape)
        elif classes < 2:
            raise InputError(
                f"a classifier needs labels of two classes at least; the data has {classes or 'none'}"
            )
        return tuple(self._lenet(shape, classes) if self.kind is Kind.LENET else self._dense(shape, classes))

    def _dense(self, shape: tuple[int, ...], outputs: int) -> Iterator[Layer]:
        widths = (math.prod(shape), *self.hidden, outputs)
        for number, (before, after) in enumerate(pairwise(widths), 1):
            last = number == len(widths) - 1
            yield Layer(Op.LINEAR, f"fc{number}", before, after)
            if self.batch_norm and not last:
                yield Layer(Op.NORM, f"bn{number}", after, after)
            if not last or self.kind is Kind.AUTOENCODER:
                yield Layer(Op.RELU, f"relu{number}")

    def _lenet(self, shape: tuple[int, ...], classes: int) -> Iterator[Layer]:
        """With batch normalisation as the reference networks have it: behind both convolutions and the first
        linear layer, and with averages for maxima, so that everything between two ReLUs is affine.
        """
        channels, height, width = self.input_shape(shape)
        pool = Op.AVG_POOL if self.batch_norm else Op.MAX_POOL
        for number, (before, after) in enumerate(pairwise((channels, 6, 16)), 1):
            yield Layer(Op.CONV, f"conv{number}", before, after)
            if self.batch_norm:
                yield Layer(Op.NORM, f"bn{number}", after, after)
            yield Layer(Op.RELU, f"relu{number}")
            yield Layer(pool, f"pool{number}")
            height, width = ((side - WINDOW + 1) // 2 for side in (height, width))
        yield Layer(Op.FLATTEN, "flatten")
        for number, (before, after) in enumerate(pairwise((16 * height * width, 120, 84, classes)), 1):
            yield Layer(Op.LINEAR, f"fc{number}", before, after)
            if self.batch_norm and number == 1:
                yield Layer(Op.NORM, "bn3", after, after)
            if number < 3:
                yield Layer(Op.RELU, f"relu{number + 2}")


def parse_architecture(text: str) -> Architecture:
    """The architecture that a name stands for.

    >>> parse_architecture("2x100-bn")
    Architecture(kind=<Kind.MLP: 'mlp'>, hidden=(100, 100), batch_norm=True)
    """
    base = text.strip().lower()
    batch_norm = base.endswith("-bn")
    base = base.removesuffix("-bn")
    if base == "lenet":
        return Architecture(Kind.LENET, (), batch_norm)
    if found := re.fullmatch(r"(\d{1,9})x(\d{1,9})", base):
        depth, width = int(found[1]), int(found[2])
        hidden, kind = (width,) * min(depth, _DEEPEST + 1), Kind.MLP
    elif re.fullmatch(r"\d{1,9}(\|\d{1,9})+|ae\d{1,9}(-\d{1,9})*", base):
        hidden, kind = (
            tuple(int(width) for width in re.split(r"[|-]", base.removeprefix("ae"))),
            Kind.AUTOENCODER,
        )
    else:
        raise InputError(f"the architecture {text!r} is not understood; write {_FORMS}")
    if not 1 <= len(hidden) <= _DEEPEST or not all(1 <= width <= _WIDEST for width in hidden):
        raise InputError(
            f"the architecture {text!r} needs 1 to {_DEEPEST} hidden layers of 1 to {_WIDEST} neurons"
        )
    return Architecture(kind, hidden, batch_norm)
