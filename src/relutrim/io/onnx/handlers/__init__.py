"""How ONNX operators are read, one family per file. Importing this fills the registry."""

from importlib import import_module
from pkgutil import iter_modules

for _family in iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")
