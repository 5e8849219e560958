"""capture.recording-overhead: recorded steps that are all longer than the others, or dense with events, are told.

Nothing else is taken from the report for it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pytest
from tests.diagnosis.cases import case_of, run

from whystall.analysis.run_results import RecordedWindow, RunSummary
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.testing import TraceBuilder, trace

CAUSE: Final = "capture.recording-overhead"
RECORDED_NS: Final = 10_000_000
ONE_IS_SHORT: Final = (10_000_000, 5_900_000, 10_000_000, 10_000_000)


def recorded(
    *, lengths: tuple[int, ...] = (RECORDED_NS,) * 5, functions: int = 0, on_device: bool = False
) -> TraceBuilder:
    """Steps that are nothing but a product, and Python functions in it that take next to no time each."""
    built = trace()
    at = 0
    for number, lasts in enumerate(lengths):
        built.step(number, at=at, lasts=lasts - 10_000)
        if on_device:
            built.operator("aten::mm", at=at + 1_000, lasts=20_000)
            built.launch("gemm", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=lasts - 100_000)
        else:
            built.operator("aten::mm", at=at + 1_000, lasts=lasts - 100_000)
        for place in range(functions):
            built.python("train.py(3): f", at=at + 2_000 + place * 300, lasts=200)
        at += lasts
    return built


def steps_of(median_ns: int, p90_ns: int | None = None) -> RunSummary:
    return run(
        median_ns=median_ns,
        p10_ns=median_ns,
        p90_ns=p90_ns or median_ns,
        p99_ns=p90_ns or median_ns,
        total_ns=100 * median_ns,
        durations_ns=[median_ns] * 100,
    )


def told(built: TraceBuilder, *runs: RunSummary) -> Finding | None:
    found = diagnose(case_of(built, runs=runs), RULES)
    assert found.failures == []
    return next((finding for finding in found.findings if finding.id == CAUSE), None)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_run_says_how_much_longer_its_recorded_steps_are(*, on_device: bool) -> None:
    finding = told(recorded(on_device=on_device), steps_of(6_000_000))
    assert finding is not None
    assert "1.67 times as long" in finding.title
    assert (finding.severity, finding.remedy) == ("info", None)
    assert [fact.value for fact in finding.evidence] == [RECORDED_NS, 6_000_000]


@pytest.mark.parametrize(
    ("built", "steps"),
    [
        pytest.param(recorded(), steps_of(8_500_000), id="a little longer"),
        pytest.param(recorded(), steps_of(6_000_000, 11_000_000), id="as long as many others"),
        pytest.param(
            recorded(lengths=(10_000_000, 5_900_000, 10_000_000, 10_000_000)), steps_of(6_000_000), id="one is not"
        ),
        pytest.param(recorded(), steps_of(10_000_000), id="as long"),
        pytest.param(recorded(functions=12_000), steps_of(10_000_000), id="measured, whatever an estimate would say"),
    ],
)
def test_recorded_steps_like_the_others(built: TraceBuilder, steps: RunSummary) -> None:
    assert told(built, steps) is None


@pytest.mark.parametrize(("beside_ns", "ratio"), [(6_000_000, "1.67"), (9_800_000, None)])
def test_steps_that_became_longer_are_compared_with_those_beside_the_window(beside_ns: int, ratio: str | None) -> None:
    """Of a job whose steps grow to many times their length the median of the run is no step without a profiler."""
    window = RecordedWindow(
        step=80,
        before_ns=beside_ns // 2,
        lead_in_ns=beside_ns,
        after_ns=beside_ns,
        error_ns=0.0,
        usual_change=None,
        steps_after=15,
    )
    finding = told(recorded(), msgspec.structs.replace(steps_of(100_000), windows=[window]))
    assert (finding is None) == (ratio is None)
    assert finding is None or f"{ratio} times as long" in finding.title


def test_of_a_recording_alone_it_is_an_estimate() -> None:
    finding = told(recorded(functions=12_000))
    assert finding is not None
    assert "estimated 24.0 % of the step" in finding.title
    assert (finding.severity, finding.gain and finding.gain.expected, finding.confidence) == ("info", 1.0, 0.5)
    assert told(recorded(functions=5_000)) is None
