"""GPU metrics of exports, as the format's description has them: no recording of ours holds any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.trace.readers.nsys.builder import Export, training
from tests.trace.readers.nsys.folder_builder import as_folder

import whystall
from whystall.report.schema import Report
from whystall.trace.load import load_trace, load_traces
from whystall.trace.model import Trace
from whystall.trace.readers.nsys import counters as module

SMS, DRAM, CLOCK = "SMs Active [Throughput %]", "DRAM Read Bandwidth [Throughput %]", "GPC Clock Frequency [MHz]"
Written = Callable[[Export], Path]


@pytest.fixture(params=["database", "folder"])
def written(tmp_path: Path, request: pytest.FixtureRequest) -> Written:
    def write(export: Export) -> Path:
        path = export.write(tmp_path / "job.sqlite")
        if request.param == "database":
            return path
        made = as_folder(path, tmp_path / "job_pqtdir")
        path.unlink()
        return made

    return write


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    table = trace.counters.with_columns(pl.col("name", "unit").cast(pl.String))
    return table.select("ts_ns", "device", "name", "value", "unit").rows()


def known(pid: int = 10, gpu: int = 0, cuda: int = 0, export: Export | None = None) -> Export:
    """A job whose process knows a GPU by a number."""
    return training(pid=pid, device=cuda, export=export).add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=cuda, pid=pid)


def test_samples_have_the_name_of_their_type_and_metric(written: Written) -> None:
    """Numbers of metrics are counted anew for each type: the same number is another metric elsewhere."""
    export = known(gpu=0, cuda=0).add("TARGET_INFO_CUDA_DEVICE", gpuId=3, cudaId=1, pid=10)
    export.metrics(0, SMS, CLOCK).metrics(3, DRAM, SMS)
    export.sample(0, 0, 50, at=20).sample(0, 1, 1_980_000_000, at=-5).sample(3, 0, 30, at=10).sample(3, 1, 60, at=10)
    trace = load_trace(written(export), cache=False)
    assert rows(trace)[0] == (-5, 0, CLOCK, 1_980_000_000.0, None)
    assert sorted(rows(trace)[1:]) == [(10, 1, DRAM, 30.0, "%"), (10, 1, SMS, 60.0, "%"), (20, 0, SMS, 50.0, "%")]
    assert not trace.source.warnings
    assert not trace.source.quarantined


def test_each_process_gets_the_counters_of_its_own_gpu_under_its_own_number(written: Written) -> None:
    """Of eight GPUs a job was given two, and each of its processes sees one, which it calls 0."""
    export = known(pid=10, gpu=5)
    for step in range(2):
        export.launch("gemm", at=9_000_000 + step, runs_at=9_100_000 + step, lasts=9, pid=20)
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=7, cudaId=0, pid=20)
    for gpu in range(4, 8):
        export.metrics(gpu, SMS).sample(gpu, 0, 10 * gpu, at=100 + gpu)
    first, second = load_traces(written(export), cache=False)
    assert rows(first) == [(105, 0, SMS, 50.0, "%")]
    assert rows(second) == [(107, 0, SMS, 70.0, "%")]
    assert first.source.warnings == ("GPU metrics of 2 GPUs that no process of the job used are left out",)
    assert not second.source.warnings


def test_the_only_gpu_of_a_machine_is_the_first_of_whoever_sees_it(written: Written) -> None:
    export = training().add("TARGET_INFO_GPU", id=2, name="NVIDIA H100").metrics(2, SMS).sample(2, 0, 50, at=7)
    trace = load_trace(written(export), cache=False)
    assert rows(trace) == [(7, 0, SMS, 50.0, "%")]
    assert not trace.source.warnings


@pytest.mark.parametrize("gpus", [(), (0, 1)])
def test_where_the_export_does_not_tell_whose_a_gpu_is_its_counters_are_of_no_device(
    written: Written, gpus: tuple[int, ...]
) -> None:
    """A process that was shown some devices alone counts them anew: a number of the machine's is no number of its."""
    export = training(pid=20, device=1, export=training(pid=10))
    for gpu in gpus:
        export.add("TARGET_INFO_GPU", id=gpu, name="NVIDIA H100")
    export.metrics(0, SMS).metrics(1, SMS)
    for at in (2_000_000, 3_000_000):
        export.sample(0, 0, 50, at=at).sample(1, 0, 60, at=at)
    first, second = load_traces(written(export), cache=False)
    assert sorted(rows(first)) == [
        (at, None, f"{SMS} (GPU {gpu})", 50.0 + 10 * gpu, "%") for at in (2_000_000, 3_000_000) for gpu in (0, 1)
    ]
    assert rows(second) == []
    (warning,) = first.source.warnings
    assert warning == (
        "the export does not say which device of the job GPU 0, 1 is: the GPU metrics sampled there "
        f"({SMS} (GPU 0), {SMS} (GPU 1)) belong to no device in the report"
    )
    report = whystall.analyze([first, second])
    assert [(row.device, row.mean, row.busy_mean, row.idle_mean) for row in report.device_counters] == [
        (None, 50.0, None, None), (None, 60.0, None, None),
    ]  # fmt: skip


