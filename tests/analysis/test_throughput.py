"""The throughput way of rating a job, against arithmetic by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whystall
from whystall.analysis.throughput import StepTime, Workload, throughput
from whystall.hardware import find
from whystall.hardware.throughputs import Reference, references
from whystall.report.overview import throughput_words
from whystall.testing import TraceBuilder, trace

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42_000_000_000}
SECOND = StepTime(1e9, 10, "hand")


def test_three_samples_of_2048_tokens_a_second_on_four_devices() -> None:
    workload = Workload(tokens_per_step=3 * 2048, samples_per_step=3, reference=Reference(3300, "tokens", "hand"))
    found = throughput(workload, SECOND, devices=4)
    assert found.tokens_per_s_per_device == 1536
    assert found.samples_per_s_per_device == 0.75
    assert found.reference_share == pytest.approx(0.465, abs=5e-4)
    assert throughput_words(found)[0].startswith("1,536 tokens/s for each of 4 devices, 46.5 % of 3,300")


def test_bert_larges_published_figures() -> None:
    """6,279.86 GFLOP forward, three times that with the backward pass, in 184.73 ms.

    102.0 TFLOP/s, 32.7 % of an A100.
    """
    workload = Workload(flops_per_step=3 * 6279.86e9, precision="fp16")
    found = throughput(workload, StepTime(184.73e6, 1, "published"), devices=1, peak=find("NVIDIA A100-SXM4-40GB"))
    assert found.flops_per_s_per_device == pytest.approx(102.0e12, abs=5e10)
    assert found.utilisation == pytest.approx(0.327, abs=5e-4)


def test_the_published_table_holds_the_samples_of_the_same_run() -> None:
    row = references()["bert-large-a100"]
    found = throughput(Workload(samples_per_step=80, reference=row), StepTime(184.73e6, 1, "published"), devices=1)
    assert row.per_device_per_s == pytest.approx(80 / 0.18473, abs=5e-3)
    assert found.reference_share == pytest.approx(1.0, abs=1e-4)
    assert row.source


def test_a_reference_in_another_unit_is_not_compared() -> None:
    found = throughput(Workload(samples_per_step=3, reference=Reference(3300, "tokens", "hand")), SECOND, devices=4)
    assert found.reference_share is None
    assert found.unknown_because is not None
    assert "tokens" in found.unknown_because


def test_without_a_peak_there_is_a_rate_and_no_utilisation() -> None:
    found = throughput(Workload(flops_per_step=1e12), SECOND, devices=2)
    assert (found.flops_per_s_per_device, found.utilisation) == (5e11, None)
    assert found.unknown_because == "no peak is known for the device"


def test_a_precision_that_the_device_lacks_is_refused_with_the_reason() -> None:
    workload = Workload(flops_per_step=1e12, precision="fp8")
    found = throughput(workload, SECOND, devices=1, peak=find("NVIDIA A100-SXM4-80GB"))
    assert (found.utilisation, found.peak_flops_per_s) == (None, None)
    assert found.unknown_because == "the table of accelerators has no fp8 peak for A100 SXM 80GB"


def steps(*lengths: int) -> TraceBuilder:
    """Steps of these lengths, each one product of 2 GFLOP in bf16 that begins with its step."""
    shapes: dict[str, Any] = {"Input Dims": [[1000, 1000], [1000, 1000]], "Input type": ["c10::BFloat16"] * 2}
    built, at = trace(deviceProperties=[A100]), 0
    for number, lasts in enumerate(lengths):
        built.step(number, at=at, lasts=lasts)
        built.operator("aten::mm", at=at + 1_000, lasts=9_000, **shapes)
        built.launch("gemm", at=at + 2_000, runs_at=at + 10_000, lasts=20_000)
        at += lasts
    return built


def test_recorded_steps_count_from_one_to_the_next() -> None:
    report = whystall.analyze(steps(100_000, 300_000, 50_000).load(), workload=Workload(tokens_per_step=1000))
    rated = report.efficiency.throughput
    assert rated is not None
    assert (rated.step_ns, rated.steps, rated.devices) == (200_000, 2, 1)  # the last step has no next one
    assert rated.tokens_per_s_per_device == pytest.approx(1000 / 200e-6)


def test_the_three_ways_agree_on_the_same_job() -> None:
    """One product of 2 GFLOP a step of 100 us: 20 TFLOP/s are 6.41 % of 312, however it is found out."""
    report = whystall.analyze(
        steps(100_000, 100_000, 100_000).load(),
        workload=Workload(
            flops_per_step=2e9, tokens_per_step=1, reference=Reference(156_000, "tokens", "312e12 / 2e9")
        ),
    )
    rated = report.efficiency.throughput
    assert rated is not None
    assert rated.precision == "bf16"  # as most recorded FLOPs
    assert rated.utilisation == pytest.approx(20 / 312)
    assert rated.reference_share == pytest.approx(rated.utilisation)
    # the recording's window lacks the rest of the last step: 3 products in 220 us
    assert report.efficiency.mfu == pytest.approx(3 * 2e9 / 220e-6 / 312e12)


def test_without_steps_the_report_says_so() -> None:
    built = trace().operator("aten::mm", at=0, lasts=9_000).launch("gemm", at=1_000, runs_at=2_000, lasts=3_000)
    report = whystall.analyze(built.load(), workload=Workload(tokens_per_step=1))
    assert report.efficiency.throughput is None
    assert any("no step was seen" in warning for warning in report.source.warnings)


def test_a_watched_run_is_rated_by_the_steps_outside_the_profiler(tmp_path: Path) -> None:
    """Steps of 10 ms, and three under the profiler that take ten times as long (flag 1); the first is warm-up."""
    head = '{"schema": "whystall.samples/1", "rank": 0, "columns": ["step", "duration_us", "flags"]}'
    rows = [f"[{step}, {100_000 if step in (5, 6, 7) else 10_000}, {int(step in (5, 6, 7))}]" for step in range(20)]
    (tmp_path / "rank0.samples.jsonl").write_text("\n".join([head, *rows]) + "\n")
    report = whystall.analyze(tmp_path, workload=Workload(samples_per_step=4, devices=2))
    rated = report.efficiency.throughput
    assert rated is not None
    assert (rated.step_ns, rated.steps, rated.devices) == (10_000_000, 16, 2)
    assert rated.samples_per_s_per_device == pytest.approx(200)
