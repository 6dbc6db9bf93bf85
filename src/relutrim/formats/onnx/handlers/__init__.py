"""How ONNX operators are read, one family per file. Importing this fills the registry."""

from relutrim.formats.onnx.handlers import constants, elementwise, linear, normalisation, shaping, tails

__all__ = ["constants", "elementwise", "linear", "normalisation", "shaping", "tails"]
