"""The network that comes with the package: an MNIST classifier 784-100-100-10, trained with the paper's
recipe (l1 = 0.0004).
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def demo_model() -> Path:
    """Where the shipped network lies.

    >>> demo_model().name
    'mnist_2x100.onnx.gz'
    """
    return Path(str(resources.files("relutrim").joinpath("data", "mnist_2x100.onnx.gz")))
