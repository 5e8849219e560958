"""The numbers of ``expected.json``, made by an independent program, for every recorded trace it covers."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from tests.conftest import RealTraces

from whystall.analysis.results import Device, InputWait

pytestmark = pytest.mark.real_traces

TRACES = [
    "deepseek-v3-dualpipe-h800.json",
    "recsys-2rank-v100.json.gz",
    "dlrm-8rank-a100.json.gz",
    "cnn-v100-ns.json.gz",
    "qwen-0.5b-prefill-h100.json.gz",
    "tp-decode-b200.json.gz",
    "ddp-2rank-a100.json.gz",
    "resnet50-workers0-v100.json.gz",
    "sglang-decode-mi300x.json.gz",
    "bert-small-h100.json.gz",
]
NUMBERS = [
    "gpu_events",
    "window_ns",
    "busy_ns",
    "idle_ns",
    "compute_ns",
    "communication_ns",
    "memory_ns",
    "compute_communication_overlap_ns",
    "exposed_communication_ns",
    "exposed_memory_ns",
    "kernel_sum_ns",
    "distinct_kernel_names",
]
# Two ways of writing each shortened name: expected.json cuts names at this many characters.
NAME_LENGTH = 200


def device_of(traces: RealTraces, name: str) -> Device:
    devices = traces.report(name).devices
    assert len(devices) == 1
    return devices[0]


def test_every_reference_is_tested(real_traces: RealTraces) -> None:
    for name in TRACES:
        assert real_traces.expected(name)


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("number", NUMBERS)
def test_device_number(real_traces: RealTraces, name: str, number: str) -> None:
    assert getattr(device_of(real_traces, name), number) == real_traces.expected(name)[number]


@pytest.mark.parametrize("name", TRACES)
def test_events_per_class(real_traces: RealTraces, name: str) -> None:
    counts = device_of(real_traces, name).counts
    assert {key: getattr(counts, key) for key in counts.__struct_fields__} == real_traces.expected(name)["counts"]


@pytest.mark.parametrize("name", TRACES)
def test_streams(real_traces: RealTraces, name: str) -> None:
    device = device_of(real_traces, name)
    measured = {
        f"{device.device}/{row.stream}": {"events": row.events, "busy_ns": row.busy_ns} for row in device.streams
    }
    assert measured == real_traces.expected(name)["streams"]


@pytest.mark.parametrize("name", TRACES)
def test_launches(real_traces: RealTraces, name: str) -> None:
    launch = device_of(real_traces, name).launch
    assert {"linked": launch.linked, "unlinked": launch.unlinked} == real_traces.expected(name)["launch"]


@pytest.mark.parametrize("name", TRACES)
def test_idle_causes(real_traces: RealTraces, name: str) -> None:
    cause = device_of(real_traces, name).idle_cause
    assert cause is not None
    assert {key: getattr(cause, key) for key in cause.__struct_fields__} == real_traces.expected(name)["idle_cause"]


@pytest.mark.parametrize("name", TRACES)
def test_short_kernels(real_traces: RealTraces, name: str) -> None:
    short = device_of(real_traces, name).short_kernels
    assert {"count": short.count, "sum_ns": short.total_ns} == real_traces.expected(name)["kernels_under_10us"]


@pytest.mark.parametrize("name", TRACES)
def test_top_kernels(real_traces: RealTraces, name: str) -> None:
    def facts(full_name: str, count: int, total: int, longest: int, class_: str) -> tuple[str, int, int, int, str]:
        return (full_name[:NAME_LENGTH], count, total, longest, class_)

    wanted = [
        facts(row["name"], row["count"], row["total_ns"], row["max_ns"], row["class"])
        for row in real_traces.expected(name)["top_kernels"]
    ]
    measured = {
        facts(row.name, row.count, row.total_ns, row.max_ns, row.class_) for row in real_traces.report(name).kernels
    }
    assert set(wanted) <= measured


@pytest.mark.parametrize("name", TRACES)
def test_steps(real_traces: RealTraces, name: str) -> None:
    measured = {step.name: step for step in device_of(real_traces, name).steps}
    for step, numbers in real_traces.expected(name).get("steps_by_launch", {}).items():
        assert {key: getattr(measured[step], key) for key in numbers} == numbers


@pytest.mark.parametrize("name", TRACES)
def test_memory_peaks(real_traces: RealTraces, name: str) -> None:
    kinds = {0: "cpu", 1: "cuda"}
    measured = {(row.device_type, row.device): row for row in real_traces.report(name).memory}
    for wanted in real_traces.expected(name).get("memory_events", []):
        row = measured[kinds[wanted["device_type"]], wanted["device_id"]]
        assert row.events == wanted["events"]
        # the reference program writes 0 where the events carry no totals; a report says null
        assert (row.peak_allocated_bytes or 0) == wanted["peak_allocated_bytes"]
        assert (row.peak_reserved_bytes or 0) == wanted["peak_reserved_bytes"]


@pytest.mark.parametrize("name", TRACES)
def test_operator_calls(real_traces: RealTraces, name: str) -> None:
    measured = {row.name: row for row in real_traces.report(name).operators}
    for operator, wanted in real_traces.expected(name).get("operators", {}).items():
        assert measured[operator].calls == wanted["calls"]


def test_collectives(real_traces: RealTraces) -> None:
    name = "ddp-2rank-a100.json.gz"
    records = real_traces.load(name).collectives.filter(pl.col("source") == "device")
    for wanted in real_traces.expected(name)["collectives"]:
        row = next(
            row
            for row in real_traces.report(name).communication
            if (row.collective, row.dtype) == (wanted["name"], wanted["dtype"])
        )
        own = records.filter((pl.col("collective") == wanted["name"]) & (pl.col("dtype") == wanted["dtype"]))
        measured: dict[str, Any] = {
            "name": row.collective,
            "group_size": row.group_size,
            "dtype": row.dtype,
            "count": row.count,
            "in_elements": own["in_elements"].sum(),
            "out_elements": own["out_elements"].sum(),
            "total_ns": row.total_ns,
            "process_groups": own["group"].unique().to_list(),
        }
        assert measured == wanted


def test_python_frames_and_modules(real_traces: RealTraces) -> None:
    name = "qwen-0.5b-prefill-h100.json.gz"
    wanted = real_traces.expected(name)["python"]
    frames = real_traces.load(name).python_functions
    module_calls = frames.filter(pl.col("name").cast(pl.String).str.starts_with("nn.Module: "))
    classes = {row.class_ for row in real_traces.report(name).modules}
    assert len(frames) == wanted["python_function_events"]
    assert len(module_calls) == wanted["module_events"]
    assert module_calls["name"].n_unique() == wanted["distinct_modules"]
    assert len(real_traces.report(name).modules) == wanted["distinct_modules"]
    assert len(classes) == wanted["module_classes"]


def test_input_waits(real_traces: RealTraces) -> None:
    name = "resnet50-workers0-v100.json.gz"
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    waits: dict[str, InputWait] = {row.name: row for row in real_traces.report(name).input}
    wanted = real_traces.expected(name)["input"]
    assert {"count": waits[loader].count, "total_ns": waits[loader].total_ns} == wanted[loader]
    steps = {step.name: step.host_ns for step in device_of(real_traces, name).steps}
    assert steps == {step: numbers["total_ns"] for step, numbers in wanted.items() if step != loader}
