"""The map of all neurons: one small square each, drawn as SVG paths, with what the page tells about them.

A run of neighbours with the same verdict is one stroke whose dashes are the squares, so that a map of
thousands is a few kilobytes, prints sharply, follows the colour scheme, and is there without any script.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relutrim.errors import one_line
from relutrim.prove.stability import Codes, LayerStability
from relutrim.prove.verdict import Evidence, Verdict

CELL = 10
"""The side of a square, its gap included, in the units of the drawing."""
_COLUMNS = 50
NARROW = CELL * _COLUMNS
"""The width of a drawing that is still readable in half of a page."""
_GAP = 1
MOST = 500_000
"""How many neurons a page can show and still open at once."""

VERDICTS = (Verdict.INACTIVE, Verdict.ACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)


@dataclass(frozen=True)
class Layout:
    """Where neurons lie: ``tiles`` in rows of ``across``, each ``width`` by ``height`` squares, in C order.

    A layer without positions is one tile. The page's script does the same arithmetic backwards.
    """

    size: int
    width: int
    height: int
    across: int
    tiles: int

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Layout:
        """The layout of a ReLU's value; one tile per channel where there are two axes or more besides."""
        size = math.prod(shape)
        if len(shape) < 3:
            width = shape[-1] if len(shape) == 2 and 0 < shape[-1] <= 4 * _COLUMNS else _columns(size)
            return cls(size, width, -(-size // width), 1, 1)
        height, width = math.prod(shape[1:-1]), shape[-1]
        wide = max(2 * _COLUMNS, math.isqrt(3 * size))
        return cls(size, width, height, max(1, min(shape[0], wide // max(1, width + _GAP))), shape[0])

    @property
    def view(self) -> tuple[int, int]:
        """Width and height of the drawing."""
        rows = -(-self.tiles // self.across)
        return (
            CELL * (self.across * (self.width + _GAP) - _GAP),
            CELL * (rows * (self.height + _GAP) - _GAP),
        )

    def path(self, chosen: npt.NDArray[np.bool_]) -> str:
        """Strokes along the rows, one for each run of chosen neurons."""
        parts = []
        for start in range(0, self.size, self.width):
            row = chosen[start : start + self.width]
            if not row.any():
                continue
            tile, line = divmod(start // self.width, self.height)
            down, right = divmod(tile, self.across)
            x, y = right * (self.width + _GAP), down * (self.height + _GAP) + line
            edges = np.flatnonzero(np.diff(np.concatenate([[0], row.view(np.int8), [0]])))
            parts += [
                f"M{CELL * (x + a) + 1} {CELL * y + CELL // 2}h{CELL * (b - a) - 2}"
                for a, b in edges.reshape(-1, 2).tolist()
            ]
        return "".join(parts)


def drawing(layer: LayerStability) -> dict[str, Any]:
    """What the template draws: the size of the picture, and a path per verdict that occurs."""
    layout = Layout.of(layer.shape)
    return {
        "layout": layout,
        "view": layout.view,
        "paths": [
            (verdict.word, layout.path(layer.verdict == verdict))
            for verdict in VERDICTS
            if layer.count(verdict)
        ],
    }


def payload(layer: LayerStability, kind: str = "neurons") -> dict[str, Any]:
    """What the page's script needs to say what it knows about a neuron, or a channel (``kind``).

    ``codes`` has a letter per neuron, ``bounds`` the lower and upper ends as float32 in turns, rounded
    outward, so that they are proven still; ``claimed`` the margins that are a solver's word.
    """
    layout = Layout.of(layer.shape)
    claimed = {} if layer.claimed is None else _claims(layer)
    return {
        "name": one_line(layer.name),
        "unit": kind.removesuffix("s"),
        "shape": list(layer.shape),
        "layout": [layout.width, layout.height, layout.across, _GAP, CELL],
        "codes": _letters(layer.verdict, layer.evidence),
        "bounds": base64.b64encode(
            np.stack([_outward(layer.lower, -np.inf), _outward(layer.upper, np.inf)], axis=1).tobytes()
        ).decode(),
        "claimed": claimed,
    }


def _columns(size: int) -> int:
    few = _COLUMNS // 2 if size <= 4 * _COLUMNS else _COLUMNS
    return max(1, min(size, max(few, math.isqrt(size))))


def _letters(verdict: Codes, evidence: Codes) -> str:
    code = verdict.astype(np.uint8) * len(Evidence) + evidence.astype(np.uint8) + ord("A")
    return bytes(code.astype(np.uint8)).decode("ascii")


def _outward(ends: npt.NDArray[np.float64], towards: float) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        near = ends.astype("<f4")
        beyond = near > ends if towards < 0 else near < ends
        return np.where(beyond, np.nextafter(near, np.float32(towards)), near).astype("<f4")


def _claims(layer: LayerStability) -> dict[str, float]:
    assert layer.claimed is not None
    told = np.flatnonzero((layer.evidence == Evidence.SOLVER) & np.isfinite(layer.claimed))
    return {str(int(i)): float(layer.claimed[i]) for i in told}
