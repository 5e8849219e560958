from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import whystall
from whystall.analysis.rank_clocks import RankClock
from whystall.report.perfetto import Track, write_chrome_trace, write_chrome_traces
from whystall.testing import trace as builder
from whystall.trace.model import Trace

ORIGIN = 1_700_000_000_000_000_000
NAMES = pl.Enum(['gemm<"a">', "Memcpy HtoD\n"])


def host_events(*rows: tuple[int, int, str, int], **columns: list[int | None]) -> pl.DataFrame:
    schema = {"ts_ns": pl.Int64, "duration_ns": pl.Int64, "name": pl.String, "thread": pl.Int32}
    frame = pl.DataFrame([(ORIGIN + start, *rest) for start, *rest in rows], schema=schema, orient="row")
    return frame.with_columns(pl.Series(name, values, dtype=pl.Int64) for name, values in columns.items())


def recording(**changes: Any) -> Any:
    """One launched kernel, one copy without a launch, and a host thread of each kind."""
    tables = {
        "metadata": SimpleNamespace(device_name=lambda device: "NVIDIA H200" if device == 0 else None),
        "threads": pl.DataFrame(
            {"pid": ["12", "12", None], "tid": ["12", "main", "7"], "name": ["python", None, None]}
        ),
        "device_events": pl.DataFrame(
            {
                "ts_ns": [ORIGIN + 5_000, ORIGIN + 7_001],
                "duration_ns": [1, 2_003],
                "name": pl.Series(['gemm<"a">', "Memcpy HtoD\n"], dtype=NAMES),
                "kind": ["kernel", "memcpy"],
                "device": [0, 0],
                "stream": [7, 20],
                "thread": [2, 2],
                "launch": pl.Series([0, None], dtype=pl.UInt32),
                "correlation": [5, None],
                "bytes": [None, 64],
            }
        ),
        "operators": host_events((0, 1_500, "aten::mm", 0), sequence=[3]),
        "annotations": host_events(),
        "python_functions": host_events((2, 1_400, "train.py(8): step", 1)),
        "runtime_calls": host_events((20, 15, "cudaLaunchKernel", 0), correlation=[5]),
        "counters": pl.DataFrame(
            {
                "ts_ns": [ORIGIN - 1, ORIGIN + 5_000, ORIGIN + 5_001, ORIGIN + 6_000],
                "name": pl.Series(["a", '"SM" (%)', "a", "a"], dtype=pl.Enum(["a", '"SM" (%)'])),
                "value": [1.0, 62.5, 7.0, 8.0],
                "device": pl.Series([0, 0, None, 3], dtype=pl.Int32),
            }
        ),
    }
    return SimpleNamespace(**(tables | changes))


def written(trace: Any) -> Any:
    stream = io.BytesIO()
    write_chrome_trace(trace, stream)
    return json.loads(stream.getvalue(), parse_float=str)


def test_times_are_exact_microseconds_from_the_first_event() -> None:
    trace = written(recording())

    slices = {event["name"]: (event["ts"], event["dur"]) for event in trace["traceEvents"] if event["ph"] == "X"}
    assert trace["baseTimeNanoseconds"] == ORIGIN
    assert slices == {
        'gemm<"a">': ("5.000", "0.001"),
        "Memcpy HtoD\n": ("7.001", "2.003"),
        "aten::mm": ("0.000", "1.500"),
        "train.py(8): step": ("0.002", "1.400"),
        "cudaLaunchKernel": ("0.020", "0.015"),
    }


def test_tracks_have_small_numbers_and_names_that_say_what_they_are() -> None:
    events = written(recording())["traceEvents"]

    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert processes == {"device 0: NVIDIA H200", "host 12"}
    assert threads == {"stream 7", "stream 20", "python", "thread main"}
    assert all(isinstance(event["pid"], int) and isinstance(event["tid"], int) for event in events)


def test_a_launch_is_tied_to_its_event_by_an_arrow() -> None:
    events = written(recording())["traceEvents"]

    begin, end = (event for event in events if event["ph"] in "sf")
    assert (begin["ph"], begin["ts"]) == ("s", "0.020")
    assert (end["ph"], end["ts"]) == ("f", "5.000")
    assert begin["id"] == end["id"]


def test_known_arguments_are_kept_and_unknown_ones_are_absent() -> None:
    events = {event["name"]: event for event in written(recording())["traceEvents"]}

    assert events['gemm<"a">']["args"] == {"device": 0, "stream": 7, "correlation": 5}
    assert events["Memcpy HtoD\n"]["args"] == {"device": 0, "stream": 20, "bytes": 64}
    assert events["aten::mm"]["args"] == {"Sequence number": 3}


def test_nothing_but_events_is_written() -> None:
    assert written(recording()).keys() == {"displayTimeUnit", "baseTimeNanoseconds", "traceEvents"}


def test_a_trace_without_events_is_still_a_trace() -> None:
    nothing = {table: host_events() for table in ("operators", "python_functions", "runtime_calls")}
    empty = recording(device_events=recording().device_events.head(0), **nothing)

    assert written(empty)["traceEvents"] == []


