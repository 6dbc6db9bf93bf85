"""Training on a GPU: recorded steps do what plain ones do, the same call gives the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from relutrim.paper import Dataset, Epoch, Recipe, parse_architecture, synthetic, train_many
from relutrim.paper.fit import Fit, reproducible

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CUDA = "cuda"
NETWORKS = [(0.0, 0), (1e-4, 0), (1e-4, 1)]
NAMES = ["2x24", "2x24-bn", "20|5|20", "lenet", "lenet-bn"]
RECIPE = Recipe(epochs=4, batch_size=32)


@pytest.fixture(scope="module")
def pictures() -> Dataset:
    return synthetic("cifar10", train=330, test=70)


def fits(name: str, dataset: Dataset, count: int) -> list[Fit]:
    made = [
        Fit(parse_architecture(name), dataset, RECIPE, NETWORKS, torch.device(CUDA)) for _ in range(count)
    ]
    for fit in made:
        for _ in range(2):
            fit.run_epoch()
    return made


@pytest.mark.parametrize("name", NAMES)
def test_the_same_training_gives_the_same_bits(name: str, pictures: Dataset) -> None:
    first, second = (fit.state() for fit in fits(name, pictures, 2))
    assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_step_is_a_step(name: str, pictures: Dataset) -> None:
    """Recording runs the step a few times; nothing of that may be left."""
    (replayed,) = fits(name, pictures, 1)
    plain = Fit(parse_architecture(name), pictures, RECIPE, NETWORKS, torch.device(CUDA))
    with reproducible():
        for epoch in range(2):
            plain.feed.start(epoch)
            plain.rate.fill_(RECIPE.rate(epoch))
            for _ in range(330 // 32):
                plain.step(32)
            plain.step(330 % 32)
    for key, value in plain.state().items():
        torch.testing.assert_close(value, replayed.state()[key], rtol=1e-4, atol=1e-5, msg=key)


def test_recording_needs_no_more_rows_than_one_batch() -> None:
    few = synthetic("mnist", train=40, test=10)
    recipe = Recipe(epochs=2, batch_size=32)
    here, there = (train_many(few, ["1x5"], recipe=recipe, device=device)[0] for device in ("cpu", CUDA))
    assert here.scores.train_loss == pytest.approx(there.scores.train_loss, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_comes_to_what_a_cpu_comes_to(name: str, pictures: Dataset) -> None:
    recipe = Recipe(epochs=1, batch_size=32)
    here, there = (
        train_many(pictures, [name], l1=[0], seeds=[0, 1], recipe=recipe, device=device)
        for device in ("cpu", CUDA)
    )
    for a, b in zip(here, there, strict=True):
        assert a.module is not None
        assert b.module is not None
        for key, value in a.module.state_dict().items():
            other = b.module.state_dict()[key]
            torch.testing.assert_close(value, other, rtol=1e-2, atol=2e-3, msg=f"{key} differs")


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_run_goes_on_to_the_very_same_files(name: str, pictures: Dataset, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(done: Epoch) -> None:
        if done.epoch == 3:
            raise Stopped

    options = {"l1": [0, 1e-4], "seeds": [0, 1], "recipe": RECIPE, "device": CUDA, "checkpoint_every": 0.0}
    train_many(pictures, [name], output=tmp_path / "whole", **options)  # type: ignore[arg-type]
    with pytest.raises(Stopped):
        train_many(pictures, [name], output=tmp_path / "run", progress=stop, **options)  # type: ignore[arg-type]
    train_many(pictures, [name], output=tmp_path / "run", **options)  # type: ignore[arg-type]
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*.onnx")}
    assert whole == {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.onnx")}
