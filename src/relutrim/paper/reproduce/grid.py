"""Which networks an experiment consists of, and what is measured on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relutrim.errors import InputError
from relutrim.paper.architecture import Kind, parse_architecture
from relutrim.paper.recipe import Recipe
from relutrim.paper.reproduce.options import NAMES

STEP = 2.5e-5
WIDE = ("2x100", "2x200", "2x400", "2x800")
DEEP = ("3x100", "4x100", "5x100")
AUTOENCODERS = ("100|10|100", "100|25|100", "100|50|100", "50|10|50", "200|10|200", "400|10|400")
BASELINE = WIDE[:3]
"""Where the paper compares with programs per neuron; without preprocessing it ran the first of them."""


def penalties(count: int) -> tuple[float, ...]:
    """0 and the multiples of 0.000025 that follow it.

    >>> penalties(4)
    (0.0, 2.5e-05, 5e-05, 7.5e-05)
    """
    return tuple(round(number * STEP, 6) for number in range(count))


@dataclass(frozen=True)
class Cell:
    """Networks of one architecture, trained together: every penalty with every seed."""

    architecture: str
    l1: tuple[float, ...]
    seeds: tuple[int, ...]
    normalize: bool = False

    @property
    def name(self) -> str:
        """The folder of its networks, and what tables call it."""
        return parse_architecture(self.architecture).name + ("-normalized" if self.normalize else "")

    @property
    def side(self) -> bool:
        """Whether it is there for a side experiment alone."""
        return self.normalize or parse_architecture(self.architecture).batch_norm


@dataclass(frozen=True)
class Grid:
    """An experiment: data, networks, how they are trained."""

    name: str
    dataset: str
    cells: tuple[Cell, ...]
    recipe: Recipe
    rows: int | None = None
    """Train on so many rows only."""

    def only(
        self,
        architectures: Sequence[str] = (),
        l1: Sequence[float] = (),
        seeds: Sequence[int] = (),
        epochs: int | None = None,
        rows: int | None = None,
    ) -> Grid:
        """The part that a user asks for. An architecture that is not in the grid is added with the penalties
        of the others; penalties, seeds, epochs and rows take the place of the grid's own.
        """
        known = {cell.name: cell for cell in self.cells}
        cells = []
        for text in dict.fromkeys(architectures):
            name = text if text in known else parse_architecture(text).name
            cells.append(known.get(name) or replace(self.cells[-1], architecture=text, normalize=False))
        chosen = tuple(
            replace(cell, l1=tuple(l1) or cell.l1, seeds=tuple(seeds) or cell.seeds)
            for cell in cells or self.cells
        )
        recipe = self.recipe if epochs is None else replace(self.recipe, epochs=epochs)
        return replace(self, cells=chosen, recipe=recipe, rows=rows or self.rows)


def grid(name: str, mode: str = "standard", *, synthetic: bool = False) -> Grid:
    """An experiment by name. ``paper`` is the paper's grid: 17 penalties at 2x100 and nine elsewhere, five
    seeds; ``standard`` the same with three seeds and nine penalties; ``quick`` a small part on less data,
    trained shorter, so that all of it takes minutes without a GPU.
    """
    if name not in NAMES:
        raise InputError(f"there is no experiment {name!r}; there are {', '.join(NAMES)}")
    dataset = {"autoencoder": "mnist", "lenet": "cifar10"}.get(name, name)
    dataset = f"synthetic-{dataset}" if synthetic else dataset
    # Said explicitly, so that rows of networks that began otherwise are not taken for the same.
    recipe = Recipe(initialisation="uniform" if name == "autoencoder" else None)
    if mode == "quick":
        # The penalty acts with every step: fewer steps have to be longer ones for it to show.
        recipe = replace(recipe, epochs=30, decay_every=20, learning_rate=0.05)
        return Grid(name, dataset, _quick(name), recipe, rows=12_000)
    return Grid(name, dataset, _whole(name, paper=mode == "paper"), recipe)


def _quick(name: str) -> tuple[Cell, ...]:
    one = (0,)
    if name == "autoencoder":
        return tuple(Cell(a, (0.0, 2e-5, 2e-4), one) for a in ("100|10|100", "50|10|50"))
    if name == "lenet":
        return (Cell("lenet", (0.0, 1.75e-4), one),)
    some = (0.0, 1e-4, 2e-4)
    return (
        Cell("2x100", (0.0, 5e-5, 1e-4, 1.5e-4, 2e-4, 3e-4), one),
        Cell("2x200", some, one),
        Cell("3x100", some, one),
        Cell("2x100-bn", (2e-4,), one),
        Cell("2x100", (2e-4,), one, normalize=True),
    )


def _whole(name: str, *, paper: bool) -> tuple[Cell, ...]:
    seeds = tuple(range(5 if paper else 3))
    if name == "autoencoder":
        return tuple(Cell(architecture, (0.0, 2e-5, 2e-4), seeds) for architecture in AUTOENCODERS)
    if name == "lenet":
        return (
            Cell("lenet", penalties(13) if paper else (0.0, 1e-4, 1.75e-4, 3e-4), seeds),
            Cell("lenet-bn", (0.0, 1.75e-4), seeds),
        )
    first = Cell(WIDE[0], penalties(17 if paper else 9), seeds)
    others = (Cell(architecture, penalties(9), seeds) for architecture in (*WIDE[1:], *DEEP))
    some = (0.0, 1e-4, 2e-4)
    side = (Cell("2x100-bn", some, seeds), Cell("2x100", some, seeds, normalize=True))
    return (first, *others, *side)


def is_autoencoder(architecture: str) -> bool:
    """Whether an architecture rebuilds its input."""
    return parse_architecture(architecture).kind is Kind.AUTOENCODER
