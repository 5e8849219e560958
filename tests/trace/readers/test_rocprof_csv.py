"""CSV of rocprofv3: the files of a job as one recording, beside what the standard library reads of them; damage."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import polars as pl
import pytest
from tests.trace.readers.reading import rows
from tests.trace.readers.rocprof_csv_builder import BEGAN, CALL, COPY, KERNEL, call, copy, kernel, text, training, write

import whystall
from whystall.errors import InputError
from whystall.fleet.inputs import find_files
from whystall.trace.cache import TraceCache
from whystall.trace.discovery import find_traces
from whystall.trace.files import Limits
from whystall.trace.load import load_trace
from whystall.trace.model import TABLES
from whystall.trace.readers.registry import READERS

NO_SIZES = "sizes of copies are not in CSV of rocprofv3: its JSON and its database have them"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def took(row: dict[str, str]) -> int:
    return int(row["End_Timestamp"]) - int(row["Start_Timestamp"])


def test_the_files_of_a_job_are_one_recording(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, training()), cache=False)
    kernels, copies = read(tmp_path / "77_kernel_trace.csv"), read(tmp_path / "77_memory_copy_trace.csv")
    assert trace.name == "77_*_trace.csv"
    assert trace.source.warnings == (NO_SIZES,)
    assert sorted(rows(trace.device_events, "ts_ns", "duration_ns", "kind", "correlation")) == sorted(
        (int(row["Start_Timestamp"]), took(row), kind, int(row["Correlation_Id"]))
        for kind, found in (("kernel", kernels), ("memcpy", copies))
        for row in found
    )
    # 1000 by 2 work items in groups of 256; the second of the machine's GPUs
    assert rows(trace.device_events[:2], "name", "device", "stream", "grid", "block", "shared_memory_bytes") == [
        ("gemm", 1, 3, "[4, 2, 1]", "[256, 1, 1]", 64),
        ("Memcpy HtoD", 1, 3, None, None, None),
    ]
    assert rows(trace.threads, "pid", "tid") == [("70", "77")]
    assert [(one.id, one.name, one.multiprocessors) for one in trace.metadata.devices] == [
        (0, "AMD Instinct MI300X", 304), (1, "AMD Instinct MI300X", 304),
    ]  # fmt: skip


def test_launches_are_the_calls_of_the_same_number(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, training()), cache=False)
    calls = {row["Correlation_Id"]: row for row in read(tmp_path / "77_hip_api_trace.csv")}
    launched = trace.runtime_calls[trace.device_events["launch"].to_numpy()]
    for number, name, begin in zip(
        trace.device_events["correlation"], launched["name"].cast(pl.String), launched["ts_ns"], strict=True
    ):
        assert (name, begin) == (calls[str(number)]["Function"], int(calls[str(number)]["Start_Timestamp"]))
    assert len(trace.runtime_calls) == len(calls) == 12


def test_ranges_are_annotations_and_steps(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, training()), cache=False)
    assert rows(trace.annotations, "ts_ns", "duration_ns", "name") == [
        (BEGAN + 1_000_000 * step, 900_000, f"iter {step}") for step in range(4)
    ]
    assert rows(trace.other_events, "name", "category") == [("a mark", "roctx")]
    assert trace.device_events["step"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]
    report = whystall.analyze(tmp_path / "77_kernel_trace.csv", cache=False)
    found = [row for name in ("kernel", "memory_copy") for row in read(tmp_path / f"77_{name}_trace.csv")]
    assert report.devices[0].kernel_sum_ns == sum(map(took, found)) == 2_000_000
    assert report.devices[0].ledger.total_ns == report.devices[0].window_ns


def test_any_file_a_pattern_or_the_folder_names_the_job(tmp_path: Path) -> None:
    first = write(tmp_path / "host", training())
    (tmp_path / "host" / "77_kernel_stats.csv").write_text('"Name","Calls"\n"gemm",4\n')
    (tmp_path / "host" / "metrics.csv").write_text("step,loss\n1,2.5\n")
    traces = sorted((tmp_path / "host").glob("*_trace.csv"))
    assert len(traces) == 4
    for given in (
        [tmp_path],
        [tmp_path / "host"],
        traces,
        traces[::-1],
        [traces[-1]],
        [str(tmp_path / "host/*_trace.csv")],
    ):
        report = whystall.analyze(given, cache=False)
        assert [file.path for file in report.source.files] == ["77_*_trace.csv"]
        assert report.devices[0].kernel_sum_ns == 2_000_000
        assert report.source.warnings == [NO_SIZES]
    assert find_traces(tmp_path) == [first]


def test_jobs_beside_each_other_are_kept_apart(tmp_path: Path) -> None:
    """A prefix may hold the words that others end in, and signs that patterns are made of."""
    prefixes = ("rank0_", "rank1_", "rank1_hip_api_", "rank[2]_")
    for prefix in prefixes:
        write(tmp_path, training(), prefix)
    assert find_traces(tmp_path) == sorted(tmp_path / f"{prefix}kernel_trace.csv" for prefix in prefixes)
    for prefix in prefixes:
        trace = load_trace(tmp_path / f"{prefix}marker_api_trace.csv", cache=False)
        assert (trace.name, len(trace.device_events), len(trace.runtime_calls)) == (f"{prefix}*_trace.csv", 8, 12)
    other = training()
    other["kernel_trace"][1].append(kernel(3_800_000, 50, 900))
    write(tmp_path, other, "rank1_")
    report = whystall.analyze([tmp_path / "rank0_kernel_trace.csv", tmp_path / "rank1_kernel_trace.csv"], cache=False)
    assert [file.rank for file in report.source.files] == [0, 1]


def test_one_file_is_enough(tmp_path: Path) -> None:
    job = training()
    for name in ("kernel_trace", "memory_copy_trace", "hip_api_trace", "marker_api_trace"):
        path = write(tmp_path / name, {name: job[name]}, "")
        trace = load_trace(path, cache=False)
        assert trace.name == f"{name}.csv"
        assert trace.source.events == len(job[name][1])


@pytest.mark.parametrize(
    ("agent", "device"),
    [("GPU 0", 0), ("GPU 1", 1), ("Agent 4", 0), ("Agent 5", 1), ("5", 1), ("Agent 9", 9), ("x", -1)],
)
def test_devices_have_their_numbers_among_gpus(tmp_path: Path, agent: str, device: int) -> None:
    job = training() | {"kernel_trace": (KERNEL, [kernel(0, 5, 1, agent=agent)])}
    trace = load_trace(write(tmp_path, job), cache=False)
    assert rows(trace.device_events.filter(pl.col("kind").cast(pl.String) == "kernel"), "device") == [(device,)]


def test_a_copy_is_of_the_device_at_either_end(tmp_path: Path) -> None:
    ways = [
        copy(0, 5, 1, "HOST_TO_DEVICE", "CPU 0", "GPU 1"), copy(9, 5, 2, "DEVICE_TO_HOST", "GPU 2", "CPU 0"),
        copy(19, 5, 3, "DEVICE_TO_DEVICE", "GPU 3", "GPU 4"), copy(29, 5, 4, "SIDEWAYS", "GPU 5", "GPU 6"),
    ]  # fmt: skip
    trace = load_trace(write(tmp_path, {"memory_copy_trace": (COPY, ways)}), cache=False)
    assert rows(trace.device_events, "name", "device") == [
        ("Memcpy HtoD", 1), ("Memcpy DtoH", 2), ("Memcpy DtoD", 4), ("Memcpy Unknown", 6),
    ]  # fmt: skip


def test_other_releases_spell_columns_otherwise(tmp_path: Path) -> None:
    """Converted databases have a column before the first and another case; before streams there were queues alone."""
    columns, kernels = training()["kernel_trace"]
    spelt = ["Guid", *(name.replace("LDS", "Lds").replace("VGPR", "Vgpr") for name in columns)]
    new = load_trace(write(tmp_path / "a", {"kernel_trace": (spelt, [["x", *row] for row in kernels])}), cache=False)
    assert rows(new.device_events[:1], "name", "stream", "shared_memory_bytes") == [("gemm", 3, 64)]
    old = [place for place, name in enumerate(columns) if name not in {"Stream_Id", "Thread_Id", "LDS_Block_Size"}]
    less = ([columns[place] for place in old], [[row[place] for place in old] for row in kernels])
    trace = load_trace(write(tmp_path / "b", {"kernel_trace": less}), cache=False)
    assert rows(trace.device_events[:1], "name", "stream", "shared_memory_bytes") == [("gemm", 1, None)]


def test_collectives_are_annotations(tmp_path: Path) -> None:
    job = training() | {"rccl_api_trace": (CALL, [call(5, 9, 500, "ncclAllReduce", domain="RCCL_API")])}
    trace = load_trace(write(tmp_path, job), cache=False)
    assert ("ncclAllReduce",) in rows(trace.annotations, "name")


def test_names_with_commas_quotes_and_odd_bytes_are_kept(tmp_path: Path) -> None:
    name = 'void f<int, "a">(T*, float)\u00e9'
    path = write(tmp_path, {"kernel_trace": (KERNEL, [kernel(0, 5, 1, name=name)])})
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xff").replace(b"\n", b"\r\n"))
    assert rows(load_trace(path, cache=False).device_events, "name") == [(name.replace("\u00e9", "\ufffd"),)]


# --- damage and limits ------------------------------------------------------------------------------------------


def test_times_that_cannot_be_true_are_counted(tmp_path: Path) -> None:
    odd = [kernel(0, -5, 1), kernel(10**17, 5, 3), kernel(0, 10**16, 4), kernel(0, 7, 5), kernel(0, 5, 6)]
    odd[4][9] = "now"
    trace = load_trace(write(tmp_path, {"kernel_trace": (KERNEL, odd)}), cache=False)
    assert trace.device_events["duration_ns"].to_list() == [7]
    assert [(entry.reason, entry.events) for entry in trace.source.quarantined] == [("times that cannot be true", 4)]


def test_a_file_that_ends_in_a_line_keeps_what_stands_before_it(tmp_path: Path) -> None:
    path = write(tmp_path, training())
    path.write_bytes(path.read_bytes()[:-30])
    trace = load_trace(path, cache=False)
    assert len(trace.device_events) == 7
    assert trace.source.truncated
    assert "77_kernel_trace.csv ends in the middle of a line: what stands before it is kept" in trace.source.warnings


def test_files_without_the_columns_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, training())
    (tmp_path / "77_hip_api_trace.csv").write_text('"Function","When"\n"hipMalloc",5\n')
    trace = load_trace(path, cache=False)
    assert "77_hip_api_trace.csv lacks columns that are needed: it was not read" in trace.source.warnings
    assert trace.runtime_calls.is_empty()
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="in no format that whystall reads"):
        load_trace(path, cache=False)


def test_nothing_recorded_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"kernel_trace": (KERNEL, [])})
    with pytest.raises(InputError, match=r"^77_kernel_trace\.csv holds no event of a job$"):
        load_trace(path, cache=False)


def test_limits_bound_what_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, training())
    trace = load_trace(path, cache=False, limits=Limits(events=3))
    assert (len(trace.device_events), len(trace.runtime_calls)) == (6, 3)
    assert "77_kernel_trace.csv has more rows than are read: the rest was left out" in trace.source.warnings
    with pytest.raises(InputError, match="holds more than what is read"):
        load_trace(path, cache=False, limits=Limits(raw_bytes=100))
    packed = tmp_path / "packed_kernel_trace.csv"
    packed.write_bytes(gzip.compress(text(KERNEL, [kernel(0, 5, 1)] * 1000).encode()))
    assert len(load_trace(packed, cache=False).device_events) == 1000
    with pytest.raises(InputError, match="holds more than what is read"):
        load_trace(packed, cache=False, limits=Limits(unpacked_bytes=1000, unpacked_times=2))


def test_the_cache_knows_every_file(tmp_path: Path) -> None:
    path, store = write(tmp_path, training()), TraceCache(tmp_path / "kept", least_raw_bytes=0)
    reader = next(reader for reader in READERS if reader.name == "rocprof-csv")
    keys = [store.key(path, reader)]
    for name in ("hip_api_trace", "marker_api_trace", "agent_info"):
        file = tmp_path / f"77_{name}.csv"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
        keys.append(store.key(path, reader))
    assert len(set(keys)) == 4


def test_no_report_or_table_holds_what_is_not_read(tmp_path: Path) -> None:
    token = "hf_PLANTEDdeadbeef"  # noqa: S105 - the one that must not be found
    job = {
        name: ([*columns, "Command"], [[*row, token] for row in found]) for name, (columns, found) in training().items()
    }
    path = write(tmp_path, job)
    (tmp_path / "77_config.csv").write_text(f'"HF_TOKEN"\n"{token}"\n')
    trace = load_trace(path, cache=False)
    report = whystall.analyze(path, cache=False)
    assert report.devices[0].kernel_sum_ns == 2_000_000
    assert all(token not in whystall.render(report, name) for name in ("html", "markdown", "terminal", "json"))
    assert all(token not in getattr(trace, table).write_json() for table in TABLES)


def test_of_many_ranks_each_job_is_one_file_with_the_name_and_size_of_all(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, training(), f"rank{rank}_")
    found = find_files(list(tmp_path.glob("*_trace.csv")), [])
    assert [file.name for file in found] == [f"rank{rank}_*_trace.csv" for rank in range(3)]
    sizes = [sum(file.stat().st_size for file in tmp_path.glob(f"rank{rank}_*.csv")) for rank in range(3)]
    assert [file.raw_bytes for file in found] == sizes
    before = found[0].mark
    (tmp_path / "rank0_hip_api_trace.csv").write_text("")
    assert find_files([tmp_path], [])[0].mark != before
