"""relutrim's bounds in gurobi-machinelearning: ends for the variables of pre-activations and of values.

gurobi-machinelearning hands its ReLUs to Gurobi as they are, with pre-activations that have no ends; Gurobi
finds what it can. Ends that are known make the formulation tight, and a neuron of which one state is left is
no decision any more. ``pip install gurobi-machinelearning gurobipy onnx`` (the licence that comes with
gurobipy is enough for the network that comes with relutrim), then

    relutrim compress model.onnx smaller.onnx --center seven.npy --radius 0.05 --bounds smaller.json
    python gurobi_bounds.py smaller.onnx smaller.json
"""

from __future__ import annotations

import json
import sys

import gurobipy as gp
import numpy as np
import onnx
from gurobi_ml.onnx import add_onnx_constr


def ends(layer: dict, which: str) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper ends of a layer; where nothing is known, none."""
    both = (("lower", -gp.GRB.INFINITY), ("upper", gp.GRB.INFINITY))
    return tuple(np.array([none if e is None else e for e in layer[which][side]]) for side, none in both)


def build(model: onnx.ModelProto, bounds: dict, env: gp.Env, *, use: bool) -> tuple[gp.Model, gp.MVar]:
    """The network over the input's box, and its outputs."""
    made = gp.Model(env=env)
    low, high = (np.array(bounds["input"][side]) for side in ("lower", "upper"))
    x = made.addMVar((1, low.size), lb=low[None], ub=high[None], name="x")
    y = made.addMVar((1, len(bounds["outputs"][0]["lower"])), lb=-gp.GRB.INFINITY, name="y")
    network = add_onnx_constr(made, model, x, y)
    made.update()
    if use:
        relus = [layer for layer in network._layers if hasattr(layer, "mixing")]
        for layer, known in zip(relus, bounds["layers"], strict=True):
            low, high = ends(known, "pre")
            layer.mixing.lb, layer.mixing.ub = low[None], high[None]
            low, high = ends(known, "post")
            layer.output.lb, layer.output.ub = low[None], high[None]
    return made, y


def main() -> None:
    """How far can logit 3 exceed logit 7 on the domain of the bounds?"""
    model = onnx.load(sys.argv[1])
    with open(sys.argv[2]) as file:
        bounds = json.load(file)
    with gp.Env(params={"OutputFlag": 0, "Threads": 1, "TimeLimit": 60, "MIPGap": 1e-3}) as env:
        for use in (False, True):
            made, y = build(model, bounds, env, use=use)
            made.setObjective(y[0, 3] - y[0, 7], gp.GRB.MAXIMIZE)
            made.optimize()
            print(
                f"{'with' if use else 'without'} relutrim's bounds: {made.Runtime:.1f} s, "
                f"{made.NodeCount:.0f} nodes, between {made.ObjVal:.4g} and {made.ObjBound:.4g}"
            )


if __name__ == "__main__":
    main()
