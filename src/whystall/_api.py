"""The public functions: load a trace, analyse traces, render a report."""

from __future__ import annotations

import glob
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from whystall._ranks import one_per_rank
from whystall._version import __version__
from whystall.analysis.kernel_classes import KernelClasses, parse_kernel_classes
from whystall.analysis.results import (
    Host,
    RunSummary,
)
from whystall.analysis.run_summary import run_summary
from whystall.analysis.throughput import Workload, job_throughput
from whystall.analysis.trace_analysis import TraceAnalysis, analyze_trace
from whystall.analysis.work_results import DeviceEfficiency, Efficiency
from whystall.diagnosis.case import RunFacts
from whystall.diagnosis.comparison import Comparison, compare_reports
from whystall.diagnosis.diagnose import diagnose_run
from whystall.diagnosis.experiment import Experiment
from whystall.diagnosis.finding import Verdict
from whystall.diagnosis.rule import RULES_GROUP, Rule
from whystall.errors import InputError, UsageError
from whystall.hardware.calibration import calibration_folder, read_calibrations
from whystall.report.schema import Dropped, Report, Source, SourceFile
from whystall.run_folder.description import read_run_file
from whystall.run_folder.layout import DESCRIPTION_SUFFIX, EXPERIMENTS_JSON, REPORT_JSON, RUN_JSON, SAMPLES_SUFFIX
from whystall.trace.cache import default_folder
from whystall.trace.load import load_trace
from whystall.trace.model import TABLES, Trace
from whystall.trace.samples import RunSamples, read_samples
from whystall.verify.remedies import read as read_remedies
from whystall.verify.remedies import record_file, scales

Progress = Callable[[int, int | None], None]
PathLike = str | Path

_TRACE_SUFFIXES: Final = (".json", ".json.gz", ".pt.trace", ".pt.trace.json", ".pt.trace.json.gz", ".trace", ".gz")
_NOT_TRACES: Final = (REPORT_JSON, RUN_JSON, EXPERIMENTS_JSON)
_LARGEST_EXPERIMENTS: Final = 1 << 20
_RECORDED_TABLES: Final = tuple(
    table for table in TABLES if table not in {"threads", "other_events", "extra_arguments"}
)


def load(path: PathLike, *, cache: bool = True, progress: Progress | None = None) -> Trace:
    """The trace in a file, as linked Polars tables.

    Raises `whystall.errors.InputError` when there is no readable trace.

    >>> import whystall
    >>> trace = whystall.load(whystall.demo_recording())
    >>> trace.operators["duration_ns"].min() >= 0
    True
    """
    return load_trace(Path(path), cache=cache, progress=progress)


def demo_recording() -> Path:
    """The small recording that ships with whystall: a few steps of a GPT on a CPU."""
    return Path(str(files("whystall") / "demo" / "recording.json.gz"))


def analyze(
    sources: PathLike | Trace | Iterable[PathLike | Trace],
    *,
    cache: bool = True,
    kernel_classes: PathLike | None = None,
    calibrate: bool = True,
    workload: Workload | None = None,
    progress: Progress | None = None,
) -> Report:
    """The report on traces: files, folders, glob patterns, or traces that are loaded already.

    ``calibrate`` lets what `whystall probe` measured on this machine fill gaps in the table of accelerators; the report
    says where it did. ``workload`` is what a step works through, for a rating by throughput.

    Each file is a rank of its own, except that of several windows of one rank the latest counts. A file that is left out,
    holds no event or cannot be read is named in ``report.source.warnings``; when none is left `whystall.errors.InputError`
    is raised.

    >>> import whystall
    >>> report = whystall.analyze(whystall.demo_recording())
    >>> device = report.devices[0]
    >>> device.ledger.total_ns == device.window_ns
    True
    """
    rules = _rules(kernel_classes)
    found, failures = _load_all(sources, cache=cache, progress=progress)
    samples = _samples(sources, failures)
    if not found and not samples:
        raise _nothing(failures)
    loaded, ranks, notes = one_per_rank(found)
    calibrations, ignored = read_calibrations(calibration_folder(default_folder())) if calibrate else ([], [])
    analyses = [
        analyze_trace(trace, rank=rank, rules=rules, calibrations=calibrations)
        for trace, rank in zip(loaded, ranks, strict=True)
    ]
    runs = [run for run in map(run_summary, samples) if run is not None]
    facts = _facts(sources, failures, calibrate=calibrate)
    verdict, diagnosis = diagnose_run(
        loaded,
        analyses,
        runs,
        facts,
        classes=rules,
        more_rules=_more_rules(failures),
        warnings=failures,
    )
    problems = [*failures, *notes, *ignored, *diagnosis.failures]
    report = _report(loaded, analyses, runs, problems, verdict, workload)
    return msgspec.structs.replace(
        report,
        findings=diagnosis.findings,
        plan=diagnosis.plan,
        abstained=diagnosis.abstained,
        critical_path=diagnosis.critical_path,
        fidelity=diagnosis.fidelity,
        noise=diagnosis.noise,
        experiments=list(facts.experiments),
    )


