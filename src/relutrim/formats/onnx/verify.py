"""A second look at a file before it takes its place: is it valid ONNX, and does it compute the network?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx

from relutrim.errors import CheckFailed
from relutrim.network import Affine, Barrier, Network, Output

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 3
_TOLERANCE = 1e-3
_ROUNDING = 1e-6
"""Per unit of the sum of magnitudes along the way: where large numbers cancel, float32 is that far off."""
_NOTHING = 1e-30
"""What onnxruntime may take for 0: it leaves out additions of less."""


def verify_written(path: Path, network: Network) -> None:
    """Raise :class:`CheckFailed` unless the file is valid and computes the network, as far as one can try.

    Trying takes onnxruntime; where it is not installed, only validity is checked. What it lacks (convolutions
    in float64) is tried with onnx's own evaluator. The comparison is rough (relative 1e-3) and on a few
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
        import onnxruntime
        from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Lacking
    except ImportError:
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong comes as an exception
    batch = network.input.batch
    rows = batch if isinstance(batch, int) else 1 if batch is None else _ROWS
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (rows, *network.input.shape)).astype(network.dtype)
    feed = {network.input.name: x[0] if batch is None else x}
    try:
        try:
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            found = session.run(None, feed)
        except Lacking:
            from onnx.reference import ReferenceEvaluator  # slow to import

            found = ReferenceEvaluator(model).run(None, feed)
    except Exception as error:
        raise CheckFailed(
            f"onnxruntime cannot run the file that was written ({error}); this is a bug in relutrim"
        ) from error
    _compare(network, x, found)


def _compare(network: Network, x: npt.NDArray[Any], found: list[npt.NDArray[Any]]) -> None:
    import torch

    inputs = torch.as_tensor(x, dtype=torch.float64)
    values, sizes = network.run(inputs), _magnitudes(network, inputs.abs())
    for output, array in zip(network.outputs, found, strict=True):
        expected = _tail(network, output, values[output.source]).numpy()
        if network.input.batch is None:
            expected = expected[0]
        if array.shape != expected.shape:
            raise CheckFailed(
                f"output {output.name!r} has shape {array.shape} in the file, not {expected.shape}"
            )
        if not expected.size:
            continue
        size = float(sizes[output.source].max())
        if not size < float(np.finfo(array.dtype).max):
            continue  # the file's type overflows on the way, so there is nothing to compare
        worst = float(np.abs(array - expected).max())
        if not worst <= _TOLERANCE * float(np.abs(expected).max()) + _ROUNDING * size + _NOTHING:
            raise CheckFailed(
                f"output {output.name!r} of the file that was written is {worst:g} off the network; this "
                "is a bug in relutrim"
            )


def _magnitudes(network: Network, x: Tensor) -> dict[str, Tensor]:
    """For every value, an upper bound on the sum of magnitudes that went into it."""
    sizes = {network.input.name: x}
    for node in network:
        inputs = [sizes[name] for name in node.inputs]
        operator = node.operator
        if isinstance(operator, Affine):
            sizes[node.name] = operator.magnitude(inputs)
        elif isinstance(operator, Barrier):
            sizes[node.name] = operator.forward(inputs).abs() + operator.spread(inputs)
        else:
            sizes[node.name] = operator.forward(inputs)
    return sizes


def _tail(network: Network, output: Output, value: Tensor) -> Tensor:
    """The tail of an output; axes are counted as in the file."""
    for step in output.tail:
        axis = step.attributes.get("axis", -1)
        if network.input.batch is None and axis >= 0:
            axis += 1
        if step.kind == "Softmax":
            value = value.softmax(axis)
        elif step.kind == "LogSoftmax":
            value = value.log_softmax(axis)
        elif step.kind in ("Sigmoid", "Tanh"):
            value = value.sigmoid() if step.kind == "Sigmoid" else value.tanh()
        elif step.kind != "Identity":
            raise CheckFailed(
                f"relutrim does not know how to check the {step.kind} before output {output.name!r}"
            )
    return value