def test_a_gpu_that_is_several_devices_tells_of_none(written: Written) -> None:
    export = known().add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=1, pid=10).metrics(0, SMS).sample(0, 0, 50, at=7)
    trace = load_trace(written(export), cache=False)
    assert rows(trace) == [(7, None, f"{SMS} (GPU 0)", 50.0, "%")]


def test_metrics_of_one_name_are_told_apart(written: Written) -> None:
    export = known().metrics(0, SMS, SMS).metrics(0, SMS, source=6).sample(0, 0, 1, at=1).sample(0, 1, 2, at=2)
    trace = load_trace(written(export.sample(0, 0, 3, at=3, source=6).sample(0, 9, 4, at=4)), cache=False)
    assert [(row[2], row[3], row[4]) for row in rows(trace)] == [
        (f"{SMS} ({5 << 8}:0)", 1.0, "%"), (f"{SMS} ({5 << 8}:1)", 2.0, "%"), (f"{SMS} ({6 << 8}:0)", 3.0, "%"),
        ("unnamed metric 9", 4.0, None),
    ]  # fmt: skip


def test_times_count_from_1970_like_those_of_events(written: Written) -> None:
    export = known().add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    trace = load_trace(written(export.metrics(0, SMS).sample(0, 0, 50, at=1_100_000)), cache=False)
    assert trace.counters["ts_ns"].to_list() == [trace.device_events["ts_ns"][0]]


def test_samples_that_cannot_be_true_are_set_aside_and_counted(written: Written) -> None:
    export = known().metrics(0, SMS).sample(0, 0, 50, at=7).sample(0, 0, None, at=8).sample(0, 0, 50, at=None)
    trace = load_trace(written(export.sample(0, 0, 50, at=1 << 60).sample(0, 0, 50, at=-(1 << 60))), cache=False)
    assert len(trace.counters) == 1
    reason = "samples of GPU metrics whose time or value cannot be true"
    assert [(one.reason, one.events) for one in trace.source.quarantined] == [(reason, 4)]


def test_a_table_without_a_column_is_named_and_left_out(tmp_path: Path) -> None:
    export = known().metrics(0, SMS).sample(0, 0, 50, at=7)
    trace = load_trace(export.write(tmp_path / "job.sqlite", without=("value",)), cache=False)
    assert (len(trace.counters), len(trace.device_events)) == (0, 10)
    assert trace.source.warnings[0] == "the table GPU_METRICS has no column 'value': it was not read"


def test_no_more_samples_are_read_than_memory_should_hold(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the recording counts as whole: what counters said decides nothing."""
    monkeypatch.setattr(module, "MOST_SAMPLES", 3)
    export = known().metrics(0, SMS)
    for at in range(4):
        export.sample(0, 0, at, at=at)
    trace = load_trace(written(export), cache=False)
    assert trace.counters["value"].to_list() == [0.0, 1.0, 2.0]
    (warning,) = trace.source.warnings
    assert warning == (
        "of the GPU metrics the first 3 samples were read and the others left out: record fewer metrics, or less often "
        "(--gpu-metrics-frequency)"
    )
    assert not trace.source.truncated


def test_a_report_says_the_same_with_metrics_and_without(written: Written) -> None:
    def report(*, sampled: bool) -> Report:
        export = known()
        if sampled:
            export.metrics(0, SMS, CLOCK)
            for at in range(1_000_000, 6_000_000, 50_000):
                export.sample(0, 0, at % 97, at=at).sample(0, 1, 1_980_000_000, at=at)
        return whystall.analyze(written(export), cache=False)

    without, told = report(sampled=False), report(sampled=True)
    assert [(row.device, row.name, row.samples) for row in told.device_counters] == [
        (0, SMS, (5_700_000 - 1_100_000) // 50_000),
        (0, CLOCK, (5_700_000 - 1_100_000) // 50_000),
    ]
    for part in ("verdict", "findings", "plan", "devices", "kernels", "operators", "abstained"):
        assert getattr(told, part) == getattr(without, part), part
    assert (told.source.signals, told.source.events) == (without.source.signals, without.source.events)


@pytest.mark.parametrize("gpu", [40_000, 1 << 40, -7])
def test_a_gpu_that_no_sample_can_name_is_none(written: Written, gpu: int) -> None:
    export = known().add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=10)
    trace = load_trace(written(export.metrics(0, SMS).sample(0, 0, 50, at=20)), cache=False)
    assert rows(trace) == [(20, 0, SMS, 50.0, "%")]
