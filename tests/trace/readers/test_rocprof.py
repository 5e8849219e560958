"""JSON of rocprofv3: the recorded file beside what it says itself, and small ones that tests write."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from tests.trace.readers.reading import load, refusal, rows
from tests.trace.readers.rocprof_builder import BEGAN, job, kernel, process, record

import whystall
from whystall.errors import InputError
from whystall.trace.files import Limits
from whystall.trace.load import load_trace, load_traces
from whystall.trace.model import TABLES

SAMPLE = Path(__file__).resolve().parents[4] / "shared" / "samples" / "rocprof" / "908_results.json.gz"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "908_results.json"


@pytest.mark.real_traces
def test_the_recorded_file_says_the_same_of_itself() -> None:
    if not SAMPLE.exists():
        if os.environ.get("WHYSTALL_REQUIRE_TRACES") == "1":
            pytest.fail("the sample is not beside the repository (../shared/samples)")
        pytest.skip("the sample is not beside the repository (../shared/samples)")
    (said,) = json.loads(gzip.decompress(SAMPLE.read_bytes()))["rocprofiler-sdk-tool"]
    names = {symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in said["kernel_symbols"]}
    expected = [
        (
            one["start_timestamp"], one["end_timestamp"] - one["start_timestamp"],
            names[one["dispatch_info"]["kernel_id"]],
            one["stream_id"]["handle"],
            one["correlation_id"]["internal"],
        )
        for one in said["buffer_records"]["kernel_dispatch"]
    ]  # fmt: skip
    trace = load_trace(SAMPLE, cache=False)
    found = rows(trace.device_events, "ts_ns", "duration_ns", "name", "stream", "correlation")
    assert Counter(found) == Counter(expected)
    assert (len(found), sum(duration for _, duration, *_ in found)) == (43_915, 4_441_741_378)
    assert trace.metadata.device_name(0) == "AMD Instinct MI350X"
    assert trace.metadata.framework == "pytorch"
    device = whystall.analyze(SAMPLE, cache=False).devices[0]
    assert device.kernel_sum_ns == 4_441_741_378
    assert device.ledger.total_ns == device.window_ns
    assert device.window_ns == max(ts + lasts for ts, lasts, *_ in expected) - min(ts for ts, *_ in expected)


def test_a_job_becomes_a_trace(path: Path) -> None:
    trace = load(path, job())
    assert rows(trace.device_events[:2], "ts_ns", "duration_ns", "name", "kind", "device", "stream", "bytes") == [
        (BEGAN + 1000, 400_000, "gemm", "kernel", 0, 3, None),
        (BEGAN + 500_000, 100_000, "Memcpy HtoD", "memcpy", 0, 3, 4096),
    ]
    # 1000 by 2 work items in groups of 256
    assert rows(trace.device_events[:1], "grid", "block", "shared_memory_bytes") == [("[4, 2, 1]", "[256, 1, 1]", 64)]
    launched = trace.runtime_calls[trace.device_events["launch"].to_numpy()]["name"].cast(pl.String).to_list()
    assert launched == ["hipLaunchKernel", "hipMemcpyAsync"] * 4
    assert rows(trace.threads, "pid", "tid", "name") == [("908", "77", None)]
    assert trace.metadata.framework is None


def test_kernels_without_calls_are_read(path: Path) -> None:
    trace = load(path, gzip.compress(job(api=False)))
    assert (len(trace.device_events), len(trace.runtime_calls)) == (8, 0)


def test_each_process_is_a_rank(path: Path) -> None:
    path.write_bytes(job(process(1), process(2)))
    assert [trace.name for trace in load_traces(path, cache=False)] == [
        "908_results.json (process 1)",
        "908_results.json (process 2)",
    ]


def test_devices_have_their_numbers_among_gpus(path: Path) -> None:
    trace = load(
        path, job(process(kernel_dispatch=[kernel(0, 5, 1, agent=501), kernel(9, 5, 2, agent=777)], memory_copy=[]))
    )
    assert trace.device_events["device"].to_list() == [1, -1]


def test_the_default_stream_is_a_stream_and_queues_stand_in_where_none_is_told(path: Path) -> None:
    """A queue's number may be that of another stream."""
    told = [kernel(0, 5, 1, stream=0), kernel(9, 5, 2, stream=16)]
    assert load(path, job(process(kernel_dispatch=told, memory_copy=[]))).device_events["stream"].to_list() == [0, 16]
    untold = [{key: value for key, value in one.items() if key != "stream_id"} for one in told]
    assert load(path, job(process(kernel_dispatch=untold, memory_copy=[]))).device_events["stream"].to_list() == [
        16,
        16,
    ]