def compare(
    base: PathLike | Report, candidate: PathLike | Report, *, cache: bool = True, progress: Progress | None = None
) -> Comparison:
    """What changed between two runs, given as reports or as what `analyze` takes.

    >>> import whystall
    >>> comparison = whystall.compare(whystall.demo_recording(), whystall.demo_recording())
    >>> comparison.speedup
    1.0
    """
    sides = [
        side if isinstance(side, Report) else analyze(side, cache=cache, progress=progress)
        for side in (base, candidate)
    ]
    names = ["" if isinstance(side, Report) else str(side) for side in (base, candidate)]
    return compare_reports(sides[0], sides[1], (names[0] or "base", names[1] or "candidate"))


def _facts(sources: PathLike | Trace | Iterable[PathLike | Trace], failures: list[str], *, calibrate: bool) -> RunFacts:
    """What the run folders among the sources say of their machine; of several ranks the first one's word counts."""
    remedies = scales(read_remedies(record_file())) if calibrate else {}
    given = [sources] if isinstance(sources, str | Path | Trace) else list(sources)
    folders = [Path(source) for source in given if isinstance(source, str | Path) and _is_folder(Path(source))]
    ranks = [rank for folder in folders for rank in read_run_file(folder / RUN_JSON)]
    experiments = tuple(one for folder in folders for one in _experiments(folder / EXPERIMENTS_JSON, failures))
    if not ranks:
        return RunFacts(remedies=remedies, experiments=experiments)
    return RunFacts(
        cores=ranks[0].cores_allowed,
        threads=ranks[0].torch_threads,
        processes=len(ranks),
        loaders=tuple(loader for rank in ranks for loader in rank.loaders),
        profiled_over_unprofiled=ranks[0].profiled_over_unprofiled,
        remedies=remedies,
        experiments=experiments,
    )


def _experiments(path: Path, failures: list[str]) -> list[Experiment]:
    """The outcomes of a run's experiments; none where it made none, and a warning where they cannot be read."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_LARGEST_EXPERIMENTS), type=list[Experiment])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        failures.append(f"the outcomes of experiments in {path.name} cannot be read: {error}")
        return []


def _more_rules(failures: list[str]) -> list[Rule]:
    """The rules that other packages bring by the entry point ``whystall.rules``; one that fails is named and left out."""
    found: list[Rule] = []
    for entry in entry_points(group=RULES_GROUP):
        try:
            brought = entry.load()
        except Exception as error:  # noqa: BLE001 - another package's code
            failures.append(f"the rules of {entry.name} could not be loaded: {error}")
            continue
        found += [brought] if isinstance(brought, Rule) else list(brought)
    return found


def _samples(sources: PathLike | Trace | Iterable[PathLike | Trace], failures: list[str]) -> list[RunSamples]:
    """The samples of the run folders among the sources."""
    given = [sources] if isinstance(sources, str | Path | Trace) else list(sources)
    folders = [Path(source) for source in given if isinstance(source, str | Path) and _is_folder(Path(source))]
    found = []
    for path in sorted(path for folder in folders for path in folder.glob(f"*{SAMPLES_SUFFIX}")):
        try:
            found.append(read_samples(path))
        except InputError as error:
            failures.append(str(error))
    return found


def _rules(path: PathLike | None) -> KernelClasses:
    if path is None:
        return ()
    try:
        return parse_kernel_classes(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the kernel classes {path} cannot be read: {error}") from None


def _load_all(
    sources: PathLike | Trace | Iterable[PathLike | Trace], *, cache: bool, progress: Progress | None
) -> tuple[list[Trace], list[str]]:
    given = [sources] if isinstance(sources, str | Path | Trace) else list(sources)
    traces: list[Trace] = []
    failures: list[str] = []
    for source in given:
        if isinstance(source, Trace):
            traces.append(source)
            continue
        try:
            paths = find_traces(source)
        except InputError as error:
            if not _holds_samples(Path(source)):
                failures.append(str(error))
            continue
        for path in paths:
            try:
                traces.append(load_trace(path, cache=cache, progress=progress))
            except InputError as error:
                failures.append(str(error))
    failures += [
        f"{trace.name}: nothing was recorded, the trace holds no event of a job"
        for trace in traces
        if not _recorded(trace)
    ]
    return [trace for trace in traces if _recorded(trace)], failures


def _recorded(trace: Trace) -> bool:
    """Whether a trace holds more than the profiler's own marks: events, if only some that had to be set aside."""
    return bool(trace.source.quarantined) or any(len(getattr(trace, table)) for table in _RECORDED_TABLES)


def _nothing(failures: list[str]) -> UsageError | InputError:
    """Why there is nothing to analyse."""
    if not failures:
        return UsageError("nothing to analyze was given: name a trace, a folder or a glob pattern")
    return InputError(failures[0] if len(failures) == 1 else f"no trace could be read: {'; '.join(failures)}")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _holds_samples(path: Path) -> bool:
    return _is_folder(path) and any(path.glob(f"*{SAMPLES_SUFFIX}"))


