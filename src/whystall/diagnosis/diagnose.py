"""The diagnosis of a run: its graph, its findings, its verdict."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whystall.analysis.results import Device
from whystall.analysis.run_results import RunSummary
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.analysis.wholeness import shows_work_of_host, unseen_device
from whystall.diagnosis.asking import ask
from whystall.diagnosis.blocking import blocking
from whystall.diagnosis.candidate import Standing, Valued
from whystall.diagnosis.case import Case
from whystall.diagnosis.circumstances import circumstances
from whystall.diagnosis.detectors.hot_spot import HotSpot, biggest_gap, hot_spots
from whystall.diagnosis.detectors.limits import far_from_limits
from whystall.diagnosis.finding import Blocking, Diagnosis, PathPart, Verdict
from whystall.diagnosis.job_verdict import of_whole_job
from whystall.diagnosis.planning import plan
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Rule
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.rules.host.cpu_contention import shared_machine
from whystall.diagnosis.run_facts import RunFacts
from whystall.diagnosis.summarised import NONE, Summarised
from whystall.diagnosis.telling import Teller, without_advice
from whystall.diagnosis.uniting import not_overruled, on_all_ranks, once
from whystall.diagnosis.verdict import finding_verdict, ledger_verdict, run_verdict
from whystall.diagnosis.weighing import least_expected, weigh
from whystall.replay.build import build_graph
from whystall.replay.graph import Graph
from whystall.replay.outcome import path_parts
from whystall.trace.model import Trace


def diagnose(case: Case, rules: Sequence[Rule]) -> Diagnosis:
    """The rules' diagnosis of a case: every rule asked, every gain replayed, the causes weighed against each other."""
    answers = ask(case, rules)
    heard = not_overruled(answers.candidates)
    valued = on_all_ranks(case, [one for one in heard if isinstance(one, Valued)])
    standing = once([one for one in heard if isinstance(one, Standing)])
    weighed = weigh(case, valued)
    teller = Teller(case, {rule.cause.id: rule.cause for rule in rules}, circumstances(case))
    findings = teller.findings(weighed, standing)
    held_up, unknown = _blocking(case)
    return Diagnosis(
        findings=findings if case.may_be_pytorch else [without_advice(finding) for finding in findings],
        abstained=answers.abstained,
        plan=plan(case, weighed.firing),
        fidelity=case.fidelity.share if case.graph is not None else None,
        noise=case.noise if case.has_steps else None,
        failures=[*answers.failures, *weighed.failures, *unknown],
        critical_path=_critical_path(case),
        blocking=held_up,
    )


def diagnose_run(
    traces: Sequence[Trace],
    analyses: Sequence[TraceAnalysis],
    runs: Sequence[RunSummary],
    facts: RunFacts,
    *,
    more_rules: Sequence[Rule] = (),
    warnings: Sequence[str] = (),
    others: Summarised = NONE,
) -> tuple[Verdict, Diagnosis]:
    """The verdict and the findings on the traces of a run (one per rank) and the steps that samples measured.

    ``more_rules`` are asked after the rules that ship with whystall. ``others`` are further ranks without traces: the
    verdict knows their ledgers.
    """
    devices: list[Device] = [*(device for analysis in analyses for device in analysis.devices), *others.devices]
    # A truncated file lacks an unknown part: device events come last, and steps without them look idle.
    whole = not any(trace.source.truncated for trace in traces)
    graph, failures = _graph(traces, analyses) if devices and whole else (None, [])
    case = Case(
        ranks=tuple(
            RankCase(analysis.rank, trace, analysis)
            for trace, analysis in zip(traces, analyses, strict=True)
            if analysis.devices and whole
        ),
        runs=tuple(runs),
        facts=facts,
        graph=graph,
        summarised=others,
    )
    longer = (case.lengthening or 1.0) if case.graph is not None else 1.0
    unseen = {one.rank for one, trace in zip(analyses, traces, strict=True) if unseen_device(trace) is not None}
    measured = (
        ledger_verdict(devices, warnings, longer=longer, unseen=unseen) if devices or not runs else run_verdict(runs)
    )
    diagnosis = diagnose(case, [*RULES, *more_rules])
    named = any(finding.severity != "info" for finding in diagnosis.findings)
    far = far_from_limits(case) if case.graph is not None and not named else None
    hot, gap, unknown = _hot(case) if not named else ([], "", [])
    diagnosis = msgspec.structs.replace(diagnosis, failures=[*failures, *diagnosis.failures, *unknown])
    step_ns = case.told_step_ns(measured.rank) if case.graph is not None else case.step_ns
    least = least_expected(case)
    shared = shared_machine(case)
    verdict = finding_verdict(
        measured, diagnosis, step_ns, devices, least=least, far=far, hot=hot, gap=gap, longer=longer, shared=shared
    )
    recorded = step_ns if case.has_steps else 0
    told = msgspec.structs.replace(verdict, step_ns=recorded or _run_step_ns(runs))
    return of_whole_job(facts.job, told, diagnosis)


def _graph(traces: Sequence[Trace], analyses: Sequence[TraceAnalysis]) -> tuple[Graph | None, list[str]]:
    """The graph of all ranks' steps, or none and the reason."""
    try:
        graph = build_graph(
            [(analysis.rank, trace) for trace, analysis in zip(traces, analyses, strict=True)],
            [analysis.workings.classified for analysis in analyses],
        )
    except Exception as error:  # noqa: BLE001 - what else was found is still worth saying
        return None, [f"the steps could not be replayed ({type(error).__name__}: {error})"]
    return (graph, []) if len(graph.start) else (None, [])


def _blocking(case: Case) -> tuple[list[Blocking], list[str]]:
    """The cost of collectives, or nothing and the reason."""
    try:
        return blocking(case), []
    except Exception as error:  # noqa: BLE001 - findings are worth saying without it
        return [], [f"the cost of communication could not be replayed ({type(error).__name__}: {error})"]


def _hot(case: Case) -> tuple[list[HotSpot], str, list[str]]:
    """The hot spots and the longest gap, or nothing and the reason."""
    try:
        return hot_spots(case), biggest_gap(case), []
    except Exception as error:  # noqa: BLE001 - a verdict is due all the same
        return [], "", [f"what takes most of the time could not be worked out ({type(error).__name__}: {error})"]


def _critical_path(case: Case) -> list[PathPart]:
    if case.graph is None:
        return []
    whole, steps = max(case.recorded_ns, 1), max(case.steps, 1)
    parts = path_parts(case.graph, case.base, case.path)
    if not all(shows_work_of_host(rank.trace) for rank in case.ranks):
        # A thread's work between its calls of the runtime was not recorded.
        parts["unexplained"] = parts.get("unexplained", 0) + parts.pop("python", 0)
    return [
        PathPart(what=what, per_step_ns=ns // steps, share=round(ns / whole, 4))
        for what, ns in sorted(parts.items(), key=lambda item: (-item[1], item[0]))
        if ns > 0
    ]


def _run_step_ns(runs: Sequence[RunSummary]) -> int | None:
    """The median step of the slowest rank, where there are samples alone."""
    return max((run.median_ns for run in runs), default=None)
