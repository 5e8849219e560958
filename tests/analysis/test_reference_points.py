"""The points of ``reference/traces.md`` ("Reference numbers"), one test each."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import polars as pl
import pytest
from tests.conftest import TRACES, RealTraces

from whystall.analysis.results import Device

pytestmark = pytest.mark.real_traces

NOT_TRACES = {"expected.json", "labels.json"}
ALL_TRACES = sorted(path.name for path in TRACES.glob("*.json*") if path.name not in NOT_TRACES) or ["(none)"]


def raw_events(traces: RealTraces, name: str, prefix: str) -> list[dict[str, Any]]:
    """Events straight from the file by the standard library's parser, in whole microseconds."""
    text = gzip.decompress(traces.path(name).read_bytes())
    return [event for event in json.loads(text)["traceEvents"] if str(event.get("name")).startswith(prefix)]


def only_device(traces: RealTraces, name: str) -> Device:
    (device,) = traces.report(name).devices
    return device


@pytest.mark.parametrize("name", ALL_TRACES)
def test_ledger_sums_to_every_window(real_traces: RealTraces, name: str) -> None:
    devices = real_traces.report(name).devices
    assert devices
    for device in devices:
        assert device.ledger.total_ns == device.window_ns
        assert device.ledger.idle_ns == device.idle_ns
        for step in device.steps:
            assert step.ledger.total_ns == step.window_ns
            assert min(step.ledger.parts().values()) >= 0
        assert min(device.ledger.parts().values()) >= 0


@pytest.mark.parametrize("name", ALL_TRACES)
def test_undecided_idle_time_is_explained(real_traces: RealTraces, name: str) -> None:
    for device in real_traces.report(name).devices:
        assert sum(reason.idle_ns for reason in device.idle_unknown) == device.ledger.idle_unknown
        assert all(reason.reason and reason.missing_signal for reason in device.idle_unknown)


def test_dualpipe_hides_its_communication(real_traces: RealTraces) -> None:
    name = "deepseek-v3-dualpipe-h800.json"
    device = only_device(real_traces, name)
    assert device.communication_ns == 113_440_000
    assert device.window_ns == 129_012_000
    assert device.compute_communication_overlap_ns / device.communication_ns == pytest.approx(0.9631, abs=5e-5)
    assert device.exposed_communication_ns == 4_177_000
    assert {row.stream for row in device.streams} == {7, 27, 23}
    assert device.idle_ns == 497_000


def test_dualpipe_waits_in_its_notify_kernels(real_traces: RealTraces) -> None:
    trace = real_traces.load("deepseek-v3-dualpipe-h800.json")
    events = trace.device_events.with_columns(pl.col("name").cast(pl.String))
    notify = events.filter(pl.col("name").str.contains("notify"))
    moving = events.filter(pl.col("name").str.contains("internode::(dispatch|combine)"))
    assert (len(notify), notify["duration_ns"].sum()) == (16, 32_578_000)

    spans = sorted((start, start + lasts) for start, lasts in moving.select("ts_ns", "duration_ns").iter_rows())
    union, reached = 0, 0
    for start, end in spans:
        union += max(0, end - max(start, reached))
        reached = max(reached, end)
    assert union == 80_452_000


def test_dualpipe_verdict_blames_neither_communication_nor_the_host(real_traces: RealTraces) -> None:
    verdict = real_traces.report("deepseek-v3-dualpipe-h800.json").verdict
    assert "the largest loss is" not in verdict.summary
    assert "the largest loss is" not in verdict.basis
    assert "nothing else reaches 5 %" in verdict.basis
    assert "96.3 % of it hidden behind compute" in verdict.basis


def test_recsys_waits_for_the_host(real_traces: RealTraces) -> None:
    device = only_device(real_traces, "recsys-2rank-v100.json.gz")
    assert (device.idle_ns, device.window_ns) == (732_352_000, 1_732_965_000)
    assert device.idle_cause is not None
    assert device.idle_cause.host_late_ns / device.idle_ns == pytest.approx(0.974, abs=5e-4)


def test_recsys_overlaps_none_of_its_small_all_reduces(real_traces: RealTraces) -> None:
    name = "recsys-2rank-v100.json.gz"
    (row,) = real_traces.report(name).communication
    assert (row.collective, row.count, row.total_ns) == ("all_reduce", 2020, 357_343_000)
    assert row.overlap_ns == 0
    assert row.exposed_ns == row.total_ns
    assert only_device(real_traces, name).compute_communication_overlap_ns == 0


def test_recsys_step_6_is_an_outlier_in_communication(real_traces: RealTraces) -> None:
    steps = {step.name: step for step in only_device(real_traces, "recsys-2rank-v100.json.gz").steps}
    assert steps["ProfilerStep#6"].communication_ns == 119_069_000
    others = [step.communication_ns for name, step in steps.items() if name != "ProfilerStep#6"]
    assert all(59_500_000 < time < 59_700_000 for time in others)
    assert [name for name, step in steps.items() if step.outlier] == ["ProfilerStep#6"]


