"""rocpd databases, written by the schema of rocprofiler-sdk (no recorded one was to be had)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl
import pytest
from tests.trace.readers.reading import rows
from tests.trace.readers.rocpd_builder import RUN, TOKEN, job, write

import whystall
from whystall.errors import InputError
from whystall.trace.load import load_traces
from whystall.trace.model import TABLES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "77_results.db"


def test_a_job_becomes_a_trace(path: Path) -> None:
    (trace,) = load_traces(write(path, job()), cache=False)
    columns = ("ts_ns", "duration_ns", "name", "kind", "device", "stream", "bytes", "grid", "launch", "step")
    assert rows(trace.device_events[:2], *columns) == [
        (10**12 + 100, 400_000, "gemm", "kernel", 1, 0, None, "[4, 2, 1]", 0, 0),
        (10**12 + 500_000, 100_000, "Memcpy HtoD", "memcpy", 1, 2, 4096, None, None, None),
    ]
    assert rows(trace.runtime_calls, "name") == [("hipLaunchKernel",)] * 4
    assert trace.annotations["name"].cast(pl.String).to_list() == ["iter 0", "iter 1", "iter 2", "iter 3"]
    assert len(trace.steps) == 4
    assert rows(trace.threads, "pid", "tid") == [("77", "78")]
    assert (trace.name, trace.source.warnings) == ("77_results.db", ())
    assert trace.metadata.device_name(1) == "AMD Instinct MI300X"
    report = whystall.analyze(path, cache=False)
    assert report.devices[0].kernel_sum_ns == 4 * 500_000


def test_environment_and_command_are_never_read(path: Path) -> None:
    (trace,) = load_traces(write(path, job()), cache=False)
    report = whystall.analyze(path, cache=False)
    assert all(TOKEN not in whystall.render(report, name) for name in ("html", "markdown", "terminal", "json"))
    assert all(TOKEN not in getattr(trace, table).write_json() for table in TABLES)


def test_times_that_cannot_be_true_are_counted(path: Path) -> None:
    rows = job()
    rows["kernel_dispatch"][0]["end"] = 5
    rows["kernel_dispatch"][1]["start"] = 2**63 - 1
    rows["kernel_dispatch"][2]["start"] = "soon"
    (trace,) = load_traces(write(path, rows), cache=False)
    assert [(entry.reason, entry.events) for entry in trace.source.quarantined] == [("times that cannot be true", 3)]
    assert len(trace.device_events) == 5


def test_another_layout_is_named(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"create table rocpd_kernel_dispatch{RUN} (id integer, track_id integer, start_id integer)")
    connection.close()
    with pytest.raises(
        InputError, match=r"holds no event of a job: the table rocpd_kernel_dispatch.* has no column 'start'"
    ):
        load_traces(path, cache=False)
