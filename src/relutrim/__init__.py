"""relutrim makes trained ReLU networks smaller without changing what they compute, and proves it.

>>> import relutrim
>>> network = relutrim.load(relutrim.demo_model())
>>> result = relutrim.compress(network, relutrim.Box(0, 1))
>>> result.original.widths, result.network.widths
([784, 100, 100, 10], [784, 63, 41, 10])

All of it on one screen:

===============================================  ========================================================
``compress(model, domain)``                      a smaller model, as a :class:`Compression`
``analyze(model, domain)``                       a verdict for every neuron, as a :class:`Stability`
``Box(lo, hi)``, ``NormalizedBox``, ``Ball``     where inputs lie, as a :class:`Domain`
``Everywhere()``                                 all real inputs, the domain where none is given
``load(path)``, ``save(network, path)``          models in files, as a :class:`Network`
``Verdict``, ``Evidence``                        what is known about a neuron, and what it rests on
``RelutrimError``                                what everything raises that goes wrong
``demo_model()``                                 a small classifier to try it on
===============================================  ========================================================

``model`` is a path, an ``nn.Module`` or a :class:`Network`, and is never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relutrim._version import __version__

if TYPE_CHECKING:
    from relutrim.analysis import analyze
    from relutrim.compression import compress
    from relutrim.domain import Ball, Box, Domain, Everywhere, NormalizedBox
    from relutrim.errors import RelutrimError
    from relutrim.examples import demo_model
    from relutrim.graph import Network
    from relutrim.io import load, save
    from relutrim.prove.stability import Stability
    from relutrim.prove.verdict import Evidence, Verdict
    from relutrim.result import Compression

__all__ = [
    "Ball",
    "Box",
    "Compression",
    "Domain",
    "Everywhere",
    "Evidence",
    "Network",
    "NormalizedBox",
    "RelutrimError",
    "Stability",
    "Verdict",
    "__version__",
    "analyze",
    "compress",
    "demo_model",
    "load",
    "save",
]

_HOME = {
    "Ball": "domain",
    "Box": "domain",
    "Compression": "result",
    "Domain": "domain",
    "Everywhere": "domain",
    "Evidence": "prove.verdict",
    "Network": "graph",
    "NormalizedBox": "domain",
    "RelutrimError": "errors",
    "Stability": "prove.stability",
    "Verdict": "prove.verdict",
    "analyze": "analysis",
    "compress": "compression",
    "demo_model": "examples",
    "load": "io",
    "save": "io",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that ``import relutrim`` and ``relutrim --help`` do not
    load torch.
    """
    if name not in _HOME:
        raise AttributeError(f"module 'relutrim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"relutrim.{_HOME[name]}"), name)
