"""PyTorch modules as networks.

The module is copied, put into eval mode, recorded by ``torch.fx`` and read operation by operation; the module
that was passed in is never touched. Rules:

1. What counts is inference: dropout is the identity, batch normalisation uses its running statistics.
2. A weight that is itself computed (a parametrisation, weight norm, pruning, any expression over parameters)
   counts as the numbers torch computes for it in the module's own precision.
3. Hooks may change anything, so a module that has some is refused, except those of weight norm, spectral norm
   and pruning, which only compute weights.
4. A recording can miss what Python does beside tensors. Therefore the network read is compared with the
   module on random inputs before it is returned.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from relutrim.errors import InputError, NetworkError, RelutrimError, UnsupportedError
from relutrim.formats import torch_modules as modules
from relutrim.formats.building import BATCH, Builder, Value, network_dtype
from relutrim.formats.building_moving import concatenate
from relutrim.formats.calls import HANDLERS, SUPPORTED
from relutrim.formats.torch_layers import array, layer_of
from relutrim.formats.torch_record import Root, described, private_copy, record
from relutrim.formats.torch_write import build_module
from relutrim.network import Network, Port

_SAME_NAME = (
    *("relu", "relu_", "add", "sub", "rsub", "mul", "div", "neg", "matmul", "mm", "addmm"),
    *("flatten", "reshape", "unflatten", "clone", "detach", "softmax", "log_softmax", "sigmoid", "tanh"),
    *("mean", "sum", "narrow", "select", "split", "chunk", "index_select", "transpose", "permute", "squeeze"),
    *("unsqueeze", "cat", "clamp", "clip", "clamp_min", "clamp_max", "abs", "maximum", "minimum", "erf"),
)
_SAME_NAME_F = (
    *("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "max_pool1d", "max_pool2d", "avg_pool1d"),
    *(
        "avg_pool2d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
    ),
    *("pad", "relu6", "leaky_relu", "hardtanh", "hardsigmoid", "prelu"),
    *("softplus", "elu", "selu", "celu", "gelu", "silu", "hardswish", "mish"),
)
# torch.dropout and torch.batch_norm are missing on purpose: they order their arguments differently.
_FUNCTIONS: dict[Callable[..., Any], str] = {
    **{getattr(torch, name): name for name in _SAME_NAME},
    **{getattr(F, name): name for name in _SAME_NAME_F},
    F.linear: "linear",
    F.relu: "relu",
    F.relu_: "relu_",
    F.dropout: "dropout",
    F.batch_norm: "batch_norm",
    F.softmax: "softmax",
    F.log_softmax: "log_softmax",
    F.sigmoid: "sigmoid",
    F.tanh: "tanh",
    operator.add: "add",
    operator.iadd: "add_",
    operator.sub: "sub",
    operator.isub: "sub_",
    operator.mul: "mul",
    operator.imul: "mul_",
    operator.truediv: "div",
    operator.itruediv: "div_",
    operator.matmul: "matmul",
    operator.neg: "neg",
    operator.getitem: "getitem",
    operator.abs: "abs",
    torch.concat: "cat",
    torch.concatenate: "cat",
    torch.swapaxes: "transpose",
    torch.true_divide: "div",
    torch.divide: "div",
    torch.multiply: "mul",
    torch.subtract: "sub",
    torch.negative: "neg",
}
_METHODS = set(HANDLERS) - {"linear", "dropout", "batch_norm", "getitem", "cat", "pad", *_SAME_NAME_F}
_PASS_SHAPE = (
    "pass input_shape=(...), the shape of one input without the batch axis, or let the factory named by "
    "--arch return (module, shape)"
)


def read_module(module: nn.Module, input_shape: tuple[int, ...] | None = None) -> Network:
    """The network a module computes in eval mode.

    ``input_shape`` is the shape of one input, without the batch axis. Without it a flat input is assumed, as
    wide as the first linear layer.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"a torch.nn.Module is needed, not {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError("TorchScript modules are not read; pass the nn.Module it was made from")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        root = Root(private_copy(module))
        graph = record(root)
        _refuse_unknown_layers(root, graph)
        if input_shape is None:
            network = _read_flat(root, graph)
        else:
            network = _read(root, graph, tuple(int(size) for size in input_shape))
        _compare(root, network)
    return network


