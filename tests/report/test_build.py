"""What a report says was not recorded."""

from __future__ import annotations

from tests.diagnosis.cases import run

from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.finding import Diagnosis, Verdict
from whystall.report.build import build_report
from whystall.testing import trace

VERDICT = Verdict(summary="", cause=None, gain=None, confidence=1.0)


def missing(*, watched: bool, launched: bool = False) -> str:
    built = trace().operator("aten::mm", at=0, lasts=1000)
    if launched:
        built.launch("gemm", at=100, runs_at=500, lasts=300)
    loaded = built.step(0, at=0, lasts=1000).load()
    runs = [run()] if watched else []
    report = build_report([loaded], [analyze_trace(loaded, rank=0)], runs, VERDICT, Diagnosis())
    return " ".join(report.source.missing_signals)


def test_a_watched_job_without_a_device_misses_no_device_events() -> None:
    assert "CUDA" not in missing(watched=True)
    assert "ProfilerActivity.CUDA" in missing(watched=False)  # a trace of its own may have been made without them
    assert "enable_cuda_sync_events" in missing(watched=True, launched=True)  # what a device lacks is told


def test_a_signal_that_some_ranks_lack_names_them() -> None:
    loaded = []
    for rank in range(3):
        built = trace().operator("aten::mm", at=0, lasts=1000).step(0, at=0, lasts=1000)
        loaded.append((built.python("train.py(3): main", at=0, lasts=900) if rank == 1 else built).load())
    analyses = [analyze_trace(one, rank=rank) for rank, one in enumerate(loaded)]
    missing = build_report(loaded, analyses, [], VERDICT, Diagnosis()).source.missing_signals
    [stacks] = [name for name in missing if "stacks" in name and "modules" not in name]
    assert stacks.endswith(" on ranks 0, 2")
    assert not any(" on rank" in name for name in missing if "memory events" in name)
