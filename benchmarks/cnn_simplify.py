"""torch-simplify on a network of ``networks/cnn``, in a process of its own.

``python -m benchmarks.cnn_simplify FOLDER MODEL``, with the package installed by
``pip install --no-deps --target FOLDER torch-simplify==1.1.4``.
"""

from __future__ import annotations

import copy
import json
import sys
import time
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.cnn_models import module_of


class _Absent:
    """A class that no module is of."""


def main(folder: str, model: str) -> None:
    _stub("torchvision", {})
    _stub("torchvision.models", {"MobileNetV3": _Absent, "ShuffleNetV2": _Absent})
    _stub("torchvision.models.densenet", {"_DenseLayer": _Absent})
    sys.path.insert(0, folder)
    simplify = import_module("simplify").simplify
    module = module_of(Path(model))
    x = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    started = time.perf_counter()
    try:
        small = simplify(copy.deepcopy(module), torch.zeros(1, 3, 32, 32))
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return
    seconds = time.perf_counter() - started
    with torch.no_grad():
        before, after = module(x), small(x)
    left = sum(one.numel() for one in small.parameters())
    apart = float((before - after).abs().max() / before.abs().max())
    print(json.dumps({"parameters": left, "seconds": seconds, "apart": apart}))


def _stub(name: str, contents: dict[str, Any]) -> None:
    """What torch-simplify imports of torchvision, and needs for nothing else than to ask a type."""
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


if __name__ == "__main__":
    main(*sys.argv[1:])
