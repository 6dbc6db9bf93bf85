"""Training, from settings to files.

The networks of one architecture are trained together, all penalties and seeds at once; architectures come one
after the other.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from relutrim._version import __version__
from relutrim.errors import InputError
from relutrim.io import save
from relutrim.paper.architecture import Architecture
from relutrim.paper.checkpoint import read_checkpoint, write_checkpoint, write_tensors
from relutrim.paper.dataset import Dataset
from relutrim.paper.fit import Fit
from relutrim.paper.folder import RunFolder, claimed
from relutrim.paper.modules import module_of
from relutrim.paper.plan import Batch, plan
from relutrim.paper.recipe import Recipe
from relutrim.paper.scores import scores
from relutrim.paper.trained import Trained, file_name, from_description

Progress = Callable[["Epoch"], None]


@dataclass(frozen=True)
class Epoch:
    """Told after every epoch: ``epoch`` of ``epochs`` of one batch is done, with these mean losses."""

    batch: str
    networks: int
    epoch: int
    epochs: int
    losses: tuple[float, ...]


def train(
    dataset: Dataset,
    architecture: str | Architecture,
    *,
    l1: float = 0.0,
    seed: int = 0,
    recipe: Recipe | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Trained:
    """Train one network."""
    made = train_many(
        dataset, [architecture], l1=[l1], seeds=[seed], recipe=recipe, device=device, progress=progress
    )
    return made[0]


def train_many(
    dataset: Dataset,
    architectures: Sequence[str | Architecture],
    *,
    l1: Iterable[float] = (0.0,),
    seeds: Iterable[int] = (0,),
    networks: Iterable[tuple[float, int]] | None = None,
    recipe: Recipe | None = None,
    device: str | torch.device = "cpu",
    output: str | Path | None = None,
    fresh: bool = False,
    state_dicts: bool = False,
    at_once: int | None = None,
    checkpoint_every: float = 30.0,
    progress: Progress | None = None,
) -> list[Trained]:
    """Train every architecture with every penalty and every seed, in this order; or, with ``networks``, with
    these pairs of a penalty and a seed.

    With ``output`` every network becomes an ONNX file in that folder (and a ``.pt`` state dict with
    ``state_dicts``), ``train.json`` says how each came about, and every ``checkpoint_every`` seconds the
    state is kept: the same call goes on where a killed one stopped, and comes to the same networks. What is
    finished is not trained again; a run with other settings in the folder is refused, or given up with
    ``fresh``. ``at_once`` limits how many networks are trained together, for the memory's sake.
    """
    recipe = recipe or Recipe()
    target = _device(device)
    batches = plan(architectures, l1, seeds, at_once, networks)
    for batch in batches:
        batch.architecture.layers(dataset.shape, dataset.classes)  # raise before anything is trained
    if output is None:
        return [made for batch in batches for made in _trained(batch, dataset, recipe, target, progress)]
    output = Path(output)
    settings = {
        "dataset": dataset.describe(),
        "recipe": recipe.describe(),
        "batches": {
            batch.name: [{"l1": penalty, "seed": seed} for penalty, seed in batch.networks]
            for batch in batches
        },
        "device": target.type,
        "state_dicts": state_dicts,
    }
    with claimed(output):
        folder = RunFolder(output, settings)
        endings = (".onnx", ".pt") if state_dicts else (".onnx",)
        names = [
            file_name(dataset.name, batch.architecture.name, *network) + ending
            for batch in batches
            for network in batch.networks
            for ending in endings
        ]
        folder.open(fresh=fresh, networks=names)
        return list(_into_folder(folder, batches, dataset, recipe, target, checkpoint_every, progress))


def _device(device: str | torch.device) -> torch.device:
    try:
        target = torch.device(device)
        torch.zeros(1, device=target)
    except Exception as error:  # torch raises whatever the driver gives
        raise InputError(
            f"the device {str(device)!r} cannot be used ({str(error).splitlines()[0]})"
        ) from None
    if target.type not in ("cpu", "cuda"):
        raise InputError(f"the device {str(device)!r} is neither cpu nor cuda")
    return target


def _trained(
    batch: Batch, dataset: Dataset, recipe: Recipe, device: torch.device, progress: Progress | None
) -> list[Trained]:
    fit = Fit(batch.architecture, dataset, recipe, batch.networks, device)
    for _ in _epochs(fit, batch, progress):
        pass
    return _results(fit, batch, dataset, recipe)


def _epochs(fit: Fit, batch: Batch, progress: Progress | None) -> Iterator[None]:
    """Yields after every epoch, so that the caller can keep the state."""
    while fit.epoch < fit.recipe.epochs:
        losses = fit.run_epoch()
        if progress is not None:
            told = tuple(losses.tolist())
            progress(Epoch(batch.name, len(batch.networks), fit.epoch, fit.recipe.epochs, told))
        yield


def _results(fit: Fit, batch: Batch, dataset: Dataset, recipe: Recipe) -> list[Trained]:
    architecture, results = batch.architecture, []
    layers = architecture.layers(dataset.shape, dataset.classes)
    shape, domain = architecture.input_shape(dataset.shape), _domain(dataset, recipe)
    for index, ((l1, seed), score) in enumerate(zip(batch.networks, scores(fit, dataset), strict=True)):
        state = fit.stack.network(index)
        module = module_of(layers)
        module.load_state_dict(state, strict=False)  # num_batches_tracked alone is missing
        module.requires_grad_(False)
        results.append(
            Trained(
                file_name(dataset.name, architecture.name, l1, seed),
                dataset.name,
                architecture.name,
                l1,
                seed,
                score,
                shape,
                domain,
                diverged=not all(bool(value.isfinite().all()) for value in state.values()),
                module=module,
            )
        )
    return results


def _domain(dataset: Dataset, recipe: Recipe) -> str:
    """The options that state the networks' domain to ``relutrim analyze``."""
    low, high = (f"{end!r}" if end % 1 else f"{end:.0f}" for end in dataset.range)
    if not recipe.normalize:
        return f"--box {low} {high}"
    mean, std = (" ".join(f"{value:g}" for value in values) for values in dataset.statistics)
    return f"--normalized-box {low} {high} --mean {mean} --std {std}"


