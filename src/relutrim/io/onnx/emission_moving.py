"""How operators that move numbers are spelt in ONNX: Slice, Pad, Gather, Transpose, Concat."""

from __future__ import annotations

from typing import Any

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.graph import Node
from relutrim.graph.operators import Concat, Take, Transpose
from relutrim.graph.operators.moving import Index
from relutrim.io.onnx.emission import Emission, spells


@spells(Transpose)
def transpose(emission: Emission, node: Node, operator: Transpose) -> None:
    """Transpose; the batch stays first."""
    order = [axis + emission.batched for axis in operator.order]
    emission.steps(node, [("Transpose", [], {"perm": [0, *order] if emission.batched else order})])


@spells(Concat)
def concat(emission: Emission, node: Node, operator: Concat) -> None:
    """Concat."""
    others = [emission.tensor(name) for name in node.inputs[1:]]
    emission.steps(node, [("Concat", others, {"axis": operator.axis + emission.batched})])


@spells(Take)
def take(emission: Emission, node: Node, operator: Take) -> None:
    """One Slice and one Pad for all axes where these say it; a Gather for each of the others.

    A Gather of zeros reads them from a zero that Pad puts behind the axis.
    """
    name = emission.tensor(node.name)
    slices: list[tuple[int, int, int, int]] = []
    pads = np.zeros((2, emission.rank(node.inputs[0])), np.int64)
    gathers: list[tuple[int, Index]] = []
    for own, (size, pick) in enumerate(
        zip(emission.network.shapes[node.inputs[0]], operator.picks, strict=True)
    ):
        if pick is None:
            continue
        axis = own + emission.batched
        taken = np.flatnonzero(pick != -1)
        core = pick[taken[0] : taken[-1] + 1] if taken.size else pick
        limits = slice_of(core, size)
        if limits is None:
            gathers.append((axis, np.where(pick == -1, size, pick)))
            pads[1, axis] = (pick == -1).any()
            continue
        if limits != (0, size, 1):
            slices.append((*limits, axis))
        if core.size:
            pads[:, axis] = taken[0], len(pick) - 1 - taken[-1]
    steps: list[tuple[str, list[str], dict[str, Any]]] = []
    if slices:
        starts, ends, strides, axes = (list(numbers) for numbers in zip(*slices, strict=True))
        lists = {"starts": starts, "ends": ends, "axes": axes}
        if emission.opset >= 10:
            lists["steps"] = strides
            names = [emission.shape(f"{name}.{key}", tuple(found)) for key, found in lists.items()]
            steps.append(("Slice", names, {}))
        elif set(strides) != {1}:
            raise UnsupportedError(f"slices with steps are not in operator set {emission.opset}")
        else:
            steps.append(("Slice", [], lists))
    if pads.any():
        numbers = tuple(int(number) for number in pads.reshape(-1))
        if emission.opset >= 11:
            steps.append(("Pad", [emission.shape(f"{name}.pads", numbers)], {}))
        else:
            steps.append(("Pad", [], {"pads": numbers}))
    for axis, indices in gathers:
        steps.append(("Gather", [emission.shape(f"{name}.indices", tuple(indices))], {"axis": axis}))
    emission.steps(node, steps or [("Identity", [], {})])


def slice_of(pick: Index, size: int) -> tuple[int, int, int] | None:
    """Start, end and step of a slice that takes just this, if there is one."""
    if not len(pick):
        return (0, 0, 1)
    if pick.min() < 0:
        return None
    step = int(pick[1] - pick[0]) if len(pick) > 1 else 1
    if step == 0 or (np.diff(pick) != step).any():
        return None
    end = int(pick[-1]) + (1 if step > 0 else -1)
    return int(pick[0]), (end if end >= 0 else -size - 1), step