def find_traces(source: PathLike) -> list[Path]:
    """The trace files that a path, folder or glob pattern names, in order of name.

    Raises `InputError` when it names none.
    """
    path = Path(source)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except (OSError, ValueError) as error:  # a name too long, a loop of links, a null character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(source)[:200]!r}: cannot be read ({reason})") from None
    if mode is not None and stat.S_ISDIR(mode):
        found = sorted(entry for entry in path.rglob("*") if entry.is_file() and looks_like_trace(entry))
        if not found:
            raise InputError(f"{path}: no traces in this folder (looked for *.json, *.json.gz and *.pt.trace)")
        return found
    if mode is not None or not glob.has_magic(str(source)):
        return [path]
    found = sorted(Path(match) for match in glob.iglob(str(source), recursive=True))  # noqa: PTH207 - pathlib has no absolute globs
    traces = [entry for entry in found if entry.is_file()]
    if not traces:
        raise InputError(f"{source}: no file matches")
    return traces


def looks_like_trace(path: Path) -> bool:
    """Whether a file in a folder is taken for a trace by its name: not what whystall itself writes beside traces."""
    other = path.name in _NOT_TRACES or path.name.endswith(DESCRIPTION_SUFFIX) or path.name.startswith(".")
    return path.name.endswith(_TRACE_SUFFIXES) and not other


@dataclass(frozen=True, slots=True)
class _Signal:
    """A signal of a recording and how to switch it on."""

    key: str
    missing: str


_WANTED_SIGNALS: Final = (
    _Signal("device_events", "device events (ProfilerActivity.CUDA; none are expected on a CPU job)"),
    _Signal("launch_calls", "launch calls (CUDA runtime events)"),
    _Signal("operators", "operators (ProfilerActivity.CPU)"),
    _Signal("steps", "step marks (profiler.step() after each iteration)"),
    _Signal("shapes", "operator shapes (record_shapes=True)"),
    _Signal("python_stacks", "Python stacks (with_stack=True)"),
    _Signal("modules", "modules (with_modules=True and with_stack=True)"),
    _Signal("memory", "memory events (profile_memory=True)"),
    _Signal("sync_events", "synchronisation events (_ExperimentalConfig(enable_cuda_sync_events=True))"),
)
_ONLY_WITH_A_DEVICE: Final = ("launch_calls", "sync_events")


def _report(
    traces: Sequence[Trace],
    analyses: Sequence[TraceAnalysis],
    runs: list[RunSummary],
    problems: Sequence[str],
    verdict: Verdict,
    workload: Workload | None = None,
) -> Report:
    devices = [device for analysis in analyses for device in analysis.devices]
    sizes = {trace.metadata.world_size for trace in traces if trace.metadata.world_size is not None}
    rated, unrated = job_throughput(workload, analyses, runs, world_size=max(sizes, default=None))
    warnings = [*problems, *unrated, *_warnings(traces)]
    return Report(
        whystall=__version__,
        verdict=verdict,
        source=_source(traces, analyses, warnings),
        devices=devices,
        kernels=[row for analysis in analyses for row in analysis.kernels],
        kernel_families=[row for analysis in analyses for row in analysis.kernel_families],
        operators=[row for analysis in analyses for row in analysis.operators],
        modules=[row for analysis in analyses for row in analysis.modules],
        phases=[row for analysis in analyses for row in analysis.phases],
        communication=[row for analysis in analyses for row in analysis.communication],
        input=[row for analysis in analyses for row in analysis.input],
        host=Host(
            threads=[row for analysis in analyses for row in analysis.host.threads],
            calls=[row for analysis in analyses for row in analysis.host.calls],
        ),
        memory=[row for analysis in analyses for row in analysis.memory],
        efficiency=msgspec.structs.replace(
            _efficiency(verdict, [row for analysis in analyses for row in analysis.efficiency]),
            throughput=rated,
        ),
        timelines=[row for analysis in analyses for row in analysis.timelines],
        kernel_chains=[row for analysis in analyses for row in analysis.chains],
        kernel_origins=[row for analysis in analyses for row in analysis.origins],
        run=runs,
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


def _warnings(traces: Sequence[Trace]) -> list[str]:
    prefix = len(traces) > 1
    return [f"{trace.name}: {warning}" if prefix else warning for trace in traces for warning in trace.source.warnings]


def _source(traces: Sequence[Trace], analyses: Sequence[TraceAnalysis], warnings: list[str]) -> Source:
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
    missing = [
        signal.missing
        for signal in _WANTED_SIGNALS
        if not signals.get(signal.key, True) and not (on_cpu and signal.key in _ONLY_WITH_A_DEVICE)
    ]
    sizes = {trace.metadata.world_size for trace in traces if trace.metadata.world_size is not None}
    return Source(
        files=read,
        framework=_framework(traces),
        ranks=sorted(analysis.rank for analysis in analyses),
        world_size=max(sizes, default=None),
        events=sum(trace.source.events for trace in traces),
        dropped=dropped,
        warnings=warnings,
        missing_signals=missing,
        signals=signals,
    )


def _framework(traces: Sequence[Trace]) -> str:
    versions = sorted({trace.metadata.versions.get("pytorch_version", "") for trace in traces} - {""})
    return f"pytorch {', '.join(versions)}" if versions else "pytorch"
