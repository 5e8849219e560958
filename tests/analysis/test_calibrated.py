"""Reports on a device whose peak was measured here: rated by it, and never silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whystall
from whystall.hardware.calibration import Calibration, Copy, Matmul, calibration_folder, write_calibration
from whystall.report.overview import efficiency_line
from whystall.testing import TraceBuilder, trace
from whystall.trace.cache import default_folder

NAME = "Some Accelerator 9000"


def recorded() -> TraceBuilder:
    """A product of 2 GFLOP in 20 us: 100 TFLOP/s."""
    shapes: dict[str, Any] = {"Input Dims": [[1000, 1000], [1000, 1000]], "Input type": ["c10::BFloat16"] * 2}
    built = trace(deviceProperties=[{"id": 0, "name": NAME}]).operator("aten::mm", at=0, lasts=9_000, **shapes)
    return built.launch("gemm", at=1_000, runs_at=20_000, lasts=20_000)


@pytest.fixture
def measured() -> Path:
    product = Matmul(precision="bf16", m=1, n=1, k=1, repeats=5, best_ns=1, median_ns=1, flops_per_s=200e12)
    copied = Copy(bytes=1 << 30, repeats=5, best_ns=1, median_ns=1, bytes_per_s=1e12)
    calibration = Calibration(
        machine="m", device=NAME, kind="gpu", measured_on="2026-11-20", torch="2.13.0", matmul=[product], copy=[copied]
    )
    return write_calibration(calibration, calibration_folder(default_folder()))


def test_an_unknown_peak_becomes_what_was_measured_and_says_so(measured: Path) -> None:
    report = whystall.analyze(recorded().load())
    assert report.efficiency.mfu == pytest.approx(0.5)  # 100 of 200 TFLOP/s
    (rating,) = report.efficiency.devices
    assert rating.measured == "bf16, memory bandwidth: measured here on 2026-11-20 by whystall probe"
    assert report.efficiency.peak_source == rating.measured
    assert "measured here on 2026-11-20" in efficiency_line(report)
    mm = next(row for row in report.operators if row.name == "aten::mm")
    assert mm.roofline == pytest.approx(max(2e9 / 200e12, 6e6 / 1e12) / 20e-6)


def test_it_can_be_left_out(measured: Path) -> None:
    report = whystall.analyze(recorded().load(), calibrate=False)
    assert report.efficiency.mfu is None
    assert "MFU" not in efficiency_line(report)
    assert report.efficiency.devices[0].unknown_because == f"no peak is known for '{NAME}'"


def test_without_a_measurement_unknown_stays_unknown() -> None:
    report = whystall.analyze(recorded().load())
    assert (report.efficiency.mfu, report.efficiency.devices[0].measured) == (None, None)


def test_a_corrupt_file_costs_a_warning(measured: Path) -> None:
    measured.write_text("{")
    report = whystall.analyze(recorded().load())
    assert report.efficiency.mfu is None
    assert any("is ignored" in warning and measured.name in warning for warning in report.source.warnings)
