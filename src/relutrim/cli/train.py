"""``relutrim train``: the paper's networks, from data to files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relutrim.cli.domain import ManyNumbers
from relutrim.cli.talk import INTERRUPTED
from relutrim.errors import CheckFailed, one_line

if TYPE_CHECKING:
    from relutrim.paper.trained import Trained
    from relutrim.paper.training import Progress


class _ManyNetworks(ManyNumbers):
    """Penalties and seeds come in numbers."""

    many = ("--l1", "--seed")


@click.command(cls=_ManyNetworks)
@click.argument("dataset")
@click.argument("architectures", nargs=-1, required=True, metavar="ARCHITECTURE...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="FOLDER",
    help="Where the networks go. A run that was stopped goes on if the same command is given again.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where the data set's standard files lie.",
)
@click.option("--download", is_flag=True, help="Get the files if they are not there; needs torchvision.")
@click.option(
    "--l1",
    type=float,
    multiple=True,
    default=(0.0,),
    metavar="L..",
    help="Penalties on the weights [default: 0].",
)
@click.option(
    "--seed", "seeds", type=int, multiple=True, default=(0,), metavar="S..", help="Seeds [default: 0]."
)
@click.option("--epochs", type=int, default=120, show_default=True)
@click.option("--batch-size", type=int, default=128, show_default=True)
@click.option("--learning-rate", type=float, default=0.01, show_default=True)
@click.option(
    "--decay", type=float, default=0.1, show_default=True, help="What the learning rate is multiplied by"
)
@click.option("--decay-every", type=int, default=50, show_default=True, help="after so many epochs.")
@click.option("--momentum", type=float, default=0.9, show_default=True)
@click.option(
    "--augment/--no-augment",
    default=None,
    help="Mirror, turn, scale, shear and colour the pictures at random [default: for CIFAR].",
)
@click.option(
    "--normalize", is_flag=True, help="Train on (x - mean) / std; the domain is then a --normalized-box."
)
@click.option(
    "--initialisation",
    type=click.Choice(["normal", "uniform"]),
    help="How weights begin: Kaiming's normal, or torch's own uniform [default: for autoencoders].",
)
@click.option("--rows", type=click.IntRange(1), metavar="N", help="Train on the first N rows only.")
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="Where to compute.")
@click.option(
    "--at-once", type=click.IntRange(1), metavar="N", help="Networks trained together [default: all]."
)
@click.option("--state-dicts", is_flag=True, help="Write a .pt state dict beside each .onnx file.")
@click.option(
    "--checkpoint-every",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds between checkpoints.",
)
@click.option("--fresh", is_flag=True, help="Begin anew, whatever run lies in the output folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else.")
def train(dataset: str, architectures: tuple[str, ...], output: Path, as_json: bool, **options: Any) -> None:
    """Train networks with the paper's recipe: every ARCHITECTURE with every penalty and every seed.

    DATASET is mnist, fashion-mnist, cifar10 or cifar100 (standard files in --data-dir), one of these with
    synthetic- before it (made up, no files), or a .npz archive with x_train, y_train, x_test and y_test. An
    ARCHITECTURE is 2x100 (two hidden layers of 100), '100|10|100' or ae100-10-100 (an autoencoder), or lenet;
    with -bn behind it for batch normalisation. All networks of an architecture are trained at once.
    """
    from relutrim.paper.plan import plan
    from relutrim.paper.recipe import Recipe

    names = (
        "epochs",
        "batch_size",
        "learning_rate",
        "decay",
        "decay_every",
        "momentum",
        "augment",
        "normalize",
        "initialisation",
    )
    recipe = Recipe(**{name: options[name] for name in names})
    plan(architectures, options["l1"], options["seeds"], options["at_once"])  # before the data is read
    data = _rows(dataset, options)
    from relutrim.paper.folder import REPORT
    from relutrim.paper.training import train_many

    try:
        with _progress(as_json, recipe.epochs) as progress:
            made = train_many(
                data,
                architectures,
                l1=options["l1"],
                seeds=options["seeds"],
                recipe=recipe,
                device=options["device"],
                output=output,
                fresh=options["fresh"],
                state_dicts=options["state_dicts"],
                at_once=options["at_once"],
                checkpoint_every=options["checkpoint_every"],
                progress=progress,
            )
    except KeyboardInterrupt:
        click.echo("relutrim: interrupted; the same command goes on from the last checkpoint", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    if as_json:
        report = json.loads((output / REPORT).read_text(encoding="utf-8"))
        click.echo(json.dumps({"output": str(output), **report}, allow_nan=False))
    else:
        _show(made, output)
    if lost := [one.name for one in made if one.diverged]:
        raise CheckFailed(
            f"{', '.join(lost)}: the weights are no numbers any more and were not written; try a lower "
            "--learning-rate or --l1"
        )


def _rows(dataset: str, options: dict[str, Any]) -> Any:
    from relutrim.paper.download import obtain_dataset
    from relutrim.paper.sources import load_dataset

    folder: Path | None = options["data_dir"]
    data = (
        obtain_dataset(dataset, folder) if options["download"] and folder else load_dataset(dataset, folder)
    )
    return data if options["rows"] is None else data.head(options["rows"])


def _show(made: list[Trained], output: Path) -> None:
    from rich.table import Table

    from relutrim.report.tables import console

    classifiers = any(one.scores.test_accuracy is not None for one in made)
    table = Table(
        "network", *(["test accuracy", "train accuracy"] if classifiers else []), "test loss", "train loss"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for one in made:
        s = one.scores
        shares = [_cell(s.test_accuracy, ".2%"), _cell(s.train_accuracy, ".2%")] if classifiers else []
        table.add_row(one.name, *shares, _cell(s.test_loss, ".4g"), _cell(s.train_loss, ".4g"))
    console().print(table)
    click.echo(f"written to {one_line(str(output))}; inputs lie in {made[0].domain}")


def _cell(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


@contextmanager
def _progress(quiet: bool, epochs: int) -> Iterator[Progress | None]:
    """A bar on stderr for each batch of networks; none where nobody watches."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from relutrim.paper.training import Epoch

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs, loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(done: Epoch) -> None:
            if done.batch not in tasks:
                what = f"{done.batch} ({done.networks})"
                tasks[done.batch] = bar.add_task(what, total=epochs, loss="")
            span = f"{min(done.losses):.3g} to {max(done.losses):.3g}"
            bar.update(tasks[done.batch], completed=done.epoch, loss=span)

        yield tell
