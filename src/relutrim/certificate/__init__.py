"""Certificates: the record of a proof that two networks are equal, and the checker that needs nobody's word.

``records.py`` and ``hinting.py`` gather what :mod:`relutrim.certificate.check` needs, ``write.py`` puts it
into a file. Nothing is imported here: the checker runs where numpy and onnx are all there is.
"""

from __future__ import annotations

from typing import Any


def schema() -> dict[str, Any]:
    """The JSON Schema of a certificate's document."""
    import json
    from importlib import resources

    text = (
        resources.files("relutrim.certificate").joinpath("schemas", "certificate-2.json").read_text("utf-8")
    )
    found: dict[str, Any] = json.loads(text)
    return found
