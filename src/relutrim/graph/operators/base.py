"""What every operator of a network can do.

An operator is a *description*: its parameters are numpy arrays in float64, so that a network can be read,
inspected and written without loading torch. The methods that compute take torch tensors and run wherever
those live, in their dtype; the parameters follow and are cached per device and dtype.

Shapes never include the batch axis; tensors always do, as their first axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.errors import NetworkError

if TYPE_CHECKING:
    from torch import Tensor

    from relutrim.intervals import Interval

Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]


def parameter(values: npt.ArrayLike, name: str) -> Array:
    """``values`` as a read-only float64 array; NaN and infinity are refused."""
    array = np.array(values, dtype=np.float64)
    if not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise NetworkError(
            f"{name} holds {bad} value(s) that are NaN or infinite; no statement about such a "
            "network can be true"
        )
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Operator(ABC):
    """A map from one or several tensors to one tensor."""

    kind: ClassVar[str]
    _cache: dict[tuple[str, ...], Any] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Shape of the result; raises :class:`NetworkError` with the reason if ``inputs`` do not fit."""

    @abstractmethod
    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """The value, batched, in the dtype and on the device of ``inputs``."""

    @abstractmethod
    def interval(self, inputs: Sequence[Interval]) -> Interval:
        """An interval that holds every value on ``inputs`` in real arithmetic, rounding included."""

    @abstractmethod
    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        """How far the output moves at most when the inputs move by ``r``: ``|W| r`` where it is affine."""

    @property
    def field_counts(self) -> Mapping[str, int]:
        """How many numbers a file stores for each field of this operator that it stores."""
        return {}

    @property
    def parameters(self) -> int:
        """How many numbers a file stores for this operator."""
        return sum(self.field_counts.values())

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        """Per input, the entries that some ``wanted`` entry of the result may depend on: too many is safe."""
        return [np.full(shape, wanted.any()) for shape in inputs]

    def multiply_adds(self, entries: int) -> int:
        """How many numbers are multiplied by a weight to compute a value of so many entries. Adding a bias,
        adding values and moving numbers count nothing.
        """
        return 0

    def _tensor(self, name: str, like: Tensor, make: Callable[[], npt.NDArray[Any]]) -> Tensor:
        """A parameter-derived array as a tensor beside ``like``, made once per device and dtype."""
        import torch

        key = (name, str(like.device), str(like.dtype))
        if key not in self._cache:
            with torch.inference_mode(False):  # for gradients too, whoever asks first
                self._cache[key] = torch.as_tensor(np.array(make()), dtype=like.dtype, device=like.device)
        cached: Tensor = self._cache[key]
        return cached

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}


def only(inputs: Sequence[Shape], kind: str) -> Shape:
    """The single input shape of a unary operator."""
    if len(inputs) != 1:
        raise NetworkError(f"{kind} takes one input, not {len(inputs)}")
    return inputs[0]
