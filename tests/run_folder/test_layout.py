"""Names of a run folder's files: what is made is recognised, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall._inputs import read_run_facts
from whystall.analysis.run_results import Environment
from whystall.run_folder import layout
from whystall.run_folder.facts import read_run_file
from whystall.run_folder.observations import RepeatedWork, all_padding

RANKS = st.integers(0, 99_999)


@given(RANKS, st.integers(0, 50))
def test_names_that_are_made_are_recognised(rank: int, window: int) -> None:
    assert layout.rank_file(layout.samples_name(rank)) == (rank, "samples", 0)
    assert layout.rank_file(layout.description_name(rank)) == (rank, "description", 0)
    assert layout.rank_file(layout.trace_name(rank, window)) == (rank, "trace", window)
    assert layout.rank_file(layout.values_name(rank)) == (rank, "values", 0)
    staged = [layout.staged_trace(name, 7) for name in (layout.trace_name(rank, window), layout.values_name(rank))]
    plain = [f"{name}.json" for name in staged]
    for name in (layout.staged_description(rank, 7), layout.staged_run(7), *staged, *plain):
        assert layout.is_written_by_a_run(name)
        assert layout.rank_file(name) is None


@given(st.text(alphabet="rank01.sampletjonlgzwid-_ ", max_size=30))
def test_only_names_that_are_made_are_recognised(name: str) -> None:
    file = layout.rank_file(name)
    if file is not None:
        made = {
            "samples": layout.samples_name(file.rank),
            "description": layout.description_name(file.rank),
            "trace": layout.trace_name(file.rank, file.window),
        }
        assert made[file.kind] == name


def test_files_come_by_rank_and_window(tmp_path: Path) -> None:
    names = [layout.trace_name(rank, window) for rank in (2, 10) for window in (0, 2, 11)]
    for name in reversed([*names, "rank2.txt", "trace.json.gz"]):
        (tmp_path / name).touch()
    assert [path.name for path in layout.rank_files(tmp_path, "trace")] == names
    assert layout.rank_files(tmp_path / "none", "samples") == []


def test_what_a_run_says_of_its_loaders_is_read_back(tmp_path: Path) -> None:
    said = {"workers": 2, "prefetch_factor": 2, "epochs": 3, "persistent_workers": False, "pin_memory": True}
    said |= {"batches": 40, "taken": 90, "batch_size": 32}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema": "whystall.run/1", "ranks": [{"rank": 0, "loaders": [said]}]}), "utf-8")
    [rank] = read_run_file(path)
    assert rank.loaders == (said,)
    path.write_text(path.read_text("utf-8").replace('"batches": 40', '"batches": "many"'), "utf-8")
    [rank] = read_run_file(path)
    assert rank.loaders == ({**said, "batches": None},)


@pytest.mark.parametrize(
    ("loaders", "samples"),
    [
        ([(32, 100)], 32),
        ([(32, 101)], 32),  # one is handed out before the first step ends
        ([(16, 400)], 64),  # four are added up in a step
        ([(32, 100), (256, 12)], 32),  # another one validates now and then
        ([(32, 150)], None),
        ([(None, 100)], None),  # a sampler of batches
        ([], None),
    ],
)
def test_samples_of_a_step_are_what_the_busiest_loader_handed_out(
    tmp_path: Path, loaders: list[tuple[int | None, int]], samples: int | None
) -> None:
    said = [{"workers": 0, "batch_size": size, "taken": taken} for size, taken in loaders]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema": "whystall.run/1", "ranks": [{"steps": 100, "loaders": said}]}), "utf-8")
    [rank] = read_run_file(path)
    assert rank.samples_per_step == samples


def test_the_machine_of_a_run_is_read_back_and_what_is_no_name_is_not(tmp_path: Path) -> None:
    said = {"python": "3.11.7", "torch": "2.13.0", "facts": {"cpu": "AMD EPYC 7763", "cores": 8, "cores_allowed": 4}}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema": "whystall.run/1", "ranks": [said]}), "utf-8")
    environment = read_run_facts([tmp_path], [], remedies=False).environment
    assert environment == Environment(cpu="AMD EPYC 7763", cores=8, cores_allowed=4, python="3.11.7", torch="2.13.0")
    path.write_text(path.read_text("utf-8").replace('"AMD EPYC 7763"', "[7763]").replace("8,", "-8,"), "utf-8")
    environment = read_run_facts([tmp_path], [], remedies=False).environment
    assert environment == Environment(cores_allowed=4, python="3.11.7", torch="2.13.0")


@pytest.mark.parametrize(
    ("own", "here", "expected"),
    [
        (
            [[0, 1], [2, 3], [0, 1], [2, 3]],
            "2",
            (4, 2, True),
        ),  # two machines, on each two ranks with cores of their own
        ([[0, 1, 2, 3]] * 2, "2", (4, 2, False)),
        ([[0, 1], [1, 2]], None, (3, 2, False)),
        ([[0, 1]], "1", (2, 1, False)),
        ([None, None], "two", (7, 2, False)),
        ([["0", -1, 1 << 40], []], "9999999", (7, 2, False)),
    ],
)
def test_cores_are_those_of_the_ranks_of_one_machine(
    tmp_path: Path, own: list[Any], here: str | None, expected: tuple[int, int, bool]
) -> None:
    ranks = [
        {"rank": rank, "facts": {"cores_allowed": 7, "cores_own": cores, "ranks_here": here}}
        for rank, cores in enumerate(own)
    ]
    (tmp_path / "run.json").write_text(json.dumps({"schema": "whystall.run/1", "ranks": ranks[::-1]}), "utf-8")
    facts = read_run_facts([tmp_path], [], remedies=False)
    assert (facts.cores, facts.processes) == (7, len(own))
    assert (facts.cores_here, facts.ranks_here, facts.bound) == expected


def test_padding_that_ranks_saw_is_read_back_and_added_up(tmp_path: Path) -> None:
    said = {"batches": 2, "positions": [64, 1024], "needed": [40, 400], "real": [30, 250], "sizes": [[4, 16]]}
    ranks = [{"rank": 0, "padding": said}, {"rank": 1, "padding": said}, {"rank": 2}]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema": "whystall.run/1", "ranks": ranks}), "utf-8")
    read = [rank.observed.padding for rank in read_run_file(path)]
    assert read[2] is None
    both = all_padding([one for one in read if one is not None])
    assert both is not None
    assert (both.batches, both.positions, both.needed, both.real) == (4, (128, 2048), (80, 800), (60, 500))
    assert both.sizes == [(4, 16)]
    assert all_padding([]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"real": [0, 0]},
        {"needed": [70, 400]},
        {"positions": [64]},
        {"batches": 0},
        {"sizes": "all"},
        {"sizes": [[0, 16]]},
        {"sizes": [[4, 16]] * 1000},
        {"real": [99, 1]},
    ],
)
def test_padding_that_cannot_be_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    said = {"batches": 2, "positions": [64, 1024], "needed": [40, 400], "real": [30, 250], "sizes": [[4, 16]]}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema": "whystall.run/1", "ranks": [{"rank": 0, "padding": said | change}]}), "utf-8")
    assert [rank.observed.padding for rank in read_run_file(path)] == [None]


REPEATED: dict[str, Any] = {
    "steps": 3,
    "calls": 3,
    "again_ns": 50,
    "measured_ns": 100,
    "error": 0.02,
    "modules": [["Tower", "serve.py", 12, "answer", "items = tower(features)", 50]],
}


def repeated(tmp_path: Path, said: object) -> RepeatedWork | None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema": "whystall.run/1", "ranks": [{"rank": 3, "repeated": said}]}), "utf-8")
    [rank] = read_run_file(path)
    assert rank.rank == 3
    return rank.observed.repeated


def test_what_was_computed_again_is_read_back(tmp_path: Path) -> None:
    module = dict(zip(("name", "file", "line", "function", "text", "ns"), REPEATED["modules"][0], strict=True))
    found = repeated(tmp_path, REPEATED | {"modules": [module]})
    assert found is not None
    assert (found.again_ns, found.measured_ns, found.modules[0].line) == (50, 100, 12)


@pytest.mark.parametrize(
    "change",
    [
        {"again_ns": 101},
        {"again_ns": 0},
        {"again_ns": 49},
        {"measured_ns": "long"},
        {"steps": 0},
        {"error": 2.0},
        {"modules": []},
        {"modules": [{"name": "T" * 2_000, "file": "", "line": 1, "function": "", "text": "", "ns": 50}]},
        {"modules": [{"name": "T", "file": "", "line": 1, "function": "", "text": "", "ns": -50}]},
    ],
)
def test_what_cannot_have_been_computed_again_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    module = dict(zip(("name", "file", "line", "function", "text", "ns"), REPEATED["modules"][0], strict=True))
    assert repeated(tmp_path, REPEATED | {"modules": [module]} | change) is None


@pytest.mark.parametrize(
    "name", ["rank\u0663.run.json", "rank1\u0663.samples.jsonl", "rank\uff11.trace.json.gz", ".run.json.\u0663"]
)
def test_digits_of_other_scripts_are_of_no_run(name: str) -> None:
    assert layout.rank_file(name) is None
    assert not layout.is_written_by_a_run(name)


def test_what_a_killed_process_left_of_a_file_is_of_a_run() -> None:
    assert layout.is_written_by_a_run(".whystall-0123456789abcdef")
    assert not layout.is_written_by_a_run(".whystall-notes")
