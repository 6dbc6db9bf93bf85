"""The paper's side experiments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relutrim.paper.reproduce import published as paper
from relutrim.paper.reproduce.cells import Cell
from relutrim.paper.reproduce.measured import Measured
from relutrim.paper.reproduce.numbers import geometric_mean, mean, median, per
from relutrim.paper.reproduce.table import Table


def side_tables(networks: Sequence[Measured], found: Sequence[Cell], experiment: str) -> Iterator[Table]:
    """Those that there are rows for."""
    tables = (
        _magnitude(networks),
        _inexact(networks, found, experiment),
        _sum(networks),
        _outputs(networks, found),
        _masks(found, experiment),
        _normalisation(found),
    )
    return (table for table in tables if table.rows)


def _magnitude(networks: Sequence[Measured]) -> Table:
    """When magnitude pruning would find what is removable at no cost."""
    table = Table("magnitude", "Beside magnitude pruning", ["what", "paper", "ours"], formats={"ours": ".2f"})
    found = [one.results["auto"]["magnitude"] for one in networks if "auto" in one.results]
    some = [one for one in found if one is not None]
    table.note = (
        f"Over the {len(some)} networks with stably inactive neurons, whose connections can go at no cost. "
        "Magnitude pruning removes connections by their absolute weight, smallest first."
    )
    if some:
        share = mean(100 * one["missed"] / one["removable"] for one in some)
        at = [100 * one["last"] for one in some]
        table.rows += [
            ["percentile at which it has found the last of them: mean", 99.0, mean(at)],
            ["percentile at which it has found the last of them: smallest", None, min(at)],
            [
                "percentile at which it has found half of them: mean",
                None,
                mean(100 * o["median"] for o in some),
            ],
            [
                "still there at the 99th percentile, % of them: mean",
                None,
                mean(100 * o["beyond_99"] for o in some),
            ],
            [
                "missed at the same ratio, % of all connections: mean",
                paper.MISSED_OF_ALL,
                mean(100 * one["missed"] / one["connections"] for one in some),
            ],
            ["missed at the same ratio, % of them: mean", paper.MISSED_OF_REMOVABLE, share],
        ]
    return table


def _inexact(networks: Sequence[Measured], found: Sequence[Cell], experiment: str) -> Table:
    """The training set alone."""
    columns = ["architecture", "l1", "networks", "stable on the training set %", "proved stable %"]
    columns += ["not stable on the test set %", "accuracy change if masked"]
    table = Table("inexact", "Preprocessing alone (inexact)", columns)
    table.note = (
        "Neurons that no training image switches; how many of them the test set switches; and what setting "
        "the inactive ones among them to 0 does to the accuracy, in points (to the loss, for autoencoders)."
    )
    table.formats = dict.fromkeys(columns[3:6], ".2f") | {"l1": "g", columns[6]: "+.3g"}

    def line(name: str, l1: float | None, some: Sequence[Measured]) -> list[str | float | None]:
        ran = [one for one in some if "data" in one.results]
        results = [one.results["data"] for one in ran]
        sizes = [sum(layer[0] for layer in one["layers"]) for one in results]
        both = [one for one in ran if "auto" in one.results]
        wrong = per(sum(one["contradicted"] for one in results), sum(one["stable"] for one in results), 100)
        return [
            name,
            l1,
            len(ran),
            mean(100 * one["stable"] / size for one, size in zip(results, sizes, strict=True)),
            mean(_stable(one) for one in both),
            wrong,
            mean(_change(one) for one in results),
        ]

    if any("data" in one.results for one in networks):
        printed = paper.DATA_STABLE.get(experiment), paper.DATA_WRONG.get(experiment)
        table.rows.append(["paper, all", None, None, printed[0], None, printed[1], None])
        main = [one for cell in found for one in cell.networks if not _is_side(cell)]
        table.rows.append(line("all", None, main))
        table.rows += [line(cell.name, cell.l1, cell.networks) for cell in found]
    return table


def _stable(one: Measured) -> float:
    layers = one.layers("auto")
    return 100 * sum(layer[1] + layer[2] for layer in layers) / sum(layer[0] for layer in layers)


def _change(result: dict[str, dict[str, float]]) -> float:
    kind, factor = ("accuracy", 100) if "accuracy" in result else ("loss", 1)
    before: float = result[kind]  # type: ignore[assignment]
    return factor * (result["masked"][kind] - before)


def _is_side(cell: Cell) -> bool:
    return cell.name.endswith(("-bn", "-normalized"))


def _sum(networks: Sequence[Measured]) -> Table:
    """The bound on the sum of the inputs."""
    columns = ["what", "paper (ISA)", "ISA", "auto"]
    table = Table("sum", "With 15 <= sum(x) <= 320", columns, formats=dict.fromkeys(columns[1:], ".1f"))
    table.note = "Compared where every neuron was decided both without and with the bound on the sum."
    ran = [one for one in networks if "sum" in one.results]
    if not ran:
        return table
    columns_of = {}
    for method in ("isa", "auto"):
        both = [one for one in ran if one.complete(method) and one.results["sum"][method]["complete"]]
        quotients = [per(one.results["sum"][method]["seconds"], one.seconds(method)) for one in both]
        ratios = [value for value in quotients if value is not None]
        middle = geometric_mean(ratios)
        more = [_decided(one.results["sum"][method]) - _decided(one.results[method]) for one in both]
        columns_of[method] = [
            float(len(both)),
            per(sum(value < 1 for value in ratios), len(ratios), 100),
            None if middle is None else 100 * (1 - middle),
            mean(more),
        ]
    names = [
        "networks",
        "faster with the bound, % of them",
        "geometric mean of the time went down by %",
        "more stable neurons with the bound: mean",
    ]
    printed = [None, paper.SUM_FASTER, paper.SUM_MEAN, None]
    for row in zip(names, printed, columns_of["isa"], columns_of["auto"], strict=True):
        table.rows.append(list(row))
    return table


def _decided(result: dict[str, list[list[int]]]) -> int:
    return sum(layer[1] + layer[2] for layer in result["layers"])


def _outputs(networks: Sequence[Measured], found: Sequence[Cell]) -> Table:
    """Autoencoders with their output layer."""
    columns = ["architecture", "l1", "networks", "hidden layers all stable", "outputs all stable", "affine"]
    columns += ["undecided", "mean s", "largest s"]
    table = Table("outputs", "Output layer of autoencoders", columns, formats={"l1": "g"})
    table.note = (
        "How many networks have only stable hidden neurons, only stable outputs, and both: these are one "
        "affine map on their domain. The paper: at l1 = 0.0002, three to four of five per architecture have "
        "all hidden layers stable; a few have a stable output layer; testing it takes 1 s on average and at "
        "most 25 s."
    )
    for cell in found:
        ran = [one for one in cell.networks if "outputs" in one.results]
        if not ran:
            continue
        layers = [one.layers("outputs") for one in ran]
        stable = [[layer[1] + layer[2] == layer[0] for layer in some] for some in layers]
        times = [one.seconds("outputs") for one in ran]
        table.rows.append(
            [
                cell.name,
                cell.l1,
                len(ran),
                sum(all(some[:-1]) for some in stable),
                sum(some[-1] for some in stable),
                sum(one.results["outputs"]["affine"] for one in ran),
                sum(not one.complete("outputs") for one in ran),
                mean(times),
                max(value for value in times if value is not None),
            ]
        )
    return table


def _masks(found: Sequence[Cell], experiment: str) -> Table:
    """LeNet: units that can be masked."""
    columns = ["network", "l1", "networks", "accuracy %", "paper: accuracy %", "masked by data %"]
    columns += [
        "paper: masked %",
        "not stable on the test set %",
        "accuracy % when masked",
        "proved inactive %",
    ]
    columns += ["undecided %"]
    table = Table("masks", "Masks of LeNet", columns, formats={"l1": "g"})
    table.note = (
        "Units that no training image switches on are masked as 0, as the paper does; *proved inactive* are "
        "those of which it is proved for every input of the domain."
    )
    if experiment != "lenet":
        return table
    table.formats |= dict.fromkeys(columns[3:], ".2f")
    for cell in found:
        ran = [one.results["data"] for one in cell.networks if "data" in one.results]
        proved = [one.layers("auto") for one in cell.networks if "auto" in one.results]
        printed = paper.LENET.get(cell.l1, (None, None)) if cell.name == "lenet" else (None, None)
        wrong = per(sum(one["contradicted"] for one in ran), sum(one["stable"] for one in ran), 100)
        table.rows.append(
            [
                cell.name,
                cell.l1,
                len(cell.networks),
                cell.score,
                printed[0],
                mean(_share(one["layers"], 2) for one in ran),
                printed[1],
                wrong,
                mean(100 * one["masked"]["accuracy"] for one in ran),
                mean(_share(layers, 2) for layers in proved),
                mean(_share(layers, 3) for layers in proved),
            ]
        )
    return table


def _share(layers: list[list[int]], column: int) -> float:
    return 100 * sum(layer[column] for layer in layers) / sum(layer[0] for layer in layers)


def _normalisation(found: Sequence[Cell]) -> Table:
    """Batch and data normalisation beside the plain network."""
    columns = ["architecture", "l1", "networks", "accuracy %", "auto s", "ISA s", "LEO++ connections %"]
    columns += ["all connections %", "auto undecided", "ISA undecided"]
    table = Table("normalisation", "Batch and data normalisation", columns, formats={"l1": "g"})
    table.formats |= {"accuracy %": ".2f", "auto s": ".3g", "ISA s": ".3g"}
    table.formats |= dict.fromkeys(columns[6:8], ".1f")
    table.note = "-bn has batch normalisation before every hidden ReLU, -normalized sees (x - mean) / std."
    side = [cell for cell in found if _is_side(cell)]
    plain = {cell.name.removesuffix("-bn").removesuffix("-normalized") for cell in side}
    penalties = {cell.l1 for cell in side}
    for cell in found:
        if cell in side or (cell.name in plain and cell.l1 in penalties):
            table.rows.append(
                [
                    cell.name,
                    cell.l1,
                    len(cell.networks),
                    cell.score,
                    cell.seconds,
                    median(one.seconds("isa") for one in cell.networks),
                    cell.mean("leo++", "connections"),
                    cell.mean("all", "connections"),
                    cell.undecided("auto"),
                    cell.undecided("isa"),
                ]
            )
    return table
