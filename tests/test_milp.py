"""The paper's methods on real solvers: never wrong, and complete where nothing is a tie."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from fractions import Fraction

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import relutrim
import strategies
from command_line import call
from relutrim.analysis import analyze_network
from relutrim.domain import Box, Domain
from relutrim.errors import InputError
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.milp import methods
from relutrim.milp.formulation import Formulation, State
from relutrim.milp.isa import Hunt, unseen
from relutrim.milp.methods import Milps
from relutrim.milp.settings import SOLVERS
from relutrim.milp.solver import Outcome, Status, solver
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.report.json import schema

slow = settings(suppress_health_check=list(HealthCheck), deadline=None)
WAYS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["isa", "layer", "neuron"]),
        "solver": st.sampled_from(SOLVERS),
        "big_m": st.sampled_from(["interval", "linear", "best"]),
        "inject": st.sampled_from(["relaxation", "random", "off"]),
        "until": st.sampled_from(["sign", "optimal"]),
    }
)
PLAIN = {"data": None, "device": "cpu", "seed": 0, "progress": None, "jobs": 1}


def as_domain(random: strategies.RandomDomain) -> Domain:
    domain = Box(random.lo, random.hi)
    if len(random.matrix):
        domain = domain.constrain(random.matrix, random.lower, random.upper)
    return domain


def assert_true(stability, exact) -> None:
    for layer in stability.layers:
        for neuron, (low, high) in enumerate(exact[layer.name]):
            verdict = Verdict(layer.verdict[neuron])
            assert verdict is not Verdict.ACTIVE or low >= 0, (layer.name, neuron, low, high)
            assert verdict is not Verdict.INACTIVE or high <= 0, (layer.name, neuron, low, high)
            assert verdict is not Verdict.UNSTABLE or low < 0 < high, (layer.name, neuron, low, high)


def test_the_rows_hold_for_every_input_and_the_values_are_the_networks():
    generator = np.random.default_rng(3)
    layers = [
        Linear(generator.normal(size=(5, 3)), generator.normal(size=5)),
        Linear(generator.normal(size=(4, 5)), generator.normal(size=4)),
    ]
    network = stacked(layers)
    cascade = Cascade(Box(-1, 1).fit(network), Deadline())
    cascade.bound(search=False)
    relus = [relu.name for relu in network.relus]
    states = unseen(cascade, relus)
    formulation = Formulation(cascade.backward, cascade.values, relus)
    model = formulation.states(states)
    for x in generator.uniform(-1, 1, size=(50, 3)):
        values = network.run(torch.as_tensor(x)[None])
        v = np.zeros(model.lo.size)
        v[model.inputs] = x
        binaries = iter(
            formulation.binaries({n: values[n] > 0 for n in formulation.pre_activations}).tolist()
        )
        at = len(x)
        for relu in network.relus:
            pre = values[relu.inputs[0]][0].numpy()
            known = cascade.values[relu.inputs[0]]
            kept = known.hi.numpy().flatten() > 0
            loose = kept & (known.lo.numpy().flatten() < 0)
            for part in (np.maximum(pre[kept], 0), np.maximum(-pre[loose], 0)):
                v[at : at + part.size] = part
                at += part.size
            v[at : at + loose.sum()] = [next(binaries) for _ in range(int(loose.sum()))]
            at += int(loose.sum())
        for state, mark in zip(states, model.marks.tolist(), strict=True):
            pre = float(values[network[state.relu].inputs[0]][0, state.neuron])
            v[mark] = (pre > 0) == state.on
        rows = np.add.reduceat(model.value * v[model.index], model.start[:-1])
        assert (rows >= model.row_lo - 1e-9).all()
        assert (rows <= model.row_hi + 1e-9).all()
        assert (v >= model.lo - 1e-9).all()
        assert (v <= model.hi + 1e-9).all()


def stacked(layers: list[Linear]) -> Network:
    nodes, last = [], "x"
    for i, layer in enumerate(layers):
        nodes += [Node(f"linear{i}", layer, (last,)), Node(f"relu{i}", Relu(), (f"linear{i}",))]
        last = f"relu{i}"
    return Network(Port("x", (layers[0].weight.shape[1],)), tuple(nodes), (Output("y", last),))


@settings(slow, max_examples=120)
@given(strategies.problems(max_layers=3), WAYS)
def test_no_method_on_any_solver_is_ever_wrong(problem, ways):
    network, random = problem
    stability = analyze_network(network, as_domain(random), time_limit=10.0, **PLAIN, **ways)
    assert_true(stability, oracle.exact_ranges(network, random.polytope))


@settings(slow, max_examples=60)
@given(strategies.problems(max_layers=3, extreme=False), WAYS)
def test_what_rests_on_a_solvers_word_alone_is_true(problem, ways):
    network, random = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Milps, "_prove", lambda self, states: self._left(states))
        stability = analyze_network(network, as_domain(random), time_limit=10.0, **PLAIN, **ways)
    exact = oracle.exact_ranges(network, random.polytope)
    assert_true(stability, exact)
    for layer in stability.layers:
        for neuron in np.flatnonzero(layer.evidence == Evidence.SOLVER):
            low, high = exact[layer.name][neuron]
            assert layer.margin[neuron] > 0
            assert Fraction(layer.margin[neuron]) <= max(low, -high)


@settings(slow, max_examples=60)
@given(strategies.problems(max_layers=3, extreme=False), WAYS)
def test_everything_that_is_not_a_tie_is_decided(problem, ways):
    network, random = problem
    if len(random.matrix):
        return  # equality constraints leave no witness that provably lies in the domain
    stability = analyze_network(network, as_domain(random), time_limit=60.0, **PLAIN, **ways)
    exact = oracle.exact_ranges(network, random.polytope)
    for layer in stability.layers:
        for neuron in layer.which(Verdict.UNKNOWN):
            low, high = exact[layer.name][neuron]
            assert min(abs(low), abs(high)) < Fraction(1, 1000), (layer.name, neuron, low, high)


# --- faults -------------------------------------------------------------------------------------------------


@dataclass
class Faulty:
    """A solver that does what the test says, around the real one."""

    kind: str
    seed: int = 0
    calls: int = field(default=0, init=False)

    def maximize(self, model, watcher, deadline, tolerance, seed) -> Outcome:
        self.calls += 1
        random = np.random.default_rng(self.seed + self.calls)
        real = solver("highs")
        match self.kind:
            case "raises":
                raise RuntimeError("boom")
            case "garbage":
                for _ in range(5):
                    values = random.choice([np.nan, np.inf, -1e300, 0.0, 1.0, 0.5], size=model.lo.size)
                    watcher.solution(values)
                    watcher.relaxation(values)
                return Outcome(Status.FINISHED, math.nan)
            case "claims everything":
                watcher.solution(model.hi.copy())
                return Outcome(Status.FINISHED, model.cutoff if len(model.marks) else math.nan)
            case "nothing is possible":
                return Outcome(Status.FINISHED, -1e-12)
            case "killed":
                return real.maximize(model, watcher, Deadline(random.uniform(0, 0.01)), tolerance, seed)
            case "limit with a bound":
                return Outcome(Status.LIMIT, -1e6)
            case "failed with a bound":
                return Outcome(Status.FAILED, -1e6, why="it says")
            case "off by its tolerance":
                found = real.maximize(model, watcher, deadline, tolerance, seed)
                return Outcome(found.status, found.bound - tolerance, found.nodes)
        raise AssertionError(self.kind)


FAULTS = (
    "raises",
    "garbage",
    "claims everything",
    "nothing is possible",
    "killed",
    "limit with a bound",
    "failed with a bound",
    "off by its tolerance",
)


@pytest.mark.parametrize("kind", FAULTS)
@settings(slow, max_examples=12)
@given(strategies.problems(max_layers=3), st.sampled_from(["isa", "layer", "neuron"]), st.booleans())
def test_a_faulty_solver_makes_no_wrong_verdict(kind, problem, method, prover):
    network, random = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "solver", lambda _: Faulty(kind))
        if not prover:
            patch.setattr(Milps, "_prove", lambda self, states: self._left(states))
        stability = analyze_network(
            network, as_domain(random), method=method, big_m="interval", time_limit=10.0, **PLAIN
        )
    assert_true(stability, oracle.exact_ranges(network, random.polytope))


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("where", ["solution", "relaxation", "enough", "states"])
def test_an_error_in_a_callback_is_a_remark_and_nothing_is_stable(monkeypatch, name, where):
    def broken(self, *_):
        raise ZeroDivisionError("in a callback")

    monkeypatch.setattr(Hunt, where, broken)
    monkeypatch.setattr(Cascade, "bound", lambda self, search: None)
    stability = analyze_network(hidden(), Box(0, 1), method="isa", solver=name, time_limit=20.0, **PLAIN)
    layer = stability.layers[1]
    if name == "highs" or where in ("solution", "enough"):  # the rest needs larger programs
        assert "in a callback" in stability.remarks[0]
    assert not layer.which(Verdict.INACTIVE)
    assert not layer.which(Verdict.ACTIVE)


def hidden() -> Network:
    """A neuron that is on only in the middle of the box, which no corner and no bound shows."""
    first = Linear(np.array([[1.0], [-1.0]]), np.array([-0.5, 0.5]))
    return stacked([first, Linear(np.array([[-1.0, -1.0]]), np.array([0.01]))])


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("method", ["isa", "layer", "neuron"])
def test_a_hidden_state_is_found_and_an_impossible_one_is_not(name, method):
    options = {"method": method, "solver": name, "time_limit": 60.0, "big_m": "interval", "inject": "off"}
    assert analyze_network(hidden(), Box(0, 1), **PLAIN, **options).layers[1].which(Verdict.UNSTABLE) == [0]
    never = stacked(
        [
            Linear(np.array([[1.0], [-1.0]]), np.array([-0.5, 0.5])),
            Linear(np.array([[-1.0, -1.0], [1.0, 1.0]]), np.array([-0.01, -0.6])),
        ]
    )
    found = analyze_network(never, Box(0, 1), **PLAIN, **options).layers[1]
    assert found.which(Verdict.INACTIVE) == [0, 1]


@pytest.mark.parametrize("name", SOLVERS)
def test_a_tie_is_pending_and_never_stable_on_a_solvers_word(monkeypatch, name):
    """The second neuron's maximum is exactly 0: inactive, but no solver can say so with a margin."""
    monkeypatch.setattr(Milps, "_prove", lambda self, states: self._left(states))
    tie = stacked(
        [
            Linear(np.array([[1.0], [-1.0]]), np.array([-0.3, 0.3])),
            Linear(np.array([[-1.0, -1.0]]), np.array([0.0])),
        ]
    )
    found = analyze_network(
        tie, Box(0, 1), method="isa", solver=name, big_m="interval", time_limit=20.0, **PLAIN
    )
    assert not found.layers[1].which(Verdict.ACTIVE)
    assert not found.layers[1].which(Verdict.UNSTABLE)
    assert not (found.layers[1].evidence == Evidence.SOLVER).any()


