"""Programs as modules of ``torch.fx``: an edited one, and a network that comes from elsewhere."""

from __future__ import annotations

from keyword import iskeyword
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from relutrim.graph import Network
from relutrim.io.torch.edit import Edited
from relutrim.io.torch.emission import Emission
from relutrim.io.torch.evaluate import arguments_of, operator_of
from relutrim.io.torch.record import Call, Program

Nodes = dict[str, fx.Node]


def edited_module(exported: ExportedProgram, program: Program, edited: Edited) -> fx.GraphModule:
    """The module that a program is, with edits. Its tensors keep the names that they have in the state."""
    module = unlifted(exported)
    graph = fx.Graph()
    graph.set_codegen(module.graph._codegen)
    old = {node.name: node for node in module.graph.nodes}
    copies: dict[fx.Node, fx.Node] = {}
    nodes: Nodes = {}

    def copy(node: fx.Node) -> fx.Node:
        copies[node] = graph.node_copy(node, lambda one: copies[one])
        return copies[node]

    inputs = iter(module.graph.find_nodes(op="placeholder"))
    held = {str(node.target): node for node in module.graph.find_nodes(op="get_attr")}
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            nodes[spec.arg.name] = copy(next(inputs))
        elif spec.arg.name in edited.program.constants and str(spec.target) in held:
            nodes[spec.arg.name] = copy(held[str(spec.target)])
    for target, array in edited.tensors.items():
        set_tensor(module, target, torch.tensor(array))
    for name, array in edited.added.items():
        path, learnt = edited.paths.get(name, name), name in edited.learnt
        nodes[name] = _held(module, graph, path, torch.tensor(array), learnt)
    recorded = {call.name: call for call in program.calls}
    for call in edited.program.calls:
        same = call.name not in edited.new and call.arguments is recorded[call.name].arguments
        nodes[call.name] = copy(old[call.name]) if same else _called(graph, call, nodes)
        if call.name in old:
            copies[old[call.name]] = nodes[call.name]
        for part in [out.name for out in call.outputs if out is not None and out.name != call.name]:
            nodes[part] = copy(old[part])
    for node in module.graph.nodes:  # what writes to buffers
        written = node.op == "call_function" and node.name not in recorded and node not in copies
        if (written or node.op == "output") and all(one in copies for one in node.all_input_nodes):
            copy(node)
    return _plain(module, graph)


def unlifted(exported: ExportedProgram) -> fx.GraphModule:
    """The program as a module with tensors of its own, without checks of its inputs' shapes."""
    try:
        module = exported.module(check_guards=False)
    except TypeError:  # an older torch
        module = exported.module()
    assert isinstance(module, fx.GraphModule)
    return module


def _called(graph: fx.Graph, call: Call, nodes: Nodes) -> fx.Node:
    target = operator_of(call)
    assert target is not None
    args, kwargs = arguments_of(target, call, nodes)
    return graph.create_node("call_function", target, args, kwargs, name=call.name)


def _held(module: nn.Module, graph: fx.Graph, path: str, tensor: torch.Tensor, learnt: bool) -> fx.Node:
    """A node for a new tensor of a module, to be learnt or not, as near to the path as can be."""
    *parts, name = (part or "layer" for part in path.split("."))
    taken = [*parts]
    for at, part in enumerate(parts):
        while not isinstance(getattr(module, part, module), nn.Module) or part in TAKEN:
            part += "_"
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module, taken[at] = module.get_submodule(part), part
    while hasattr(module, name):
        name += "_"
    if learnt:
        module.register_parameter(name, nn.Parameter(tensor))
    else:
        module.register_buffer(name, tensor, persistent=tensor.is_floating_point())
    return graph.create_node("get_attr", ".".join([*taken, name]))


TAKEN = {*dir(nn.Module()), "graph", "code"}
"""What no part of a module can be called."""


def set_tensor(module: nn.Module, target: str, tensor: torch.Tensor) -> None:
    """Let every name of a parameter or buffer, tied ones included, hold another tensor."""
    path, _, name = target.rpartition(".")
    old = getattr(module.get_submodule(path), name)
    tensor = tensor.to(old.device)
    new = nn.Parameter(tensor, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else tensor
    for part in module.modules():
        tensors: list[dict[str, Any]] = [part._parameters, part._buffers]
        for held in tensors:
            for key, value in held.items():
                if value is old:
                    held[key] = new
    if getattr(module.get_submodule(path), name) is old:  # neither, an attribute
        setattr(module.get_submodule(path), name, new)


def _plain(module: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """A module that can be trained, with the tensors that its graph reads and no others."""
    graph.lint()
    found = fx.GraphModule(module, graph, "Program")
    for path, part in found.named_modules():  # fx forgets that a buffer is not part of the state
        passing = module.get_submodule(path)._non_persistent_buffers_set
        part._non_persistent_buffers_set.update(passing & part._buffers.keys())
    return found


def module_of(network: Network) -> fx.GraphModule:
    """A module that computes the network, tails included, in the network's type."""
    emission, results = written(network)
    root, graph = nn.Module(), fx.Graph()
    name = network.input.name
    nodes: Nodes = {"x": graph.placeholder(name if name.isidentifier() and not iskeyword(name) else "x")}
    for name, array in emission.tensors.items():
        path, learnt = emission.paths.get(name, name), name in emission.parameters
        nodes[name] = _held(root, graph, path, torch.tensor(array), learnt)
    for call in emission.calls:
        nodes[call.name] = _called(graph, call, nodes)
    found = tuple(nodes[name] for name in results)
    graph.output(found if len(found) > 1 else found[0])
    return _plain(root, graph)


def written(network: Network) -> tuple[Emission, list[str]]:
    """The calls that a network is, which read ``x``, and the tensors that its outputs are."""
    batch = network.input.batch
    rows = batch if isinstance(batch, int) else "rows"
    emission = Emission(network, {network.input.name: "x"}, {"x"}, rows)
    for node in network.nodes:
        emission.node(node)
    return emission, [emission.tails(output) for output in network.outputs]
