"""Rules on traces: for each a trace that fires it, and one beside it that does not."""

from __future__ import annotations

import numpy as np
import pytest

from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.episodes import _union_ns
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rules import RULES
from whystall.replay.build import build_graph
from whystall.testing import TraceBuilder, trace

STEP_NS = 2_000_000


def loop(*, called: str = "", annotated: str = "", lasts: int = 0, in_steps: tuple[int, ...] = ()) -> TraceBuilder:
    """Twelve steps of two kernels that the host waits for; in some of them it is at something else before."""
    built = trace()
    at = 0
    for number in range(12):
        begin = at
        if number in in_steps:
            if called:
                built.runtime(called, at=at, lasts=lasts)
            if annotated:
                built.annotation(annotated, at=at, lasts=lasts)
            at += lasts
        for _ in range(2):
            built.operator("aten::mm", at=at, lasts=20_000)
            built.launch("gemm", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=STEP_NS // 2)
            at += STEP_NS // 2 + 12_000
        built.runtime("cudaDeviceSynchronize", at=at, lasts=15_000)
        at += 15_000
        built.step(number, at=begin, lasts=at - begin)
    return built


def found(built: TraceBuilder) -> dict[str, Finding]:
    recorded = built.load()
    case = Case(ranks=(RankCase(0, recorded, analyze_trace(recorded)),), graph=build_graph([(0, recorded)]))
    diagnosis = diagnose(case, RULES)
    assert not diagnosis.failures
    return {finding.id: finding for finding in diagnosis.findings}


@pytest.mark.parametrize(
    ("built", "cause"),
    [
        (loop(called="cuModuleLoadData", lasts=STEP_NS, in_steps=(3, 5, 7)), "host.warm-up"),
        (loop(annotated="_compile.compile_inner (dynamo_timed)", lasts=STEP_NS, in_steps=(3, 6, 9)), "host.recompile"),
    ],
)
def test_what_a_few_steps_do_more_is_named_with_its_gain(built: TraceBuilder, cause: str) -> None:
    finding = found(built)[cause]
    assert finding.severity != "info"
    assert finding.gain is not None
    per_step = STEP_NS * 3 / 10  # ten of the steps are replayed, three of them have it
    assert finding.gain.floor <= 1 + per_step / STEP_NS <= finding.gain.ceiling


@pytest.mark.parametrize(
    "built",
    [
        loop(),
        loop(called="cuModuleLoadData", lasts=STEP_NS, in_steps=(0,)),  # before the steps that count
        loop(annotated="Torch-Compiled Region: 0/0", lasts=20_000, in_steps=tuple(range(12))),
    ],
)
def test_warm_up_before_the_window_and_compiled_code_are_no_cause(built: TraceBuilder) -> None:
    assert not {"host.warm-up", "host.recompile"} & set(found(built))


@pytest.mark.parametrize(("allocated", "reserved", "told"), [(20, 40, True), (36, 40, False), (1, 4, False)])
def test_reserved_memory_that_is_never_in_use_is_told_without_a_gain(
    allocated: int, reserved: int, *, told: bool
) -> None:
    """Sizes in units of 200 MiB: the last pair is too small to matter."""
    unit = 200 << 20
    built = loop()
    built.memory(at=500_000, size=unit, allocated=allocated * unit, reserved=reserved * unit)
    finding = found(built).get("memory.fragmentation")
    assert (finding is not None) is told
    if finding is not None:
        assert (finding.severity, finding.gain) == ("info", None)


def pauses(at_operators: tuple[int, ...], *, read: bool) -> TraceBuilder:
    """Twelve steps of four different operators; in every third step a long pause, after one of the operators."""
    built = trace()
    at = 0
    for number in range(12):
        begin = at
        for place, name in enumerate(("aten::mm", "aten::add", "aten::relu", "aten::mul")):
            built.operator(name, at=at, lasts=20_000)
            built.launch("kernel", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=400_000)
            at += 430_000
            if number % 3 == 1 and place == at_operators[number // 3]:
                if read:
                    built.runtime("cudaStreamSynchronize", at=at, lasts=5_000)
                    built.launch(
                        "Memcpy DtoH (Device -> Pinned)", at=at - 3_000, call_lasts=1_000, runs_at=at, lasts=1_000
                    )
                    at += 10_000
                at += 3_000_000
        built.step(number, at=begin, lasts=at - begin)
    return built


def test_a_pause_that_nothing_names_is_told_and_not_given_a_name() -> None:
    """Without Python stacks a collection, Python and logging look alike: the pause is told, and what would tell more."""
    findings = found(pauses((0, 2, 1, 3), read=False))
    assert all(finding.severity == "info" for finding in findings.values()), findings
    pause = findings["host.python"]
    assert "Python stacks" in pause.title
    assert pause.missing_signals == ["Python stacks"]
    assert pause.gain is not None
    assert pause.gain.floor > 1.2
    assert pause.attributed_ns_per_step == pytest.approx(4 * 3_400_000 / 12, rel=0.05)
    assert pause.title.startswith("In 4 of 12 steps")
    assert {one.what: one.value for one in pause.evidence}["times in the recording"] == 4


@pytest.mark.parametrize("named", ["annotation", "other thread"])
def test_a_pause_in_which_something_else_runs_is_not_silent(named: str) -> None:
    """An annotation around it, or a call that another thread waits in, names what goes on."""
    built = pauses((0, 2, 1, 3), read=False)
    for begin in range(0, 40_000_000, 100_000):
        if named == "annotation":
            built.annotation("Stage::merge", at=begin, lasts=99_000)
        else:
            built.runtime("synchronizeStream", at=begin, lasts=99_000, thread=300)
    assert "host.python" not in {one for one, finding in found(built).items() if "no event names" in finding.title}


def test_intervals_that_lie_in_each_other_count_once() -> None:
    begin, end = np.array([0, 10, 50, 200]), np.array([100, 20, 150, 210])
    assert _union_ns(begin, end) == 160
