"""What a file's layout and the order of its events must not decide; events that are another process's."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import whystall
from whystall.analysis.trace_analysis import signals_of
from whystall.testing import trace
from whystall.trace.model import Trace

OPERATOR: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1_700_000_000_000_000, "dur": 10}
LISTS = '{"Input Dims": [[2, 3], []], "Input type": ["c10::complex<float>, x", "a\\" ,b"]}'


def load(folder: Path, text: str) -> Trace:
    path = folder / "trace.json"
    path.write_text(text, "utf-8")
    return whystall.load(path, cache=False)


def of(folder: Path, events: list[dict[str, Any]]) -> Trace:
    return load(folder, json.dumps({"traceEvents": events}))


@pytest.mark.parametrize(
    "layout",
    [
        {"separators": (",", ":")},
        {"separators": (", ", ": ")},
        {"indent": 1},
        {"indent": "\t"},
        {"separators": (" ,  ", "  :")},
    ],
    ids=["compact", "usual", "lines", "tabs", "odd"],
)
def test_a_list_is_the_same_text_in_every_layout(layout: dict[str, Any], tmp_path: Path) -> None:
    event = {**OPERATOR, "name": "aten::mm", "args": json.loads(LISTS) | {"mine": {"a": [1, {"b": "c,d : e"}]}}}
    loaded = load(tmp_path, json.dumps({"traceEvents": [event]}, **layout))
    row = loaded.operators.row(0, named=True)
    assert row["input_dims"] == "[[2, 3], []]"
    assert row["input_types"] == '["c10::complex<float>, x", "a\\" ,b"]'
    assert loaded.extra_arguments["value"].cast(pl.String).to_list() == ['{"a": [1, {"b": "c,d : e"}]}']


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_of_events_of_one_span_the_one_that_was_counted_first_is_outside(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    events = [{**OPERATOR, "name": name, "args": {"External id": 7 + place}} for place, name in enumerate("abc")]
    loaded = of(tmp_path, [events[place] for place in order])
    assert loaded.operators["name"].cast(pl.String).to_list() == ["a", "b", "c"]
    assert loaded.operators["parent"].to_list() == [None, 0, 1]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_events_that_begin_together_go_by_length_then_by_name(order: tuple[int, ...], tmp_path: Path) -> None:
    events = [
        {**OPERATOR, "name": "long", "dur": 20},
        {**OPERATOR, "name": "a", "args": {"mine": "of a"}},
        {**OPERATOR, "name": "b", "args": {"mine": "of b"}},
    ]
    loaded = of(tmp_path, [events[place] for place in order])
    assert loaded.operators["name"].cast(pl.String).to_list() == ["long", "a", "b"]
    extra = loaded.extra_arguments.sort("row")
    assert extra.select(pl.col("row"), pl.col("value").cast(pl.String)).rows() == [(1, "of a"), (2, "of b")]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_threads_are_numbered_by_what_they_are_called(order: tuple[int, ...], tmp_path: Path) -> None:
    events = [{**OPERATOR, "name": name, "tid": tid} for name, tid in (("x", 5), ("y", 6), ("z", 7))]
    loaded = of(tmp_path, [events[place] for place in order])
    assert loaded.threads["tid"].to_list() == ["5", "6", "7"]
    assert {row["name"]: row["thread"] for row in loaded.operators.iter_rows(named=True)} == {"x": 0, "y": 1, "z": 2}


def test_what_another_process_did_is_set_aside_and_counted(tmp_path: Path) -> None:
    frame = {**OPERATOR, "cat": "python_function", "pid": 2, "tid": 2, "name": "gc.py(1): collect"}
    mark = {**OPERATOR, "cat": "user_annotation", "pid": 2, "tid": 3, "name": "save_checkpoint"}
    own = {**OPERATOR, "cat": "python_function", "name": "train.py(1): main"}
    loaded = of(tmp_path, [frame, mark, own, {**OPERATOR, "name": "aten::mm"}])
    assert loaded.python_functions["name"].cast(pl.String).to_list() == ["train.py(1): main"]
    assert loaded.annotations.is_empty()
    (lost,) = loaded.source.quarantined
    assert (lost.events, lost.reason) == (2, "of another process, which called no operator and launched nothing")


def test_processes_that_all_call_operators_are_all_the_recorded_one(tmp_path: Path) -> None:
    """Some tools write the files of several processes into one."""
    frames = [{**OPERATOR, "cat": "python_function", "pid": pid, "name": "f"} for pid in (1, 2)]
    loaded = of(tmp_path, [*frames, *({**OPERATOR, "pid": pid, "name": "aten::mm"} for pid in (1, 2))])
    assert len(loaded.python_functions) == 2


def test_frames_alone_are_nobody_else_s(tmp_path: Path) -> None:
    loaded = of(tmp_path, [{**OPERATOR, "cat": "python_function", "pid": pid, "name": "f"} for pid in (1, 2)])
    assert len(loaded.python_functions) == 2


def test_frames_of_a_thread_that_only_waits_are_no_stacks_of_the_job() -> None:
    built = trace().operator("op", at=10, lasts=10)
    built.python("tqdm/_monitor.py(69): run", at=0, lasts=100, thread=300)
    loaded = built.load()
    assert loaded.operators["frame"].to_list() == [None]
    assert not signals_of(loaded)["python_stacks"]
    assert signals_of(built.python("train.py(1): main", at=0, lasts=50).load())["python_stacks"]


def test_a_waiting_thread_beside_frames_of_no_thread_keeps_its_own() -> None:
    built = trace().operator("op", at=10, lasts=10).python("train.py(1): main", at=0, lasts=100, thread=0)
    built.python("tqdm/_monitor.py(69): run", at=0, lasts=100, thread=300)
    loaded = built.load()
    (frame,) = loaded.operators["frame"].to_list()
    assert loaded.python_functions["name"][frame] == "train.py(1): main"