def test_states_come_from_the_network_and_not_from_the_solver():
    cascade = Cascade(Box(0, 1).fit(hidden()), Deadline())
    formulation = Formulation(cascade.backward, cascade.values, ["relu0", "relu1"])
    hunt = Hunt(cascade, formulation, [State("relu1", 0, True)])
    values = hunt.model.hi.copy()
    values[hunt.model.inputs] = 0.0  # where the neuron is off, whatever p says
    hunt.cascade.deadline.call_off()  # no climbing from there
    assert hunt.solution(values) == hunt.model.marks.tolist()
    assert hunt.pending == [State("relu1", 0, True)]
    assert int(cascade.witnesses.seen["relu1"].active[0]) < 0


# --- the rest -----------------------------------------------------------------------------------------------


def test_a_missing_solver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyscipopt", None)
    with pytest.raises(InputError, match=r"relutrim\[scip\]"):
        relutrim.analyze(hidden(), Box(0, 1), method="isa", solver="scip")


@pytest.mark.parametrize("method", ["isa", "layer", "neuron"])
def test_the_command_prints_what_its_schema_says(method, tmp_path, capsys):
    relutrim.save(hidden(), tmp_path / "m.onnx")
    command = [
        "analyze",
        tmp_path / "m.onnx",
        "--box",
        "0",
        "1",
        "--json",
        "--details",
        "--big-m",
        "interval",
    ]
    done = call(capsys, *command, "--method", method, "--time-limit", "60")
    found = json.loads(done.out)
    jsonschema.validate(found, schema("analysis"))
    assert (done.code, found["method"], found["solver"], found["complete"]) == (0, method, "highs", True)
    stopped = json.loads(call(capsys, *command, "--method", method, "--time-limit", "0").out)
    assert not stopped["complete"]


