"""The recorded export: whystall's tables beside what plain SQL says of the file."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import whystall
from whystall.trace.load import load_traces
from whystall.trace.model import Trace

SAMPLE = Path(__file__).resolve().parents[5] / "shared" / "samples" / "nsys" / "h100_2gpu_1s.sqlite"
PID, TID_PID, TID = "globalPid / 0x1000000 % 0x1000000", "globalTid / 0x1000000 % 0x1000000", "globalTid % 0x1000000"
SESSION_NS = 1_779_630_014_975_716_426 - 35_255_823_190  # utcEpochNs less the clock's startTime
pytestmark = pytest.mark.real_traces


@pytest.fixture(scope="module")
def sample() -> Path:
    if not SAMPLE.exists():
        if os.environ.get("WHYSTALL_REQUIRE_TRACES") == "1":
            pytest.fail("the sample is not beside the repository (../shared/samples)")
        pytest.skip("the sample is not beside the repository (../shared/samples)")
    return SAMPLE


@pytest.fixture(scope="module")
def sql(sample: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"{sample.as_uri()}?mode=ro&immutable=1", uri=True)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def traces(sample: Path) -> dict[int, Trace]:
    """By process."""
    return {int(trace.threads["pid"][0]): trace for trace in load_traces(sample, cache=False)}


def ask(sql: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    return sorted(sql.execute(query).fetchall())


def ours(traces: dict[int, Trace], table: str, *columns: str, where: pl.Expr | None = None) -> list[tuple[Any, ...]]:
    rows = []
    for pid, trace in traces.items():
        frame = getattr(trace, table)
        frame = frame if where is None else frame.filter(where)
        rows += [(pid, *row) for row in frame.select(columns).cast({pl.Enum: pl.String}).rows()]
    return sorted(rows)


def of_kind(kind: str) -> pl.Expr:
    return pl.col("kind").cast(pl.String) == kind


def test_each_process_is_a_rank_of_its_own_device(traces: dict[int, Trace]) -> None:
    assert list(traces) == [111, 112]
    assert [trace.device_events["device"].unique().to_list() for trace in traces.values()] == [[0], [1]]
    assert [trace.source.warnings for trace in traces.values()] == [(), ()]
    assert [trace.source.quarantined for trace in traces.values()] == [(), ()]


def test_every_kernel_has_its_place_and_time(traces: dict[int, Trace], sql: sqlite3.Connection) -> None:
    columns = ("ts_ns", "duration_ns", "device", "stream", "correlation", "registers_per_thread", "shared_memory_bytes")
    asked = ask(
        sql,
        f"select {PID}, start + {SESSION_NS}, end - start, deviceId, streamId, correlationId, registersPerThread, "
        "staticSharedMemory + dynamicSharedMemory from CUPTI_ACTIVITY_KIND_KERNEL",
    )
    assert len(asked) == 3442
    assert ours(traces, "device_events", *columns, where=of_kind("kernel")) == asked


def test_kernels_and_their_time_by_device(traces: dict[int, Trace], sql: sqlite3.Connection) -> None:
    found = [
        (pid, len(kernels), kernels["duration_ns"].sum())
        for pid, trace in traces.items()
        for kernels in [trace.device_events.filter(of_kind("kernel"))]
    ]
    query = f"select {PID}, count(*), sum(end - start) from CUPTI_ACTIVITY_KIND_KERNEL group by 1"
    assert found == ask(sql, query) == [(111, 1721, 22_385_163), (112, 1721, 22_444_359)]


def test_copies_and_sets_by_kind_and_bytes(traces: dict[int, Trace], sql: sqlite3.Connection) -> None:
    names = {
        (1, 0, 2): "Memcpy HtoD (Pageable -> Device)", (1, 1, 2): "Memcpy HtoD (Pinned -> Device)",
        (2, 2, 1): "Memcpy DtoH (Device -> Pinned)", (8, 2, 2): "Memcpy DtoD (Device -> Device)",
    }  # fmt: skip
    copies = ask(
        sql,
        f"select {PID}, copyKind, srcKind, dstKind, count(*), sum(bytes), sum(end - start) "
        "from CUPTI_ACTIVITY_KIND_MEMCPY group by 1, 2, 3, 4",
    )
    sets = ask(sql, f"select {PID}, count(*), sum(bytes), sum(end - start) from CUPTI_ACTIVITY_KIND_MEMSET group by 1")
    expected = [(pid, names[kind, source, target], *sums) for pid, kind, source, target, *sums in copies]
    expected += [(pid, "Memset (Device)", *sums) for pid, *sums in sets]
    found = []
    for pid, trace in traces.items():
        moved = trace.device_events.filter(~of_kind("kernel")).group_by(pl.col("name").cast(pl.String))
        sums = moved.agg(pl.len(), pl.col("bytes").sum(), pl.col("duration_ns").sum())
        found += [(pid, *row) for row in sums.rows()]
    assert sorted(found) == sorted(expected)
    assert (111, "Memcpy HtoD (Pinned -> Device)", 223, 25_475_252_224) in [row[:4] for row in found]


def test_a_launch_is_the_call_of_that_number_in_the_same_process(
    traces: dict[int, Trace], sql: sqlite3.Connection
) -> None:
    found = []
    for pid, trace in traces.items():
        kernels = trace.device_events.filter(of_kind("kernel"))
        launched = kernels.filter(pl.col("launch").is_not_null())
        calls = trace.runtime_calls[launched["launch"].to_numpy()]
        found += [
            (pid, *row)
            for row in zip(launched["ts_ns"], launched["correlation"], calls["ts_ns"], calls["thread"], strict=True)
        ]
    threads = {pid: trace.threads["tid"].to_list() for pid, trace in traces.items()}
    joined = ask(
        sql,
        f"select {PID.replace('globalPid', 'k.globalPid')}, k.start + {SESSION_NS}, k.correlationId, "
        f"r.start + {SESSION_NS}, r.{TID} from CUPTI_ACTIVITY_KIND_KERNEL k join CUPTI_ACTIVITY_KIND_RUNTIME r "
        "on r.correlationId = k.correlationId and r.globalTid >> 24 = k.globalPid >> 24",
    )
    assert sorted((pid, *row, int(threads[pid][thread])) for pid, *row, thread in found) == joined
    assert len(joined) == 1632
    # by number alone eleven more would be joined: those of the other process
    alone = "select count(*) from CUPTI_ACTIVITY_KIND_KERNEL where correlationId in (select correlationId from {})"
    assert ask(sql, alone.format("CUPTI_ACTIVITY_KIND_RUNTIME")) == [(1643,)]


def test_calls_and_their_threads(traces: dict[int, Trace], sql: sqlite3.Connection) -> None:
    found: Counter[tuple[int, int, str]] = Counter()
    for pid, trace in traces.items():
        tids = trace.threads["tid"].to_list()
        names = trace.runtime_calls["name"].cast(pl.String).to_list()
        threads = trace.runtime_calls["thread"].to_list()
        found.update((pid, int(tids[thread]), name) for thread, name in zip(threads, names, strict=True))
    asked = ask(
        sql,
        f"select {TID_PID}, {TID}, substr(value, 1, instr(value, '_v') - 1), count(*) "
        "from CUPTI_ACTIVITY_KIND_RUNTIME join StringIds on id = nameId group by 1, 2, 3",
    )
    assert sorted((*key, count) for key, count in found.items()) == asked
    assert found[111, 111, "cudaLaunchKernel"] == found[112, 112, "cudaLaunchKernel"] == 1394


def test_ranges_are_operators_and_annotations_of_their_thread(
    traces: dict[int, Trace], sql: sqlite3.Connection
) -> None:
    text = "substr(text, 1, instr(text, ', op_id') - 1)"
    asked = ask(sql, f"select {TID_PID}, {text}, start + {SESSION_NS}, end - start from NVTX_EVENTS")
    operators = ours(traces, "operators", "name", "ts_ns", "duration_ns")
    annotations = ours(traces, "annotations", "name", "ts_ns", "duration_ns")
    assert sorted(operators + annotations) == asked
    assert {name.split("::")[0] for _, name, *_ in annotations} == {"FSDP"}
    assert {name.split("::")[0] for _, name, *_ in operators} == {"aten", "detach_"}


def test_ranges_nest_as_time_says(traces: dict[int, Trace], sql: sqlite3.Connection) -> None:
    """The parent of an operator is the shortest of the others that hold it, asked of every hundredth."""
    trace = traces[111]
    operators = trace.operators.with_row_index("row")
    for row in operators[::100].iter_rows(named=True):
        begin, end = row["ts_ns"] - SESSION_NS, row["ts_ns"] - SESSION_NS + row["duration_ns"]
        held = sql.execute(
            f"select start, end from NVTX_EVENTS where {TID_PID} = 111 and text not like 'FSDP%' and start <= ? "
            "and end >= ? and not (start = ? and end = ?) order by end - start limit 1",
            (begin, end, begin, end),
        ).fetchone()
        parent = None if row["parent"] is None else operators.row(row["parent"], named=True)
        found = None if parent is None else parent["ts_ns"] - SESSION_NS
        assert found == (None if held is None else held[0])


def test_waits_name_their_device_stream_and_call(traces: dict[int, Trace], sql: sqlite3.Connection) -> None:
    names = {2: "Stream Wait Event", 3: "Stream Sync"}
    asked = ask(
        sql,
        f"select {PID}, syncType, streamId, correlationId, start + {SESSION_NS} "
        "from CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    )
    # the file gives device 0 for all of them; the process's kernels say which device its context is on
    expected = sorted((pid, names[kind], pid - 111, *rest) for pid, kind, *rest in asked)
    assert ours(traces, "synchronizations", "name", "device", "stream", "correlation", "ts_ns") == expected
    assert len(expected) == 244


def test_the_profilers_own_time_is_kept(traces: dict[int, Trace], sql: sqlite3.Connection) -> None:
    found = ours(traces, "other_events", "name", "category", "duration_ns")
    asked = ask(sql, f"select {TID_PID}, end - start from CUPTI_ACTIVITY_KIND_OVERHEAD")
    assert found == [(pid, "Command Buffer Full", "overhead", duration) for pid, duration in asked]
    assert sum(duration for *_, duration in found) == 911_969_806


def test_analyze_says_where_the_time_went(sample: Path, sql: sqlite3.Connection) -> None:
    report = whystall.analyze(sample, cache=False)
    assert report.source.framework == "pytorch"
    for device in report.devices:
        tables = ("KERNEL", "MEMCPY", "MEMSET")
        spans = []
        for table in tables:
            query = f"select start, end from CUPTI_ACTIVITY_KIND_{table} where deviceId = ?"
            spans += sql.execute(query, (device.device,)).fetchall()
        assert device.gpu_events == len(spans)
        assert device.window_ns == max(end for _, end in spans) - min(start for start, _ in spans)
        assert device.busy_ns == covered(spans)
        assert device.ledger.total_ns == device.window_ns
        # copies of the weights from the host, 25 GB in a second: the kernels take 2 % of the time
        assert device.exposed_memory_ns / device.window_ns > 0.96
        assert device.compute_ns / device.window_ns < 0.03
    assert [(device.rank, device.device) for device in report.devices] == [(0, 0), (1, 1)]


def covered(spans: list[tuple[int, int]]) -> int:
    total, until = 0, 0
    for start, end in sorted(spans):
        total += max(end, until) - max(start, until)
        until = max(end, until)
    return total
