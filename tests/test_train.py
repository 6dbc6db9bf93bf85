"""What training does to the numbers: the recipe, the penalty, many networks at once, batch normalisation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from relutrim.errors import InputError
from relutrim.paper import Dataset, Recipe, load_dataset, parse_architecture, synthetic, train, train_many
from relutrim.paper.augment import augment, draw
from relutrim.paper.draws import generator
from relutrim.paper.fit import Fit
from relutrim.paper.modules import lenet, lenet_bn, module_of

CPU = torch.device("cpu")
SHORT = Recipe(epochs=3, batch_size=32)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return synthetic("mnist", train=300, test=100)


@pytest.fixture(scope="module")
def pictures() -> Dataset:
    return synthetic("cifar10", train=150, test=50)


def weights(module: nn.Module | None) -> list[Tensor]:
    assert module is not None
    return [value for key, value in module.state_dict().items() if "num_batches" not in key]


def equal(a: nn.Module | None, b: nn.Module | None) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def trained_by_torch(dataset: Dataset, name: str, l1: float, seed: int, recipe: Recipe) -> nn.Module:
    """The same training with nothing but torch's own modules, optimiser and loss."""
    architecture = parse_architecture(name)
    module = module_of(architecture.layers(dataset.shape, dataset.classes))
    start = Fit(architecture, dataset, recipe, [(l1, seed)], CPU).stack.network(0)
    module.load_state_dict(start, strict=False)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, recipe.decay_every, recipe.decay)
    layers = [part for part in module if isinstance(part, nn.Linear | nn.Conv2d)]
    for epoch in range(recipe.epochs):
        order = torch.randperm(len(dataset.x_train), generator=generator(seed, "order", epoch))
        for rows in order.split(recipe.batch_size):
            x = torch.from_numpy(dataset.x_train)[rows].float() / 255
            x = x.reshape(len(x), *architecture.input_shape(dataset.shape))
            y = torch.from_numpy(dataset.y_train)[rows]
            out = module(x)
            loss = F.mse_loss(out, x) if architecture.name.startswith("ae") else F.cross_entropy(out, y)
            loss = loss + l1 * sum(layer.weight.abs().sum() for layer in layers)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
    return module.eval()


@pytest.mark.parametrize("name", ["2x12", "2x12-bn", "10|4|10", "lenet", "lenet-bn"])
def test_training_many_at_once_is_what_torch_does_to_each_alone(name: str, digits: Dataset) -> None:
    recipe = Recipe(epochs=3, batch_size=64, decay_every=2)
    made = train_many(digits, [name], l1=[0, 1e-3], seeds=[0, 5], recipe=recipe)
    for one in made:
        alone = trained_by_torch(digits, name, one.l1, one.seed, recipe)
        for ours, theirs in zip(weights(one.module), weights(alone), strict=True):
            # The penalty turns its sign at 0, where the last digit decides.
            torch.testing.assert_close(ours, theirs, rtol=5e-3, atol=5e-3 if one.l1 else 2e-4)


@pytest.mark.parametrize("name", ["2x12", "2x12-bn", "10|4|10", "lenet"])
def test_a_network_does_not_depend_on_its_neighbours(name: str, digits: Dataset) -> None:
    many = train_many(digits, [name], l1=[0, 1e-4, 1e-3], seeds=[0, 1], recipe=SHORT)
    for one in (many[0], many[5]):
        alone = train(digits, name, l1=one.l1, seed=one.seed, recipe=SHORT)
        for ours, theirs in zip(weights(one.module), weights(alone.module), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2 if one.l1 else 1e-4)


@pytest.mark.parametrize("name", ["2x12", "lenet-bn"])
def test_the_same_call_makes_the_same_network_bit_for_bit(name: str, pictures: Dataset) -> None:
    first, second = (train(pictures, name, l1=1e-4, seed=3, recipe=SHORT) for _ in range(2))
    assert equal(first.module, second.module)
    assert first.scores == second.scores
    assert not equal(first.module, train(pictures, name, l1=1e-4, seed=4, recipe=SHORT).module)