@pytest.mark.parametrize("compress", [False, True])
def test_the_same_trace_gives_the_same_bytes(*, compress: bool) -> None:
    streams = [io.BytesIO(), io.BytesIO()]
    for stream in streams:
        write_chrome_trace(recording(), stream, compress=compress)

    assert streams[0].getvalue() == streams[1].getvalue()


def test_gzip_holds_the_same_events() -> None:
    stream = io.BytesIO()

    write_chrome_trace(recording(), stream, compress=True)

    assert json.loads(gzip.decompress(stream.getvalue()), parse_float=str) == written(recording())


def test_several_ranks_stand_on_one_clock_and_in_rows_of_their_own() -> None:
    """Rank 1's clock is 4 us behind and runs a tenth of a thousandth faster from its first event on."""

    def of(rank: int) -> Trace:
        built = builder()
        built.operator("aten::mm", at=0 if rank else 4_000, lasts=100_000_000)
        built.launch("gemm", at=20 if rank else 4_020, runs_at=50_000_000 if rank else 50_009_000, lasts=10_000_000)
        return built.load()

    start = of(1).operators["ts_ns"][0]
    clock = RankClock(offset_ns=4_000, drift=1e-4, at_ns=start)
    stream = io.BytesIO()
    write_chrome_traces({0: of(0), 1: of(1)}, {0: RankClock(), 1: clock}, stream)
    events = json.loads(stream.getvalue(), parse_float=str)["traceEvents"]
    slices = [(event["name"], event["pid"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert [(ts, dur) for name, _, ts, dur in slices if name == "aten::mm"] == [
        ("0.000", "100000.000"),
        ("0.000", "100010.000"),
    ]
    assert [(ts, dur) for name, _, ts, dur in slices if name == "gemm"] == [
        ("50005.000", "10000.000"),
        ("50005.000", "10001.000"),
    ]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [name.split(" ")[:2] for _, name in sorted(processes.items())] == [["rank", "0"]] * 2 + [["rank", "1"]] * 2
    assert len({pid for _, pid, _, _ in slices}) == 4
    arrows = [event["id"] for event in events if event["ph"] == "s"]
    assert len(arrows) == len(set(arrows)) == 2


def test_rows_of_our_own_stand_first_and_names_stay_text() -> None:
    slices = pl.DataFrame({"ts_ns": [ORIGIN - 500], "duration_ns": [1_250], "name": ['</script>"']})
    stream = io.BytesIO()
    write_chrome_trace(recording(), stream, above=[Track("ledger", slices), Track("idle", slices)])
    trace = json.loads(stream.getvalue(), parse_float=str)
    assert trace["baseTimeNanoseconds"] == ORIGIN - 500
    own = [event for event in trace["traceEvents"] if event["pid"] == 1]
    assert [event["args"]["name"] for event in own if event["ph"] == "M" and "name" in event["args"]] == [
        "whystall",
        "ledger",
        "idle",
    ]
    drawn = [(event["name"], event["ts"], event["dur"]) for event in own if event["ph"] == "X"]
    assert drawn == [('</script>"', "0.000", "1.250")] * 2
    places = [(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert len(places) == len(set(places)) == 6
    assert all(pid != tid for pid, tid in places if pid == 1)


def test_counters_stand_in_the_process_of_their_device_from_the_first_event_on() -> None:
    events = written(recording())["traceEvents"]
    (process,) = {
        event["pid"] for event in events if event["name"] == "process_name" and "device 0" in event["args"]["name"]
    }
    drawn = [event for event in events if event["ph"] == "C"]
    assert drawn == [{"ph": "C", "name": '"SM" (%)', "pid": process, "tid": 0, "ts": "5.000", "args": {"": "62.5"}}]


def test_counters_of_several_ranks_stand_on_one_clock() -> None:
    ranks = {rank: builder().kernel("gemm", at=0, lasts=100).counter("SM", rank, at=50).load() for rank in (0, 1)}
    stream = io.BytesIO()
    write_chrome_traces(ranks, {1: RankClock(offset_ns=1_000)}, stream)
    drawn = [event for event in json.loads(stream.getvalue())["traceEvents"] if event["ph"] == "C"]
    assert [(event["ts"], event["args"][""]) for event in drawn] == [(0.05, 0), (1.05, 1)]
    assert len({event["pid"] for event in drawn}) == 2


def test_counters_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    built = builder().kernel("gemm", at=0, lasts=100).kernel("gemm", at=10, lasts=50, device=1)
    for at, value in ((0, 0.1), (5, 1e-7), (7, 123456789.125), (9, 1e20)):
        built.counter("SM Active (%)", value, at=at, device=at % 2)
    loaded = built.load()
    with (tmp_path / "out.json").open("wb") as stream:
        write_chrome_trace(loaded, stream)
    again = whystall.load(tmp_path / "out.json", cache=False)
    columns = ("ts_ns", "device", "name", "value", "unit")
    assert again.counters.select(columns).rows() == loaded.counters.select(columns).rows()
    assert len(again.counters) == 4
