"""A run that dies goes on from its journal, to the same verdicts; whatever is in it, no verdict is wrong."""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import relutrim
from command_line import call
from relutrim.errors import JournalError
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.io import load, save
from relutrim.journal import NAME, identity, trees
from relutrim.journal import file as journal_file
from relutrim.journal.frames import frame, frames
from relutrim.journal.identity import content_digest
from relutrim.journal.journal import Journal
from relutrim.journal.records import packed, unpacked
from relutrim.prove import splitting, tree_search
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull import thicket
from relutrim.prove.hunt import Hunt
from relutrim.prove.stability import Stability

BOX = relutrim.Box(-1, 1)


def random_network(seed: int, widths: list[int]) -> Network:
    random = np.random.default_rng(seed)
    nodes, current = [], "x"
    for k, (before, size) in enumerate(pairwise(widths)):
        weight, bias = random.normal(size=(size, before)) / before**0.5, 0.7 * random.normal(size=size)
        nodes.append(Node(f"linear{k}", Linear(weight, bias), (current,)))
        if k < len(widths) - 2:
            nodes.append(Node(f"relu{k}", Relu(), (f"linear{k}",)))
        current = nodes[-1].name
    return Network(Port("x", (widths[0],)), tuple(nodes), (Output("y", current),), dtype="float64")


def analyse(network: Network, folder: Path | None, **options) -> Stability:
    return relutrim.analyze(network, BOX, jobs=1, journal=folder, **options)


def verdicts(stability: Stability) -> list[list[int]]:
    return [layer.verdict.tolist() for layer in stability.layers]


def content(folder: Path) -> bytes:
    return (folder / NAME).read_bytes()


def begun(folder: Path, data: bytes) -> Path:
    """A folder with this journal."""
    folder.mkdir()
    (folder / NAME).write_bytes(data)
    return folder


@pytest.fixture(autouse=True)
def everything_written(monkeypatch):
    """Every node and every part at once, not only now and then."""
    monkeypatch.setattr(trees, "_SECONDS", 0.0)
    monkeypatch.setattr(splitting, "_SECONDS", 0.0)


@pytest.fixture(scope="module")
def branching() -> Network:
    """Bounds and searches leave neurons to trees with several leaves."""
    return random_network(10, [8, 8, 8, 6, 2])


@pytest.fixture(scope="module")
def few_inputs() -> Network:
    """Bounds and searches leave neurons to splitting the domain."""
    return random_network(2, [4, 10, 10, 6, 2])


