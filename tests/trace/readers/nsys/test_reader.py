"""Exports that tests write: what the sample does not have, joins that lead astray, ages, secrets."""

from __future__ import annotations

import gzip
import itertools
import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.trace.readers.nsys.builder import Export, global_pid, global_tid, place, training
from tests.trace.readers.reading import rows

import whystall
from whystall.errors import InputError
from whystall.trace.files import Limits
from whystall.trace.load import load_trace, load_traces
from whystall.trace.model import TABLES, Trace

SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RECORD = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.sqlite"


def load(export: Export, path: Path, **how: Any) -> Trace:
    return load_trace(export.write(path, **how), cache=False)


def refusal(path: Path, limits: Limits | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load_traces(path, cache=False, limits=limits)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what it makes of the tables ----------------------------------------------------------------------


def test_a_job_becomes_a_trace(path: Path) -> None:
    trace = load(training(), path)
    assert (len(trace.operators), len(trace.runtime_calls), len(trace.device_events)) == (10, 15, 10)
    assert trace.metadata.framework == "pytorch"
    assert rows(trace.device_events, "name", "grid", "block", "registers_per_thread", "shared_memory_bytes")[0] == (
        "gemm", "[4, 2, 1]", "[64, 2, 1]", 32, 128,
    )  # fmt: skip
    operators = trace.operators["name"].cast(pl.String)
    assert operators[trace.device_events["operator"].to_numpy()].to_list() == ["aten::mm", "MmBackward0"] * 5
    assert rows(trace.threads, "pid", "tid") == [("10", "11"), ("10", "12")]


def test_steps_are_the_ranges_that_repeat(path: Path) -> None:
    trace = load(training(), path)
    assert trace.steps["ts_ns"].to_list() == [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000]
    assert trace.device_events["step"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    report = whystall.analyze(path, cache=False)
    assert [step.window_ns for step in report.devices[0].steps]
    assert report.devices[0].kernel_sum_ns == 10 * 300_000


def test_profiler_steps_keep_their_name_under_emit_nvtx(path: Path) -> None:
    export = Export()
    for step in range(3):
        export.range(f"ProfilerStep#{step}, op_id = {step}", at=1000 * step, lasts=900)
        export.launch("k", at=1000 * step + 10, runs_at=1000 * step + 50, lasts=100)
    trace = load(export, path)
    assert trace.steps["name"].to_list() == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert trace.steps_from == "ProfilerStep annotations"


def test_forward_and_backward_are_linked_by_sequence_number(path: Path) -> None:
    trace = load(training(), path)
    backward = trace.operators.filter(pl.col("name").cast(pl.String) == "MmBackward0")
    forward = trace.operators[backward["forward"].to_numpy()]
    assert forward["sequence"].to_list() == backward["sequence"].to_list() == [0, 1, 2, 3, 4]
    assert backward["forward_thread"].unique().to_list() == [11]
    assert trace.operators["input_dims"].drop_nulls().unique().to_list() == ["[[2, 3], [3, 4]]"]


@pytest.mark.parametrize(
    ("text", "table", "name"),
    [
        ("aten::add", "operators", "aten::add"),
        ("aten::add, seq = 3", "operators", "aten::add"),
        ("aten::add, op_id = 3, sizes = [[1], []], input_op_ids = [[2,0]]", "operators", "aten::add"),
        ("_C::rms_norm, op_id = 3", "operators", "_C::rms_norm"),
        ("detach, op_id = 3", "operators", "detach"),
        ("AddmmBackward0, seq = 3", "operators", "AddmmBackward0"),
        ("torch::autograd::AccumulateGrad", "operators", "torch::autograd::AccumulateGrad"),
        (
            "autograd::engine::evaluate_function: MmBackward0, op_id = 9",
            "operators",
            "autograd::engine::evaluate_function: MmBackward0",
        ),
        ("MyFunction, seq = 7, op_id = 3", "operators", "MyFunction"),
        ("FSDP::all_gather, op_id = 3", "annotations", "FSDP::all_gather"),
        ("FSDP::pre_forward (layer.0)", "annotations", "FSDP::pre_forward (layer.0)"),
        ("Optimizer.step#Adam.step, op_id = 3", "annotations", "Optimizer.step#Adam.step"),
        ("forward", "annotations", "forward"),
        ("iter 12", "annotations", "iter 12"),
        ("epoch, and then some", "annotations", "epoch, and then some"),
    ],
)
def test_what_pytorch_emits_is_an_operator_and_all_else_an_annotation(
    path: Path, text: str, table: str, name: str
) -> None:
    trace = load(Export().range(text, at=0, lasts=100).launch("k", at=10, runs_at=20, lasts=5), path)
    assert rows(getattr(trace, table), "name") == [(name,)]
    assert len(trace.operators) + len(trace.annotations) == 1


def test_ranges_of_libraries_are_annotations(path: Path) -> None:
    """NCCL has a domain of its own; its texts may be numbers of texts, and a domain's name is no event."""
    export = Export().launch("k", at=10, runs_at=20, lasts=5).range("NCCL", at=0, lasts=None, kind=75, domain=7)
    export.range(None, at=5, lasts=10, domain=7, textId=export.text("ncclAllReduce"))
    export.range("nccl::op", at=15, lasts=10, domain=7)
    trace = load(export, path)
    assert rows(trace.annotations, "name", "duration_ns") == [("ncclAllReduce", 10), ("nccl::op", 10)]
    assert trace.operators.is_empty()
    assert trace.source.quarantined == ()


def test_marks_and_ranges_that_end_on_another_thread_are_apart(path: Path) -> None:
    export = Export().launch("k", at=10, runs_at=20, lasts=5).range("mark", at=30, lasts=None, kind=34)
    export.range("handed over", at=40, lasts=50, kind=60, endGlobalTid=global_tid(10, 99))
    export.range("kept", at=45, lasts=5, kind=60, endGlobalTid=global_tid(10, 11))
    trace = load(export, path)
    assert rows(trace.other_events, "name", "category", "duration_ns") == [
        ("mark", "nvtx", 0), ("handed over", "nvtx", 50),
    ]  # fmt: skip
    assert rows(trace.annotations, "name") == [("kept",)]


def test_ranges_that_never_end_are_set_aside(path: Path) -> None:
    export = training().range("open", at=10, lasts=None).range("odd", at=10, lasts=5, kind=99)
    trace = load(export, path)
    assert {(entry.reason, entry.events) for entry in trace.source.quarantined} == {
        ("NVTX ranges that had not ended when the recording did", 1),
        ("NVTX events of a kind that is not known", 1),
    }
    assert "open" not in trace.annotations["name"].cast(pl.String).to_list()


def test_copies_and_sets_have_the_names_of_cupti(path: Path) -> None:
    export = Export().copy(1, 0, 2, at=0, lasts=5, size=64, correlation=1)
    export.copy(2, 2, 1, at=10, lasts=5, size=32, correlation=2).copy(99, 77, 2, at=20, lasts=5, size=-1, correlation=3)
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", start=30, end=31, bytes=16, memKind=2, value=0, **place(10, 0, 7, 4))
    trace = load(export, path)
    assert rows(trace.device_events, "name", "kind", "bytes") == [
        ("Memcpy HtoD (Pageable -> Device)", "memcpy", 64),
        ("Memcpy DtoH (Device -> Pinned)", "memcpy", 32),
        ("Memcpy Unknown (Unknown -> Device)", "memcpy", None),
        ("Memset (Device)", "memset", 16),
    ]


def test_kernels_have_the_names_of_cupti(path: Path) -> None:
    name = "void at::native::f<(int)4, (bool)1, <unnamed>::Op<float>, [lambda(float) (instance 2)]>(int, T1)"
    trace = load(Export().launch(name, at=0, runs_at=5, lasts=5), path)
    assert rows(trace.device_events, "name") == [
        ("void at::native::f<4, true, (anonymous namespace)::Op<float>, {lambda(float)#2}>(int, T1)",)
    ]


# --- joins ----------------------------------------------------------------------------------------------


def test_numbers_of_launches_are_those_of_their_process(path: Path) -> None:
    """Two processes use the same numbers; a third calls nothing on a device."""
    export = training(pid=20, device=0, export=training(pid=10, device=1))
    export.range("loading", at=0, lasts=100, pid=30, tid=31)
    traces = load_traces(export.write(path), cache=False)
    assert [trace.name for trace in traces] == ["job.sqlite (process 20)", "job.sqlite (process 10)"]
    for trace, pid in zip(traces, (20, 10), strict=True):
        launches = trace.runtime_calls[trace.device_events["launch"].to_numpy()]
        assert set(trace.threads["pid"]) == {str(pid)}
        assert launches["correlation"].to_list() == trace.device_events["correlation"].to_list()
        assert launches["name"].cast(pl.String).unique().to_list() == ["cudaLaunchKernel"]
    assert traces[0].source.warnings == ("1 processes used no device and are left out (1 events)",)


def test_processes_on_several_devices_are_one_rank(path: Path) -> None:
    """As in a Kineto trace: a rank is a process."""
    export = Export().launch("a", at=0, runs_at=10, lasts=10).launch("b", at=5, runs_at=15, lasts=10, device=1)
    report = whystall.analyze(export.write(path), cache=False)
    assert [(device.rank, device.device) for device in report.devices] == [(0, 0), (0, 1)]


def test_the_order_of_rows_says_nothing(path: Path) -> None:
    export = training(pid=20, device=1, export=training(pid=10))
    forth = load_traces(export.write(path), cache=False)
    back = load_traces(export.write(path, reverse=True), cache=False)
    for one, other in zip(forth, back, strict=True):
        for table in TABLES:
            first, second = getattr(one, table), getattr(other, table)
            assert first.cast({pl.Enum: pl.String}).equals(second.cast({pl.Enum: pl.String})), table


def test_a_wait_names_the_record_of_its_event(path: Path) -> None:
    """By the number that links both; in exports without it by the last record of the event before the wait."""
    export = Export().launch("k", at=0, runs_at=50, lasts=10, correlation=1)
    for number, stream, link in ((10, 7, 501), (20, 8, 502), (40, 9, 503)):
        export.call("cudaEventRecord_v3020", at=number, lasts=1, correlation=number)
        export.add(RECORD, timestamp=0, eventId=3, eventSyncId=link, **place(10, 0, stream, number))
    for number, linked in ((30, 501), (31, None), (41, 502)):
        export.call("cudaStreamWaitEvent_v3020", at=number, lasts=1, correlation=number)
        export.add(
            SYNC, start=number, end=number + 1, syncType=2, eventId=3, eventSyncId=linked, **place(10, 0, 5, number)
        )
    trace = load(export, path)
    columns = ("name", "stream", "correlation", "wait_on_stream", "wait_on_correlation", "event_id")
    assert rows(trace.synchronizations, *columns) == [
        ("Stream Wait Event", 5, 30, 7, 10, 3),
        ("Stream Wait Event", 5, 31, 8, 20, 3),
        ("Stream Wait Event", 5, 41, 8, 20, 3),
    ]


def test_waits_for_a_stream_or_a_device_are_for_no_event(path: Path) -> None:
    export = training()
    export.add(RECORD, timestamp=0, eventId=1, eventSyncId=1, **place(10, 0, 7, 1))
    trace = load(export, path)
    assert (
        rows(trace.synchronizations, "name", "device", "stream", "wait_on_stream", "event_id")
        == [("Context Sync", 0, -1, None, None)] * 5
    )


# --- CUDA graphs ------------------------------------------------------------------------------------------


def test_graphs_recorded_by_their_nodes_are_kernels_of_one_launch(path: Path) -> None:
    export = Export().call("cudaGraphLaunch_v10000", at=0, lasts=5, correlation=9)
    for node in range(3):
        export.kernel(f"k{node}", at=10 + 10 * node, lasts=5, correlation=9, graphNodeId=node, graphId=1)
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=10, end=35, graphId=1, **place(10, 0, 7, 9))
    trace = load(export, path)
    assert rows(trace.device_events, "name", "launch") == [("k0", 0), ("k1", 0), ("k2", 0)]
    assert trace.source.warnings == ()


def test_graphs_recorded_as_wholes_are_busy_and_say_so(path: Path) -> None:
    export = Export()
    for replay in range(3):
        at = 100 * replay
        export.call("cudaGraphLaunch_v10000", at=at, lasts=5, correlation=replay + 1)
        export.add(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=at + 10, end=at + 90, graphId=4, **place(10, 0, 7, replay + 1)
        )
    trace = load(export, path)
    assert rows(trace.device_events, "name", "kind", "duration_ns", "launch") == [
        ("CUDA graph 4", "kernel", 80, launch) for launch in range(3)
    ]
    (warning,) = trace.source.warnings
    assert warning == (
        "3 launches of CUDA graphs were recorded as wholes: which kernels and copies ran in them is not known "
        "(nsys profile --cuda-graph-trace=node records them)"
    )


# --- machine and clock --------------------------------------------------------------------------------------

EPOCH = 1_779_630_014_975_716_426
HOUR = 3_600_000_000_000


@pytest.mark.parametrize(
    ("start", "first", "expected"),
    [
        (None, 100, EPOCH + 100),  # times count from the session's start
        (0, 100, EPOCH + 100),
        (HOUR, HOUR + 100, EPOCH + 100),  # as the system's clock does
        (HOUR, 100, EPOCH + 100),  # the span is told on another clock
        (EPOCH, EPOCH + 100, EPOCH + 100),  # --ts-normalize
        (None, EPOCH + 100, EPOCH + 100),
    ],
)
def test_times_count_from_1970(path: Path, start: int | None, first: int, expected: int) -> None:
    export = Export().add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH)
    if start is not None:
        export.add("ANALYSIS_DETAILS", globalVid=1, duration=HOUR, startTime=start, stopTime=start + HOUR)
    trace = load(export.launch("k", at=first, runs_at=first + 10, lasts=10), path)
    assert trace.runtime_calls["ts_ns"].to_list() == [expected]


