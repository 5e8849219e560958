"""What tests of rules start from: a diagnosis of built traces, and of runs that samples measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.candidate import Candidate, Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Diagnosis, Finding
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.replay.build import build_graph
from whystall.replay.graph import Change
from whystall.testing import TraceBuilder, trace

STEP_NS: Final = 100_000_000
"""The step of a sampled run, unless a test says otherwise."""
HEALTHY: Final = {
    "input": 0.005,
    "forward": 0.4,
    "backward": 0.5,
    "optimizer": 0.05,
    "save": 0.0,
    "gc": 0.0,
    "other": 0.045,
}


def case_of(*built: TraceBuilder, facts: RunFacts | None = None, runs: Iterable[RunSummary] = ()) -> Case:
    """The case of built traces, one per rank."""
    recorded = [(rank, one.load()) for rank, one in enumerate(built)]
    return Case(
        ranks=tuple(RankCase(rank, trace, analyze_trace(trace, rank=rank)) for rank, trace in recorded),
        runs=tuple(runs),
        facts=facts or RunFacts(),
        graph=build_graph(recorded),
    )


def of_framework(framework: str | None, case: Case) -> Case:
    """The case, of a job that ran on another framework or on none that is known."""
    ranks = []
    for rank in case.ranks:
        metadata = msgspec.structs.replace(rank.trace.metadata, framework=framework)
        ranks.append(dataclasses.replace(rank, trace=dataclasses.replace(rank.trace, metadata=metadata)))
    return dataclasses.replace(case, ranks=tuple(ranks))


def told_of(*built: TraceBuilder, facts: RunFacts | None = None, runs: Iterable[RunSummary] = ()) -> dict[str, Finding]:
    """All findings on built traces, one per rank, by cause; those that are only told among them."""
    found = diagnose(case_of(*built, facts=facts, runs=runs), RULES)
    assert found.failures == [], found.failures
    return {finding.id: finding for finding in found.findings}


def found_in(
    *built: TraceBuilder, facts: RunFacts | None = None, runs: Iterable[RunSummary] = ()
) -> dict[str, Finding]:
    """The findings that fire on built traces, one per rank, by cause."""
    return {cause: one for cause, one in told_of(*built, facts=facts, runs=runs).items() if one.severity != "info"}


def run(*, shares: dict[str, float] | None = None, places: Iterable[SampledLine] = (), **more: Any) -> RunSummary:
    """A watched run of a hundred even steps that computes most of the time."""
    values: dict[str, Any] = {
        "rank": 0,
        "steps": 100,
        "profiled": 0,
        "total_ns": 100 * STEP_NS,
        "p10_ns": STEP_NS,
        "median_ns": STEP_NS,
        "p90_ns": STEP_NS,
        "p99_ns": STEP_NS,
        "max_ns": STEP_NS,
        "trend_per_1000_steps": None,
        "shares": {**HEALTHY, **(shares or {})},
        "on_cpu_share": 0.98,
        "involuntary_switches_per_step": 0.5,
        "major_faults_per_step": 0.0,
        "rss_start_bytes": 1 << 30,
        "rss_end_bytes": 1 << 30,
        "slow_ns": 0,
        "slow": [],
        "durations_ns": [STEP_NS] * 100,
        "places": list(places),
        "stack_samples": 1000,
        **more,
    }
    return RunSummary(**values)


def line(
    share: float, text: str = "x = f()", *, part: str = "other", leaf: str | None = None, at: int = 7
) -> SampledLine:
    """A line at which the training thread was found in a share of the stack samples.

    Unless a function is given, in one of torch's within the passes of a step, and else in its own.
    """
    leaf = leaf or ("torch.nn.modules.linear:forward" if part in {"forward", "backward"} else "__main__:main")
    return SampledLine(part=part, file="train.py", line=at, function="main", text=text, leaf=leaf, share=share)


def found_in_runs(*runs: RunSummary, **facts: Any) -> dict[str, Finding]:
    """The findings that fire on sampled runs, one per rank, by cause."""
    found = diagnose(Case(runs=runs, facts=RunFacts(**facts)), RULES)
    assert found.failures == [], found.failures
    return {finding.id: finding for finding in found.findings if finding.severity != "info"}


def loader(workers: int, *, persistent: bool = True) -> dict[str, Any]:
    """The facts of a run with one loader on eight cores."""
    return {"cores": 8, "threads": 4, "loaders": ({"workers": workers, "persistent_workers": persistent},)}


def loop(*, python_ns: int = 0, fetch_ns: int = 0, kernel_ns: int = 1_000_000, steps: int = 10) -> TraceBuilder:
    """Steps of a fetch, a stretch of Python, two operators of 20 us with a kernel each, and a wait for them."""
    built = trace()
    at = 0
    for number in range(steps):
        begin = at
        if fetch_ns:
            built.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at=at, lasts=fetch_ns)
        at += fetch_ns + python_ns
        for _ in range(2):
            built.operator("aten::mm", at=at, lasts=20_000)
            built.launch("gemm", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=kernel_ns // 2)
            at += kernel_ns // 2 + 1_000
        built.runtime("cudaDeviceSynchronize", at=at, lasts=15_000)
        at += 15_000
        built.step(number, at=begin, lasts=at - begin)
    return built


def fixed(cause: str, share: float, **more: object) -> Rule:
    """A rule that proposes to remove a share of everything."""

    def find(case: Case) -> Iterator[Candidate]:
        left = (case.replayed.duration * (1 - share)).astype(np.int64)
        values = {"removal": Change(duration=left), "attributed_ns": case.step_ns, **more}
        kind = Sampled if "saved" in more else Replayed
        yield kind(cause=cause, evidence=(), ranks=(0,), **values)  # type: ignore[arg-type]

    return Rule(causes()[cause], (Finder(find, ("trace",)),))


def now_and_then(cause: str, share: float, **more: object) -> Rule:
    """A rule that proposes to remove twice the share of every other step."""

    def find(case: Case) -> Iterator[Candidate]:
        graph = case.replayed
        begins = np.sort(np.concatenate([rank.trace.steps["ts_ns"].to_numpy() for rank in case.ranks]))
        odd = np.searchsorted(begins, graph.start, side="right") % 2 == 1
        removal = Change(duration=np.where(odd, graph.duration * (1 - 2 * share), graph.duration).astype(np.int64))
        yield Replayed(cause=cause, evidence=(), ranks=(0,), removal=removal, attributed_ns=case.step_ns, **more)  # type: ignore[arg-type]

    return Rule(causes()[cause], (Finder(find, ("trace",)),))


def diagnosed(built: TraceBuilder) -> Diagnosis:
    """What is told of a built trace, and which rules could not be asked."""
    return diagnose(case_of(built), RULES)
