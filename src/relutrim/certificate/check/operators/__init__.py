"""What each ONNX operator makes, one family per file."""

from relutrim.certificate.check.operators import arithmetic, moves, piecewise, windows

__all__ = ["arithmetic", "moves", "piecewise", "windows"]
