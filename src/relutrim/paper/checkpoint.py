"""Where a batch of networks stands, in a file that is whole at any moment, so that a killed run can go on."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relutrim.errors import InputError
from relutrim.io.files import replacing
from relutrim.paper.fit import Fit

_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """After ``epoch`` epochs, which took ``seconds``."""

    epoch: int
    seconds: float
    state: dict[str, Tensor]


def write_checkpoint(path: Path, fit: Fit, key: str, seconds: float) -> None:
    """Replace the file by what ``fit`` is now; ``key`` says what run it belongs to."""
    content = {
        "version": _VERSION,
        "key": key,
        "epoch": fit.epoch,
        "seconds": float(seconds),
        "state": fit.state(),
    }
    write_tensors(path, content)


def write_tensors(path: Path, content: Any) -> None:
    """``torch.save``, whole or not at all; the same content gives the same bytes.

    By way of memory, because torch writes a file's own name into it, which is a passing one here, and has no
    words of its own for a full disk.
    """
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with replacing(path) as aside:
        aside.write_bytes(buffer.getbuffer())


def read_checkpoint(path: Path, fit: Fit, key: str) -> Checkpoint:
    """The file's content, which must belong to the run ``key`` and fit ``fit``; nothing in it is run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _unusable(path, f"it is damaged ({type(error).__name__})") from None
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise _unusable(path, "it was written by another version of relutrim, or by something else")
    if content.get("key") != key:
        raise _unusable(path, "it belongs to a run with other settings")
    epoch, seconds, state = (content.get(name) for name in ("epoch", "seconds", "state"))
    if not (type(epoch) is int and 0 <= epoch <= fit.recipe.epochs and type(seconds) is float):
        raise _unusable(path, f"it says that it was written after epoch {epoch!r}")
    if not isinstance(state, dict) or _shapes(state) != _shapes(fit.state()):
        raise _unusable(path, "its weights are not those of these networks")
    return Checkpoint(epoch, seconds, state)


def _shapes(state: dict[Any, Any]) -> dict[Any, Any]:
    return {
        key: (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else None
        for key, value in state.items()
    }


def _unusable(path: Path, why: str) -> InputError:
    return InputError(
        f"the checkpoint cannot be used: {why}; --fresh begins anew, another --output leaves it alone",
        where=str(path),
    )
