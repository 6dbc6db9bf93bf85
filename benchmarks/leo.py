"""The paper's LEO++ on the paper's networks: what goes, what is proven, and what onnxruntime sees of it.

The compressed file is written, read back by onnxruntime and run beside the original in float32 on data (MNIST
test images where the input is 784 wide), random inputs and corners. "own" is the original's own rounding
error: float32 against float64.
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from benchmarks.results import shared, table, write_section
from relutrim.compression import compress
from relutrim.domain import Box


def main() -> None:
    rows = []
    worst = 0.0
    for path in sorted((shared() / "networks" / "paper").glob("*.onnx")):
        result = compress(path, Box(0, 1), rewrites="leo++")
        before, after = result.original, result.stored
        inputs = _inputs(before.input.size)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.onnx"
            result.save(out)
            single = inputs.astype(np.float32)
            old, new = _run(path, single), _run(out, single)
        truth = before(torch.as_tensor(single.astype(np.float64))).numpy()
        memory = result.network(torch.as_tensor(single.astype(np.float64))).numpy()
        saved = result.stored(torch.as_tensor(single.astype(np.float64))).numpy()
        relative = float(np.abs(memory - truth).max() / np.abs(truth).max())
        difference, own = float(np.abs(new - old).max()), float(np.abs(old - truth).max())
        worst = max(worst, difference / own)
        assert np.abs(saved - truth).max() <= result.deviation.proven + 1e-9 * np.abs(truth).max()
        rows.append(
            [
                path.stem,
                "-".join(map(str, after.widths[1:-1])),
                f"{100 - 100 * after.neurons / before.neurons:.0f}",
                f"{100 - 100 * after.connections / before.connections:.0f}",
                f"{result.deviation.proven:.1e}",
                f"{relative:.1e}",
                f"{difference:.1e}",
                f"{own:.1e}",
            ]
        )
        print(*rows[-1], flush=True)
    header = [
        "network",
        "hidden widths",
        "neurons removed %",
        "connections removed %",
        "proven (file)",
        "float64 relative",
        "onnxruntime difference",
        "own",
    ]
    text = f"Largest ratio of the difference in onnxruntime to the original's own error: {worst:.2f}.\n\n"
    write_section("leo", text + table(header, rows))


def _run(path: Path, inputs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: inputs})
    return np.asarray(output, dtype=np.float64)


def _inputs(size: int) -> np.ndarray:
    random = np.random.default_rng(3)
    parts = [
        random.random((2000, size)),
        (random.random((2000, size)) < random.random((2000, 1))).astype(float),
    ]
    images = shared() / "data" / "mnist" / "t10k-images-idx3-ubyte.gz"
    if size == 784 and images.exists():
        pixels = np.frombuffer(gzip.decompress(images.read_bytes()), dtype=np.uint8, offset=16)
        parts.append(pixels.reshape(-1, 784) / 255)
    return np.concatenate(parts)


if __name__ == "__main__":
    main()
