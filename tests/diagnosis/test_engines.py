"""Inference engines: what holds them up in each step is a loss, what they wait for in between is none."""

from __future__ import annotations

from tests.diagnosis.cases import found_in

import whystall
from whystall.testing import TraceBuilder, trace

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}
FORWARD_NS, STEPS = 1_000_000, 16


def engine(*, between_ns: int = 20_000, hole_ns: int = 0, prefills: int = 0) -> TraceBuilder:
    """Decoding, with Python between the marks, a hole after one step, and prompts whose kernels take long."""
    built, at = trace(deviceProperties=[H100]), 0
    for step in range(STEPS):
        prompt = STEPS // 2 <= step < STEPS // 2 + prefills
        longer = 12 if prompt else 1
        built.annotation(
            f"execute_context_{int(prompt)}({int(prompt)})_generation_4(4)", at=at, lasts=longer * FORWARD_NS
        )
        for kernel in range(10):
            begin = at + kernel * 90_000 * longer
            built.operator("aten::mm", at=begin, lasts=20_000)
            built.launch("gemm", at=begin + 5_000, runs_at=begin + 15_000, lasts=80_000 * longer)
        at += longer * FORWARD_NS + between_ns + (hole_ns if step == STEPS // 2 else 0)
    return built


def test_python_between_an_engines_steps_is_a_loss() -> None:
    found = found_in(engine(between_ns=1_500_000))
    until_last_kernel_ends = 9 * 90_000 + 15_000 + 80_000
    assert found["host.python"].gain is not None
    assert found["host.python"].gain.floor <= 2_500_000 / until_last_kernel_ends <= found["host.python"].gain.ceiling


def test_a_hole_in_which_an_engine_may_have_had_no_request_is_none() -> None:
    for hole in (50_000_000, 2_000_000_000):
        gains = [one.gain.expected for one in found_in(engine(hole_ns=hole)).values() if one.gain is not None]
        assert max(gains, default=1.0) < 1.3, hole


def test_prompts_that_take_longer_are_no_clock_that_drops() -> None:
    assert "device.throttled" not in found_in(engine(prefills=4))


def test_a_wait_that_nothing_names_is_no_headline_of_python() -> None:
    verdict = whystall.analyze(engine(hole_ns=300_000_000).load()).verdict
    assert verdict.cause is None
    assert not verdict.summary.startswith("Python holds up the step")
