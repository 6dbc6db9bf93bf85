"""How operators that move numbers are spelt in ONNX: Slice, Pad, Gather, Transpose, Concat."""

from __future__ import annotations

from typing import Any

from relutrim.graph import Node
from relutrim.graph.operators import Concat, Take, Transpose
from relutrim.io.onnx.emission import Emission, spells
from relutrim.io.picks import moves


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
    """One Slice and one Pad for all axes where these say it; a Gather for each of the others."""
    name, own = emission.tensor(node.name), int(emission.batched)
    found = moves(emission.network.shapes[node.inputs[0]], operator.picks, steps=emission.opset >= 10)
    steps: list[tuple[str, list[str], dict[str, Any]]] = []
    if found.slices:
        starts, ends, strides = zip(*found.slices.values(), strict=True)
        lists = {"starts": starts, "ends": ends, "axes": tuple(axis + own for axis in found.slices)}
        if emission.opset >= 10:
            lists["steps"] = strides
            steps.append(("Slice", [emission.shape(f"{name}.{key}", lists[key]) for key in lists], {}))
        else:
            steps.append(("Slice", [], lists))
    if any(map(any, found.pads)):
        numbers = tuple(number for side in zip(*[(0, 0)] * own, *found.pads, strict=True) for number in side)
        if emission.opset >= 11:
            steps.append(("Pad", [emission.shape(f"{name}.pads", numbers)], {}))
        else:
            steps.append(("Pad", [], {"pads": numbers}))
    for axis, indices in found.lists.items():
        indexed = emission.indices(f"{name}.indices", indices)
        steps.append(("Gather", [indexed], {"axis": axis + own}))
    emission.steps(node, steps or [("Identity", [], {})])
