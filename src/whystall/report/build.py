"""Makes the report of a run: the rows of all ranks in one structure, with where they come from and what was lost."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whystall._version import __version__
from whystall.analysis.rank_meetings import job_communication
from whystall.analysis.results import Host
from whystall.analysis.run_results import RunSummary
from whystall.analysis.throughput import Workload, job_throughput
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.analysis.work_results import DeviceEfficiency, Efficiency
from whystall.diagnosis.experiment import Experiment
from whystall.diagnosis.finding import Diagnosis, Verdict
from whystall.report.schema import Dropped, Report, Source, SourceFile
from whystall.trace.model import Trace
from whystall.vocabulary.signals import SIGNALS


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
) -> Report:
    """The report on traces (one for each rank, with their analyses) and the samples of a run.

    ``problems`` are sentences for ``report.source.warnings``: what was left out or could not be read.
    """
    rated, unrated = job_throughput(workload, analyses, runs, world_size=_world_size(traces))
    communication, ranks = job_communication(
        [analysis.collectives for analysis in analyses], [analysis.links for analysis in analyses]
    )
    efficiency = _efficiency(verdict, [row for analysis in analyses for row in analysis.efficiency])
    return Report(
        whystall=__version__,
        verdict=verdict,
        source=_source(
            traces, analyses, [*_lacks(traces, analyses), *problems, *unrated, *_warnings(traces)], watched=bool(runs)
        ),
        devices=[device for analysis in analyses for device in analysis.devices],
        kernels=[row for analysis in analyses for row in analysis.kernels],
        kernel_families=[row for analysis in analyses for row in analysis.kernel_families],
        operators=[row for analysis in analyses for row in analysis.operators],
        modules=[row for analysis in analyses for row in analysis.modules],
        phases=[row for analysis in analyses for row in analysis.phases],
        communication=communication,
        input=[row for analysis in analyses for row in analysis.input],
        host=Host(
            threads=[row for analysis in analyses for row in analysis.host.threads],
            calls=[row for analysis in analyses for row in analysis.host.calls],
        ),
        memory=[row for analysis in analyses for row in analysis.memory],
        efficiency=msgspec.structs.replace(efficiency, throughput=rated),
        timelines=[row for analysis in analyses for row in analysis.timelines],
        kernel_chains=[row for analysis in analyses for row in analysis.chains],
        kernel_origins=[row for analysis in analyses for row in analysis.origins],
        ranks=ranks,
        run=runs,
        findings=diagnosis.findings,
        plan=diagnosis.plan,
        abstained=diagnosis.abstained,
        critical_path=diagnosis.critical_path,
        fidelity=diagnosis.fidelity,
        noise=diagnosis.noise,
        experiments=list(experiments),
    )


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


def _lacks(traces: Sequence[Trace], analyses: Sequence[TraceAnalysis]) -> list[str]:
    """What recordings visibly lack, which is said before all else."""
    prefix = len(traces) > 1
    return [
        f"{trace.name}: {sentence}" if prefix else sentence
        for trace, analysis in zip(traces, analyses, strict=True)
        for sentence in analysis.lacks
    ]


def _warnings(traces: Sequence[Trace]) -> list[str]:
    prefix = len(traces) > 1
    return [f"{trace.name}: {warning}" if prefix else warning for trace in traces for warning in trace.source.warnings]


def _source(
    traces: Sequence[Trace], analyses: Sequence[TraceAnalysis], warnings: list[str], *, watched: bool
) -> Source:
    """What was read. Of a job that was ``watched`` devices were recorded if it used any: none of them is missing."""
    read = [
        SourceFile(
            path=trace.name,
            rank=analysis.rank,
            bytes=trace.source.file_bytes,
            raw_bytes=trace.source.raw_bytes,
            events=trace.source.events,
            truncated=trace.source.truncated,
        )
        for trace, analysis in zip(traces, analyses, strict=True)
    ]
    dropped = [
        Dropped(reason=entry.reason, events=entry.events, device_ns=entry.device_ns, rank=analysis.rank)
        for trace, analysis in zip(traces, analyses, strict=True)
        for entry in trace.source.quarantined
    ]
    known = analyses[0].signals if analyses else {}
    signals = {key: all(analysis.signals[key] for analysis in analyses) for key in known}
    on_cpu = not any(analysis.signals["device_events"] for analysis in analyses)
    # How to record more is known of PyTorch's profiler alone.
    ours = all(trace.metadata.may_be_pytorch for trace in traces)
    missing = [
        entry.wanted if ours else entry.name
        for key, entry in SIGNALS.items()
        if entry.how
        and not signals.get(key, True)
        and not (on_cpu and (entry.device or (watched and key == "device_events")))
    ]
    return Source(
        files=read,
        framework=_framework(traces),
        ranks=sorted(analysis.rank for analysis in analyses),
        world_size=_world_size(traces),
        events=sum(trace.source.events for trace in traces),
        dropped=dropped,
        warnings=warnings,
        missing_signals=missing,
        signals=signals,
    )


def _framework(traces: Sequence[Trace]) -> str | None:
    """The frameworks by name, PyTorch with its versions; samples without a trace are always of PyTorch."""
    names = {trace.metadata.framework for trace in traces} if traces else {"pytorch"}
    versions = sorted({trace.metadata.versions.get("pytorch_version", "") for trace in traces} - {""})
    told = [
        f"{name} {', '.join(versions)}" if name == "pytorch" and versions else name
        for name in sorted(filter(None, names))
    ]
    return " and ".join(told) or None


def _world_size(traces: Sequence[Trace]) -> int | None:
    return max((size for trace in traces if (size := trace.metadata.world_size) is not None), default=None)