def test_the_callers_random_numbers_and_settings_are_left_alone(pictures: Dataset) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state(), torch.get_float32_matmul_precision(), torch.is_grad_enabled()
    train(pictures, "lenet", recipe=Recipe(epochs=1))
    after = torch.get_rng_state(), torch.get_float32_matmul_precision(), torch.is_grad_enabled()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_training_learns(digits: Dataset) -> None:
    made = train(digits, "2x30", recipe=Recipe(epochs=20, batch_size=16))
    assert made.scores.train_accuracy is not None
    assert made.scores.test_accuracy is not None
    assert made.scores.train_accuracy > 0.9
    assert made.scores.test_accuracy > 0.6


def test_an_autoencoder_learns_and_ends_in_a_relu(digits: Dataset) -> None:
    # The error is a mean over 784 pixels, so a few hundred steps have to be long ones.
    recipe = Recipe(epochs=0, batch_size=16, learning_rate=0.3)
    before, after = (train(digits, "40|10|40", recipe=replace(recipe, epochs=e)) for e in (0, 30))
    assert before.scores.test_loss is not None
    assert after.scores.test_loss is not None
    assert after.scores.test_loss < 0.75 * before.scores.test_loss
    assert after.scores.test_accuracy is None
    assert after.network().nodes[-1].name == "relu4"
    assert after.network().shapes["relu4"] == (784,)


def test_the_penalty_makes_weights_small(digits: Dataset) -> None:
    made = train_many(digits, ["2x20"], l1=[0, 1e-3, 1e-2], recipe=Recipe(epochs=15, batch_size=16))
    tiny = [sum(int((w.abs() < 1e-3).sum()) for w in weights(one.module) if w.dim() > 1) for one in made]
    assert all(few < many for few, many in pairwise(tiny))
    assert tiny[2] > 0.5 * (784 * 20 + 400 + 200)


def test_the_penalty_leaves_biases_and_batch_normalisation_alone(digits: Dataset) -> None:
    stack = Fit(parse_architecture("lenet-bn"), digits, SHORT, [(0.1, 0)], CPU).stack
    assert set(stack.penalised) == {f"{layer}.weight" for layer in ("conv1", "conv2", "fc1", "fc2", "fc3")}


