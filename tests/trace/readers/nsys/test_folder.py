"""Exports as folders of Parquet files: what the database says of the same recording, damage, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.trace.readers.nsys.builder import Export, training
from tests.trace.readers.nsys.folder_builder import as_folder
from tests.trace.readers.nsys.test_reader import TOKEN, planted
from tests.trace.readers.nsys.test_sample import SAMPLE
from tests.trace.readers.reading import rows

import whystall
from whystall.errors import InputError
from whystall.trace.cache import TraceCache
from whystall.trace.discovery import find_traces
from whystall.trace.files import Limits
from whystall.trace.load import load_trace, load_traces
from whystall.trace.model import TABLES, Trace
from whystall.trace.readers.registry import READERS

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.sqlite"


def folder(export: Export, path: Path, **how: Any) -> Path:
    return as_folder(export.write(path), path.with_name(f"{path.stem}_pqtdir"), **how)


def assert_the_same(one: list[Trace], other: list[Trace]) -> None:
    assert len(one) == len(other) > 0
    for first, second in zip(one, other, strict=True):
        assert first.metadata == second.metadata
        assert first.source.quarantined == second.source.quarantined
        for table in TABLES:
            left, right = getattr(first, table), getattr(second, table)
            assert left.cast({pl.Enum: pl.String}).equals(right.cast({pl.Enum: pl.String})), table


# --- what it says ---------------------------------------------------------------------------------------------


def test_it_says_what_the_database_says(path: Path) -> None:
    export = training(pid=20, device=1, export=training(pid=10))
    export.add("TARGET_INFO_GPU", id=0, name="NVIDIA H100", totalMemory=1 << 34, smCount=132)
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    made = folder(export, path)
    assert_the_same(load_traces(made, cache=False), load_traces(path, cache=False))


@pytest.mark.real_traces
@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample is not beside the repository (../shared/samples)")
@pytest.mark.parametrize("how", [{}, {"compression": "zstd", "row_group_size": 500}, {"use_dictionary": False}])
def test_the_recorded_export_says_the_same_in_both_forms(tmp_path: Path, how: dict[str, Any]) -> None:
    """Kernels, their time and names by pyarrow; the other tables as the database has them, which SQL vouches for."""
    made = as_folder(SAMPLE, tmp_path / "h100_pqtdir", **how)
    traces = load_traces(made, cache=False)
    assert_the_same(traces, load_traces(SAMPLE, cache=False))
    kernels = pq.read_table(made / f"{KERNELS}.parquet").to_pylist()
    texts = pq.read_table(made / "StringIds.parquet").to_pylist()
    short = {text["id"]: text["value"] for text in texts}
    found = pl.concat(
        [
            trace.device_events.filter(pl.col("kind").cast(pl.String) == "kernel").cast({pl.Enum: pl.String})
            for trace in traces
        ],
        how="vertical_relaxed",
    )
    assert (len(found), found["duration_ns"].sum()) == (3442, sum(one["end"] - one["start"] for one in kernels))
    assert sorted(found.select("duration_ns", "device", "stream", "correlation").rows()) == sorted(
        (one["end"] - one["start"], one["deviceId"], one["streamId"], one["correlationId"]) for one in kernels
    )
    nccl = sum("nccl" in short[one["demangledName"]].lower() for one in kernels)
    assert found["name"].str.to_lowercase().str.contains("nccl").sum() == nccl


def test_any_file_or_the_folder_names_it(path: Path) -> None:
    made = folder(training(), path)
    named = [made, made / "StringIds.parquet", made / f"{KERNELS}.parquet", made / "NVTX_EVENTS.parquet"]
    for one in named:
        trace = load_trace(one, cache=False)
        assert (trace.name, len(trace.device_events)) == ("job_pqtdir", 10)
        assert find_traces(one) == [made / "StringIds.parquet"]
        assert whystall.analyze(one, cache=False).devices[0].kernel_sum_ns == 10 * 300_000
    for given in (named, str(made / "*.parquet"), str(made / "*E*.parquet")):
        report = whystall.analyze(given, cache=False)
        assert [file.path for file in report.source.files] == ["job_pqtdir"]
        assert report.devices[0].kernel_sum_ns == 10 * 300_000


def test_a_folder_of_exports_holds_a_rank_each(path: Path) -> None:
    for rank in range(2):
        job = training(pid=10 + rank, device=rank).range("one more", at=7_000_000 + rank, lasts=5, pid=10 + rank)
        folder(job, path.with_name(f"rank{rank}.sqlite"))
        path.with_name(f"rank{rank}.sqlite").unlink()
    report = whystall.analyze(path.parent, cache=False)
    assert [(file.path, file.rank) for file in report.source.files] == [("rank0_pqtdir", 0), ("rank1_pqtdir", 1)]


def test_other_files_of_parquet_are_no_export(tmp_path: Path) -> None:
    """A data set beside traces is left alone; one that is named is said to be of no format that is read."""
    table = pa.table({"id": [1], "value": ["x"]})
    for name in ("train-00000", "StringIds"):
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / f"{name}.parquet")
    with pytest.raises(InputError, match="in no format that whystall reads"):
        load_trace(tmp_path / "train-00000" / "train-00000.parquet", cache=False)
    with pytest.raises(InputError, match="in no format that whystall reads"):
        load_trace(tmp_path / "StringIds" / "StringIds.parquet", cache=False)
    with pytest.raises(InputError, match="no traces in this folder"):
        find_traces(tmp_path / "train-00000")


def test_a_column_of_another_type_is_unknown(path: Path) -> None:
    made = folder(training(), path)
    file = made / f"{KERNELS}.parquet"
    table = pq.read_table(file)
    wide = {"streamId": pa.uint32(), "deviceId": pa.int16(), "globalPid": pa.uint64()}
    for name, dtype in {**wide, "registersPerThread": pa.string(), "gridX": pa.float64()}.items():
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(dtype))
    pq.write_table(table, file)
    trace = load_trace(made, cache=False)
    assert rows(trace.device_events[:1], "stream", "device", "registers_per_thread", "grid") == [(7, 0, None, None)]
    assert len(trace.device_events) == 10


def test_the_cache_knows_every_table(path: Path, tmp_path: Path) -> None:
    made, store = folder(training(), path), TraceCache(tmp_path / "kept", least_raw_bytes=0)
    reader = next(reader for reader in READERS if reader.name == "nsys-parquet")
    before = store.key(made / "StringIds.parquet", reader)
    assert store.key(made / f"{KERNELS}.parquet", reader) == before
    pq.write_table(pq.read_table(made / f"{KERNELS}.parquet")[:5], made / f"{KERNELS}.parquet")
    assert store.key(made / "StringIds.parquet", reader) != before


# --- damage and traps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_table_that_ends_early_is_named_and_left_out(path: Path, share: float) -> None:
    made = folder(training(), path)
    file = made / "NVTX_EVENTS.parquet"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    trace = load_trace(made, cache=False)
    assert trace.source.truncated
    assert trace.source.warnings == (
        "the table NVTX_EVENTS is damaged (the file does not end as it should): it was not read",
    )
    assert (len(trace.device_events), len(trace.operators)) == (10, 0)


def test_texts_that_cannot_be_read_leave_what_has_no_name(path: Path) -> None:
    made = folder(training(), path)
    file = made / "StringIds.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    trace = load_trace(made, cache=False)
    assert trace.device_events["name"].cast(pl.String).str.starts_with("unnamed ").all()
    assert "the table StringIds is damaged" in trace.source.warnings[0]


def test_an_export_without_events_is_refused(path: Path) -> None:
    export = Export().add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1)
    export.text("a text")
    with pytest.raises(InputError, match=r"^job_pqtdir holds no event of a job$"):
        load_trace(folder(export, path), cache=False)


def test_limits_bound_what_is_read(path: Path) -> None:
    made = folder(training(), path)
    with pytest.raises(InputError, match=r"^job_pqtdir is larger than what is read \(100 bytes\)$"):
        load_trace(made, cache=False, limits=Limits(raw_bytes=100))
    trace = load_trace(made, cache=False, limits=Limits(events=7))
    assert len(trace.device_events) == 7
    assert f"the table {KERNELS} has more rows than are read: the rest was left out" in trace.source.warnings


def test_a_table_that_unpacks_to_more_than_a_recording_is_left_out(path: Path) -> None:
    """Three million equal rows take some kilobytes, and a text that stands once may be that of every row."""
    made = folder(training(), path)
    calls = made / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet"
    first = pq.read_table(calls).to_pylist()[0]
    pq.write_table(pa.table({name: pa.repeat(one, 3_000_000) for name, one in first.items()}), calls)
    ranges = pq.read_table(made / "NVTX_EVENTS.parquet")
    longer = pa.concat_tables([ranges] * 20)
    longer = longer.set_column(longer.schema.get_field_index("text"), "text", [["x" * 100_000] * len(longer)])
    pq.write_table(longer, made / "NVTX_EVENTS.parquet")
    trace = load_trace(made, cache=False, limits=Limits(unpacked_bytes=1 << 22, unpacked_times=200))
    sentence = "the table {} unpacks to more than a recording holds: it was not read"
    assert set(trace.source.warnings) == {
        sentence.format("CUPTI_ACTIVITY_KIND_RUNTIME"),
        sentence.format("NVTX_EVENTS"),
    }
    assert (len(trace.device_events), len(trace.runtime_calls)) == (10, 0)


def test_columns_within_columns_are_not_read(path: Path) -> None:
    made = folder(training(), path)
    nested = pa.table({"start": [1], "end": [2], "globalTid": [3], "more": [{"a": 1}]})
    pq.write_table(nested, made / "CUPTI_ACTIVITY_KIND_OVERHEAD.parquet")
    assert load_trace(made, cache=False).source.warnings == (
        "the table CUPTI_ACTIVITY_KIND_OVERHEAD is damaged (a column holds columns): it was not read",
    )


# --- secrets ----------------------------------------------------------------------------------------------------


def test_no_report_or_cache_holds_the_environment(path: Path, tmp_path: Path) -> None:
    made = as_folder(planted(path), path.with_name("job_pqtdir"), compression="none")
    assert sum(TOKEN.encode() in file.read_bytes() for file in made.iterdir()) == 4
    report = whystall.analyze(made, cache=False)
    for name in ("html", "markdown", "terminal", "json"):
        assert TOKEN not in whystall.render(report, name), name
    store = TraceCache(tmp_path / "kept", least_raw_bytes=0)
    trace = load_trace(made, store=store)
    reader = next(reader for reader in READERS if reader.name == "nsys-parquet")
    assert store.write(store.key(made, reader), trace) is None
    kept = [file for file in store.folder.rglob("*") if file.is_file()]
    assert kept
    assert not [file for file in kept if TOKEN.encode() in file.read_bytes()]
    assert all(TOKEN not in getattr(trace, table).write_json() for table in TABLES)