def _refuse_unknown_layers(root: Root, graph: fx.Graph) -> None:
    """Before the question for the shape of the input comes up, which would not help."""
    for node in graph.nodes:
        if node.op == "call_module" and (node.args or node.kwargs):
            part = root.get_submodule(str(node.target))
            if layer_of(part) is None and not isinstance(part, modules.Sum | modules.Concat):
                raise UnsupportedError(
                    f"{type(part).__name__} is not an operator relutrim represents exactly; {SUPPORTED}",
                    where=_where(root, node),
                )


def _read_flat(root: Root, graph: fx.Graph) -> Network:
    width = next(_widths(root, graph), None)
    if width is None:
        raise InputError(f"the shape of the input cannot be told from the module; {_PASS_SHAPE}")
    try:
        return _read(root, graph, (width,))
    except NetworkError as error:
        raise InputError(f"with a flat input of {width} numbers: {error}; {_PASS_SHAPE}") from error


def _widths(root: Root, graph: fx.Graph) -> Iterator[int]:
    """How many numbers each layer that tells reads, in order."""
    for node in graph.nodes:
        if node.op == "call_module":
            part = root.get_submodule(str(node.target))
            if isinstance(part, nn.Conv1d | nn.Conv2d | nn.BatchNorm2d):
                return  # how large the space is, only the caller knows
            if isinstance(part, nn.Linear):
                yield part.in_features
            elif isinstance(part, nn.BatchNorm1d):
                yield part.num_features
        elif node.op == "call_function" and len(node.args) > 1 and isinstance(node.args[1], fx.Node):
            weight, kind = node.args[1], _FUNCTIONS.get(node.target)
            if weight.op == "get_attr" and kind in ("linear", "matmul", "mm"):
                shape = _attribute(root, str(weight.target)).shape
                yield shape[-1] if kind == "linear" else shape[0]


def _read(root: Root, graph: fx.Graph, shape: tuple[int, ...]) -> Network:
    values: dict[fx.Node, Any] = {}
    placeholder = next(node for node in graph.nodes if node.op == "placeholder")
    builder = Builder(Port(placeholder.name, shape), network_dtype(_dtypes(root, graph)))
    values[placeholder] = builder.input
    outputs: Any = None
    for node in graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "output":
            outputs = args[0]
        elif node.op != "placeholder":
            try:
                values[node] = _call(builder, root, node, args, kwargs)
            except RelutrimError as error:
                raise error.at(_where(root, node)) from None
            except Exception as error:
                # Sizes and weights are computed as the module does it, which fails as the module would fail.
                raise NetworkError(f"{type(error).__name__}: {error}", where=_where(root, node)) from error
    several = isinstance(outputs, tuple | list)
    if not isinstance(outputs, Value) and not (several and len(outputs) > 1):
        kind = type(outputs).__name__.removeprefix("immutable_")
        found = f"{kind} of {len(outputs)}" if several else kind
        raise UnsupportedError(f"the module returns a {found}; it must return a tensor or a tuple of several")
    return builder.finish(outputs if several else [outputs])


def _call(builder: Builder, root: Root, node: fx.Node, args: Any, kwargs: Any) -> object:
    """What one recorded operation makes: a value, a constant, or a size."""
    if node.op == "get_attr":
        return _attribute(root, str(node.target))
    leaves = _leaves((args, kwargs))
    on_data = any(isinstance(leaf, Value) or leaf is BATCH for leaf in leaves)
    if node.op == "call_module":
        part = root.get_submodule(str(node.target))
        return _layer(builder, node, part, args, kwargs) if on_data else part(*args, **kwargs)
    if node.op == "call_method" and not on_data:
        _refuse_change(str(node.target))
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.target is operator.getitem and isinstance(args[0], tuple):
        return args[0][args[1]]
    if node.op == "call_function" and not on_data:
        _refuse_change(_name(node))
        return node.target(*args, **kwargs)  # type: ignore[operator]
    if isinstance(args[0], Value) and (node.target is getattr or node.target in ("size", "dim")):
        return (
            _ask(args[0], *args[1:]) if node.target is getattr else _ask(args[0], str(node.target), *args[1:])
        )

    if node.op == "call_method":
        kind = str(node.target) if node.target in _METHODS else None
    else:
        kind = _FUNCTIONS.get(node.target)  # type: ignore[arg-type]
    if kind is None:
        raise UnsupportedError(f"{_name(node)} is not an operator relutrim represents exactly; {SUPPORTED}")
    if kind not in ("view", "reshape") and any(leaf is BATCH for leaf in leaves):
        raise UnsupportedError(
            "it computes with the batch size, so the inputs of a batch are not independent"
        )
    args, kwargs = fx.node.map_aggregate(
        (args, kwargs), lambda leaf: array(leaf) if isinstance(leaf, Tensor) else leaf
    )
    try:
        return HANDLERS[kind](builder, node.name, *args, **kwargs)
    except TypeError as error:
        raise UnsupportedError(
            f"{kind} with arguments that are not understood ({error}); {SUPPORTED}"
        ) from error


