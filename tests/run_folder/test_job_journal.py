"""A journal is read as far as it goes: cut lines, other values and steps that were none change nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whystall.run_folder.job_journal import read_journal, read_journals
from whystall.run_folder.job_times import JobTimes
from whystall.run_folder.layout import is_written_by_a_run, journal_name


def look(ns: int, *, line: int = 9, work: str = "", role: str = "") -> list[str | int]:
    return ["train.py", line, "main", "f()", "m:f", work, role, ns]


def written(folder: Path, *lines: object, rest: bytes = b"") -> Path:
    path = folder / journal_name(7)
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + rest)
    return path


def read(path: Path) -> JobTimes:
    times = read_journal(path)
    assert times is not None
    return times


def test_looks_add_up_and_the_latest_step_is_the_end(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"capture_unix_ns": 5},
        {"step": 0, "looks": [look(10), look(5, line=8, work="weights")]},
        {"step": 0, "looks": [look(20)]},
        {"first_step_unix_ns": 90},
        {"step": 3, "last_step_unix_ns": 95, "looks": [look(7, role="checkpoint")]},
        {"step": 9, "last_step_unix_ns": 99, "looks": [look(4)]},
    )
    times = read(path)
    assert (times.before, times.within) == ({"": 30, "weights": 5}, {"checkpoint": 7})
    assert [place.ns for place in times.after_steps] == [4]
    assert (times.capture_unix_ns, times.first_step_unix_ns, times.last_step_unix_ns) == (5, 90, 99)


def test_an_evaluation_amid_steps_is_no_end(tmp_path: Path) -> None:
    """Step 4 ended after it: the process was killed in later steps."""
    evaluates = {"step": 3, "last_step_unix_ns": 95, "looks": [look(7, role="evaluation")]}
    times = read(written(tmp_path, {"first_step_unix_ns": 90}, evaluates, {"step": 4, "looks": []}))
    assert (times.after_steps, times.within, times.last_step_unix_ns) == ([], {"evaluation": 7}, None)


def test_steps_that_were_none_belong_to_the_start(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"capture_unix_ns": 5},
        {"step": 0, "looks": [look(10)]},
        {"step": 2, "looks": [look(7, role="evaluation")]},
        {"again": True},
    )
    assert read(path).before == {"": 10, "evaluation": 7}


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, {"capture_unix_ns": 5}, {"step": 0, "looks": [look(10)]}, rest=b'{"step":0,"looks":[["tr')
    assert read(path).before == {"": 10}


def test_a_file_without_an_instant_is_none(tmp_path: Path) -> None:
    assert read_journal(written(tmp_path, {"step": 0, "looks": [look(10)]})) is None
    assert read_journal(tmp_path / "missing") is None


def test_the_name_is_one_of_a_run(tmp_path: Path) -> None:
    path = written(tmp_path, {"capture_unix_ns": 5})
    assert is_written_by_a_run(path.name)
    assert list(read_journals(tmp_path)) == [7]


@pytest.mark.parametrize("value", [-1, 1 << 62, True, "5", None, 2.5])
def test_other_values_are_no_instants(tmp_path: Path, value: Any) -> None:
    assert read(written(tmp_path, {"capture_unix_ns": 5, "first_step_unix_ns": value})).first_step_unix_ns is None


NAMES = ["step", "looks", "again", "first_step_unix_ns", "x"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 65) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=9) | st.dictionaries(st.sampled_from(["step", "looks", "again", "x"]), inner)
    ),
    max_leaves=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ANY, max_size=8), st.binary(max_size=40))
def test_anything_is_read_or_left_out(tmp_path: Path, lines: list[Any], rest: bytes) -> None:
    times = read_journal(written(tmp_path, {"capture_unix_ns": 5}, *lines, rest=rest))
    if times is not None:
        assert msgspec.convert(msgspec.to_builtins(times), JobTimes) == times
        assert all(0 <= ns < 1 << 62 for ns in (*times.before.values(), *times.within.values()))
