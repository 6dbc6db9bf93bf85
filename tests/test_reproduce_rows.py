"""The append-only table: whatever stops a writer, what was whole stays, and the next writer goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relutrim.errors import InputError
from relutrim.paper.reproduce.rows import appending, file_of, key_of, read_lines


def line(key: str, status: str = "done", **rest: object) -> dict[str, object]:
    return {"key": key, "status": status, "stage": "auto", **rest}


def keys(folder: Path) -> list[str]:
    return [one["key"] for one in read_lines(folder)]


@given(texts=st.lists(st.text(max_size=5), min_size=1, max_size=4), cut=st.integers(0, 200))
def test_a_file_cut_anywhere_keeps_its_whole_lines_and_takes_more(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], cut: int
) -> None:
    path = file_of(tmp_path_factory.mktemp("rows"))
    ends = [0]
    with appending(path) as rows:
        for number, text in enumerate(texts):
            rows.write(line(str(number), what=text))
            ends.append(path.stat().st_size)
    content = path.read_bytes()[: max(0, ends[-1] - cut)]
    path.write_bytes(content)
    # A line without its newline is whole if nothing else is missing.
    whole = [str(number) for number, end in enumerate(ends[1:]) if end - 1 <= len(content)]
    assert keys(path.parent) == whole
    with appending(path) as rows:
        rows.write(line("new"))
    assert keys(path.parent) == [*whole, "new"]


def test_rubbish_between_lines_is_passed_over(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    with appending(path) as rows:
        rows.write(line("a"))
    with path.open("ab") as file:
        file.write(
            b'\xff\xfe\n[1, 2]\n{"key": "b"}\nnull\n{"schema": "other", "key": "c", "status": "done"}\n'
        )
    with appending(path) as rows:
        rows.write(line("d"))
    assert keys(tmp_path) == ["a", "d"]


@pytest.mark.parametrize("order", [["done", "failed"], ["failed", "done"]])
def test_what_was_done_once_is_done_whatever_failed_later(tmp_path: Path, order: list[str]) -> None:
    with appending(file_of(tmp_path)) as rows:
        for status in order:
            rows.write(line("a", status))
    assert [one["status"] for one in read_lines(tmp_path)] == ["done"]


def test_shards_write_files_of_their_own_that_are_read_together(tmp_path: Path) -> None:
    for shard in (1, 2):
        with appending(file_of(tmp_path, (shard, 2))) as rows:
            rows.write(line(str(shard)))
    assert sorted(keys(tmp_path)) == ["1", "2"]


def test_two_runs_cannot_write_to_one_file(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    with appending(path), pytest.raises(InputError, match="another run"), appending(path):
        pass
    with appending(file_of(tmp_path)):
        pass


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
settings = st.dictionaries(st.text(max_size=3), numbers | st.text(), max_size=4)


@given(settings, settings)
def test_keys_are_the_same_for_the_same_settings_only(
    one: dict[str, object], other: dict[str, object]
) -> None:
    assert key_of(one, "auto") == key_of(dict(reversed(one.items())), "auto")
    if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
        assert key_of(one) != key_of(other)
    assert key_of(one, "auto") != key_of(one, "isa")
