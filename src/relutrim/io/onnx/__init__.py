"""ONNX in and out.

Reading goes bytes -> :mod:`parse` -> :mod:`read`, which walks the graph and asks one handler per operator
(:mod:`handlers`); writing goes :mod:`write` -> :mod:`verify`. Neither loads torch, but for the check of a
file that was just written.
"""

from relutrim.io.onnx.read import network_from_proto, read_onnx
from relutrim.io.onnx.verify import verify_written
from relutrim.io.onnx.write import network_to_proto, write_onnx

__all__ = ["network_from_proto", "network_to_proto", "read_onnx", "verify_written", "write_onnx"]
