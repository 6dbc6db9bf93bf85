"""Outputs of ONNX files in onnxruntime, on one thread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from relutrim.graph.graph import Port

_ERROR = 3


def outputs(
    path: Path, port: Port, x: npt.NDArray[np.float32], *, optimized: bool = True
) -> npt.NDArray[np.float64]:
    """All outputs of a file, flat, one row per input; ``port`` is its input. Without ``optimized`` the graph
    runs node by node as it stands. Of a fixed batch size only whole batches are run.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERROR
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    step = len(x) if isinstance(port.batch, str) else port.batch or 1
    found = []
    for start in range(0, len(x) - step + 1, step):
        part = x[start : start + step].reshape(step, *port.shape)
        values = session.run(None, {port.name: part[0] if port.batch is None else part})
        found.append(np.concatenate([np.asarray(value).reshape(step, -1) for value in values], axis=1))
    return np.concatenate(found).astype(np.float64)
