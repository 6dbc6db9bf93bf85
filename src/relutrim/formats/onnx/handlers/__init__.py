"""How ONNX operators are read, one family per file. Importing this fills the registry."""

from relutrim.formats.onnx.handlers import (
    barriers,
    constants,
    convolution,
    elementwise,
    joining,
    linear,
    normalisation,
    picking,
    piecewise,
    pooling,
    reducing,
    shaping,
    tails,
)

__all__ = [
    "barriers",
    "constants",
    "convolution",
    "elementwise",
    "joining",
    "linear",
    "normalisation",
    "picking",
    "piecewise",
    "pooling",
    "reducing",
    "shaping",
    "tails",
]
