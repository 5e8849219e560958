from __future__ import annotations

from whystall.hardware import find
from whystall.hardware.calibration import Calibration, Copy, Launch, Matmul
from whystall.report.document import as_text
from whystall.report.probe_text import calibration_document

A100 = Calibration(
    machine="m", device="NVIDIA A100-SXM4-80GB", kind="gpu", measured_on="2026-11-20", torch="2.13.0",
    matmul=[Matmul(precision="bf16", m=64, n=32, k=16, repeats=5, best_ns=1_000, median_ns=2_000, flops_per_s=156e12)],
    copy=[Copy(bytes=1 << 30, repeats=5, best_ns=10**6, median_ns=10**6, bytes_per_s=1.019e12)],
    launch=Launch(calls=100, host_ns=4_200, device_ns=2_100),
)  # fmt: skip


def test_measurements_stand_beside_the_peak() -> None:
    text = as_text(calibration_document(A100, find(A100.device), [("fp8", "no such units")]), 100)
    assert "NVIDIA A100-SXM4-80GB, measured on 2026-11-20 with PyTorch 2.13.0" in text
    product = next(line for line in text.splitlines() if line.startswith("bf16"))
    assert " ".join(product.split()) == "bf16 (64 x 16) (16 x 32) 1.00 µs 2.00 µs 156 TFLOP/s 50.0 %"
    assert next(line for line in text.splitlines() if line.startswith("1.00 GiB")).endswith("50.0 %")
    assert "4.20 µs of the host, one every 2.10 µs on the device" in text
    assert "fp8 was not measured: no such units" in text


def test_without_a_row_there_is_no_share() -> None:
    assert "of the peak" not in as_text(calibration_document(A100, None), 100)