def test_a_process_knows_the_devices_that_it_saw(path: Path) -> None:
    export = Export().launch("a", at=0, runs_at=10, lasts=10, pid=10).launch("b", at=0, runs_at=10, lasts=10, pid=20)
    for number, name in enumerate(("NVIDIA H100", "NVIDIA T4")):
        export.add(
            "TARGET_INFO_GPU", id=number, name=name, totalMemory=1 << 34, smCount=4, computeMajor=9, computeMinor=0
        )
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=number, cudaId=0, pid=10 * (number + 1), uuid="secret")
    first, second = load_traces(export.write(path), cache=False)
    assert (first.metadata.device_name(0), second.metadata.device_name(0)) == ("NVIDIA H100", "NVIDIA T4")
    # 8 blocks of 128 threads on 4 multiprocessors
    assert rows(first.device_events, "blocks_per_sm", "warps_per_sm") == [(2.0, 8.0)]
    del export.rows["TARGET_INFO_CUDA_DEVICE"]
    assert [trace.metadata.devices for trace in load_traces(export.write(path), cache=False)] == [(), ()]


def test_threads_have_their_names(path: Path) -> None:
    export = training()
    export.add("ThreadNames", nameId=export.text("pt_autograd_0"), priority=20, globalTid=global_tid(10, 12))
    assert rows(load(export, path).threads, "tid", "name") == [("11", None), ("12", "pt_autograd_0")]


