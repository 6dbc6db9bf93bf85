"""A second look at a file before it takes its place: is it valid ONNX, and does it compute the network?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx

from relutrim.errors import CheckFailed, RelutrimError
from relutrim.graph import Affine, Barrier, Fresh, Network
from relutrim.io.onnx.beside import Files, session
from relutrim.io.onnx.read import network_from_proto
from relutrim.io.tails import behind_tail

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]

_ROWS = 3
_NUMBERS = 2**27
"""How many numbers all values may have for the rows that a file has fixed."""
_TOLERANCE = 1e-3
_ROUNDING = 1e-6
"""Per unit of the sum of magnitudes along the way: where large numbers cancel, float32 is that far off."""
_NOTHING = 1e-30
"""What onnxruntime may take for 0: it leaves out additions of less."""


def verify_written(path: Path, network: Network) -> None:
    """Raise :class:`CheckFailed` unless the file is valid and computes the network, as far as one can try.

    Trying takes onnxruntime; where it is not installed, or as many rows as the file has fixed would take much
    memory, only validity is checked. A file with operators that it lacks (convolutions in float64) is read
    again instead, and what was read is evaluated: that finds what was written otherwise than it is read, not
    what writer and reader both mistake. (onnx's own evaluator is no judge: its MaxPool confuses uneven
    padding.) The comparison is rough (relative 1e-3) and on a few
    random inputs: it finds a wrong transpose or a lost bias. How far the file may be from the network is not
    measured but proved, elsewhere.
    """
    content = path.read_bytes()
    try:
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model, full_check=True)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        raise CheckFailed(
            f"the file that was written is not valid ONNX ({error}); this is a bug in relutrim"
        ) from error
    try:
        import onnxruntime  # noqa: F401
        from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Lacking
    except ImportError:
        return
    if _too_large(network):
        return
    batch = network.input.batch
    rows = batch if isinstance(batch, int) else 1 if batch is None else _ROWS
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (rows, *network.input.shape)).astype(network.dtype)
    feed = {network.input.name: x[0] if batch is None else x}
    try:
        try:
            with session(Files(content), _options()) as running:
                found = running.run(None, feed)
        except Lacking:
            found = _read_again(model, x)
    except Exception as error:
        raise CheckFailed(
            f"the file that was written can be neither run nor read ({error}); this is a bug in relutrim"
        ) from error
    _compare(network, x, found)


def verify_edited(
    before: Files, after: Files, network: Network, x: npt.NDArray[Any], allowed: float | None
) -> None:
    """Raise :class:`CheckFailed` unless both models compute the same for the inputs ``x`` of ``network``, as
    it is read from the second one, up to what is ``allowed`` and what float32 does; as far as one can try.

    That the second one is valid, and that it reads as it should, was seen when it was made.
    """
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return
    if _too_large(network):
        return
    batch = network.input.batch
    x = x[:1] if batch is None else np.resize(x, (batch, *x.shape[1:])) if isinstance(batch, int) else x
    fresh = [node.name for node in network if isinstance(node.operator, Fresh)]
    found: list[Arrays] = []
    for files in (before, after):
        try:
            with session(_showing(files, fresh) if fresh else files, _options()) as running:
                feed = {entry.name: _any_input(entry, len(x)) for entry in running.get_inputs()}
                feed[network.input.name] = (x[0] if batch is None else x).astype(network.dtype)
                names = [entry.name for entry in running.get_outputs()]
                found.append({**feed, **dict(zip(names, running.run(None, feed), strict=True))})
        except RelutrimError:  # the data of the model has changed
            raise
        except OSError:  # there is no room for a copy of the data
            return
        except Exception as error:
            if not found:
                return  # the model itself is nothing that onnxruntime runs
            raise CheckFailed(
                f"the file that was written cannot be run ({error}), and the model can; this is a bug in "
                "relutrim"
            ) from error
    one, other = found
    unknown = network.behind({name for name in fresh if not _close(one.get(name), other.get(name))})
    sizes = _sizes(network, x, {name: one[name] for name in fresh if name in one})
    for output in network.outputs:
        expected, array = one[output.name], other[output.name]
        if array.shape != expected.shape:
            raise CheckFailed(f"output {output.name!r} has shape {array.shape}, not {expected.shape}")
        real = expected.dtype.kind == "f" and np.isfinite(expected).all()
        if not real or not expected.size or allowed is None or output.tail or output.source in unknown:
            continue
        worst, size = float(np.abs(array - expected).max()), float(np.abs(expected).max())
        if not worst <= allowed + _TOLERANCE * max(size, sizes.get(output.source, 0.0)):
            raise CheckFailed(
                f"output {output.name!r} of the file that was written is {worst:g} off the model's; this is "
                "a bug in relutrim"
            )


def _too_large(network: Network) -> bool:
    """Whether as many rows as the file has fixed are too many to run."""
    batch = network.input.batch
    return isinstance(batch, int) and batch * sum(map(network.size, network.shapes)) > _NUMBERS


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong comes as an exception
    return options


def _showing(files: Files, names: Iterable[str]) -> Files:
    """A model with more of its tensors among the outputs."""
    model = onnx.ModelProto.FromString(files.content)
    graph = model.graph
    there = {entry.name for entry in (*graph.output, *graph.input)}
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    return replace(files, content=model.SerializeToString())


def _close(one: Array | None, other: Array | None) -> bool:
    """Whether what comes from an opaque node is the same in both, as far as rounding in front of it goes.

    (What is the same over the real numbers may be rounded in another order, and a sign, say, may turn.)
    """
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool((np.abs(one - other) <= _ROUNDING * np.abs(one)).all())


def _sizes(network: Network, x: Array, fresh: Arrays) -> dict[str, float]:
    """How much of the sum of magnitudes on the way to each value counts, by the same measure as the value;
    nothing where that has no end, or depends on values that are not among the ``fresh`` ones.
    """
    import torch

    given = {name: torch.as_tensor(array, dtype=torch.float64).abs() for name, array in fresh.items()}
    if network.input.batch is None:
        given = {name: value[None] for name, value in given.items()}
    found = {}
    for name, size in _magnitudes(network, torch.as_tensor(x, dtype=torch.float64).abs(), given).items():
        most = float(size.max()) * _ROUNDING / _TOLERANCE if size.numel() else 0.0
        found[name] = most if np.isfinite(most) else 0.0
    return found


def _any_input(entry: Any, rows: int) -> npt.NDArray[Any]:
    """Something for another input of a model."""
    shape = [size if isinstance(size, int) else rows if at == 0 else 1 for at, size in enumerate(entry.shape)]
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
    return np.zeros(shape, kinds.get(entry.type, np.float32))


def _read_again(model: onnx.ModelProto, x: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """The outputs of the network that a reader of the file finds in it."""
    import torch

    again = network_from_proto(model)
    return outputs_of(again, again.run(torch.as_tensor(x, dtype=torch.float64)))


def outputs_of(network: Network, values: dict[str, Tensor]) -> list[npt.NDArray[Any]]:
    """The outputs as a file has them, given a batch of every value."""
    batched = network.input.batch is not None
    found = [behind_tail(one, values[one.source], batched=batched).numpy() for one in network.outputs]
    return found if batched else [array[0] for array in found]


def _compare(network: Network, x: npt.NDArray[Any], found: list[npt.NDArray[Any]]) -> None:
    import torch

    inputs = torch.as_tensor(x, dtype=torch.float64)
    values, sizes = network.run(inputs), _magnitudes(network, inputs.abs())
    for output, expected, array in zip(network.outputs, outputs_of(network, values), found, strict=True):
        if array.shape != expected.shape:
            raise CheckFailed(
                f"output {output.name!r} has shape {array.shape} in the file, not {expected.shape}"
            )
        if not expected.size:
            continue
        size = float(sizes[output.source].max())
        if not size < float(np.finfo(network.dtype).max):
            continue  # the file's type overflows on the way, so there is nothing to compare
        worst = float(np.abs(array - expected).max())
        if not worst <= _TOLERANCE * float(np.abs(expected).max()) + _ROUNDING * size + _NOTHING:
            raise CheckFailed(
                f"output {output.name!r} of the file that was written is {worst:g} off the network; this "
                "is a bug in relutrim"
            )


def _magnitudes(network: Network, x: Tensor, fresh: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """For every value, an upper bound on the sum of magnitudes that went into it; for those that depend on
    ``fresh`` ones, if these are given.
    """
    sizes = {network.input.name: x, **(fresh or {})}
    for node in network:
        operator = node.operator
        if isinstance(operator, Fresh) or not sizes.keys() >= {*node.inputs}:
            continue
        inputs = [sizes[name] for name in node.inputs]
        if isinstance(operator, Affine):
            sizes[node.name] = operator.magnitude(inputs)
        elif isinstance(operator, Barrier):
            sizes[node.name] = operator.forward(inputs).abs() + operator.spread(inputs)
        else:
            sizes[node.name] = operator.forward(inputs)
    return sizes