def _layer(builder: Builder, node: fx.Node, part: nn.Module, args: Any, kwargs: Any) -> object:
    name = _path(str(node.target)) or node.name
    if isinstance(part, modules.Sum) and not kwargs:
        return builder.sum(name, args)
    if isinstance(part, modules.Concat) and not kwargs:
        return concatenate(builder, name, args, part.dim)
    layer = layer_of(part)
    assert layer is not None
    operands = [*args, *kwargs.values()]
    if len(operands) != 1 or not isinstance(operands[0], Value):
        raise UnsupportedError(f"it is called with {len(operands)} arguments; one tensor is expected")
    return layer(builder, name, part, operands[0])


def _refuse_change(name: str) -> None:
    if name.endswith("_") and not name.endswith("__"):
        raise UnsupportedError(
            "it changes a parameter or buffer in place, so every call computes something else"
        )


def _ask(value: Value, what: str, *rest: Any) -> object:
    """The answer to ``x.shape``, ``x.size()``, ``x.size(1)``, ``x.ndim`` or ``x.dim()``."""
    sizes = (BATCH, *value.shape)
    if what in ("dim", "ndim"):
        return len(sizes)
    if what == "shape" or (what == "size" and not rest):
        return sizes
    if what == "size":
        return sizes[rest[0]]
    raise UnsupportedError(f"the attribute {what!r} of a value is not understood; {SUPPORTED}")


def _attribute(root: nn.Module, path: str) -> Any:
    found: Any = root
    for step in path.split("."):
        found = getattr(found, step)
    return found


def _leaves(nest: Any) -> list[Any]:
    leaves: list[Any] = []
    fx.node.map_aggregate(nest, leaves.append)
    return leaves


def _dtypes(root: Root, graph: fx.Graph) -> dict[str, str]:
    """Dtype of every tensor the recording reads, integers left out."""
    found: dict[str, Tensor] = {}
    for node in graph.nodes:
        target = str(node.target)
        if node.op == "call_module":
            part = root.get_submodule(target)
            found |= {f"{target}.{name}": t for name, t in [*part.named_parameters(), *part.named_buffers()]}
        elif node.op == "get_attr" and isinstance(tensor := _attribute(root, target), Tensor):
            found[target] = tensor
    return {
        _path(name): str(tensor.dtype).removeprefix("torch.")
        for name, tensor in found.items()
        if tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized
    }


def _path(target: str) -> str:
    """The path within the module, from the path within :class:`Root`."""
    return target.removeprefix("module").removeprefix(".")


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _where(root: Root, node: fx.Node) -> str:
    if node.op == "call_module":
        return described(_path(str(node.target)), root.get_submodule(str(node.target)))
    return f"node {node.name!r}"


def _compare(root: Root, network: Network) -> None:
    """Refuse a reading that computes something else than the module does."""
    dtype = torch.float64 if network.dtype == "float64" else torch.float32
    x = torch.randn(3, *network.input.shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    try:
        truth = root(x.clone())
    except Exception as error:
        raise InputError(
            f"the module does not run on inputs of shape {network.input.shape} ({error}); {_PASS_SHAPE}"
        ) from error
    ours = build_module(network)(x)
    # Relative to the largest number on the way: far above rounding, far below a difference in meaning.
    sizes = (float(value.abs().max()) for value in network.run(x.double()).values() if value.numel())
    allowed = 1e-4 * max(sizes, default=0.0)
    pairs = zip(truth, ours, strict=True) if isinstance(truth, tuple | list) else [(truth, ours)]
    for a, b in pairs:
        # Infinities and their differences say nothing, and no error either.
        if a.shape != b.shape or bool(((a - b).abs() > allowed).logical_and((a - b).isfinite()).any()):
            raise UnsupportedError(
                "what torch.fx recorded computes something else than the module itself; forward() probably "
                "changes a tensor in place through a second name, or depends on the batch or on state. "
                "Rewrite that part"
            )