# --- ages and damage ------------------------------------------------------------------------------------------


def test_older_exports_lack_columns(path: Path) -> None:
    export = training()
    for row in export.rows[SYNC]:
        row["deprecatedSyncType"] = row["syncType"]
    trace = load(export, path, without=("syncType", "eventSyncId", "greenContextId", "graphNodeId", "demangledName"))
    assert rows(trace.synchronizations, "name") == [("Context Sync",)] * 5
    assert trace.device_events["name"].cast(pl.String).unique().sort().to_list() == ["gemm", "gemm_bwd"]
    assert trace.source.warnings == ()


def test_a_table_without_times_is_named_and_left_out(path: Path) -> None:
    export = training()
    trace = load(export, path, without=("globalPid",))
    assert trace.device_events.is_empty()
    assert "the table CUPTI_ACTIVITY_KIND_KERNEL has no column 'globalPid': it was not read" in trace.source.warnings


def test_events_that_cannot_be_true_are_counted(path: Path) -> None:
    export = training()
    export.kernel("late", at=10**18, lasts=1, correlation=1).kernel("back", at=5_000, lasts=-10, correlation=1)
    export.kernel("long", at=5_000, lasts=10**15, correlation=1)
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"] += [
        {**export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0], "start": "soon"},
        {**export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0], "end": 5e9 + 0.5},
        {**export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0], "globalPid": None},
        {**export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0], "end": 2**63 - 1, "start": -(2**63)},
    ]
    trace = load(export, path)
    assert len(trace.device_events) == 10
    assert {entry.reason: entry.events for entry in trace.source.quarantined} == {
        "no usable start time": 1,
        "start time far outside the trace": 2,
        "no end time": 1,
        "negative duration": 1,
        "duration of more than a day": 1,
        "no process is named": 1,
    }


