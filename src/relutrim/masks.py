"""Masks: which units of a network are always 0 on the domain, for runtimes that can skip them.

Where a channel is inactive at some positions only, no structure can go, but its zeros need not be computed
(the paper's experiment with convolutions).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relutrim.errors import InputError
from relutrim.io.files import replacing
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.rewrite.draft import Mask


def inactive_units(stability: Stability, weakest: Evidence = Evidence.PROOF) -> dict[str, Mask]:
    """Per ReLU, in its value's shape: which units are inactive, on evidence of at least ``weakest``."""
    return {
        layer.name: ((layer.verdict == Verdict.INACTIVE) & (layer.evidence >= weakest)).reshape(layer.shape)
        for layer in stability.layers
    }


def write_masks(path: Path, masks: Mapping[str, Mask]) -> None:
    """One array of bools per ReLU, by its name, in an ``.npz`` file that appears whole or not at all."""
    if path.suffix != ".npz":
        raise InputError("masks are written as .npz; give the file that ending", where=str(path))
    with replacing(path) as aside, zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mask in masks.items():  # not numpy.savez: a layer may have the name of one of its arguments
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, mask, allow_pickle=False)
