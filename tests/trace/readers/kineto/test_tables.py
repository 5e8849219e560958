"""Typed tables: threads, memory of 2021, arguments without a column, repairs of known peculiarities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import whystall
from whystall.testing import trace
from whystall.trace.collectives import between_peers
from whystall.trace.model import TABLES, Trace

KERNEL: dict[str, Any] = {
    "ph": "X",
    "cat": "kernel",
    "name": "k",
    "pid": 0,
    "tid": 7,
    "ts": 1_700_000_000_000_000,
    "dur": 3,
}


def load(folder: Path, events: list[Any], **metadata: Any) -> Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps({**metadata, "traceEvents": events}))
    return whystall.load(path, cache=False)


def test_categories_of_any_age_and_spelling(tmp_path: Path) -> None:
    spellings = {
        "device_events": ["Kernel", "kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset", "mtia_ccp_events"],
        "runtime_calls": ["cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime"],
        "operators": ["cpu_op", "Operator"],
        "python_functions": ["python_function", "Python"],
        "annotations": ["user_annotation"],
        "device_annotations": ["gpu_user_annotation"],
        "synchronizations": ["cuda_sync"],
        "other_events": ["Trace", "overhead", "", "hccl", "cuda_profiler_range"],
    }
    events = [{**KERNEL, "cat": category} for categories in spellings.values() for category in categories]
    loaded = load(tmp_path, [*events, {key: value for key, value in KERNEL.items() if key != "cat"}])
    assert {table: len(getattr(loaded, table)) for table in spellings} == {
        table: len(categories) + (table == "other_events") for table, categories in spellings.items()
    }
    kinds = loaded.device_events["kind"].cast(pl.String).value_counts().sort("kind").rows()
    assert kinds == [("accelerator", 1), ("kernel", 2), ("memcpy", 2), ("memset", 2)]


def test_a_stream_argument_alone_makes_no_device_event(tmp_path: Path) -> None:
    loaded = load(tmp_path, [{**KERNEL, "cat": "cpu_op", "args": {"stream": 7, "device": 0}}])
    assert (len(loaded.operators), len(loaded.device_events)) == (1, 0)


def test_threads_carry_their_names(tmp_path: Path) -> None:
    named = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main \u00e9"}},
        {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 2, "args": {"sort_index": 3}},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 2, "args": {"name": "python train.py --token=s3cr3t"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": "stream 7", "args": {"name": "stream 7 (compute)"}},
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "args": {"name": 5}},
    ]
    loaded = load(tmp_path, [*named, {**KERNEL, "tid": "stream 7"}, {**KERNEL, "pid": None, "tid": None}])
    assert loaded.threads.sort("pid", "tid", nulls_last=True).rows() == [
        ("0", "stream 7", "stream 7 (compute)"),
        ("1", "2", "main \u00e9"),
        ("9", "9", None),
        (None, None, None),
    ]


def test_memory_events_of_2021_have_no_category(tmp_path: Path) -> None:
    event = {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1_700_000_000_000_000}
    arguments = {"Device Type": 0, "Device Id": -1, "Bytes": -64}
    loaded = load(
        tmp_path, [{**event, "args": arguments}, {**event, "name": "Iteration Start: PyTorch Profiler"}, KERNEL]
    )
    assert loaded.memory_events.select("device_type", "device", "bytes", "total_allocated").rows() == [
        (0, -1, -64, None)
    ]


def test_arguments_without_a_column_are_kept(tmp_path: Path) -> None:
    first = {**KERNEL, "args": {"stream": 7, "mine": 5, "list": [1, "x"]}, "id": 3}
    second = {**KERNEL, "ts": KERNEL["ts"] - 1, "args": {"mine": "text", "ratio": 0.5, "flag": True, "nothing": None}}
    operator = {**KERNEL, "cat": "cpu_op", "args": {"mine": -1}}
    loaded = load(tmp_path, [first, second, operator])
    rows = loaded.extra_arguments.with_columns(pl.col("table", "key", "value").cast(pl.String))
    assert sorted(rows.rows()) == [
        ("device_events", 0, "flag", "true"),
        ("device_events", 0, "mine", "text"),
        ("device_events", 0, "ratio", "0.5"),
        ("device_events", 1, ".id", "3"),
        ("device_events", 1, "list", '[1, "x"]'),
        ("device_events", 1, "mine", "5"),
        ("operators", 0, "mine", "-1"),
    ]


def test_both_spellings_of_an_argument(tmp_path: Path) -> None:
    newer = {**KERNEL, "cat": "cpu_op", "args": {"Ev Idx": 1, "External id": 2}}
    older = {**KERNEL, "cat": "cpu_op", "args": {"Profiler Event Index": 3, "external id": 4}}
    loaded = load(tmp_path, [newer, older])
    assert loaded.operators.select("event_index", "external_id").rows() == [(1, 2), (3, 4)]


def test_numbers_in_any_dress(tmp_path: Path) -> None:
    values = [7, "7", 7.0, "0x7", 7.5, "seven", None, True, [7], 2**63, "9" * 5000]
    events = [{**KERNEL, "ts": KERNEL["ts"] + i, "args": {"correlation": value}} for i, value in enumerate(values)]
    assert load(tmp_path, events).device_events["correlation"].to_list() == [7, 7, 7, 7, *[None] * 7]


@pytest.mark.parametrize(
    ("thread", "stream"), [(7, 7), ("stream 7", 7), (" stream 20 ", 20), ("-1", -1), ("compute", -1), (None, -1)]
)
def test_device_and_stream_come_from_process_and_thread_where_no_argument_names_them(
    tmp_path: Path, thread: int | str | None, stream: int
) -> None:
    loaded = load(tmp_path, [{**KERNEL, "pid": 3, "tid": thread}])
    assert loaded.device_events.select("device", "stream").rows() == [(3, stream)]
    assert any("1 device events carry no arguments" in warning for warning in loaded.source.warnings)


def test_arguments_go_before_process_and_thread(tmp_path: Path) -> None:
    loaded = load(tmp_path, [{**KERNEL, "pid": 3, "args": {"device": 1, "stream": 0}}])
    assert loaded.device_events.select("device", "stream").rows() == [(1, 0)]
    assert loaded.source.warnings == ()


def test_frames_of_a_thread_that_does_not_exist_move_to_the_operators() -> None:
    loaded = trace().python("frame", at=0, lasts=100, thread=0).operator("op", at=10, lasts=10).load()
    assert loaded.operators["frame"].to_list() == [0]


def test_frames_stay_where_something_else_was_recorded() -> None:
    built = trace().python("frame", at=0, lasts=100, thread=5).operator("op", at=10, lasts=10)
    built.annotation("mark", at=0, lasts=5, thread=5)
    assert built.load().operators["frame"].to_list() == [None]


def test_every_table_is_sorted_by_time() -> None:
    built = trace()
    for at in (500, 100, 900, 300):
        built.operator("op", at=at, lasts=1).launch("k", at=at, runs_at=at, lasts=1).python("f", at=at, lasts=1)
        built.annotation("a", at=at, lasts=1).memory(at=at, size=1, allocated=1, reserved=1)
    loaded = built.load()
    for table in TABLES:
        frame = getattr(loaded, table)
        if "ts_ns" in frame.columns:
            assert frame["ts_ns"].is_sorted(), table


@pytest.mark.parametrize(
    "events", [[], [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "x"}}]]
)
def test_a_trace_without_events_has_all_tables(tmp_path: Path, events: list[Any]) -> None:
    loaded = load(tmp_path, events)
    assert all(getattr(loaded, table).is_empty() for table in TABLES if table != "threads")
    assert loaded.steps_from is None


def test_collectives_are_taken_from_every_table(tmp_path: Path) -> None:
    record = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 5, "Out msg nelems": 5,
        "Process Group Name": "0", "Group size": 2, "Process Group Ranks": "[0, 1]", "Seq": 4,
    }  # fmt: skip
    events = [{**KERNEL, "cat": category, "args": record} for category in ("kernel", "cpu_op", "user_annotation")]
    loaded = load(tmp_path, [*events, KERNEL])
    assert loaded.collectives["source"].to_list() == ["device", "operator", "annotation"]
    assert loaded.collectives.drop("source", "row").unique().rows() == [
        ("allreduce", "Float", 5, 5, "0", 2, "[0, 1]", 4, None)
    ]


@pytest.mark.parametrize(
    ("kind", "peer", "rank", "ranks", "size"),
    [
        ("send", {"Dst Rank": 3}, 1, "[1, 3]", 2),
        ("recv", {"Src Rank": 0}, 1, "[0, 1]", 2),
        ("send", {"Dst Rank": 3}, None, "[0, 1, 2, 3]", 4),
        ("send", {}, 1, "[1]", 4),
        ("send", {"Dst Rank": 1}, 1, "[1]", 4),
        ("send", {"Dst Rank": -1}, 1, "[1]", 4),
        ("broadcast", {"Src Rank": 0}, 1, "[0, 1, 2, 3]", 4),
    ],
)
def test_a_message_is_between_two_ranks_however_many_its_group_has(
    kind: str, peer: dict[str, int], rank: int | None, ranks: str, size: int
) -> None:
    """Where the other rank is not known, none of the group is: its ranks do not meet in each message."""
    about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 4}}
    record: dict[str, Any] = {"Collective name": kind, "Process Group Ranks": "[0, 1, 2, 3]", "Group size": 4, **peer}
    built = trace(**about)
    built.launch("ncclDevKernel_SendRecv", at=0, call_lasts=1_000, runs_at=5_000, lasts=2_000, **record)
    loaded = built.load()
    records = between_peers(loaded.collectives, loaded.metadata.rank)
    assert records.select("collective", "group_ranks", "group_size").rows() == [(kind, ranks, size)]


# --- what torch writes since 2.15 -----------------------------------------------------------------------


def test_kernels_that_are_shown_in_a_lane_are_of_the_stream_that_they_ran_on(tmp_path: Path) -> None:
    """What a stream did in which order is asked of streams, not of lanes."""
    lane = {"device": 0, "stream": 1001, "original_stream": 20, "annotated_stream": "attention", "graph node id": 42}
    loaded = load(tmp_path, [{**KERNEL, "args": lane}, {**KERNEL, "ts": 1_700_000_000_000_010, "args": {"stream": 7}}])
    assert loaded.device_events["stream"].to_list() == [20, 7]
    more = loaded.extra_arguments.select("row", pl.col("key", "value").cast(pl.String)).sort("key").rows()
    assert more == [(0, "annotated_stream", "attention"), (0, "graph node id", "42")]


def test_a_trace_reads_the_same_with_arguments_that_nobody_knows_and_counters(tmp_path: Path) -> None:
    host = trace().operator("aten::mm", at=0, lasts=900).launch("gemm", at=100, runs_at=2_000, lasts=5_000)
    plain = json.loads(host.json())
    told = json.loads(host.json())
    for number, event in enumerate(told["traceEvents"]):
        event["args"] = event.get("args", {}) | {
            "annotated_stream": "forward", "graph node id": number, "graph_dependencies": [[1, 2], [2, 3]],
            "event_node_id": 1 << 63, "of no release": {"a": [None, True, 1.5]},
        }  # fmt: skip
    counters, began = {"SM active": 43.5, "DRAM": None}, told["traceEvents"][0]["ts"]
    told["traceEvents"] += [
        {"ph": "C", "name": "GPU 0", "pid": 0, "ts": began + at, "args": counters, "cat": "gpu_counter"}
        for at in range(5)
    ]
    told |= {"cudaGraphInlineAnnotated": True, "graphNodes": {"1": [2, 3]}}
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    (tmp_path / "told.json").write_text(json.dumps(told))
    first, second = (whystall.load(tmp_path / name, cache=False) for name in ("plain.json", "told.json"))
    for table in set(TABLES) - {"extra_arguments", "other_events", "threads", "counters"}:
        left, right = (getattr(one, table).drop("thread", strict=False) for one in (first, second))
        assert left.cast({pl.Enum: pl.String}).equals(right.cast({pl.Enum: pl.String})), table
    assert second.counters.select("name", "device", "value").rows() == [("SM active", 0, 43.5)] * 5
    assert (len(first.counters), len(second.other_events)) == (0, 0)
    reports = [whystall.analyze(tmp_path / name, cache=False) for name in ("plain.json", "told.json")]
    assert reports[0].devices == reports[1].devices
    assert reports[0].verdict == reports[1].verdict