def test_weights_begin_as_kaiming_says_and_differ_by_seed_only(digits: Dataset) -> None:
    stack = Fit(parse_architecture("2x400"), digits, SHORT, [(0, 0), (1, 0), (0, 1)], CPU).stack
    first, second, other = stack.parameters["fc2.weight"].detach()
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert float(first.std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    assert all(not value.any() for key, value in stack.parameters.items() if key.endswith("bias"))


def test_autoencoders_begin_as_torch_has_it(digits: Dataset) -> None:
    def begin(name: str, **changes: str) -> Tensor:
        architecture = parse_architecture(name)
        return Fit(architecture, digits, Recipe(**changes), [(0, 3)], CPU).stack.network(0)["fc1.weight"]

    own, theirs = begin("400|10|400"), nn.Linear(784, 400).weight.detach()
    assert float(own.abs().max()) <= 1 / 28
    assert float(own.std()) == pytest.approx(float(theirs.std()), rel=0.02)
    assert float(own.mean()) == pytest.approx(0, abs=1e-3)
    assert torch.equal(begin("1x400", initialisation="uniform"), own)
    assert torch.equal(begin("400|10|400", initialisation="normal"), begin("1x400"))


@pytest.mark.parametrize("name", ["2x12", "2x12-bn", "10|4|10", "lenet", "lenet-bn"])
@pytest.mark.parametrize("like", ["mnist", "cifar10"])
def test_the_network_is_the_module(name: str, like: str) -> None:
    dataset = synthetic(like, train=100, test=40)
    made = train(dataset, name, recipe=Recipe(epochs=1))
    x = torch.from_numpy(dataset.x_test).float().reshape(40, *made.input_shape) / 255
    assert made.module is not None
    with torch.no_grad():
        expected = made.module(x)
    torch.testing.assert_close(made.network()(x.double()).float(), expected, rtol=1e-4, atol=1e-5)
    if made.scores.test_accuracy is not None:
        right = (expected.argmax(1) == torch.from_numpy(dataset.y_test)).double().mean()
        assert made.scores.test_accuracy == pytest.approx(float(right), abs=0.026)


def test_lenet_has_the_papers_shape() -> None:
    for factory, parameters in ((lenet, 62006), (lenet_bn, 62006 + 2 * (6 + 16 + 120))):
        module, shape = factory()
        assert module(torch.zeros(2, *shape)).shape == (2, 10)
        assert sum(p.numel() for p in module.parameters()) == parameters


def test_normalised_inputs_are_what_the_domain_says(digits: Dataset) -> None:
    made = train(digits, "1x8", recipe=Recipe(epochs=0, normalize=True))
    (mean,), (std,) = digits.statistics
    assert made.domain == f"--normalized-box 0 1 --mean {mean} --std {std}"
    x = (torch.from_numpy(digits.x_test).float().flatten(1) / 255 - mean) / std
    assert made.module is not None
    right = (made.module(x).argmax(1) == torch.from_numpy(digits.y_test)).double().mean()
    assert made.scores.test_accuracy == pytest.approx(float(right))


def test_a_network_that_diverges_does_not_take_others_with_it(digits: Dataset) -> None:
    recipe = Recipe(epochs=2, batch_size=16)
    lost, kept = train_many(digits, ["2x12"], l1=[1e38, 1e-4], recipe=recipe)
    assert lost.diverged
    assert lost.scores.test_loss is None
    assert not kept.diverged
    assert equal(kept.module, train(digits, "2x12", l1=1e-4, recipe=recipe).module)
    with pytest.raises(InputError, match="diverged"):
        lost.network()


def test_the_learning_rate_falls_to_a_tenth_after_every_fifty_epochs() -> None:
    rates = [Recipe().rate(epoch) for epoch in range(120)]
    assert rates[0] == rates[49] == 0.01
    assert rates[50] == rates[99] == pytest.approx(0.001)
    assert rates[100] == pytest.approx(0.0001)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epochs": -1}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"momentum": 1.0}, "momentum"),
        ({"initialisation": "zero"}, "initialisation"),
    ],
)
def test_recipes_that_make_no_sense(changes: dict[str, float], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Recipe(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["", "2x", "0x5", "2x0", "x", "100|", "ae", "lenet5", "101x1", "1x999999", "2x-5"]
)
def test_architectures_that_are_none(name: str) -> None:
    with pytest.raises(InputError, match="architecture"):
        parse_architecture(name)


@pytest.mark.parametrize("name", ["2x100", "5x100-bn", "ae100-10-100", "ae7-bn", "lenet", "lenet-bn"])
def test_names_of_architectures_are_their_own_names(name: str) -> None:
    assert parse_architecture(name).name == name


def test_what_cannot_be_trained_is_refused(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(InputError, match="penalty"):
        train(digits, "1x4", l1=-1)
    with pytest.raises(InputError, match="seed"):
        train(digits, "1x4", seed=-1)
    with pytest.raises(InputError, match="nothing to train"):
        train_many(digits, ["1x4"], seeds=[])
    with pytest.raises(InputError, match="six digits"):
        train_many(digits, ["1x4"], l1=[1e-4, 1.0000001e-4])
    with pytest.raises(InputError, match=r"cannot be used|neither"):
        train(digits, "1x4", device="tpu")
    path = tmp_path_factory.mktemp("flat") / "flat.npz"
    x = np.random.default_rng(0).normal(size=(8, 5))
    np.savez(path, x_train=x, x_test=x)
    flat = load_dataset(str(path))
    with pytest.raises(InputError, match="16 x 16"):
        parse_architecture("lenet").layers(flat.shape, 10)
    with pytest.raises(InputError, match="labels"):
        train(flat, "1x4")
    with pytest.raises(InputError, match="augmentation is for pictures"):
        train(flat, "ae4", recipe=Recipe(augment=True))
    assert train(flat, "ae4", recipe=Recipe(epochs=1)).network().shapes["relu2"] == (5,)


def test_augmentation_is_for_cifar_unless_asked_for(pictures: Dataset, digits: Dataset) -> None:
    plain = train(pictures, "1x8", recipe=Recipe(epochs=1, augment=False))
    assert not equal(plain.module, train(pictures, "1x8", recipe=Recipe(epochs=1)).module)
    assert Recipe().augments("cifar100")
    assert not Recipe().augments("mnist")
    assert not Recipe().augments("my-cifar-features")
    train(digits, "1x8", recipe=Recipe(epochs=1, augment=True))


NOTHING = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def changed(x: Tensor, **changes: float) -> Tensor:
    places = {"xx": 0, "xy": 1, "yx": 2, "yy": 3, "brightness": 4, "contrast": 5, "saturation": 6, "hue": 7}
    numbers = list(NOTHING)
    for name, value in changes.items():
        numbers[places[name]] = value
    return augment(x, torch.tensor([numbers] * len(x)))


def test_augmentation_by_nothing_changes_nothing() -> None:
    x = torch.rand(5, 3, 32, 32, generator=generator(0, "test"))
    torch.testing.assert_close(changed(x), x, rtol=0, atol=1e-6)


def test_each_part_of_the_augmentation_does_what_its_name_says() -> None:
    x = torch.rand(5, 3, 32, 32, generator=generator(1, "test"))
    torch.testing.assert_close(changed(x, xx=-1.0), x.flip(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(changed(x, brightness=0.8), 0.8 * x, rtol=0, atol=1e-6)
    low = changed(x, contrast=0.8)
    assert (low.std((1, 2, 3)) < x.std((1, 2, 3))).all()
    pale = changed(x, saturation=0.8)
    assert ((pale.amax(1) - pale.amin(1)) <= (x.amax(1) - x.amin(1)) + 1e-6).all()
    grey = x.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    torch.testing.assert_close(changed(grey, hue=1.2), grey, rtol=0, atol=1e-6)


def test_hue_is_scaled_as_colorsys_would() -> None:
    import colorsys

    x = torch.rand(1, 3, 4, 4, generator=generator(2, "test"))
    got = changed(x, hue=1.15)
    for row in range(4):
        for column in range(4):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, row, column].tolist())
            expected = colorsys.hsv_to_rgb(h * 1.15 % 1, s, v)
            assert got[0, :, row, column].tolist() == pytest.approx(expected, abs=1e-5)


def test_draws_stay_within_the_papers_ranges_and_use_them() -> None:
    drawn = draw(4000, generator(0, "augment")).double()
    factors = drawn[:, 4:]
    assert factors.min() >= 0.8
    assert factors.max() <= 1.2
    assert factors.max() - factors.min() > 0.39
    back = drawn[:, :4].view(-1, 2, 2)
    determinant = torch.linalg.det(back)
    assert 0.4 < float((determinant < 0).double().mean()) < 0.6  # mirrored
    scale = determinant.abs().rsqrt()
    assert scale.min() >= 0.8 - 1e-6
    assert scale.max() <= 1.2 + 1e-6
    # What is left without mirror and scale is a turn and a shear of up to ten degrees each.
    turned = back * scale.view(-1, 1, 1)
    angle = torch.rad2deg(torch.atan2(-turned[:, 1, 0], turned[:, 1, 1]))
    assert 9 < float(angle.abs().max()) <= 10 + 1e-4


def test_pairs_of_a_penalty_and_a_seed_are_the_networks_of_the_grid(digits: Dataset) -> None:
    grid = train_many(digits, ["2x6"], l1=[0, 1e-3], seeds=[0, 1], recipe=SHORT)
    pairs = train_many(digits, ["2x6"], networks=[(1e-3, 1), (0, 0), (1e-3, 1)], recipe=SHORT)
    assert [(one.l1, one.seed) for one in pairs] == [(1e-3, 1), (0.0, 0)]
    assert equal(pairs[0].module, grid[3].module)
    assert equal(pairs[1].module, grid[0].module)
    with pytest.raises(InputError, match="nothing to train"):
        train_many(digits, ["2x6"], networks=[], recipe=SHORT)
