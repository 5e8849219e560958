"""The diagnosis of a run: its graph, its findings, its verdict."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whystall.analysis.kernel_classes import KernelClasses
from whystall.analysis.results import Device, RunSummary
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.diagnosis.case import Case, RankCase, RunFacts
from whystall.diagnosis.engine import diagnose
from whystall.diagnosis.finding import Diagnosis, Verdict
from whystall.diagnosis.rule import Rule
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.verdict import finding_verdict, ledger_verdict, run_verdict
from whystall.replay.build import build_graph
from whystall.trace.model import Trace


def diagnose_run(
    traces: Sequence[Trace],
    analyses: Sequence[TraceAnalysis],
    runs: Sequence[RunSummary],
    facts: RunFacts,
    *,
    classes: KernelClasses = (),
    more_rules: Sequence[Rule] = (),
    warnings: Sequence[str] = (),
) -> tuple[Verdict, Diagnosis]:
    """The verdict and the findings on the traces of a run (one per rank) and the steps that samples measured.

    ``classes`` are kernel classes of the user's, ``more_rules`` are asked after the rules that ship with whystall.
    """
    devices: list[Device] = [device for analysis in analyses for device in analysis.devices]
    measured = ledger_verdict(devices, warnings) if devices or not runs else run_verdict(runs)
    ranked = [(analysis.rank, trace) for analysis, trace in zip(analyses, traces, strict=True)]
    failures: list[str] = []
    graph = None
    # Of a file that breaks off nobody knows what is missing: device events come last, and steps without them look idle.
    whole = not any(trace.source.truncated for trace in traces)
    if devices and whole:
        try:
            graph = build_graph(ranked, classes)
        except Exception as error:  # noqa: BLE001 - what else was found is still worth saying
            failures.append(f"the steps could not be replayed ({type(error).__name__}: {error})")
    case = Case(
        ranks=tuple(
            RankCase(rank, trace, analysis)
            for (rank, trace), analysis in zip(ranked, analyses, strict=True)
            if analysis.devices and whole
        ),
        runs=tuple(runs),
        facts=facts,
        graph=graph if graph is not None and len(graph.start) else None,
    )
    diagnosis = diagnose(case, [*RULES, *more_rules])
    diagnosis = msgspec.structs.replace(diagnosis, failures=[*failures, *diagnosis.failures])
    verdict = finding_verdict(measured, diagnosis, case.step_ns, devices)
    recorded = case.step_ns if case.has_steps else 0
    return msgspec.structs.replace(verdict, step_ns=recorded or _run_step_ns(runs)), diagnosis


def _run_step_ns(runs: Sequence[RunSummary]) -> int | None:
    """The median step of the slowest rank, where there are samples alone."""
    return max((run.median_ns for run in runs), default=None)
