"""The measurements themselves, one function for each stage."""

from __future__ import annotations

import base64
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relutrim.analysis import analyze_network
from relutrim.compression import compress_network
from relutrim.domain import Box, Domain, NormalizedBox
from relutrim.graph.graph import Network
from relutrim.graph.operators import Relu
from relutrim.holdout import held_out
from relutrim.io import load
from relutrim.paper.dataset import Array, Dataset
from relutrim.paper.reproduce.magnitude import magnitude_pruning
from relutrim.paper.reproduce.rows import key_of
from relutrim.prove.cascade import Known
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.rewrite.pipeline import rewrite
from relutrim.wish import allowed_deviation

if TYPE_CHECKING:
    from relutrim.paper.reproduce.task import Task

_ROWS = 2000
_FEW = 100


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, where its inputs lie, and the data it was trained for."""

    whole: Network
    domain: Domain
    dataset: Dataset
    hidden: bool = True
    """Whether only hidden neurons are looked at."""

    @cached_property
    def network(self) -> Network:
        """The network without ReLUs on its outputs. Autoencoders have these, and only hidden neurons can go:
        what they may be replaced with before a ReLU, they may be replaced with before it is applied.
        """
        if not self.hidden:
            return self.whole
        last = {source for source in self.whole.sources if isinstance(self.whole[source].operator, Relu)}
        outputs = tuple(
            replace(output, source=self.whole[output.source].inputs[0]) if output.source in last else output
            for output in self.whole.outputs
        )
        return self.whole.edit(change=dict.fromkeys(last), outputs=outputs) if last else self.whole

    @cached_property
    def train_rows(self) -> Array:
        """The training set in the domain's raw units."""
        return self._raw(self.dataset.x_train)

    @cached_property
    def test_rows(self) -> Array:
        """The test set in the domain's raw units."""
        return self._raw(self.dataset.x_test)

    def _raw(self, x: Array) -> Array:
        rows = x.reshape(len(x), -1)
        return rows / np.float32(255) if self.dataset.pixels else rows

    def answers(self, network: Network, masks: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """What a network says on the test set in float32: classes, or the rebuilt rows' mean squared error.
        ``masks`` are multiplied with the values they name.
        """
        rows = self._seen(self.test_rows)
        with torch.no_grad():
            batches = (torch.as_tensor(rows[at : at + _ROWS]) for at in range(0, len(rows), _ROWS))
            return torch.cat([_answer(network, batch, masks or {}) for batch in batches])

    def _seen(self, rows: Array) -> Array:
        if self.domain.std is None or self.domain.mean is None:
            return rows
        mean, std = (
            np.broadcast_to(v, rows.shape[1]).astype(np.float32) for v in (self.domain.mean, self.domain.std)
        )
        seen: Array = (rows - mean) / std
        return seen


def _answer(network: Network, rows: torch.Tensor, masks: Mapping[str, torch.Tensor]) -> torch.Tensor:
    values = {network.input.name: rows.reshape(len(rows), *network.input.shape)}
    for node in network.nodes:
        value = node.operator.forward([values[name] for name in node.inputs])
        values[node.name] = value * masks[node.name] if node.name in masks else value
    outputs = values[network.sources[0]].flatten(1)
    rebuilt = outputs.shape[1] == rows.shape[1]
    return ((outputs.relu() - rows) ** 2).mean(1) if rebuilt else outputs.argmax(1)


def opened(task: Task) -> Subject:
    """What a task is about, ready to be measured."""
    dataset = task.data.load()
    low, high = dataset.range
    domain = Box(low, high)
    if task.normalize:  # a number for each input: a dense network does not know of channels
        inputs = math.prod(dataset.shape)
        mean, std = (np.repeat(v, inputs // len(v)) for v in dataset.statistics)
        domain = NormalizedBox(low, high, mean, std)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        path.write_bytes(task.network)
        return Subject(load(path), domain, dataset)


def _auto(
    subject: Subject, *, time_limit: float, known: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Verdicts by proof; what LEO++ and all rewrites make of them, at several tolerances; the accuracy of
    each on the test set. ``known`` is what :func:`_hard` found.
    """
    network = subject.network
    if known is None:
        result = compress_network(
            network,
            subject.domain,
            method="auto",
            time_limit=time_limit,
            device="cpu",
            seed=0,
            jobs=1,
            progress=None,
        )
        stability, every, deviation = result.stability, result.stored, result.deviation.proven
    else:
        stability = _joined(subject, known, time_limit)
        found = rewrite(network, stability)
        every, deviation = found.stored, found.deviation_stored
    before = subject.answers(network)
    leo = rewrite(network, stability, rewrites="leo++")
    smaller = {"leo++": leo.stored, "all": every}
    proven = {"leo++": leo.deviation_stored, "all": deviation}
    for tolerance in ("rounding", "1e-6"):
        allowed = allowed_deviation(network, stability, tolerance if tolerance == "rounding" else 1e-6)
        found = rewrite(network, stability, allowed=allowed)
        smaller[tolerance], proven[tolerance] = found.stored, found.deviation_stored
    return {
        **verdicts(stability),
        "undecided": _undecided(stability),
        "size": size(network),
        **score(subject, before),
        "rewrites": {
            name: {
                "size": size(after),
                "proven": _finite(proven[name]),
                **score(subject, answers := subject.answers(after)),
                "changed": int((answers != before).sum()) if answers.dtype == torch.int64 else None,
            }
            for name, after in smaller.items()
        },
        "magnitude": magnitude_pruning(network, stability),
    }


def _undecided(stability: Stability) -> list[tuple[str, int]]:
    """The neurons that are left, if they are few: many are no hard neurons, but a hard network."""
    left = [(layer.name, i) for layer in stability.layers for i in layer.which(Verdict.UNKNOWN)]
    return left if len(left) <= _FEW else []


def _hard(subject: Subject, *, relu: str, neuron: int, time_limit: float) -> dict[str, Any]:
    """One neuron that an analysis has left, and all the time for it: proven ends of its pre-activation, or
    inputs that show both states.
    """
    among = frozenset({(relu, neuron)})
    stability = _analysis(subject, "auto", time_limit=time_limit, among=among)
    layer = stability[relu]
    rows = [layer.active_witness[neuron], layer.inactive_witness[neuron]]
    inputs = stability.witnesses[[row for row in rows if row >= 0]]
    verdict = Verdict(layer.verdict[neuron])
    known = {
        "relu": relu,
        "neuron": neuron,
        "lower": _finite(float(layer.lower[neuron])),
        "upper": _finite(float(layer.upper[neuron])),
        "inputs": [base64.b64encode(row.astype("<f8").tobytes()).decode() for row in inputs],
    }
    return {
        "seconds": round(stability.seconds, 4),
        "complete": verdict is not Verdict.UNKNOWN,
        "verdict": verdict.word,
        "layers": [[1, *(int(verdict is v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNKNOWN))]],
        "known": known,
        "seal": key_of(known),
    }


def _joined(subject: Subject, found: Sequence[Mapping[str, Any]], time_limit: float) -> Stability:
    """The analysis with what is known of some neurons."""
    bounds, inputs = [], [np.zeros((0, subject.network.input.size))]
    for one in found:
        for end, sign in (("lower", 1.0), ("upper", -1.0)):
            if one[end] is not None:
                bounds.append((one["relu"], one["neuron"], sign, sign * one[end]))
        inputs += [np.frombuffer(base64.b64decode(text), dtype="<f8")[None] for text in one["inputs"]]
    known = Known(tuple(bounds), torch.from_numpy(np.concatenate(inputs)))
    return _analysis(subject, "auto", time_limit=time_limit, known=known)


def _data(subject: Subject) -> dict[str, Any]:
    """The paper's inexact mode: what no row of the training set switches counts as stable."""
    stability = _analysis(subject, "data", data=subject.train_rows)
    tested = held_out(stability, subject.test_rows)
    before = subject.answers(subject.network)
    masks = {
        layer.name: torch.as_tensor((layer.verdict != Verdict.INACTIVE).reshape(layer.shape)).float()
        for layer in stability.layers
    }
    masked = subject.answers(subject.network, masks)
    return {
        **verdicts(stability),
        "stable": tested.stable,
        "contradicted": tested.contradicted,
        **score(subject, before),
        "masked": score(subject, masked),
    }


def _outputs(subject: Subject, *, time_limit: float) -> dict[str, Any]:
    """Stability with the output layer. If nothing is left to switch, the network is affine on its domain; if
    the outputs alone are, it is not yet known to be.
    """
    stability = _analysis(replace(subject, hidden=False), "auto", time_limit=time_limit)
    stable = all(
        layer.count(Verdict.ACTIVE) + layer.count(Verdict.INACTIVE) == layer.size
        for layer in stability.layers
    )
    return {**verdicts(stability), "affine": stable}


def _isa(subject: Subject, *, time_limit: float, solver: str, big_m: str) -> dict[str, Any]:
    """The paper's method, preprocessing included in its time."""
    programs: dict[str, Any] = {"time_limit": time_limit, "solver": solver, "big_m": big_m}
    return verdicts(_analysis(subject, "isa", data=subject.train_rows, **programs))


def _bare(subject: Subject, *, time_limit: float, solver: str, big_m: str) -> dict[str, Any]:
    return verdicts(_analysis(subject, "isa", time_limit=time_limit, solver=solver, big_m=big_m))


def _neuron(subject: Subject, *, time_limit: float, solver: str, big_m: str, inject: str) -> dict[str, Any]:
    programs: dict[str, Any] = {"solver": solver, "big_m": big_m, "inject": inject}
    return verdicts(_analysis(subject, "neuron", time_limit=time_limit, **programs))


def _sum(
    subject: Subject,
    *,
    time_limit: float,
    solver: str,
    big_m: str,
    auto_time_limit: float,
    between: list[float],
) -> dict[str, Any]:
    """Both methods on the inputs whose sum the training set has."""
    low, high = between
    cut = replace(subject, domain=subject.domain.sum_between(low, high))
    programs: dict[str, Any] = {"time_limit": time_limit, "solver": solver, "big_m": big_m}
    return {
        "auto": verdicts(_analysis(cut, "auto", time_limit=auto_time_limit)),
        "isa": verdicts(_analysis(cut, "isa", data=subject.train_rows, **programs)),
    }


def _analysis(
    subject: Subject, method: str, *, data: Any = None, time_limit: float | None = None, **more: Any
) -> Stability:
    return analyze_network(
        subject.network,
        subject.domain,
        data=data,
        method=method,
        time_limit=time_limit,
        device="cpu",
        seed=0,
        jobs=1,
        progress=None,
        **more,
    )


def verdicts(stability: Stability) -> dict[str, Any]:
    """What an analysis found, in numbers: per layer its size, then active, inactive and unknown neurons."""
    return {
        "seconds": round(stability.seconds, 4),
        "complete": stability.complete,
        "layers": [
            [layer.size, *(layer.count(v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNKNOWN))]
            for layer in stability.layers
        ],
        "by_solver": sum(int((layer.evidence == Evidence.SOLVER).sum()) for layer in stability.layers),
        "remarks": list(stability.remarks)[:3],
    }


def size(network: Network) -> dict[str, Any]:
    """Hidden neurons, connections and parameters; a ReLU on an output is not hidden."""
    hidden = [network.size(node.name) for node in network.relus if not network.is_output(node.name)]
    return {
        "neurons": sum(hidden),
        "connections": network.connections,
        "parameters": network.parameters,
        "hidden": hidden,
    }


def score(subject: Subject, answers: torch.Tensor) -> dict[str, float]:
    """The share of right answers, or the mean squared error."""
    if answers.dtype != torch.int64:
        return {"loss": float(answers.double().mean())}
    labels = torch.as_tensor(subject.dataset.y_test)
    return {"accuracy": float((answers == labels).double().mean())}


def _finite(number: float | None) -> float | None:
    return number if number is not None and abs(number) < float("inf") else None


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "auto": _auto,
    "hard": _hard,
    "data": _data,
    "outputs": _outputs,
    "isa": _isa,
    "sum": _sum,
    "bare": _bare,
    "neuron": _neuron,
}
