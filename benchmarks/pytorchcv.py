"""Other people's modules: the first architecture of each family in ``pytorchcv``, how long it takes to load,
how much of it relutrim follows, and which channels go that are 0 for all inputs or that nobody reads.

``pip install --no-deps --target FOLDER pytorchcv==0.0.74``, and name the folder; torchvision, which it
imports for data sets alone, is not needed. Weights are random: no architecture depends on them. "Opaque" is
the share of the parameters that no operator known to relutrim holds.

With ``--compress`` channels are zeroed (:mod:`benchmarks.tied_channels`), and ``relutrim.compress`` works on
all real inputs. "Can go" is what that program counts, "gone" what ``compress`` removes, "stay" the zeroed
channels that something keeps, by what it is. "Off" is the largest difference between the outputs of both
modules, relative to the largest output.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import relutrim
from benchmarks.results import table, write_section
from benchmarks.tied_channels import planted
from relutrim.errors import RelutrimError
from relutrim.graph import Fresh, Network
from relutrim.graph.operators import Convolution, Linear
from relutrim.io import as_network

LOADED = ("model", "input", "seconds", "nodes", "opaque nodes", "parameters", "opaque", "error")
COMPRESSED = (
    "model",
    "input",
    "parameters",
    "left",
    "can go",
    "gone",
    "stay",
    "class",
    "proven",
    "off",
    "seconds",
    "error",
)
_HEATMAPS = ("alphapose_fastseresnet101b_coco", "simplepose_resnet18_coco", "simplepose_mobile_resnet18_coco")
_SPEECH = ("jasper5x3", "jasperdr10x5_en", "quartznet5x5_en_ls")
SHAPES: dict[str, tuple[int, ...]] = {
    "pfpcnet": (1, 320, 240),
    "superpointnet": (1, 224, 224),
    **dict.fromkeys(_SPEECH, (64, 128)),
}
"""Where the module does not say the shape of its input."""
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"return_heatmap": True} for name in _HEATMAPS},
    **{name: {"from_audio": False} for name in _SPEECH},
}
"""Without what is computed behind the network, or before it."""
LARGEST = 600
"""Larger images are taken a quarter as wide and high: the architecture is the same."""
_WHOLE = ("bisenet_resnet18_celebamaskhq",)
"""Those that hold sizes."""
_MARK = "row:"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pytorchcv", description=__doc__)
    parser.add_argument("--folder", required=True, help="where pytorchcv is installed")
    parser.add_argument("--compress", action="store_true", help="zero channels, and compress")
    parser.add_argument("--time-limit", type=float, default=60.0, help="of each compression [60]")
    parser.add_argument("--jobs", type=int, default=1, help="how many models at once [1]")
    parser.add_argument("--single", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names [*]")
    options = parser.parse_args(arguments)
    if options.single:
        torch.manual_seed(0)
        factory = dict(_families(options.folder))[options.single]
        measure = _compressed if options.compress else _loaded
        print(_MARK, "\t".join(map(str, measure(options.single, factory, options.time_limit))))
        return
    names = [name for name, _ in _families(options.folder)]
    names = [name for name in names if any(fnmatch(name, pattern) for pattern in options.patterns or ["*"])]
    if not names:
        sys.exit(f"no model has a name like {' or '.join(options.patterns)}")
    header = COMPRESSED if options.compress else LOADED
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda name: _alone(name, arguments, options.jobs, len(header)), names))
    summary = _summary_of_compressed(rows) if options.compress else _summary_of_loaded(rows)
    text = f"{summary}\n\n{table(header, rows)}"
    if options.section:
        said = ["FOLDER" if one == options.folder else one for one in arguments]
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.pytorchcv", *said]))
    else:
        print(text)


def _alone(name: str, arguments: Sequence[str], jobs: int, cells: int) -> list[str]:
    """One model's row, measured in a process of its own."""
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.pytorchcv", *arguments, "--single", name],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": threads},
    )
    rows = [
        line.removeprefix(_MARK).strip(" ") for line in done.stdout.splitlines() if line.startswith(_MARK)
    ]
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    row = (
        rows[0].split("\t") if rows else [name, *[""] * (cells - 2), f"ended with {done.returncode}: {last}"]
    )
    print(*row, flush=True)
    return row


def _summary_of_loaded(rows: Sequence[Sequence[str]]) -> str:
    seconds = [float(row[2]) for row in rows if not row[-1]]
    made = sum(row[1] != "" for row in rows)
    return f"{len(seconds)} of {made} load, in {median(seconds or [0.0]):.1f} s in the median."


def _summary_of_compressed(rows: Sequence[Sequence[str]]) -> str:
    done = [dict(zip(COMPRESSED, row, strict=True)) for row in rows if not row[-1]]
    fewer = [row["model"] for row in done if int(row["gone"]) < int(row["can go"])]
    other = [row["model"] for row in done if row["class"] != "same"]
    off = max((float(row["off"]) for row in done), default=0.0)
    can_go, gone = (sum(int(row[key]) for row in done) for key in ("can go", "gone"))
    seconds = median([float(row["seconds"]) for row in done] or [0.0])
    return (
        f"{len(done)} of {len([row for row in rows if row[1]])} compressed, {seconds:.1f} s in the median; "
        f"{gone} channels gone of {can_go} that can go; fewer than can go in {len(fewer)} models "
        f"({', '.join(fewer)}); of another class {len(other)} ({', '.join(other)}); "
        f"outputs at most {off:.1g} off."
    )


