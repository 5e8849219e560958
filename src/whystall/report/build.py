"""Makes the report of a run: the rows of all ranks in one structure, with their origin and the losses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whystall._version import __version__
from whystall.analysis.results import Host, RankMeetings
from whystall.analysis.run_results import RunSummary, SideBySide
from whystall.analysis.side_by_side import side_by_side
from whystall.analysis.throughput import Workload, job_throughput
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.analysis.work_results import DeviceEfficiency, Efficiency
from whystall.diagnosis.experiment import Experiment
from whystall.diagnosis.finding import Diagnosis, Verdict
from whystall.fleet.gatherings import all_communication
from whystall.fleet.summary import Candidate, RankSummary
from whystall.report.ranks import Row
from whystall.report.schema import Report
from whystall.report.source import recording_of, source_of, summarised, world_size
from whystall.trace.model import Trace


def build_report(
    traces: Sequence[Trace],
    analyses: Sequence[TraceAnalysis],
    runs: list[RunSummary],
    verdict: Verdict,
    diagnosis: Diagnosis,
    *,
    experiments: Sequence[Experiment] = (),
    problems: Sequence[str] = (),
    workload: Workload | None = None,
    others: Sequence[Candidate] = (),
) -> Report:
    """The report on traces (one for each rank, with their analyses) and the samples of a run.

    ``problems`` are sentences for ``report.source.warnings``: parts that were left out or could not be read. ``others``
    are ranks that have only summaries: their devices, ratings and communication are in the report as well.
    """
    read = [
        *(recording_of(trace, analysis) for trace, analysis in zip(traces, analyses, strict=True)),
        *map(summarised, others),
    ]
    read.sort(key=lambda one: one.rank)
    rated, unrated = job_throughput(workload, analyses, runs, world_size=world_size(read))
    ranks: list[TraceAnalysis | RankSummary] = [*analyses, *(other.summary for other in others)]
    efficiency = _efficiency(verdict, _by_rank([row for one in ranks for row in one.efficiency]))
    communication, meetings = all_communication(analyses, others)
    return Report(
        whystall=__version__,
        verdict=verdict,
        source=source_of(read, [*problems, *unrated], watched=bool(runs)),
        devices=_by_rank([device for one in ranks for device in one.devices]),
        kernels=[row for analysis in analyses for row in analysis.kernels],
        kernel_families=[row for analysis in analyses for row in analysis.kernel_families],
        operators=[row for analysis in analyses for row in analysis.operators],
        modules=[row for analysis in analyses for row in analysis.modules],
        phases=[row for analysis in analyses for row in analysis.phases],
        communication=communication,
        input=[row for analysis in analyses for row in analysis.input],
        host=_host(analyses),
        memory=[row for analysis in analyses for row in analysis.memory],
        device_counters=[row for analysis in analyses for row in analysis.counters],
        efficiency=msgspec.structs.replace(efficiency, throughput=rated),
        timelines=[row for analysis in analyses for row in analysis.timelines],
        kernel_chains=[row for analysis in analyses for row in analysis.chains],
        kernel_origins=[row for analysis in analyses for row in analysis.origins],
        counts=[row for analysis in analyses for row in analysis.counts],
        ranks=meetings,
        side_by_side=_side_by_side(traces, analyses, meetings, diagnosis),
        run=runs,
        findings=diagnosis.findings,
        plan=diagnosis.plan,
        abstained=diagnosis.abstained,
        critical_path=diagnosis.critical_path,
        blocking=diagnosis.blocking,
        fidelity=diagnosis.fidelity,
        noise=diagnosis.noise,
        experiments=list(experiments),
    )


def _host(analyses: Sequence[TraceAnalysis]) -> Host:
    """Activity of the host on all ranks."""
    return Host(
        threads=[row for analysis in analyses for row in analysis.host.threads],
        calls=[row for analysis in analyses for row in analysis.host.calls],
    )


def _side_by_side(
    traces: Sequence[Trace], analyses: Sequence[TraceAnalysis], waits: Sequence[RankMeetings], diagnosis: Diagnosis
) -> SideBySide | None:
    """Activity of the rank of the first finding about one rank alone, beside the rank that waits for it."""
    named = (finding.scope.ranks for finding in diagnosis.findings if finding.severity != "info")
    late = next((ranks[0] for ranks in named if len(ranks) == 1), None)
    return None if late is None else side_by_side(late, traces, analyses, waits)


def _by_rank(rows: list[Row]) -> list[Row]:
    """The rows of all ranks by rank, each rank's in its own order."""
    return sorted(rows, key=lambda row: row.rank)


def _efficiency(verdict: Verdict, devices: list[DeviceEfficiency]) -> Efficiency:
    """The rating of the device that the verdict speaks of, and of all."""
    spoken_of = next((row for row in devices if (row.rank, row.device) == (verdict.rank, verdict.device)), None)
    if spoken_of is None:
        return Efficiency(devices=devices)
    return Efficiency(
        mfu=spoken_of.mfu,
        hfu=spoken_of.hfu,
        tensor_core_share=spoken_of.tensor_core_share,
        peak=spoken_of.peak,
        peak_source=spoken_of.peak_source,
        devices=devices,
    )
