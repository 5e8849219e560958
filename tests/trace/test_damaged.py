"""The 22 damaged variants of one H100 trace: what is read, what is set aside, what is said."""

from __future__ import annotations

import pytest
from tests.conftest import RealTraces

from whystall.analysis.results import Device
from whystall.errors import InputError
from whystall.report.schema import Report

pytestmark = pytest.mark.real_traces

BASE = (307_197, 2_240, 3_598_388)


def read(traces: RealTraces, variant: str) -> Report:
    path = next(path for path in traces.path("malformed").iterdir() if path.name.startswith(variant))
    return traces.report(f"malformed/{path.name}")


def numbers(device: Device) -> tuple[int, int, int]:
    return device.compute_ns, device.memory_ns, device.idle_ns


def dropped(report: Report) -> dict[str, int]:
    return {entry.reason: entry.events for entry in report.source.dropped}


@pytest.mark.parametrize("variant", ["00", "02", "03", "04", "05", "06", "07", "08", "19", "20"])
def test_same_numbers_and_nothing_lost(real_traces: RealTraces, variant: str) -> None:
    report = read(real_traces, variant)
    assert numbers(report.devices[0]) == BASE
    assert report.source.dropped == []
    assert report.source.events == 2551


def test_null_and_empty_events(real_traces: RealTraces) -> None:
    report = read(real_traces, "14")
    assert numbers(report.devices[0]) == BASE
    assert dropped(report) == {
        "no event: a null, number, text or list where an event belongs": 1,
        "no event: an object without a phase": 2,
    }


@pytest.mark.parametrize(("variant", "events"), [("01", 2181), ("21", 2423)])
def test_truncation_keeps_what_precedes_it(real_traces: RealTraces, variant: str, events: int) -> None:
    report = read(real_traces, variant)
    assert report.source.events == events
    assert report.source.files[0].truncated
    assert any("ends in the middle" in warning for warning in report.source.warnings)
    assert report.devices
    assert report.devices[0].ledger.total_ns == report.devices[0].window_ns


def test_truncated_gzip_is_named(real_traces: RealTraces) -> None:
    assert any("gzip stream ends early" in warning for warning in read(real_traces, "21").source.warnings)


@pytest.mark.parametrize(
    ("variant", "reason", "events"),
    [
        ("09", "no usable duration", 7),
        ("10", "negative duration", 2),
        ("11", "start time far outside the trace", 2),
    ],
)
def test_impossible_events_are_set_aside(real_traces: RealTraces, variant: str, reason: str, events: int) -> None:
    report = read(real_traces, variant)
    assert dropped(report) == {reason: events}
    (device,) = report.devices
    assert device.gpu_events == 61 - events
    assert device.window_ns <= 3_907_825
    assert device.ledger.total_ns == device.window_ns


def test_times_given_as_text_are_read_exactly(real_traces: RealTraces) -> None:
    report = read(real_traces, "12")
    assert numbers(report.devices[0]) == BASE
    assert any("2,551 events give their times as text" in warning for warning in report.source.warnings)


def test_kernels_without_arguments_keep_their_place(real_traces: RealTraces) -> None:
    report = read(real_traces, "13")
    (device,) = report.devices
    assert numbers(device) == BASE
    # the flow arrows still tell which call launched each
    assert (device.launch.linked, device.launch.unlinked) == (61, 0)
    assert [row.stream for row in device.streams] == [7]
    assert any("60 device events carry no arguments" in warning for warning in report.source.warnings)


def test_two_devices_are_two_accounts(real_traces: RealTraces) -> None:
    devices = read(real_traces, "15").devices
    assert [device.device for device in devices] == [0, 1]
    assert [numbers(device) for device in devices] == [BASE, BASE]


def test_device_events_alone(real_traces: RealTraces) -> None:
    (device,) = read(real_traces, "16").devices
    assert (device.compute_ns, device.idle_ns) == (BASE[0], 3_907_825 - BASE[0])  # the copy is not in this variant
    assert device.launch.linked == 0
    assert device.ledger.idle_unknown == device.idle_ns


def test_host_events_alone_make_the_cpu_the_device(real_traces: RealTraces) -> None:
    (device,) = read(real_traces, "17").devices
    assert device.kind == "cpu"
    assert device.ledger.total_ns == device.window_ns
    assert device.compute_ns > 0


def test_empty_trace_says_so(real_traces: RealTraces) -> None:
    with pytest.raises(InputError, match="nothing was recorded"):
        read(real_traces, "18")


def test_nanosecond_integers_are_recognised(real_traces: RealTraces) -> None:
    report = read(real_traces, "22")
    assert numbers(report.devices[0]) == BASE
    assert any("nanoseconds" in warning for warning in report.source.warnings)
