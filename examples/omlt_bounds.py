"""relutrim's bounds in OMLT: the big-M constants of its ReLUs, and no binary where a neuron is stable.

OMLT lets an activation be written by a function of one's own. This one is given the file that ``relutrim
analyze --bounds`` wrote; everything else of OMLT stays as it is. ``pip install omlt onnx highspy``, then

    relutrim compress model.onnx smaller.onnx --center seven.npy --radius 0.05 --bounds smaller.json
    python omlt_bounds.py smaller.onnx smaller.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import onnx
import pyomo.environ as pyo
from omlt import OmltBlock
from omlt.io.onnx import load_onnx_neural_network
from omlt.neuralnet import FullSpaceNNFormulation
from omlt.neuralnet.activations import bigm_relu_activation_constraint


def bounded_relu(bounds: dict) -> Callable[..., None]:
    """An activation for OMLT that takes pre-activations' ranges from relutrim's bounds, layer by layer."""
    layers = iter(bounds["layers"])

    def relu(net_block, net, layer_block, layer) -> None:
        known = next(layers)  # OMLT builds layers in the order of the graph, as relutrim lists them
        indices = list(layer.output_indexes)
        assert len(indices) == len(known["pre"]["lower"]), "these bounds are of another network"
        for index, low, high in zip(indices, known["pre"]["lower"], known["pre"]["upper"], strict=True):
            zhat = layer_block.zhat[index]
            zhat.setlb(low if zhat.lb is None or (low is not None and low > zhat.lb) else zhat.lb)
            zhat.setub(high if zhat.ub is None or (high is not None and high < zhat.ub) else zhat.ub)
        bigm_relu_activation_constraint(net_block, net, layer_block, layer)
        for which, state in (("active", 1), ("inactive", 0)):
            for place in known[which]:
                layer_block.q_relu[indices[place]].fix(state)

    return relu


def without_identities(model: onnx.ModelProto) -> onnx.ModelProto:
    """OMLT knows no Identity, which renames the output of a network that was a PyTorch module."""
    same = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    nodes = [node for node in model.graph.node if node.op_type != "Identity"]
    for node in nodes:
        node.input[:] = [same.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for output in model.graph.output:
        output.name = same.get(output.name, output.name)
    return model


def build(model: onnx.ModelProto, bounds: dict, *, use: bool) -> pyo.ConcreteModel:
    """The network in a Pyomo model; without ``use`` as OMLT does it by itself, from the input's bounds."""
    box = dict(enumerate(zip(bounds["input"]["lower"], bounds["input"]["upper"], strict=True)))
    net = load_onnx_neural_network(without_identities(model), input_bounds=box)
    constraints = {"relu": bounded_relu(bounds)} if use else None
    made = pyo.ConcreteModel()
    made.nn = OmltBlock()
    made.nn.build_formulation(FullSpaceNNFormulation(net, activation_constraints=constraints))
    return made


def main() -> None:
    """How far can logit 3 exceed logit 7 on the domain of the bounds?"""
    model = onnx.load(sys.argv[1])
    with open(sys.argv[2]) as file:
        bounds = json.load(file)
    for use in (False, True):
        made = build(model, bounds, use=use)
        made.aim = pyo.Objective(expr=made.nn.outputs[3] - made.nn.outputs[7], sense=pyo.maximize)
        free = sum(1 for v in made.component_data_objects(pyo.Var) if v.is_binary() and not v.fixed)
        started = time.perf_counter()
        solver = pyo.SolverFactory("appsi_highs")
        solver.options = {"time_limit": 60.0, "mip_rel_gap": 1e-3, "threads": 1}
        found = solver.solve(made, load_solutions=False)
        problem = found.problem[0]
        print(
            f"{'with' if use else 'without'} relutrim's bounds: {free} binaries, "
            f"{time.perf_counter() - started:.1f} s, between {problem['Lower bound']:.4g} and "
            f"{problem['Upper bound']:.4g}"
        )


if __name__ == "__main__":
    main()