def test_calls_of_rccl_are_annotations(path: Path) -> None:
    trace = load(path, job(process(rccl_api=[record(4, 0, 0, 10, 1)])))
    assert rows(trace.annotations, "name") == [("ncclAllReduce",)]
    assert trace.source.warnings == ()


def test_ranges_of_roctx_have_the_texts_that_they_were_given_and_mark_steps(path: Path) -> None:
    """Their texts stand apart, by the numbers of the calls; what pauses the profiler or names a thread is no range."""
    ranges = [record(5, 0, 1_000_000 * step, 900_000, 1000 + step) for step in range(4)]
    others = [record(5, 0, 50, 0, 2000), record(5, 0, 60, 7, 2001), record(6, 0, 70, 5, 2002)]
    one = process(marker_api=[*ranges, *others])
    one["strings"]["buffer_records"].append({"kind": "MARKER_CONTROL_API", "operations": ["roctxProfilerPause"]})
    said = {1000 + step: f"iter {step}" for step in range(4)} | {2000: "a mark", 9: "of no range"}
    one["strings"]["marker_api"] = [{"key": number, "value": text} for number, text in said.items()]
    trace = load(path, job(one))
    assert rows(trace.annotations, "ts_ns", "duration_ns", "name") == [
        (BEGAN, 900_000, "iter 0"),
        (BEGAN + 60, 7, "roctxRangePushA"),
        *((BEGAN + 1_000_000 * step, 900_000, f"iter {step}") for step in range(1, 4)),
    ]
    assert rows(trace.other_events, "name", "category") == [("a mark", "roctx")]
    assert trace.steps["ts_ns"].to_list() == [BEGAN + 1_000_000 * step for step in range(4)]
    assert trace.device_events["step"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert trace.source.warnings == ()


def test_names_that_are_missing_are_said_to_be(path: Path) -> None:
    trace = load(path, job(process(kernel_dispatch=[kernel(0, 5, 1, kernel_id=9)])))
    assert "unnamed 9" in trace.device_events["name"].cast(pl.String).to_list()


def test_times_that_cannot_be_true_are_counted(path: Path) -> None:
    odd = [kernel(0, -5, 1), kernel(10**30, 5, 2), kernel(10**17, 5, 3), kernel(0, 10**16, 4), kernel(0, 7, 5)]
    trace = load(path, job(process(kernel_dispatch=odd)))
    assert trace.device_events.filter(pl.col("kind").cast(pl.String) == "kernel")["duration_ns"].to_list() == [7]
    assert [(entry.reason, entry.events) for entry in trace.source.quarantined] == [("times that cannot be true", 4)]


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_file_that_ends_early_is_refused(path: Path, share: float) -> None:
    content = job()
    sentence = refusal(path, content[: int(len(content) * share)])
    assert "908_results.json is damaged and cannot be read as JSON of rocprofv3" in sentence


def test_fields_of_another_kind_are_named(path: Path) -> None:
    sentence = refusal(path, job(process(kernel_dispatch=[kernel(0, 5, 1) | {"start_timestamp": "now"}])))
    assert "Expected `int`, got `str`" in sentence


def test_nothing_recorded_is_refused(path: Path) -> None:
    empty = process(kernel_dispatch=[], memory_copy=[], hip_api=[])
    assert refusal(path, job(empty)).endswith("908_results.json holds no event of a job")


def test_a_file_that_unpacks_to_more_than_a_recording_is_refused(path: Path) -> None:
    path.write_bytes(gzip.compress(job()))
    with pytest.raises(InputError, match="holds more than what is read"):
        load_trace(path, cache=False, limits=Limits(raw_bytes=1000))


def test_the_command_and_the_host_are_never_read(path: Path) -> None:
    token = "hf_PLANTEDdeadbeef"  # noqa: S105 - the one that must not be found
    secret = process()
    secret["metadata"] |= {
        "command": ["train.py", token],
        "config": {"output_path": token},
        "node": {"hostname": token},
    }
    secret["environment"] = {"HF_TOKEN": token}
    trace = load(path, job(secret))
    report = whystall.analyze(path, cache=False)
    assert all(token not in whystall.render(report, name) for name in ("html", "markdown", "terminal", "json"))
    assert all(token not in getattr(trace, table).write_json() for table in TABLES)