def test_names_that_are_missing_are_said_to_be(path: Path) -> None:
    export = training()
    export.rows["StringIds"] = [row for row in export.rows["StringIds"] if row["value"] != "gemm"]
    names = load(export, path).device_events["name"].cast(pl.String).unique().to_list()
    assert sorted(name.split()[0] for name in names) == ["gemm_bwd", "unnamed"]


def test_an_export_without_events_is_refused(path: Path) -> None:
    Export().add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1).write(path)
    assert refusal(path) == "job.sqlite holds no event of a job"


def test_a_packed_export_is_to_be_unpacked(path: Path) -> None:
    packed = path.with_suffix(".sqlite.gz")
    packed.write_bytes(gzip.compress(training().write(path).read_bytes()))
    assert refusal(packed) == (
        "job.sqlite.gz is packed, and a database is read in place: unpack it and name what comes out"
    )


def test_another_database_is_no_export(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table people (name text)")
    connection.close()
    assert "job.sqlite is in no format that whystall reads" in refusal(path)


def test_limits_bound_what_is_read(path: Path) -> None:
    training().write(path)
    assert "job.sqlite is larger than what is read (100 bytes)" in refusal(path, Limits(raw_bytes=100))
    (trace,) = load_traces(path, cache=False, limits=Limits(events=7))
    assert len(trace.device_events) == 7
    assert "the table CUPTI_ACTIVITY_KIND_KERNEL has more rows than are read: the rest was left out" in (
        trace.source.warnings
    )


# --- secrets ----------------------------------------------------------------------------------------------------

TOKEN = "hf_PLANTEDdeadbeef"  # noqa: S105 - the one that must not be found


def planted(path: Path) -> Path:
    """An export with a token wherever exports hold environments, arguments, or contents of files."""
    export = training().add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f"HF_TOKEN={TOKEN}")
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENT_1", value=f"train.py --token {TOKEN}")
    export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=f"PATH=/bin HF_TOKEN={TOKEN}")
    export.add("PROCESSES", globalPid=global_pid(10), pid=10, name=f"python train.py --token {TOKEN}")
    export.text(f"stdout of the job: {TOKEN}")  # the contents of logs stand among the texts
    return export.write(path)


