"""The public functions: load, analyse, compare, render. Here is only how the parts are put together."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import msgspec

from whystall._inputs import installed_rules, read_kernel_classes, read_run_facts, stood_still
from whystall.analysis.run_summary import run_summaries
from whystall.analysis.supply import input_supply
from whystall.analysis.throughput import Workload
from whystall.diagnosis.comparison import Comparison, compare_reports
from whystall.diagnosis.diagnose import diagnose_run
from whystall.diagnosis.run_facts import RunFacts
from whystall.diagnosis.summarised import Summarised
from whystall.fleet.engines import engine_named
from whystall.fleet.ranks import Ranks, read_ranks
from whystall.fleet.summarise import in_manner
from whystall.hardware.calibration import calibration_folder, read_calibrations
from whystall.report import registry
from whystall.report.build import build_report
from whystall.report.registry import Options
from whystall.report.schema import Report
from whystall.report.sections.extensions import installed_sections
from whystall.report.sections.run import changed_paces
from whystall.run_folder.told import told
from whystall.trace.cache import default_folder
from whystall.trace.discovery import PathLike
from whystall.trace.files import Limits, Progress
from whystall.trace.load import load_trace
from whystall.trace.model import Trace
from whystall.trace.recordings import Sources


def load(
    path: PathLike, *, cache: bool = True, limits: Limits | None = None, progress: Progress | None = None
) -> Trace:
    """The trace in a file, as linked Polars tables.

    Raises `whystall.errors.InputError` when there is no readable trace.

    >>> import whystall
    >>> trace = whystall.load(whystall.demo_recording())
    >>> trace.operators["duration_ns"].min() >= 0
    True
    """
    return load_trace(Path(path), cache=cache, limits=limits, progress=progress)


def demo_recording() -> Path:
    """The small recording that ships with whystall: a few steps of a GPT on a CPU."""
    return Path(str(files("whystall") / "demo" / "recording.json.gz"))


def analyze(
    sources: Sources,
    *,
    cache: bool = True,
    kernel_classes: PathLike | None = None,
    calibrate: bool = True,
    workload: Workload | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    engine: str | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
) -> Report:
    """The report on traces: files, folders, glob patterns, addresses, or traces that are loaded already.

    ``calibrate`` lets what `whystall probe` measured on this machine fill gaps in the table of accelerators; the report
    says where it did. ``workload`` is what a step works through, for a rating by throughput. ``limits`` are other
    bounds on what is read of a file (`whystall.trace.files.NO_LIMITS` for files that are trusted).

    More than 16 ranks, or more than fit in memory, are summarised one by one in ``workers`` processes (by default one
    for each core), then at most 8 of them, or a whole pipeline, are looked at together; ``engine`` is what runs the
    processes (``local`` or ``ray``, alone or on the cluster at ``ray_address``) and makes few ranks go the same way.

    Each file is a rank of its own. Windows of one process are one recording of all their steps; of other recordings of
    one rank, and of a watched run's windows, only the latest counts. A file that is left out, holds no event or cannot
    be read is named in ``report.source.warnings``; when none is left `whystall.errors.InputError` is raised.

    >>> import whystall
    >>> report = whystall.analyze(whystall.demo_recording())
    >>> device = report.devices[0]
    >>> device.ledger.total_ns == device.window_ns
    True
    """
    unusable: list[str] = []
    classes = read_kernel_classes(kernel_classes, unusable)
    calibrations, ignored = read_calibrations(calibration_folder(default_folder())) if calibrate else ([], [])
    found = read_ranks(
        sources,
        in_manner(classes, calibrations, limits),
        engine_named(engine, workers=workers, address=ray_address),
        cache=cache,
        by_engine=engine is not None or ray_address is not None,
        progress=progress,
    )
    facts = read_run_facts(found.folders, found.failures, remedies=calibrate)
    return _report(found, facts, workload, unusable, ignored)


def _report(
    found: Ranks, facts: RunFacts, workload: Workload | None, unusable: list[str], ignored: Sequence[str]
) -> Report:
    """The diagnosis of what was read, as a report; ``unusable`` and ``ignored`` are sentences on what was not used."""
    runs = run_summaries(found.samples)
    more_rules = installed_rules(unusable)
    failures = [*found.failures, *unusable]
    of_runs = [sentence for folder in found.folders for sentence in (*told(folder), *stood_still(folder, failures))]
    verdict, diagnosis = diagnose_run(
        found.traces,
        found.analyses,
        runs,
        facts,
        more_rules=more_rules,
        warnings=[*of_runs, *failures],
        others=Summarised(
            ranks=len(found.others),
            devices=[device for other in found.others for device in other.summary.devices],
            attended=found.attended,
        ),
    )
    report = build_report(
        found.traces,
        found.analyses,
        runs,
        verdict,
        diagnosis,
        experiments=facts.experiments,
        problems=[
            *of_runs,
            *changed_paces(runs),
            *failures,
            *found.notes,
            *ignored,
            *diagnosis.failures,
        ],
        workload=workload,
        others=found.others,
    )
    of_job = msgspec.structs.replace(report.source, command=facts.command, began_unix_ns=facts.began_unix_ns)
    return msgspec.structs.replace(
        report,
        source=of_job,
        environment=facts.environment,
        samples_per_step=facts.samples_per_step,
        supply=input_supply(runs, facts.samples_per_step, facts.loaders),
        job=facts.job,
        given=min(found.analyses, key=lambda one: one.rank).given if found.analyses else [],
    )


def render(
    report: Report,
    format: str,  # noqa: A002 - the word that users know
    *,
    width: int = 100,
    colour: bool = False,
    verbose: bool = False,
    root: str | None = None,
) -> str:
    """The report in one of ``whystall.report.registry.FORMATS``, with the sections that installed packages add.

    ``width``, ``colour`` and ``verbose`` are for the terminal; ``root`` is the folder that SARIF names code relative
    to. Raises `whystall.errors.UsageError` for other formats.
    """
    options = Options(width=width, colour=colour, verbose=verbose, root=root, more_sections=installed_sections())
    return registry.render(report, format, options)


def compare(
    base: PathLike | Report,
    candidate: PathLike | Report,
    *,
    again: Sequence[tuple[PathLike | Report, PathLike | Report]] = (),
    cache: bool = True,
    progress: Progress | None = None,
) -> Comparison:
    """The changes between two runs, given as reports or as inputs of `analyze`.

    ``again`` are further pairs of runs of the same two, which measure the noise between equal runs.

    >>> import whystall
    >>> comparison = whystall.compare(whystall.demo_recording(), whystall.demo_recording())
    >>> comparison.speedup
    1.0
    """

    def read(side: PathLike | Report) -> Report:
        return side if isinstance(side, Report) else analyze(side, cache=cache, progress=progress)

    names = ["" if isinstance(side, Report) else str(side) for side in (base, candidate)]
    return compare_reports(
        read(base),
        read(candidate),
        (names[0] or "base", names[1] or "candidate"),
        [(read(one), read(other)) for one, other in again],
    )