def test_dlrm_overlap(real_traces: RealTraces) -> None:
    device = only_device(real_traces, "dlrm-8rank-a100.json.gz")
    assert device.communication_ns == 163_535_000
    assert device.compute_communication_overlap_ns / device.communication_ns == pytest.approx(0.4624, abs=5e-5)


def test_cnn_steps_own_what_they_launched(real_traces: RealTraces) -> None:
    steps = only_device(real_traces, "cnn-v100-ns.json.gz").steps
    assert len(steps) == 5
    assert all(94_270_000 <= step.busy_ns <= 94_600_000 for step in steps)


def test_cnn_times_are_exact_nanoseconds(real_traces: RealTraces) -> None:
    assert only_device(real_traces, "cnn-v100-ns.json.gz").window_ns == 480_029_179


def test_prefill_keeps_what_was_launched_before_the_recording(real_traces: RealTraces) -> None:
    name = "qwen-0.5b-prefill-h100.json.gz"
    device = only_device(real_traces, name)
    assert (device.gpu_events, device.launch.unlinked) == (1707, 509)
    assert any(reason.missing_signal == "launch calls" for reason in device.idle_unknown)


def test_decode_communicates_through_symmetric_memory(real_traces: RealTraces) -> None:
    name = "tp-decode-b200.json.gz"
    device = only_device(real_traces, name)
    totals = {
        row.family: row.total_ns for row in real_traces.report(name).kernel_families if row.class_ == "communication"
    }
    assert totals["symmetric-memory"] == pytest.approx(2_119_600, abs=100)
    assert totals["nccl"] == pytest.approx(22_000, abs=100)
    assert device.exposed_communication_ns == device.communication_ns == 2_141_501
    assert device.idle_ns == 72_890_696
    assert device.same_stream_overlaps == 74


def test_resnet_input_waits_vanish_with_workers(real_traces: RealTraces) -> None:
    def waited(name: str) -> int:
        return sum(
            row.total_ns for row in real_traces.report(name).input if row.name.startswith("enumerate(DataLoader)")
        )

    assert waited("resnet50-workers0-v100.json.gz") == 272_769_000
    # traces.md says 8.522 ms; the six events in the file add up to 8.540 (see below)
    assert waited("resnet50-workers4-v100.json.gz") == 1_000 * sum(
        event["dur"] for event in raw_events(real_traces, "resnet50-workers4-v100.json.gz", "enumerate(DataLoader)")
    )
    without = only_device(real_traces, "resnet50-workers0-v100.json.gz")
    with_workers = only_device(real_traces, "resnet50-workers4-v100.json.gz")
    assert without.ledger.idle_input > 0.15 * without.window_ns
    assert with_workers.ledger.idle_input < 0.01 * with_workers.window_ns


def test_resnet_mean_step(real_traces: RealTraces) -> None:
    def mean_ms(name: str) -> float:
        steps = [step.host_ns or 0 for step in only_device(real_traces, name).steps]
        return sum(steps) / len(steps) / 1e6

    assert mean_ms("resnet50-workers0-v100.json.gz") == pytest.approx(152.9, abs=0.1)
    # traces.md says 139.7 ms; the six steps in the file have a mean of 142.754
    steps = raw_events(real_traces, "resnet50-workers4-v100.json.gz", "ProfilerStep#")
    assert mean_ms("resnet50-workers4-v100.json.gz") == pytest.approx(sum(step["dur"] for step in steps) / 6e3)


def test_graph_launch_is_not_one_row(real_traces: RealTraces) -> None:
    name = "sglang-decode-mi300x.json.gz"
    trace = real_traces.load(name)
    launched = trace.device_events.group_by("launch").len().sort("len", descending=True)
    assert launched["len"][0] == 544
    call = trace.runtime_calls["name"].cast(pl.String)[launched["launch"][0]]
    assert re.search("GraphLaunch", call)
    kernels = real_traces.report(name).kernels
    assert sum(row.count for row in kernels) == 558
    assert len(kernels) == 29
    assert not any("GraphLaunch" in row.name for row in kernels)


def test_ddp_all_reduces(real_traces: RealTraces) -> None:
    name = "ddp-2rank-a100.json.gz"
    row = next(row for row in real_traces.report(name).communication if row.collective == "allreduce")
    assert (row.count, row.group_size, row.bytes) == (15, 2, 306_684_384)
    assert row.total_ns == pytest.approx(46_762_000, abs=1_000)
    trace = real_traces.load(name)
    records = trace.collectives.filter((pl.col("source") == "device") & (pl.col("in_elements") * 4 == 8_196_000))
    times = sorted(trace.device_events["duration_ns"][records["row"].to_list()].to_list())
    assert times[0] == pytest.approx(2_520_600, abs=100)
    assert any(time == pytest.approx(3_307_000, abs=1_000) for time in times)
    assert times[-1] == pytest.approx(5_993_000, abs=1_000)


def test_bert_small(real_traces: RealTraces) -> None:
    device = only_device(real_traces, "bert-small-h100.json.gz")
    assert (device.compute_ns, device.memory_ns, device.idle_ns) == (307_197, 2_240, 3_598_388)
