"""A diagnosis as a whole: verdicts on what is known, and the same bytes each time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.diagnosis.cases import loop

import whystall
import whystall.plugins
from whystall.testing import TraceBuilder, trace

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def test_a_healthy_loop_has_no_finding_and_says_so() -> None:
    report = whystall.analyze(loop().load())
    assert [finding.id for finding in report.findings if finding.severity != "info"] == []
    # Without shapes nobody knows how far its kernels are from a limit: that is no health.
    assert report.verdict.summary.startswith("Nothing was found: no cause that was looked for")
    assert "takes the largest part of the device's busy time" in report.verdict.basis
    assert report.verdict.cause is None


def test_the_same_input_gives_the_same_bytes() -> None:
    recorded = loop(fetch_ns=700_000, python_ns=400_000).load()
    first, second = (msgspec.json.encode(whystall.analyze(recorded)) for _ in range(2))
    assert first == second


VERDICTS = {
    "deepseek-v3-dualpipe-h800.json": None,
    "recsys-2rank-v100.json.gz": "host.launch-bound",
    "resnet50-workers0-v100.json.gz": "input.synchronous-loader",
    "tp-decode-b200.json.gz": "host.launch-bound",
    "bert-small-h100.json.gz": "host.launch-bound",
    "sglang-decode-mi300x.json.gz": None,
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts_on_recorded_traces_whose_cause_is_known(name: str) -> None:
    if not (SHARED / name).exists():
        pytest.skip("the shared traces are not here")
    report = whystall.analyze(SHARED / name)
    assert report.verdict.cause == VERDICTS[name]
    named = {finding.id: finding for finding in report.findings}
    if name.startswith("deepseek"):
        assert report.verdict.summary.startswith("Nothing was found: no cause that was looked for")
        assert "leave it" in named["communication.exposed"].title
        assert named["communication.exposed"].severity == "info"
    if name.startswith("recsys"):
        assert "communication.small-messages" in named
        small = named["communication.small-messages"]
        assert small.scope.steps == []  # each step sends 404, one of them waits longer for them
        assert any("ProfilerStep#6" in row.what for row in small.evidence)
    if name.startswith("sglang"):
        assert "mostly empty" in report.verdict.summary


def cpu_loop(*, python_ns: int, function: str | None = None, operators_ns: int = 1_000_000) -> TraceBuilder:
    """Steps of a job without an accelerator: an operator, then Python."""
    built = trace()
    for number in range(5):
        begin = number * (operators_ns + python_ns)
        built.step(number, at=begin, lasts=operators_ns + python_ns)
        built.operator("aten::mm", at=begin, lasts=operators_ns)
        if function:
            built.python(function, at=begin + operators_ns, lasts=python_ns)
    return built


@pytest.mark.parametrize(("python_ns", "healthy"), [(150_000, False), (30_000, True)])
def test_a_loss_whose_cause_nobody_could_see_is_no_health(python_ns: int, *, healthy: bool) -> None:
    """Without marks of steps nothing is known of what Python is worth."""
    built = trace()
    for number in range(40):
        built.operator("aten::mm", at=number * (1_000_000 + python_ns), lasts=1_000_000)
    report = whystall.analyze(built.load())
    assert any(one.id == "host.python" for one in report.abstained)
    assert report.verdict.cause is None
    assert report.verdict.summary.startswith(
        "Nothing was found: no cause that was looked for" if healthy else "No cause was named for the largest loss"
    )
    assert healthy or report.verdict.basis.startswith("Not judged: host.python (for want of step marks)")


def test_a_large_loss_without_a_cause_is_no_health() -> None:
    """Launches without device events: what of the host's time was hidden cannot be told."""
    built = cpu_loop(python_ns=4_000_000)
    for number in range(5):
        built.runtime("cudaLaunchKernel", at=number * 5_000_000 + 500_000, lasts=5_000)
    report = whystall.analyze(built.load())
    assert report.verdict.cause is None
    assert report.verdict.summary.startswith("5 launches but no device event: the device was not recorded")
    assert report.verdict.basis.startswith("The host runs operators ")
    assert "CPU computes" not in report.verdict.basis
