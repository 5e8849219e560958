"""Reading the samples of a watched run, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whystall.errors import InputError
from whystall.run_folder.samples import STEP_COLUMNS
from whystall.trace.samples import read_samples

HEAD = {"schema": "whystall.samples/1", "rank": 3, "began_unix_ns": 7, "columns": list(STEP_COLUMNS)}
STEP = [1, *range(10, 10 + len(STEP_COLUMNS) - 1)]


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_steps_and_machine_lines(tmp_path: Path) -> None:
    found = read_samples(written(tmp_path / "s", HEAD, STEP, {"at_unix_ns": 9, "cpu_ticks": [5, 2]}, STEP))
    assert (found.rank, found.began_unix_ns, found.damaged_lines) == (3, 7, 0)
    assert found.steps.columns == list(STEP_COLUMNS)
    assert found.steps.row(0) == tuple(STEP)
    assert found.machine.rows() == [(9, 5, 2)]


def test_workers_places_and_cores(tmp_path: Path) -> None:
    place = ["other", "train.py", 3, "main", "print(loss)", "__main__:main", 7]
    machine = {"at_unix_ns": 9, "cpu_ticks": [500, 200], "children": [[12, "S", 30]], "threads": [[14, "R", 50]]}
    beside = ["thread", "words.py", 5, "count", "n += 1", "words:count", 2]
    looks = {"stacks": [place], "elsewhere": 1, "beside": [beside]}
    found = read_samples(written(tmp_path / "s", HEAD, STEP, machine, looks))
    assert found.threads.rows() == [(9, 14, "R", 50)]
    assert found.beside.rows() == [(*beside, 0, 1)]
    assert found.workers.rows() == [(9, 12, "S", 30)]
    assert found.places.rows() == [(*place, 0, 1)]
    assert found.machine.rows() == [(9, 500, 200)]


def test_what_allocators_say(tmp_path: Path) -> None:
    said = {"allocated": 1, "reserved": 2, "peak_allocated": 3, "inactive_split": 4, "retries": 5, "ooms": 6}
    lines = [
        {"step": 8, "allocator": [said, {**said, "allocated": "x"}]},
        {"step": 9, "allocator": 3},
        {"allocator": [said]},
    ]
    found = read_samples(written(tmp_path / "s", HEAD, STEP, *lines))
    assert found.allocators.rows() == [(8, 0, 1, 2, 3, 5)]


def test_what_devices_say(tmp_path: Path) -> None:
    """A device that does not answer every question is left out, and the others keep their numbers."""
    said = {"use_percent": 97, "sm_mhz": 1410, "sm_max_mhz": 1980, "power_mw": 9, "throttle_bits": 4}
    lines = [{"step": 8, "devices": [{"use_percent": 1}, said]}, {"step": 9, "devices": {}}]
    assert read_samples(written(tmp_path / "s", HEAD, STEP, *lines)).clocks.rows() == [(8, 1, 97, 1410, 4)]


@pytest.mark.parametrize(
    "stacks", [None, 3, [3], [["other", "a.py", "3", "f", "t", "l", 1]], [["other", "a.py", 3, "f", "t", "l", 2**70]]]
)
def test_places_of_another_kind_are_left_out(tmp_path: Path, stacks: object) -> None:
    assert read_samples(written(tmp_path / "s", HEAD, STEP, {"stacks": stacks})).places.is_empty()


@pytest.mark.parametrize("line", ["[1, 2]\n", "nonsense\n", "3\n", "[" + "9" * 70_000 + "]\n", '[1, "x"'])
def test_damaged_lines_are_counted(tmp_path: Path, line: str) -> None:
    found = read_samples(written(tmp_path / "s", HEAD, STEP, line))
    assert (len(found.steps), found.damaged_lines) == (1, 1)


@pytest.mark.parametrize(
    "head",
    [
        {},
        [],
        {**HEAD, "schema": "other/1"},
        {**HEAD, "rank": "0"},
        {**HEAD, "columns": ["step"]},
        {**HEAD, "columns": ["step", "duration_us", "flags", "flags"]},
        {**HEAD, "columns": [f"c{i}" for i in range(100)]},
    ],
)
def test_files_that_are_no_samples(tmp_path: Path, head: object) -> None:
    with pytest.raises(InputError):
        read_samples(written(tmp_path / "s", head, STEP))


def test_no_file_and_empty_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path / "none")
    with pytest.raises(InputError, match="is empty"):
        read_samples(written(tmp_path / "s"))
