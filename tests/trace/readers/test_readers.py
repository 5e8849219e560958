"""The seam for formats: a reader is one class that knows a file's content and hands over unlinked tables.

The format here is made up, in the shape of what Nsight Systems exports: SQLite tables with nanoseconds, names by
number, several processes in one file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import whystall
from whystall.errors import InputError
from whystall.testing import trace
from whystall.trace.cache import TraceCache
from whystall.trace.discovery import find_traces
from whystall.trace.files import HEAD_BYTES, Head, Limits, Progress, head_of
from whystall.trace.load import load_trace, load_traces
from whystall.trace.metadata import DeviceProperties, Metadata
from whystall.trace.model import Trace
from whystall.trace.readers.reader import RawTrace, Reader, Whole
from whystall.trace.readers.registry import READERS, reader_of
from whystall.trace.recordings import read_recordings
from whystall.trace.schema import DEVICE_KINDS, OPTIONAL, REQUIRED

EPOCH = 1_700_000_000_000_000_000


class DatabaseReader:
    """A whole reader: everything that a new format needs."""

    name = "database"
    version = 1
    describes = "databases with tables called kernels and calls"
    suffixes = (".sqlite",)

    def knows(self, head: Head) -> bool:
        return head.content.startswith(b"SQLite format 3\0") and b"kernels" in head.content

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            processes = [pid for (pid,) in connection.execute("select distinct pid from calls order by pid")]
            return [_process(connection, path, pid, alone=len(processes) == 1) for pid in processes]


COLUMNS = {
    "operators": {"ts_ns": "start", "duration_ns": "end - start", "name": "name", "thread": "tid"},
    "runtime_calls": {
        "ts_ns": "start", "duration_ns": "end - start", "name": "name", "thread": "tid", "correlation": "correlation",
    },
    "annotations": {"ts_ns": "start", "duration_ns": "end - start", "name": "name", "thread": "tid"},
    "device_events": {
        "ts_ns": "start", "duration_ns": "end - start", "name": "name", "kind": "'kernel'", "device": "device",
        "stream": "stream", "correlation": "correlation",
    },
}  # fmt: skip
SOURCES = {"operators": "ops", "runtime_calls": "calls", "annotations": "ranges", "device_events": "kernels"}


def _process(connection: sqlite3.Connection, path: Path, pid: int, *, alone: bool) -> RawTrace:
    tables = {}
    for table, columns in COLUMNS.items():
        listed = ", ".join(f"{value} as {column}" for column, value in columns.items())
        query = f"select {listed} from {SOURCES[table]} where pid = ?"
        rows = connection.execute(query, (pid,)).fetchall()
        tables[table] = pl.DataFrame(rows, schema=list(columns), orient="row", infer_schema_length=None)
    return RawTrace(
        tables=tables,
        threads=pl.DataFrame({"pid": [pid], "tid": [pid], "name": ["main"]}),
        metadata=Metadata(rank=pid - 100, devices=(DeviceProperties(0, "NVIDIA H100", None, None, None),)),
        process=None if alone else f"process {pid}",
        events=sum(map(len, tables.values())),
        raw_bytes=path.stat().st_size,
    )


def database(path: Path, *, processes: Sequence[int] = (100,), durations: Sequence[int] = (4_000, 6_000)) -> Path:
    """Two steps of one launch each, the second written before the first."""
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "create table kernels(pid, start, end, name, device, stream, correlation);"
            "create table calls(pid, start, end, name, tid, correlation);"
            "create table ops(pid, start, end, name, tid);"
            "create table ranges(pid, start, end, name, tid);"
        )
        for pid in processes:
            for step in (2, 1):
                at = EPOCH + step * 10_000
                ends = at + 2_000 + durations[step - 1]
                connection.execute(
                    "insert into ranges values(?,?,?,?,0)", (pid, at, at + 9_000, f"ProfilerStep#{step}")
                )
                connection.execute("insert into ops values(?,?,?,'aten::mm',0)", (pid, at + 100, at + 900))
                connection.execute(
                    "insert into calls values(?,?,?,'cudaLaunchKernel',0,?)", (pid, at + 200, at + 400, step)
                )
                connection.execute("insert into kernels values(?,?,?,'gemm',0,7,?)", (pid, at + 2_000, ends, step))
    connection.close()
    return path


ALL: tuple[Reader, ...] = (DatabaseReader(), *READERS)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.trace.readers.registry.brought", lambda *_: ([DatabaseReader()], []))


def load(path: Path) -> Trace:
    return load_trace(path, cache=False, readers=ALL)


def test_a_reader_of_one_class_gives_a_linked_trace_with_steps(tmp_path: Path) -> None:
    found = load(database(tmp_path / "job.sqlite"))
    assert found.steps["name"].to_list() == ["ProfilerStep#1", "ProfilerStep#2"]
    assert found.device_events.select("duration_ns", "launch", "operator", "step").rows() == [
        (4_000, 0, 0, 0),
        (6_000, 1, 1, 1),
    ]
    assert found.runtime_calls["operator"].to_list() == [0, 1]
    assert found.operators["self_ns"].to_list() == [600, 600]
    assert found.source.events == 8


def test_a_format_is_known_by_content_whatever_the_file_is_called(tmp_path: Path) -> None:
    assert len(load(database(tmp_path / "trace.json")).device_events) == 2
    trace().operator("aten::mm", at=0, lasts=10).write(tmp_path / "trace.sqlite")
    assert len(load(tmp_path / "trace.sqlite").operators) == 1


def test_what_a_format_does_not_record_is_unknown_in_every_row(tmp_path: Path) -> None:
    found = load(database(tmp_path / "job.sqlite"))
    for table in ("operators", "runtime_calls", "device_events", "annotations"):
        frame = getattr(found, table)
        # columns of collectives move to a table of their own
        missing = [c for c in OPTIONAL[table] if c in frame.columns and c not in COLUMNS[table]]
        assert missing
        assert all(frame[column].null_count() == len(frame) for column in missing)
    assert found.memory_events.columns == [*REQUIRED["memory_events"], "thread", *OPTIONAL["memory_events"]]


def test_the_tables_are_those_of_a_kineto_trace(tmp_path: Path) -> None:
    """Every analysis finds the columns that it asks for, whoever read the file."""
    other, kineto = load(database(tmp_path / "job.sqlite")), trace().launch("gemm", at=0, runs_at=9, lasts=9).load()
    for table in REQUIRED:
        missing = set(getattr(kineto, table).columns) - set(getattr(other, table).columns)
        assert missing <= {"name", "phase"}, table  # of flows and of other events
    assert other.collectives.columns == kineto.collectives.columns


@pytest.mark.usefixtures("installed")
def test_an_installed_reader_takes_part_in_analysing_files_and_folders(tmp_path: Path) -> None:
    database(tmp_path / "job.sqlite")
    for given in (tmp_path, tmp_path / "job.sqlite", str(tmp_path / "*.sqlite")):
        report = whystall.analyze(given, cache=False)
        assert report.source.warnings == []
        (device,) = report.devices
        assert (device.name, device.busy_ns, len(device.steps)) == ("NVIDIA H100", 10_000, 2)
    assert len(whystall.load(tmp_path / "job.sqlite").device_events) == 2


@pytest.mark.usefixtures("installed")
def test_the_processes_of_one_file_are_ranks(tmp_path: Path) -> None:
    path = database(tmp_path / "job.sqlite", processes=(100, 101))
    report = whystall.analyze(path, cache=False)
    assert [(file.path, file.rank) for file in report.source.files] == [
        ("job.sqlite (process 100)", 0),
        ("job.sqlite (process 101)", 1),
    ]
    with pytest.raises(InputError, match=r"^job\.sqlite holds the recordings of 2 processes: analyze it"):
        whystall.load(path)


def test_events_whose_times_cannot_be_true_are_set_aside_and_counted(tmp_path: Path) -> None:
    found = load(database(tmp_path / "job.sqlite", durations=(-5, 6_000)))
    assert found.device_events["duration_ns"].to_list() == [6_000]
    (quarantine,) = found.source.quarantined
    assert (quarantine.reason, quarantine.events) == ("no usable time (device events)", 1)


def test_numbers_that_are_null_or_text_are_read_as_numbers(tmp_path: Path) -> None:
    class Loose(DatabaseReader):
        def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
            (raw,) = super().read(path, limits=limits, progress=progress)
            events = raw.tables["device_events"]
            raw.tables["device_events"] = events.with_columns(
                pl.col("correlation").cast(pl.String), bytes=pl.lit(None), grid=pl.lit("[1, 1, 1]"), device=pl.lit(None)
            ).drop("stream")
            return [raw]

    found = load_trace(database(tmp_path / "job.sqlite"), cache=False, readers=[Loose()])
    assert found.device_events["launch"].to_list() == [0, 1]
    assert found.device_events["bytes"].dtype == pl.Int64
    assert found.device_events.select("device", "stream").rows() == [(-1, -1)] * 2  # as in traces that do not tell
    assert found.device_events["grid"].to_list() == ["[1, 1, 1]"] * 2


def test_the_cache_knows_who_read_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.trace.load._LEAST_FILE_BYTES", 0)
    path, store = database(tmp_path / "job.sqlite"), TraceCache(tmp_path / "cache", least_raw_bytes=0)
    first = load_trace(path, store=store, readers=ALL)
    again = load_trace(path, store=store, readers=ALL)
    assert again.device_events.equals(first.device_events)
    assert len(list(store.folder.iterdir())) == 1

    class Newer(DatabaseReader):
        version = 2

    load_trace(path, store=store, readers=[Newer()])
    assert len(list(store.folder.iterdir())) == 2
    assert len({store.key(path, reader) for reader in (DatabaseReader(), Newer(), *READERS)}) == 2 + len(READERS)


NO_THREADS = pl.DataFrame(schema={"pid": pl.String, "tid": pl.String, "name": pl.String})


class Broken(DatabaseReader):
    def __init__(self, **tables: pl.DataFrame | None) -> None:
        self.tables: dict[str, Any] = tables

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        if not self.tables:
            raise KeyError("nobody")
        return [RawTrace(tables=self.tables, threads=NO_THREADS, events=0, raw_bytes=0)]


TIMES = pl.DataFrame({"ts_ns": [1], "duration_ns": [1]})
NAMED = TIMES.with_columns(name=pl.lit("x"))


@pytest.mark.parametrize(
    ("reader", "sentence"),
    [
        (Broken(), "the reader database failed (KeyError: 'nobody')"),
        (Broken(operators=TIMES), "the reader database is at fault: the table 'operators' has no column 'name'"),
        (Broken(kernels=TIMES), "the reader database is at fault: there is no table 'kernels'"),
        (
            Broken(device_events=NAMED.with_columns(kind=pl.lit("Kernel"))),
            "the reader database is at fault: a device event is of the kind 'Kernel': there are "
            + ", ".join(DEVICE_KINDS),
        ),
        (
            Broken(operators=NAMED.with_columns(thread=0)),
            "the reader database is at fault: the table 'operators' names a thread that is no row of the 0 threads",
        ),
    ],
)
def test_a_reader_that_fails_ends_in_a_sentence(tmp_path: Path, reader: Reader, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        load_traces(database(tmp_path / "job.sqlite"), cache=False, readers=[reader])
    assert str(caught.value) == f"job.sqlite: {sentence}"


def test_a_reader_that_fails_when_it_is_asked_is_passed_over(tmp_path: Path) -> None:
    class Unsure(DatabaseReader):
        def knows(self, head: Head) -> bool:
            raise ValueError("what is this?")

    failures: list[str] = []
    path = trace().operator("aten::mm", at=0, lasts=10).write(tmp_path / "trace.json")
    assert reader_of(head_of(path), [Unsure(), *READERS], failures) in READERS
    assert failures == ["the reader database failed on trace.json: ValueError: what is this?"]
    assert load_trace(path, cache=False, readers=[Unsure(), *READERS]).source.warnings == tuple(failures)


def test_readers_that_cannot_be_loaded_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = "the readers of other could not be loaded: no module"
    monkeypatch.setattr("whystall.trace.readers.registry.brought", lambda *_: ([], [failure]))
    monkeypatch.setattr("whystall.trace.load._LEAST_FILE_BYTES", 0)
    path = trace().operator("aten::mm", at=0, lasts=10).write(tmp_path / "trace.json")
    store = TraceCache(tmp_path / "cache", least_raw_bytes=0)
    assert [load_trace(path, store=store).source.warnings for _ in "12"] == [
        (failure,)
    ] * 2  # read, then from the cache
    assert whystall.load(path).source.warnings == (failure,)
    assert read_recordings([path, path], cache=False).failures == [failure]


def test_a_file_that_no_reader_knows_names_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary")
    with pytest.raises(InputError) as caught:
        load(tmp_path / "notes.txt")
    assert str(caught.value) == (
        "notes.txt is in no format that whystall reads. It reads databases with tables called kernels and calls; "
        "JSON of rocprofv3 (rocprofv3 --output-format json); "
        "profiles of XLA and JAX (*.xplane.pb); "
        "Perfetto traces of the PyTorch profiler (*.pftrace); "
        "traces of the PyTorch profiler (JSON that starts with '{' or '['); "
        "SQLite exports of Nsight Systems (nsys export --type sqlite); "
        "Parquet exports of Nsight Systems (nsys export --type parquetdir, the folder *_pqtdir); "
        "rocpd databases (rocprofv3 --output-format rocpd); "
        "CSV of rocprofv3 (*_kernel_trace.csv, with the job's other files beside it)"
    )


def test_the_head_is_bounded_and_unpacked(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "large").write_bytes(b"x" * (2 * HEAD_BYTES))
    (tmp_path / "packed").write_bytes(gzip.compress(b"x" * (2 * HEAD_BYTES)))
    assert head_of(tmp_path / "large").content == head_of(tmp_path / "packed").content == b"x" * HEAD_BYTES


def test_the_readers_that_ship_fit_the_protocol() -> None:
    assert all(isinstance(reader, Reader) for reader in READERS)
    assert len({reader.name for reader in READERS}) == len(READERS)


def test_a_recording_of_several_files_is_called_by_one_name_and_read_from_the_first(tmp_path: Path) -> None:
    class Pair(DatabaseReader):
        def whole_of(self, path: Path) -> Whole | None:
            names = ("job.sqlite", "job.log")
            return Whole("job", tuple(path.with_name(name) for name in names)) if path.name in names else None

    database(tmp_path / "job.sqlite")
    (tmp_path / "job.log").write_text("beside it")
    readers = [Pair(), *READERS]
    for name in ("job.log", "job.sqlite"):
        found = load_trace(tmp_path / name, cache=False, readers=readers)
        assert (found.name, len(found.device_events)) == ("job", 2)
        assert found.source.file_bytes == (tmp_path / "job.sqlite").stat().st_size + len("beside it")
        assert find_traces(tmp_path / name, readers) == [tmp_path / "job.sqlite"]
    assert find_traces(str(tmp_path / "*"), readers) == find_traces(tmp_path, readers) == [tmp_path / "job.sqlite"]