def test_no_report_cache_or_export_holds_the_environment(path: Path, tmp_path: Path) -> None:
    from whystall.trace.cache import TraceCache

    planted(path)
    assert TOKEN.encode() in path.read_bytes()
    report = whystall.analyze(path, cache=False)
    for name in ("html", "markdown", "terminal", "json"):
        assert TOKEN not in whystall.render(report, name), name
    store = TraceCache(tmp_path / "kept", least_raw_bytes=0)
    trace = load_trace(path, store=store)
    key = store.key(path, next(reader for reader in readers() if reader.name == "nsys"))
    assert store.write(key, trace) is None
    kept = [file for file in itertools.chain(store.folder.rglob("*")) if file.is_file()]
    assert kept
    assert not [file for file in kept if TOKEN.encode() in file.read_bytes()]
    for table in TABLES:
        assert TOKEN not in getattr(trace, table).write_json(), table


def readers() -> Any:
    from whystall.trace.readers.registry import READERS

    return READERS


def test_tables_of_secrets_cannot_be_reached(path: Path) -> None:
    from whystall.trace.readers.database import Database
    from whystall.trace.readers.nsys.export import TABLES as READ

    planted(path)
    with Database(path, READ, Limits()) as database:
        for table in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV", "PROCESSES"):
            assert database.read(table, {"value": str, "name": str}).is_empty()
            with pytest.raises(sqlite3.DatabaseError, match="prohibited"):
                database._connection.execute(f"select * from {table}")
