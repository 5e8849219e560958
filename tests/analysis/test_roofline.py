"""Points of the roofline: arithmetic by hand, and no device time lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import RealTraces

from whystall.analysis.trace_analysis import analyze_trace
from whystall.analysis.work_results import Roofline, RooflinePoint
from whystall.testing import TraceBuilder, trace

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000}


def recorded(device: dict[str, object] | None = None) -> TraceBuilder:
    """A product of 1,000 x 1,000 in 20 us, two additions of 10 us over a million elements, a copy and a stranger."""
    square: dict[str, Any] = {"Input Dims": [[1000, 1000], [1000, 1000]], "Input type": ["c10::BFloat16"] * 2}
    built = trace(deviceProperties=[device or A100])
    calls = [("aten::mm", 20_000, square), ("aten::add", 10_000, square), ("aten::add", 10_000, square)]
    calls += [("aten::copy_", 4_000, square), ("my::secret", 3_000, {})]
    for place, (name, lasts, shapes) in enumerate(calls):
        built.operator(name, at=10_000 * place, lasts=9_000, **shapes)
        built.launch("some_kernel", at=10_000 * place + 1_000, runs_at=100_000 + 30_000 * place, lasts=lasts)
    return built


def roof(built: TraceBuilder) -> Roofline:
    (device,) = analyze_trace(built.load()).efficiency
    assert device.roofline is not None
    return device.roofline


def point(found: Roofline, operator: str) -> RooflinePoint:
    return next(one for one in found.points if one.operator == operator)


def test_a_product_between_its_limits() -> None:
    mm = point(roof(recorded()), "aten::mm")
    assert (mm.operator, mm.dtype, mm.precision, mm.calls) == ("aten::mm", "bfloat16", "bf16", 1)
    assert (mm.operations, mm.bytes) == (2 * 10**9, 3 * 2 * 10**6)
    assert mm.intensity == pytest.approx(2000 / 6)
    assert mm.operations_per_s == pytest.approx(100e12)
    # 333 operations a byte lie right of the ridge (312e12 / 2039e9 = 153), so the peak is the limit
    assert (mm.bound, mm.attainable_per_s) == ("compute", 312e12)
    assert mm.share == pytest.approx(100 / 312)
    assert mm.headroom_ns == pytest.approx(20_000 * (1 - 100 / 312), abs=1)


def test_an_addition_is_limited_by_memory() -> None:
    add = point(roof(recorded()), "aten::add")
    assert (add.operator, add.calls, add.device_ns) == ("aten::add", 2, 20_000)
    assert (add.operations, add.bytes) == (2 * 10**6, 2 * 3 * 2 * 10**6)
    assert add.bound == "memory"
    assert add.attainable_per_s == pytest.approx(2039e9 / 6)
    assert add.share == pytest.approx(12e6 / 20e-6 / 2039e9)


def test_ceilings_are_of_what_was_used_and_end_at_their_ridge() -> None:
    (ceiling,) = roof(recorded()).ceilings
    assert (ceiling.precision, ceiling.flops_per_s) == ("bf16", 312e12)
    assert ceiling.ridge == pytest.approx(312e12 / 2039e9)


def test_what_is_not_drawn_is_said() -> None:
    left = {one.reason: one.device_ns for one in roof(recorded()).left_out}
    assert left == {"operators that only move data": 4_000, "no operator with a known cost": 3_000}


def test_without_peaks_points_have_no_place() -> None:
    found = roof(recorded({"id": 0, "name": "Some Accelerator 9000"}))
    assert (found.ceilings, found.memory_bytes_per_s) == ([], None)
    assert all((one.share, one.bound, one.headroom_ns) == (None, None, None) for one in found.points)
    assert point(found, "aten::mm").intensity == pytest.approx(2000 / 6)


def test_two_devices_in_a_file_are_not_mixed() -> None:
    built = recorded()
    built.kernel("elsewhere", at=500_000, lasts=1_000, device=1)
    assert [row.roofline for row in analyze_trace(built.load()).efficiency] == [None, None]


@pytest.mark.real_traces
@pytest.mark.parametrize(
    "name",
    ["bert-small-h100", "qwen-0.5b-prefill-h100", "tp-decode-b200", "resnet50-workers0-v100", "dlrm-8rank-a100"],
)
def test_every_nanosecond_of_the_device_is_drawn_or_left_out(real_traces: RealTraces, name: str) -> None:
    report = real_traces.report(f"{name}.json.gz")
    (device,), (rating,) = report.devices, report.efficiency.devices
    assert rating.roofline is not None
    drawn = sum(point.device_ns for point in rating.roofline.points)
    assert drawn > 0
    assert drawn + sum(one.device_ns for one in rating.roofline.left_out) == device.kernel_sum_ns