@pytest.fixture(scope="module")
def finished(branching, tmp_path_factory) -> tuple[Stability, bytes]:
    """The outcome of a run, and its journal."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "_SECONDS", 0.0)
        found = analyse(branching, folder)
    assert found.complete
    assert found.nodes > 3
    return found, content(folder)


def test_a_journal_changes_no_verdict(branching, finished):
    assert verdicts(analyse(branching, None)) == verdicts(finished[0])
    assert finished[0].remarks == ()


def test_a_run_that_dies_between_two_records_goes_on_to_the_same_verdicts(branching, finished, tmp_path):
    expected, data = finished
    ends = [one.end for one in frames(data)]
    assert len(ends) > 12
    assert {unpacked(one.content)["kind"] for one in frames(data)} == {
        *("header", "inputs", "value", "tree", "growth", "end")
    }
    for end in [0, *ends]:
        folder = begun(tmp_path / str(end), data[:end])
        found = analyse(branching, folder)
        assert verdicts(found) == verdicts(expected)
        assert ("went on from" in "".join(found.remarks)) == (end > ends[0])
        assert content(folder)[:end] == data[:end]


def test_a_run_that_dies_in_the_middle_of_a_record_loses_that_record(branching, finished, tmp_path):
    expected, data = finished
    for end in random.Random(0).sample(range(1, len(data)), 12):
        folder = begun(tmp_path / str(end), data[:end])
        found = analyse(branching, folder)
        assert verdicts(found) == verdicts(expected)
        assert "cut off" in found.remarks[0]
        pieces = list(frames(content(folder)))
        assert sum(one.end - one.start for one in pieces) == len(content(folder))


def test_short_turns_and_restarts_go_on_too(branching, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(tree_search, "_TURNS", (1, 2, 4, 64))
    rounds = []
    before = Hunt._restart
    monkeypatch.setattr(Hunt, "_restart", lambda self, phase: rounds.append(phase) or before(self, phase))
    folder = tmp_path / "whole"
    whole = analyse(branching, folder)
    assert rounds
    assert verdicts(whole) == verdicts(finished[0])
    data = content(folder)
    for end in [one.end for one in frames(data)][::4]:
        found = analyse(branching, begun(tmp_path / str(end), data[:end]))
        assert verdicts(found) == verdicts(whole)


def test_what_was_swept_is_not_swept_again(branching, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(tree_search, "_MANY", 0.0)
    swept = []
    before = tree_search.sweep

    def counted(trees, *rest):
        swept.append(sum(math.isnan(tree.lower) for tree in trees))
        before(trees, *rest)

    monkeypatch.setattr(tree_search, "sweep", counted)
    folder = tmp_path / "whole"
    whole = analyse(branching, folder)
    assert sum(swept) > 0
    assert verdicts(whole) == verdicts(finished[0])
    data = content(folder)
    for end in [one.end for one in frames(data)][::16]:
        found = analyse(branching, begun(tmp_path / str(end), data[:end]))
        assert verdicts(found) == verdicts(whole)
    swept.clear()
    analyse(branching, begun(tmp_path / "again", data))
    assert sum(swept) == 0


def test_a_run_that_dies_again_and_again_comes_to_its_end(branching, finished, tmp_path):
    """Each run leaves a little more than the one before."""
    folder, chance = tmp_path / "journal", random.Random(1)
    for _ in range(6):
        analyse(branching, folder)
        data = content(folder)
        kept = min(len(data), chance.randrange(len(finished[1])))
        (folder / NAME).write_bytes(data[:kept])
    assert verdicts(analyse(branching, folder)) == verdicts(finished[0])


def test_damage_is_found_and_the_good_part_is_used(branching, finished, tmp_path):
    expected, data = finished
    chance = random.Random(2)
    for number in range(12):
        at = chance.randrange(len(data))
        folder = begun(
            tmp_path / str(number), data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        )
        found = analyse(branching, folder)
        assert verdicts(found) == verdicts(expected)
        assert "damaged" in found.remarks[0] or "cut off" in found.remarks[0]
        assert "went on from" in found.remarks[-1]


def test_a_finished_journal_needs_no_search_and_no_solver(branching, finished, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("this was known")

    monkeypatch.setattr("relutrim.prove.hull.thicket.climb", never)
    monkeypatch.setattr("relutrim.prove.hunt.anneal", never)
    monkeypatch.setattr("relutrim.prove.hunt.climb", never)
    folder = begun(tmp_path / "journal", finished[1])
    found = analyse(branching, folder)
    assert verdicts(found) == verdicts(finished[0])
    assert found.nodes == finished[0].nodes
    assert content(folder) == finished[1]


def test_closed_leaves_are_not_solved_again(branching, finished, tmp_path, monkeypatch):
    """The last leaf is missing, and only that."""
    data = finished[1]
    growth = [one for one in frames(data) if unpacked(one.content)["kind"] == "growth"][-1]
    assert unpacked(growth.content)["leaves_before"] > 1
    before, solved = thicket.climb, []
    monkeypatch.setattr(
        thicket, "climb", lambda *given, **options: solved.append(1) or before(*given, **options)
    )
    found = analyse(branching, begun(tmp_path / "journal", data[: growth.start]))
    assert verdicts(found) == verdicts(finished[0])
    everything = len(solved)
    solved.clear()
    analyse(branching, None)
    assert 0 < everything <= len(solved) / 2


def test_inputs_at_hand_are_tried_though_the_journal_has_another_step_of_that_name(branching, tmp_path):
    problem, header = BOX.fit(branching), {"schema": "a test's"}
    first = Journal(tmp_path, header)
    first.remember(first.key("turn"), torch.zeros(0, 8))
    first.close()
    second = Journal(tmp_path, header)
    cascade = Cascade(problem, Deadline(), journal=second)
    cascade.look("turn", lambda: torch.zeros(1, 8, dtype=torch.float64), cheap=True)
    second.close()
    assert len(cascade.witnesses.inputs()) == 1
    third = Journal(tmp_path, header)
    assert len(third.rest(cascade.region.lo)) == 1
    third.close()


def forged(data: bytes, chance: random.Random) -> bytes:
    """The same journal with a few numbers changed in ways that suit a liar, and with the right checksums."""
    out = b""
    for one in frames(data):
        record = unpacked(one.content)
        if record["kind"] not in ("header", "end") and chance.random() < 0.4:
            arrays = [name for name, value in record.items() if isinstance(value, np.ndarray) and value.size]
            for name in chance.sample(arrays, min(len(arrays), 2)):
                _lie(record, name, chance)
            for name in ("nodes", "leaves_before", "droppable"):
                if name in record and chance.random() < 0.1:
                    record[name] = chance.choice([0, 1, 7, -1, 1e9])
        out += frame(one.owner, packed(record))
    return out


def _lie(record: dict, name: str, chance: random.Random) -> None:
    array = record[name]
    at = chance.randrange(array.size)
    kind = chance.choice(["one", "all", "short", "none", "swap"])
    if kind == "one" and array.dtype.kind == "f":
        array.flat[at] = chance.choice([np.nan, np.inf, -np.inf, 1e300, 0.0, 5.0, -array.flat[at]])
    elif kind == "one":
        array.flat[at] = chance.choice([0, 1, 3, 255 if array.dtype.itemsize == 1 else -1])
    elif kind == "all":
        array[...] = array * 0 if chance.random() < 0.5 else array[::-1].copy()
    elif kind == "short":
        record[name] = array[:-1]
    elif kind == "none":
        record[name] = array[:0]
    else:
        record[name] = np.roll(array, 1, axis=0)


@pytest.mark.parametrize("seed", range(16))
def test_nothing_in_a_journal_is_believed(branching, finished, tmp_path, seed):
    folder = begun(tmp_path / "journal", forged(finished[1], random.Random(seed)))
    assert verdicts(analyse(branching, folder)) == verdicts(finished[0])


def test_leaves_that_do_not_cover_every_case_prove_nothing(branching, finished, tmp_path):
    """Nodes that waited are said to be none: a checksum says that this was written, not that it is true."""
    out = b""
    for one in frames(finished[1]):
        record = unpacked(one.content)
        if record["kind"] == "growth":
            for name in ("open_states_each", "open_states", "open_on"):
                record[name] = record[name][:0]
        out += frame(one.owner, packed(record))
    assert verdicts(analyse(branching, begun(tmp_path / "journal", out))) == verdicts(finished[0])


def test_inputs_outside_of_the_domain_show_nothing(branching, finished, tmp_path):
    out = b""
    for one in frames(finished[1]):
        record = unpacked(one.content)
        if record["kind"] == "inputs":
            record["points"] = 100 * np.random.default_rng(0).normal(size=(50, 8))
        out += frame(one.owner, packed(record))
    found = analyse(branching, begun(tmp_path / "journal", out))
    for mine, layer in zip(verdicts(found), verdicts(finished[0]), strict=True):
        assert all(a in (0, b) for a, b in zip(mine, layer, strict=True))
    assert (np.abs(found.witnesses) <= 1).all()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model": None}, "another model"),
        ({"domain": relutrim.Box(-1, 0.5)}, "another domain"),
        ({"domain": BOX.sum_between(-4, 4)}, "another domain"),
        ({"seed": 1}, "its seed is 0, and this run's is 1"),
        ({"method": "bounds"}, "its method is 'auto', and this run's is 'bounds'"),
        ({"data": np.zeros((2, 8))}, "another data"),
    ],
)
def test_a_journal_of_something_else_is_refused_and_left_as_it_is(
    branching, finished, tmp_path, change, word
):
    folder = begun(tmp_path / "journal", finished[1])
    network = branching
    if "model" in change:
        first = branching.nodes[0].operator
        weight = first.weight.copy()
        weight[0, 0] = np.nextafter(weight[0, 0], 9)
        network = replace(
            branching, nodes=(Node("linear0", Linear(weight, first.bias), ("x",)), *branching.nodes[1:])
        )
    given = {"domain": BOX, **{k: v for k, v in change.items() if k != "model"}}
    with pytest.raises(JournalError) as error:
        relutrim.analyze(network, journal=folder, **given)
    for part in (str(folder / NAME), word, "Name another folder"):
        assert part in str(error.value)
    assert content(folder) == finished[1]


def test_journals_of_the_kind_before_are_refused_with_what_to_do(branching, tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "SCHEMA", "relutrim/journal/1")
    analyse(branching, tmp_path, time_limit=0)
    monkeypatch.undo()
    with pytest.raises(JournalError, match=r"relutrim/journal/1.*another version wrote.*Name another folder"):
        analyse(branching, tmp_path)


def test_records_of_something_else_are_refused_without_their_header_too(branching, finished, tmp_path):
    folder = begun(tmp_path / "journal", finished[1][10:])
    with pytest.raises(JournalError, match="another analysis"):
        analyse(branching, folder, seed=3)
    assert verdicts(analyse(branching, folder)) == verdicts(finished[0])


def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(branching, tmp_path):
    folder = begun(tmp_path / "journal", b"my only copy of something")
    with pytest.raises(JournalError, match="this is no journal"):
        analyse(branching, folder)
    assert content(folder) == b"my only copy of something"


def test_limits_jobs_and_how_the_model_is_given_may_change(branching, finished, tmp_path):
    folder = tmp_path / "journal"
    without = analyse(branching, folder, time_limit=0)
    assert not without.complete
    found = relutrim.analyze(branching, BOX, jobs=3, time_limit=100, journal=str(folder))
    assert verdicts(found) == verdicts(finished[0])
    path = tmp_path / "model.onnx"
    save(branching, path)
    other = tmp_path / "other"
    relutrim.analyze(path, BOX, journal=other)
    assert "went on" in relutrim.analyze(load(path), BOX, journal=other).remarks[-1]


def test_two_runs_never_write_at_once(branching, finished, tmp_path):
    folder = begun(tmp_path / "journal", finished[1])
    met = []

    def look(*_) -> None:
        if not met:
            with pytest.raises(JournalError, match="another run is writing this journal") as error:
                analyse(branching, folder)
            met.append(error)

    analyse(branching, folder, progress=look)
    assert met
    analyse(branching, folder)  # the lock went with the run


def test_progress_says_that_a_run_goes_on(branching, finished, tmp_path):
    stages = []
    folder = begun(tmp_path / "journal", finished[1])
    analyse(branching, folder, progress=lambda stage, *_: stages.append(stage))
    assert stages[0] == "resume"
    stages.clear()
    analyse(branching, tmp_path / "new", progress=lambda stage, *_: stages.append(stage))
    assert "resume" not in stages


def test_ctrl_c_leaves_a_good_journal(branching, finished, tmp_path):
    folder = tmp_path / "journal"
    for patience in (2, 4, 6):
        left = [patience]

        def interrupt(*_, left=left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

        assert analyse(branching, folder, progress=interrupt).interrupted
        assert list(frames(content(folder)))[-1].end == len(content(folder))
    assert verdicts(analyse(branching, folder)) == verdicts(finished[0])


@pytest.mark.parametrize("after", [0, 1, 4, 9, 16])
def test_a_full_disk_is_an_error_and_what_was_written_is_good(
    branching, finished, tmp_path, monkeypatch, after
):
    write, left = os.write, [after]

    def full(handle: int, data: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            write(handle, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data)

    folder = tmp_path / "journal"
    monkeypatch.setattr(journal_file.os, "write", full)
    with pytest.raises(JournalError, match="No space left on device") as error:
        analyse(branching, folder)
    assert str(folder / NAME) in str(error.value)
    monkeypatch.undo()
    assert len(list(frames(content(folder)))) == after
    assert verdicts(analyse(branching, folder)) == verdicts(finished[0])


def test_a_folder_that_cannot_be_written_to_is_an_error_before_anything_starts(
    branching, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="a journal cannot be kept here"):
        analyse(branching, tmp_path / "file" / "journal")

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(journal_file.os, "open", denied)
    with pytest.raises(JournalError, match="Permission denied"):
        analyse(branching, tmp_path / "journal")


def test_splitting_the_domain_goes_on_too(few_inputs, tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    expected = analyse(few_inputs, whole)
    data = content(whole)
    pieces = list(frames(data))
    kinds = [unpacked(one.content)["kind"] for one in pieces]
    assert kinds.count("splits") > 3
    bounded = []
    before = splitting.bound_boxes
    monkeypatch.setattr(
        splitting, "bound_boxes", lambda *given: bounded.append(len(given[3])) or before(*given)
    )
    for number, one in enumerate(pieces):
        if kinds[number] in ("splits", "end"):
            bounded.clear()
            found = analyse(few_inputs, begun(tmp_path / str(number), data[: one.end]))
            assert verdicts(found) == verdicts(expected)
            assert found.nodes == expected.nodes
    assert sum(bounded) < expected.nodes  # parts that were halved are not bounded again


@pytest.mark.parametrize("seed", range(4))
def test_parts_in_a_journal_are_not_believed(few_inputs, tmp_path, seed):
    expected = analyse(few_inputs, tmp_path / "whole")
    data = forged(content(tmp_path / "whole"), random.Random(seed))
    assert verdicts(analyse(few_inputs, begun(tmp_path / "journal", data))) == verdicts(expected)


@pytest.mark.parametrize("method", ["isa", "layer", "neuron", "bounds", "data"])
def test_other_methods_go_on_too(branching, tmp_path, method):
    data = np.random.default_rng(0).uniform(-1, 1, (20, 8)) if method == "data" else None
    expected = analyse(branching, None, method=method, data=data)
    folder = tmp_path / "journal"
    assert verdicts(analyse(branching, folder, method=method, data=data)) == verdicts(expected)
    written = content(folder)
    for share in (0.3, 0.8):
        (folder / NAME).write_bytes(written[: int(share * len(written))])
        assert verdicts(analyse(branching, folder, method=method, data=data)) == verdicts(expected)


def test_a_smaller_network_that_is_analysed_anew_has_a_journal_of_its_own(branching, tmp_path):
    """Where neurons are undecided; here because bounds alone leave many."""
    folder = tmp_path / "journal"
    found = relutrim.compress(branching, BOX, method="bounds", journal=folder)
    assert found.stored.neurons < branching.neurons
    files = {path: path.read_bytes() for path in folder.rglob(NAME)}
    assert len(files) == 2
    again = relutrim.compress(branching, BOX, method="bounds", journal=folder)
    assert content_digest(found.stored) == content_digest(again.stored)
    assert {path: path.read_bytes() for path in folder.rglob(NAME)} == files


def test_compressing_goes_on_to_the_same_network(branching, finished, tmp_path):
    expected = relutrim.compress(branching, BOX)
    folder = begun(tmp_path / "journal", finished[1][: 2 * len(finished[1]) // 3])
    found = relutrim.compress(branching, BOX, jobs=1, journal=folder)
    assert verdicts(found.stability) == verdicts(expected.stability)
    assert found.stored.widths == expected.stored.widths


def test_the_command_line_says_what_is_wrong(branching, capsys, tmp_path):
    path = tmp_path / "model.onnx"
    save(branching, path)
    command = ("analyze", path, "--journal", tmp_path / "journal", "--json")
    assert call(capsys, *command, "--box", "-1", "1").code == 0
    again = call(capsys, *command, "--box", "-1", "1")
    assert again.code == 0
    assert "went on from" in again.out
    refused = call(capsys, *command, "--box", "-2", "1")
    assert refused.code == 2
    assert refused.out == ""
    assert "another domain" in refused.err
    assert len(refused.err.splitlines()) == 1
    over = call(capsys, *command, "--box", "-1", "1", "-o", tmp_path / "journal" / NAME)
    assert over.code == 2
    assert "would replace" in over.err


def test_kill_9_at_any_moment_loses_nothing(branching, finished, tmp_path):
    """For real, a few times; ``benchmarks/kill.py`` does it hundreds of times."""
    model, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    save(branching, model)
    command = [sys.executable, "-m", "relutrim", "compress", str(model), str(out), "--box", "-1", "1"]
    command += ["--journal", str(tmp_path / "journal"), "--no-latency", "--json", "--jobs", "1"]
    chance, kills = random.Random(3), 0
    grown, begin = 0, time.monotonic()
    while time.monotonic() - begin < 300:
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if kills < 3:
            # Some moments behind the first new record, however slow the machine.
            while run.poll() is None and _size(tmp_path / "journal") <= grown:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.4))
            run.kill()
        _, errors = run.communicate(timeout=200)
        grown = _size(tmp_path / "journal")
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, errors
        kills += 1
        assert not out.exists() or load(out).neurons
    assert kills
    assert verdicts(analyse(load(model), tmp_path / "journal")) == verdicts(finished[0])
    assert load(out).widths == relutrim.compress(load(model), BOX).stored.widths


def _size(folder: Path) -> int:
    return (folder / NAME).stat().st_size if (folder / NAME).exists() else 0