def test_a_missing_solver_ends_the_command_with_code_2(monkeypatch, tmp_path, capsys):
    relutrim.save(hidden(), tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    command = ["analyze", tmp_path / "m.onnx", "--box", "0", "1", "--method", "isa", "--solver", "gurobi"]
    done = call(capsys, *command)
    assert done.code == 2
    assert "relutrim[gurobi]" in done.err


def test_an_interruption_in_a_callback_leaves_what_is_known(monkeypatch):
    def interrupted(self, *_):
        raise KeyboardInterrupt

    for name in SOLVERS:
        for where in ("solution", "relaxation", "enough"):
            with monkeypatch.context() as patch:
                patch.setattr(Hunt, where, interrupted)
                found = analyze_network(
                    hidden(), Box(0, 1), method="isa", solver=name, big_m="interval", time_limit=20.0, **PLAIN
                )
            assert found.interrupted or found.complete
            assert not found.layers[1].which(Verdict.INACTIVE)


@pytest.mark.parametrize("option", ["solver", "big_m", "inject", "until"])
def test_what_does_not_exist_is_refused_by_name(option):
    with pytest.raises(InputError, match="'nonsense'"):
        relutrim.analyze(hidden(), Box(0, 1), method="isa", **{option: "nonsense"})


def test_a_program_beyond_gurobis_licence_says_so():
    wide = stacked(
        [Linear(np.ones((300, 1500)) / 1500, np.full(300, -0.5)), Linear(-np.ones((1, 300)), [1.0])]
    )
    with pytest.raises(InputError, match="licence"):
        analyze_network(wide, Box(0, 1), method="isa", solver="gurobi", time_limit=60.0, **PLAIN)


def test_data_is_the_preprocessing_of_isa():
    data = np.array([[0.5], [0.0], [7.0]])
    stability = analyze_network(hidden(), Box(0, 1), method="isa", time_limit=60.0, **{**PLAIN, "data": data})
    assert stability.data_rows_outside == 1
    assert stability.layers[1].which(Verdict.UNSTABLE) == [0]
    assert {0.0, 0.5} <= set(stability.witnesses[:, 0].tolist())


def test_no_time_leaves_unknown_on_every_solver():
    for name in SOLVERS:
        stability = analyze_network(
            hidden(), Box(0, 1), method="isa", solver=name, big_m="interval", time_limit=0.0, **PLAIN
        )
        assert stability.layers[1].which(Verdict.UNKNOWN) == [0]
        assert not stability.complete


def test_a_2x100_network_gets_the_verdicts_of_auto(shared):
    path = shared / "networks" / "paper" / "mnist_2x100_l1_0.0002_s0.onnx"
    auto = relutrim.analyze(path, Box(0, 1))
    for name in SOLVERS:
        isa = relutrim.analyze(path, Box(0, 1), method="isa", solver=name, time_limit=120)
        for one, other in zip(auto.layers, isa.layers, strict=True):
            assert one.verdict.tolist() == other.verdict.tolist()