def _into_folder(
    folder: RunFolder,
    batches: Sequence[Batch],
    dataset: Dataset,
    recipe: Recipe,
    device: torch.device,
    checkpoint_every: float,
    progress: Progress | None,
) -> Iterator[Trained]:
    done: dict[str, Any] = folder.report.setdefault("batches", {})
    for entry in (entry for report in done.values() for entry in report["networks"]):
        folder.verify(entry)
    for batch in batches:
        if batch.name in done:
            yield from (
                from_description(entry, dataset.name, folder.path) for entry in done[batch.name]["networks"]
            )
            continue
        results, report = _one_batch(folder, batch, dataset, recipe, device, checkpoint_every, progress)
        done[batch.name] = report
        folder.report["complete"] = len(done) == len(batches)
        folder.write()
        folder.checkpoint(batch.name).unlink(missing_ok=True)
        yield from results


def _one_batch(
    folder: RunFolder,
    batch: Batch,
    dataset: Dataset,
    recipe: Recipe,
    device: torch.device,
    checkpoint_every: float,
    progress: Progress | None,
) -> tuple[list[Trained], dict[str, Any]]:
    fit = Fit(batch.architecture, dataset, recipe, batch.networks, device)
    path, key, before = folder.checkpoint(batch.name), folder.key, 0.0
    if path.exists():
        found = read_checkpoint(path, fit, key)
        fit.restore(found.epoch, found.state)
        before = found.seconds
    resumed = fit.epoch
    begun = kept = time.monotonic()
    for _ in _epochs(fit, batch, progress):
        now = time.monotonic()
        if now - kept >= checkpoint_every or fit.epoch == recipe.epochs:
            write_checkpoint(path, fit, key, before + now - begun)
            kept = time.monotonic()
    results = [_written(result, folder) for result in _results(fit, batch, dataset, recipe)]
    report = {
        "networks": [result.describe() for result in results],
        "seconds": before + time.monotonic() - begun,
        "resumed_after_epoch": resumed or None,
        "versions": {
            "relutrim": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": _machine(device),
    }
    return results, report


def _machine(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": device.type, "name": name, "threads": torch.get_num_threads()}


def _written(result: Trained, folder: RunFolder) -> Trained:
    """The network in its files."""
    if result.diverged:
        return result
    path = folder.path / f"{result.name}.onnx"
    save(result.network(), path)
    if folder.settings["state_dicts"]:
        assert result.module is not None
        write_tensors(folder.path / f"{result.name}.pt", result.module.state_dict())
    return replace(result, path=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
