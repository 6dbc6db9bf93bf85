"""A second look at a file before it takes its place: is it valid ONNX, and does it compute the network?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx

from relutrim.errors import CheckFailed, RelutrimError
from relutrim.graph import Fresh, Network
from relutrim.io.onnx.beside import Files, session
from relutrim.io.onnx.read import network_from_proto

Array: TypeAlias = npt.NDArray[Any]

_ROWS = 3
_NUMBERS = 2**27
"""How many numbers all values may have for the rows that a file has fixed."""
_ROUNDING = 1e-6
"""How much of a number in front of an opaque node may be rounding."""


def verify_written(path: Path, network: Network) -> None:
    """Raise :class:`CheckFailed` unless the file is valid and computes the network, as far as one can try.

    Trying takes onnxruntime; where it is not installed, or as many rows as the file has fixed would take much
    memory, only validity is checked. A file with operators that it lacks (convolutions in float64) is read
    again instead, and what was read is evaluated: that finds what was written otherwise than it is read, not
    what writer and reader both mistake. (onnx's own evaluator is no judge: its MaxPool confuses uneven
    padding.) A few random inputs are tried: that finds a wrong transpose or a lost bias. How far the file may
    be from the network is not measured but proved, elsewhere.
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
    if not _runs(network):
        return
    import torch
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Lacking

    from relutrim.io.tolerance import evaluated, mismatch

    batch = network.input.batch
    rows = batch if isinstance(batch, int) else 1 if batch is None else _ROWS
    x = np.random.default_rng(0).uniform(-1, 1, (rows, *network.input.shape)).astype(network.dtype)
    try:
        try:
            ran = _run(Files(content), network, x)
            found = [torch.as_tensor(ran[output.name]) for output in network.outputs]
        except Lacking:
            again = evaluated(network_from_proto(model), torch.as_tensor(x))
            found = [torch.tensor(torch.nan) if one is None else one[0] for one in again]
    except Exception as error:
        raise CheckFailed(
            f"the file that was written can be neither run nor read ({error}); this is a bug in relutrim"
        ) from error
    output = mismatch(network, torch.as_tensor(x), found)
    if output is not None:
        raise CheckFailed(
            f"output {output.name!r} of the file that was written is off the network; this is a bug in "
            "relutrim"
        )


def verify_edited(
    before: Files, after: Files, network: Network, x: npt.NDArray[Any], allowed: float | None
) -> None:
    """Raise :class:`CheckFailed` unless both models compute the same for the inputs ``x`` of ``network``, as
    it is read from the second one, up to what is ``allowed`` and what float32 does; as far as one can try.

    That the second one is valid, and that it reads as it should, was seen when it was made.
    """
    if not _runs(network):
        return
    batch = network.input.batch
    x = x[:1] if batch is None else np.resize(x, (batch, *x.shape[1:])) if isinstance(batch, int) else x
    x = x.astype(network.dtype)
    fresh = [node.name for node in network if isinstance(node.operator, Fresh)]
    found: list[Mapping[str, Array]] = []
    for files in (before, after):
        try:
            found.append(_run(_showing(files, fresh) if fresh else files, network, x))
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
    import torch

    from relutrim.io.tolerance import agree, evaluated, near

    one, other = ({name: torch.as_tensor(array) for name, array in ran.items()} for ran in found)
    # What is the same over the real numbers may be rounded in another order, and a sign, say, may turn.
    same = [
        n
        for n in fresh
        if one[n].shape == other[n].shape and near(one[n], other[n], _ROUNDING * one[n].abs())
    ]
    known = {name: one[name].double()[None] if batch is None else one[name].double() for name in same}
    for output, ours in zip(network.outputs, evaluated(network, torch.as_tensor(x), known), strict=True):
        expected, result = one[output.name], other[output.name]
        if expected.shape != result.shape:
            raise CheckFailed(
                f"output {output.name!r} has shape {tuple(result.shape)}, not {tuple(expected.shape)}"
            )
        if ours is None or allowed is None:
            continue
        # No step of a tail moves more than twice as far.
        if not agree(expected, result, allowed * 2.0 ** len(output.tail), ours[1]):
            raise CheckFailed(
                f"output {output.name!r} of the file that was written is off the model's; this is a bug in "
                "relutrim"
            )


def _runs(network: Network) -> bool:
    """Whether there is onnxruntime, and as many rows as the file has fixed are not too many for it."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return False
    batch = network.input.batch
    return not isinstance(batch, int) or batch * sum(map(network.size, network.shapes)) <= _NUMBERS


def _run(files: Files, network: Network, x: Array) -> dict[str, Array]:
    """What a model is given, and what it makes of it, by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong comes as an exception
    with session(files, options) as running:
        feed = {entry.name: _any_input(entry, len(x)) for entry in running.get_inputs()}
        feed[network.input.name] = x[0] if network.input.batch is None else x
        names = [entry.name for entry in running.get_outputs()]
        return {**feed, **dict(zip(names, running.run(None, feed), strict=True))}


def _showing(files: Files, names: Iterable[str]) -> Files:
    """A model with more of its tensors among the outputs."""
    model = onnx.ModelProto.FromString(files.content)
    graph = model.graph
    there = {entry.name for entry in (*graph.output, *graph.input)}
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    return replace(files, content=model.SerializeToString())


def _any_input(entry: Any, rows: int) -> npt.NDArray[Any]:
    """Something for another input of a model."""
    shape = [size if isinstance(size, int) else rows if at == 0 else 1 for at, size in enumerate(entry.shape)]
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
    return np.zeros(shape, kinds.get(entry.type, np.float32))