def _families(folder: str) -> Iterator[tuple[str, Any]]:
    stub: Any = types.ModuleType("torchvision.ops")
    stub.DeformConv2d = nn.Conv2d
    sys.modules.update({"torchvision": types.ModuleType("torchvision"), "torchvision.ops": stub})
    sys.path.insert(0, str(Path(folder).resolve()))
    from pytorchcv import model_provider

    del sys.modules["torchvision"], sys.modules["torchvision.ops"]  # torch looks for it too
    seen = set()
    for name, factory in model_provider._models.items():
        if factory.__module__ not in seen:
            seen.add(factory.__module__)
            yield name, factory


def _made(name: str, factory: Any) -> tuple[nn.Module, tuple[int, ...]]:
    module: nn.Module = factory(**OPTIONS.get(name, {}))
    size = _sides(module)
    if max(size) > LARGEST and name not in _WHOLE:
        module = factory(**OPTIONS.get(name, {}), in_size=tuple(side // 4 for side in size))
    shape = SHAPES.get(name) or (getattr(module, "in_channels", 3), *_sides(module))
    return (Spoken(module) if name in _SPEECH else module).eval(), shape


class Spoken(nn.Module):
    """A module that takes recordings and their lengths, for recordings of full length."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        """What the module makes of all of each recording."""
        return self.inner(x, x.new_full((x.shape[0],), x.shape[2], dtype=torch.long))


def _sides(module: nn.Module) -> tuple[int, ...]:
    size = getattr(module, "in_size", (224, 224))
    return (size,) if isinstance(size, int) else tuple(size)


def _said(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:160].replace("|", "/")


def _loaded(name: str, factory: Any, _: float) -> list[Any]:
    try:
        module, shape = _made(name, factory)
    except Exception as error:  # other people's code
        return [name, *[""] * 6, f"cannot be made: {_reason(error)}"]
    parameters = sum(tensor.numel() for tensor in module.parameters())
    started = time.perf_counter()
    try:
        network = as_network(module, input_shape=shape)
    except RelutrimError as error:
        seconds = time.perf_counter() - started
        return [name, _said(shape), f"{seconds:.1f}", "", "", parameters, "", _reason(error)]
    seconds = time.perf_counter() - started
    opaque = sum(isinstance(node.operator, Fresh) for node in network)
    share = 1 - _held(network, module) / max(1, parameters)
    return [name, _said(shape), f"{seconds:.1f}", len(network.nodes), opaque, parameters, f"{share:.1%}", ""]


def _held(network: Network, module: nn.Module) -> int:
    """How many parameters are numbers of known operators."""
    by_name = dict(module.named_parameters(remove_duplicate=False))
    origins = [node.origin for node in network if node.origin is not None]
    tensors = {stored.tensor for origin in origins for stored in origin.fields.values()}
    held = {id(by_name[name]): by_name[name].numel() for name in tensors if name in by_name}
    return sum(held.values())


def _compressed(name: str, factory: Any, time_limit: float) -> list[Any]:
    try:
        module, shape = _made(name, factory)
    except Exception as error:  # other people's code
        return [name, *[""] * 10, f"cannot be made: {_reason(error)}"]
    parameters = _parameters(module)
    try:
        count = planted(module, torch.zeros(2, *shape), torch.Generator().manual_seed(0))
        before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        started = time.perf_counter()
        result = relutrim.compress(module, relutrim.Everywhere(shape), time_limit=time_limit)
    except Exception as error:  # torch's, of what it cannot record
        return [name, _said(shape), parameters, *[""] * 8, _reason(error)]
    seconds = time.perf_counter() - started
    changed = [key for key, tensor in module.state_dict().items() if not torch.equal(tensor, before[key])]
    gone = _channels(result.original) - _channels(result.stored)
    stay = ", ".join(f"{number} {why}" for why, number in count.staying.items())
    same = "same" if type(result.model) is type(module) else _reason(ValueError(result.remark))
    return [
        name,
        _said(shape),
        parameters,
        _parameters(result.model),
        count.removable,
        gone,
        stay,
        same,
        result.deviation.proven,
        f"{_off(module, result.model, torch.rand(2, *shape)):.1e}",
        f"{seconds:.1f}",
        f"the module has changed: {changed}" if changed else _reason(ValueError(result.obstacle or "")),
    ]


def _parameters(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


def _channels(network: Network) -> int:
    """What layers make."""
    operators = [node.operator for node in network.nodes]
    return sum(len(one.weight) for one in operators if isinstance(one, Convolution | Linear))


@torch.no_grad()
def _off(module: nn.Module, other: nn.Module, x: Tensor) -> float:
    one, two = (torch.cat([part.flatten() for part in _tensors(each(x))]) for each in (module, other))
    return float((one - two).abs().max() / one.abs().max().clamp(min=1e-30))


def _tensors(made: Any) -> Iterator[Tensor]:
    if isinstance(made, Tensor):
        yield made.double()
    elif isinstance(made, dict):
        yield from _tensors(list(made.values()))
    elif isinstance(made, tuple | list):
        for part in made:
            yield from _tensors(part)


if __name__ == "__main__":
    main(sys.argv[1:])
